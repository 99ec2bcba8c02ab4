package row_test

import (
	"time"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/model/explore"
	"github.com/agentoutbox/drainer/model/row"
)

// move takes a step of the model in the outbox. w is the worker whose step it is. For other steps, w means nothing.
type move func(i *intent, w int, from, to row.State)

// moves has the move of each step, by the text of the step.
var moves = map[string]move{
	"claims":                        (*intent).claims,
	"claims, and the reply is lost": (*intent).claimsUnheard,
	"claims it with another row":    (*intent).claimsBoth,

	"gives it back unsent":                         (*intent).ends,
	"must not send it any more":                    (*intent).ends,
	"cannot send it":                               (*intent).ends,
	"sends it":                                     (*intent).sends,
	"asks, and it was applied":                     (*intent).ends,
	"asks, and it was not applied":                 (*intent).ends,
	"asks, and gets no evidence":                   (*intent).ends,
	"asks for the last time, and gets no evidence": (*intent).asksLast,
	"hears that it is applied":                     (*intent).ends,
	"gets no reply although it is applied":         (*intent).ends,
	"hears a refusal":                              (*intent).ends,
	"hears that there is no room":                  (*intent).ends,
	"hears that its credentials are refused":       (*intent).ends,
	"hears that it is forbidden":                   (*intent).ends,
	"hears that an earlier request is under way":   (*intent).ends,
	"hears nothing, for the request was lost":      (*intent).ends,
	"stops waiting, and the request goes on":       (*intent).ends,

	"settles":                                      (*intent).settles,
	"settles, and the reply is lost":               (*intent).settlesUnheard,
	"settles the other row":                        (*intent).settlesTheRest,
	"gives back a claim whose commit had no reply": (*intent).reclaims,

	"freezes, and is declared dead": (*intent).freezes,
	"crashes":                       (*intent).crashes,
	"finds that it is declared dead, and starts over": (*intent).findsItself,
	"locks the claim of a dead worker":                inOneTransaction,
	"settles as lost what it locked":                  (*intent).reaps,
	"dies, and its lock with it":                      inOneTransaction,

	"decides to retry":              inOneTransaction,
	"decides to accept a duplicate": inOneTransaction,
	"decides to cancel":             inOneTransaction,
	"finds the effect":              inOneTransaction,
	"finds that there is no effect": inOneTransaction,
	"retries":                       changes(operator.Retry{}),
	"retries with --may-duplicate":  changes(operator.Retry{MayDuplicate: true}),
	"cancels":                       changes(operator.Cancel{}),
	"resolves it as completed":      changes(operator.Resolve{As: dispatch.StatusCompleted}),
	"resolves it as failed":         changes(operator.Resolve{As: dispatch.StatusFailed}),

	"loses all commits since the enqueue": (*intent).loses,

	"applies an abandoned request":    elsewhere,
	"never gets an abandoned request": elsewhere,
	"forgets the key":                 elsewhere,
	"ends the wait for earlier sends": (*intent).becomesDue,
	"passes half of the key's life":   (*intent).ages,
}

// elsewhere is the move of a step that no outbox sees.
func elsewhere(*intent, int, row.State, row.State) {}

// inOneTransaction is the move of a step that the outbox takes later, together with the step that commits.
func inOneTransaction(*intent, int, row.State, row.State) {}

// workerOf returns the worker whose step it is, or the first one if it is no worker's.
func workerOf(step explore.Step[row.State]) int {
	if step.Who == "worker 2" {
		return 1
	}
	return 0
}

// take takes one step, and then settles in vain. The model has no step for that, because it makes no difference.
func (i *intent) take(from row.State, step explore.Step[row.State]) {
	i.T.Helper()
	next, known := moves[step.What]
	if !known {
		i.T.Fatalf("the outbox has no move for: %s", step)
	}
	next(i, workerOf(step), from, step.To)
	i.settleInVain(step.To)
}

// settleInVain settles for workers whose row the model has forgotten.
func (i *intent) settleInVain(now row.State) {
	i.T.Helper()
	for w, worker := range i.workers {
		if worker.row == nil || now.Workers[w].Phase != row.Idle {
			continue
		}
		if i.Settle(worker.id, i.end(worker.row, worker.started, dispatch.Rejected), true) {
			i.T.Fatalf("worker %d has lost its row, and its settlement counts", w+1)
		}
		worker.row = nil
	}
}

func (i *intent) claim(w, limit int) []*drainer.Row {
	i.T.Helper()
	return i.Claim(i.workers[w].id, i.provider, limit).Rows
}

func (i *intent) claims(w int, from, to row.State) {
	i.T.Helper()
	i.holds(w, i.claim(w, 1), from, to)
}

func (i *intent) claimsBoth(w int, from, to row.State) {
	i.T.Helper()
	other := i.commit("beside it")
	held := i.claim(w, 2)
	if len(held) == 2 && held[0].IntentID == other {
		held[0], held[1] = held[1], held[0]
	}
	i.holds(w, held, from, to)
	i.workers[w].other = held[1]
}

// holds checks that a worker got the rows that the model gives it.
func (i *intent) holds(w int, held []*drainer.Row, from, to row.State) {
	i.T.Helper()
	if len(held) == 0 || held[0].IntentID != i.id {
		i.T.Fatalf("it got %d rows, and not this one first", len(held))
	}
	got := held[0]
	past := counted(row.Past{Tries: int8(got.Tries), Sent: ageOf(got), Maybe: got.MaybeApplied, Lookup: got.Lookup}, row.LookupTries+1)
	if want := to.Workers[w].Past; past != want {
		i.T.Fatalf("it got %+v, want %+v", past, want)
	}
	got.Tries = int(past.Tries)
	i.workers[w].row, i.workers[w].started = got, time.Time{}
	i.occupy(got.ClaimID, from, to)
}

func ageOf(held *drainer.Row) row.Age {
	switch {
	case held.FirstAttemptAt == nil:
		return row.Never
	case held.SinceFirstSend < 6*time.Hour:
		return row.Fresh
	}
	return row.Old
}

// occupy assigns a claim to the slot that the model has just taken.
func (i *intent) occupy(claim int64, from, to row.State) {
	for slot := range i.slots {
		if from.Claims[slot].Owner == row.NoOwner && to.Claims[slot].Owner != row.NoOwner {
			i.slots[slot] = claim
		}
	}
}

func (i *intent) claimsUnheard(w int, from, to row.State) {
	i.T.Helper()
	held := i.claim(w, 1)
	if len(held) != 1 {
		i.T.Fatalf("it got %d rows, want one", len(held))
	}
	i.occupy(held[0].ClaimID, from, to)
}

func (i *intent) sends(w int, _, _ row.State) { i.workers[w].started = time.Now() }

func (i *intent) ends(int, row.State, row.State) {}

func (i *intent) asksLast(w int, _, _ row.State) { i.workers[w].row.Tries = row.LastTry }

func (i *intent) settles(w int, from, to row.State) {
	i.T.Helper()
	i.settlesUnheard(w, from, to)
	i.settlesAgain(w, from)
	i.workers[w].row = nil
}

func (i *intent) settlesUnheard(w int, from, _ row.State) {
	i.T.Helper()
	claim := from.Workers[w].Claim
	wants := claim != 0 && !from.Claims[claim-1].Settled
	if counts := i.tells(w, from); counts != wants {
		i.T.Fatalf("its settlement counts: %t, want %t", counts, wants)
	}
}

// settlesAgain settles a second time, as a worker does that got no reply.
func (i *intent) settlesAgain(w int, from row.State) {
	i.T.Helper()
	if i.tells(w, from) {
		i.T.Fatal("its settlement counts twice")
	}
}

func (i *intent) tells(w int, from row.State) bool {
	i.T.Helper()
	told := from.Workers[w]
	finishes := told.Claim != 0 && !from.Claims[told.Claim-1].Rest
	return i.Settle(i.workers[w].id, i.end(i.workers[w].row, i.workers[w].started, told.Outcome.Is()), finishes)
}

func (i *intent) settlesTheRest(w int, from, _ row.State) {
	i.T.Helper()
	other := i.workers[w].other
	slot := i.slotOf(other.ClaimID)
	if !i.Settle(i.workers[w].id, i.end(other, time.Now(), dispatch.Completed), from.Claims[slot].Settled) {
		i.T.Fatal("the settlement of the other row does not count")
	}
}

func (i *intent) reclaims(w int, from, _ row.State) {
	i.T.Helper()
	var remembered []int64
	var forgotten int64
	for slot, claim := range from.Claims {
		switch {
		case claim.Owner != row.Owner(w+1):
		case claim.Known:
			remembered = append(remembered, i.slots[slot])
		default:
			forgotten = i.slots[slot]
		}
	}
	given, err := i.Store.Reclaim(i.T.Context(), i.workers[w].id, i.provider, i.provider, remembered, i.judge(forgotten, dispatch.Released))
	if err != nil || len(given) != 1 {
		i.T.Fatalf("it gives back %d rows, %v; want one", len(given), err)
	}
}

func (i *intent) freezes(w int, _, _ row.State) { i.DeclareDead(i.workers[w].id) }

func (i *intent) crashes(w int, _, _ row.State) {
	i.DeclareDead(i.workers[w].id)
	i.startOver(w)
}

func (i *intent) findsItself(w int, _, _ row.State) {
	i.T.Helper()
	alive, err := i.Store.Beat(i.T.Context(), i.workers[w].id)
	if err != nil || alive {
		i.T.Fatalf("it is alive: %t, %v", alive, err)
	}
	i.startOver(w)
}

// reaps recovers the rows that one claim still held.
func (i *intent) reaps(_ int, from, to row.State) {
	i.T.Helper()
	for slot, claim := range from.Claims {
		if claim.Owner == row.NoOwner || to.Claims[slot].Owner != row.NoOwner {
			continue
		}
		recovered, err := i.Store.Reap(i.T.Context(), []string{i.provider}, i.judge(i.slots[slot], dispatch.Lost))
		if err != nil || len(recovered) != unsettled(claim) {
			i.T.Fatalf("%d rows were recovered, %v; want %d", len(recovered), err, unsettled(claim))
		}
	}
}

func unsettled(claim row.Claim) (rows int) {
	for _, isUnsettled := range []bool{!claim.Settled, claim.Rest} {
		if isUnsettled {
			rows++
		}
	}
	return rows
}

func changes(action operator.Action) move {
	return func(i *intent, _ int, _, _ row.State) {
		i.T.Helper()
		i.Change(i.configured(action), i.id)
	}
}

func (i *intent) configured(action operator.Action) operator.Action {
	if retry, is := action.(operator.Retry); is {
		retry.PolicyOf = func(string, string) (dispatch.Policy, bool) { return i.policy, true }
		return retry
	}
	return action
}

func (i *intent) becomesDue(int, row.State, row.State) {
	i.Exec(`UPDATE outbox.queue SET next_attempt_at = now() WHERE intent_id = $1`, i.id)
}

// loses sets the tables back to the enqueue, as in a copy of the database. An operator accepts that history.
func (i *intent) loses(int, row.State, row.State) {
	i.T.Helper()
	i.Exec(`DELETE FROM outbox.claim WHERE provider = $1`, i.provider)
	i.Exec(`DELETE FROM outbox.queue WHERE intent_id = $1`, i.id)
	i.Exec(`DELETE FROM outbox.attempt WHERE intent_id = $1`, i.id)
	i.Exec(`DELETE FROM outbox.incident WHERE intent_id = $1`, i.id)
	i.Exec(`INSERT INTO outbox.queue (provider, next_attempt_at, intent_id, agent_run_id, bytes, era)
		SELECT provider, created_at, id, agent_run_id, payload_bytes, $2 FROM outbox.intent WHERE id = $1`, i.id, i.era)
	i.Exec(`UPDATE outbox.history SET table_oid = 0`)
	i.startOver(0)
	i.Exec(`SELECT outbox.accept_history(max(id), false, 'operator:on-call', 'restored') FROM outbox.history`)
	i.startOver(1)
}

// ages moves every time stamp back by half of the key's life.
func (i *intent) ages(int, row.State, row.State) {
	i.T.Helper()
	const half = 12 * time.Hour
	i.Exec(`UPDATE outbox.intent SET created_at = created_at - $2::interval WHERE id = $1`, i.id, half)
	i.Exec(`UPDATE outbox.queue SET first_attempt_at = first_attempt_at - $2::interval WHERE intent_id = $1`, i.id, half)
	i.Exec(`UPDATE outbox.attempt SET started_at = started_at - $2::interval WHERE intent_id = $1`, i.id, half)
	i.Exec(`UPDATE outbox.claim SET claimed_at = claimed_at - $2::interval, first_attempt_ats = ARRAY(
		SELECT f - $2::interval FROM unnest(first_attempt_ats) WITH ORDINALITY AS u (f, n) ORDER BY n) WHERE provider = $1`, i.provider, half)
	for _, worker := range i.workers {
		if worker.row == nil {
			continue
		}
		worker.started = set(worker.started, half)
		worker.row.ClaimedAt = set(worker.row.ClaimedAt, half)
		if worker.row.FirstAttemptAt != nil {
			first := worker.row.FirstAttemptAt.Add(-half)
			worker.row.FirstAttemptAt = &first
		}
	}
}

// set moves a time back, unless the time is not set yet.
func set(at time.Time, by time.Duration) time.Time {
	if at.IsZero() {
		return at
	}
	return at.Add(-by)
}
