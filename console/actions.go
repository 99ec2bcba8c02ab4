package console

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/drainer/operator"
)

// action is a change in two steps. The first form shows the effect on each row. The second form requires a reason,
// and changes only rows that the first form showed.
type action struct {
	path string
	verb string // the text of the button
	// propose describes the effect, and changes nothing.
	propose func(ctx context.Context, on *operator.Console, form url.Values) ([]line, error)
	// carryOut makes the change and describes it.
	carryOut func(ctx context.Context, on *operator.Console, form url.Values, by operator.Signature) ([]line, error)
	// ofIntents allows the action for all intents of a filter, up to mostRows.
	ofIntents bool
	// ofTool marks an action that may cause a second effect. The second form then asks for the tool's name.
	ofTool bool
	asks   question
}

// question is an additional input of the second form; without a Name there is none. For intents, an answer is
// allowed only for a single intent.
type question struct {
	Name  string
	Label string
}

// line describes the change of one thing.
type line struct {
	Subject string `json:"subject"`
	Link    string `json:"-"`
	Tool    string `json:"tool,omitempty"`
	Run     string `json:"run,omitempty"`
	Before  string `json:"before"`
	After   string `json:"after"`
	Refused string `json:"refused,omitempty"` // why nothing changes
	Stays   bool   `json:"stays,omitempty"`   // it does not change, and is listed because it belongs to the changed thing
}

// actionsBy returns all actions. Retries use the configured policies.
func actionsBy(policyOf func(provider, operation string) (dispatch.Policy, bool)) []action {
	return []action{
		onIntents("/intents/retry", "Retry", operator.Retry{PolicyOf: policyOf}),
		ofOneTool("/intents/retry-may-duplicate", "Retry, may duplicate", operator.Retry{PolicyOf: policyOf, MayDuplicate: true}),
		ofOneTool("/intents/retry-new-key-may-duplicate", "Retry under a new key, may duplicate", operator.Retry{PolicyOf: policyOf, NewKey: true, MayDuplicate: true}),
		sendNow("/intents/forward", "Send now"),
		onIntents("/intents/cancel", "Cancel", operator.Cancel{}),
		onIntents("/intents/retry-new-key", "Retry under a new key", operator.Retry{PolicyOf: policyOf, NewKey: true}),
		resolveCompleted("/intents/resolve-completed", "Resolve as completed"),
		onIntents("/intents/resolve-failed", "Resolve as failed", operator.Resolve{As: dispatch.StatusFailed}),
		{path: "/incidents/acknowledge", verb: "Acknowledge", propose: proposeAcknowledgement, carryOut: acknowledge},
		acceptHistory("/history/accept", "Accept that commits may be lost", false),
		acceptHistory("/history/accept-lossless", "Accept that no commit was lost", true),
		gate("/providers/pause", "Pause", true),
		gate("/providers/resume", "Resume", false),
		onRun("/runs/roll-back", "Roll back", operator.RollBackRun, (*operator.Console).Compensate),
		onRun("/runs/cancel", "Cancel", operator.CloseRun, cancelRun),
		retrySaga("/sagas/retry", "Retry the rollback of", false),
		retrySaga("/sagas/retry-new-key", "Retry under new keys the rollback of", true),
		onRun("/sagas/resolve", "End the rollback of", operator.EndSaga, (*operator.Console).ResolveSaga),
	}
}

type confirmation struct {
	Verb     string         `json:"verb"`
	Path     string         `json:"-"`
	Form     url.Values     `json:"-"`     // the fields of the second form, unless Rows replaces them
	Rows     string         `json:"rows"`  // the ids of the form, packed, if there are many
	Lines    []line         `json:"lines"` // the first mostLines of them
	More     int            `json:"more_lines"`
	Refusals map[string]int `json:"refusals"`
	Changes  int            `json:"changes"`
	Stay     int            `json:"stay"`
	Refused  int            `json:"refused"`
	AtMost   int            `json:"at_most,omitempty"`   // the limit of a change, if it was reached: more rows may match
	Looked   int            `json:"looked_at,omitempty"` // set if older intents were not looked at, although they may match
	OfTool   bool           `json:"asks_for_tool,omitempty"`
	Asks     question       `json:"-"`
	Done     bool           `json:"done"`
	Shown    string         `json:"shown,omitempty"` // when this was read; the second form sends it, and rows that changed since are refused
}

// tell counts the lines, and keeps the first mostLines.
func (c *confirmation) tell(lines []line) {
	c.Refusals = map[string]int{}
	for _, line := range lines {
		switch {
		case line.Refused != "":
			c.Refused++
			c.Refusals[line.Refused]++
		case line.Stays:
			c.Stay++
		default:
			c.Changes++
		}
	}
	c.Lines = lines[:min(mostLines, len(lines))]
	c.More = len(lines) - len(c.Lines)
}

func (s *server) action(action action) change {
	return func(w http.ResponseWriter, r *http.Request, who Person) {
		if err := r.ParseForm(); err != nil {
			s.fail(w, r, errUnreadable)
			return
		}
		form := url.Values{"of": r.PostForm["of"], "typed": r.PostForm["typed"], "shown": r.PostForm["shown"]}
		if r.PostForm.Has("all") || r.PostForm.Has("bulk") {
			form.Set("bulk", "1") // a filter chose the rows
		}
		if action.asks.Name != "" {
			form[action.asks.Name] = r.PostForm[action.asks.Name]
		}
		told := confirmation{Verb: action.verb, Path: action.path, Form: form, OfTool: action.ofTool, Asks: action.asks, Done: r.PostForm.Has("reason")}
		var err error
		if action.ofIntents && r.PostForm.Has("rows") {
			if form["of"], err = unpack(r.PostForm.Get("rows")); err != nil {
				s.fail(w, r, err)
				return
			}
		}
		by := operator.Signature{Operator: who.Name, Reason: r.PostForm.Get("reason")}
		if action.ofIntents && len(form["of"]) > 1 && form.Get(action.asks.Name) != "" {
			s.fail(w, r, refused("a provider's reference belongs to one intent; change these without it, or one by one"))
			return
		}
		if told.Done && action.ofIntents && len(form["of"]) > chunk {
			s.inChunks(w, r, action, form, by)
			return
		}
		var lines []line
		if told.Done {
			err = s.connected(r.Context(), s.Pool, func(ctx context.Context, conn *pgx.Conn) error {
				lines, err = action.carryOut(ctx, operator.Open(conn), form, by)
				return err
			})
		} else {
			err = s.read(r.Context(), s.Pool, func(ctx context.Context, on *operator.Console) error {
				if action.ofIntents && r.PostForm.Has("all") {
					var bounded bool
					if form["of"], bounded, err = matching(ctx, on, r.PostForm); err != nil {
						return err
					}
					switch {
					case len(form["of"]) == mostRows:
						told.AtMost = mostRows
					case bounded && len(form["of"]) == 0:
						return refused(fmt.Sprintf("none of the newest %s intents that were looked at matches, and older ones were not looked at; narrow the filter", group(operator.MostLooked)))
					case bounded:
						told.Looked = operator.MostLooked
					}
				}
				shown, err := on.Now(ctx)
				if err != nil {
					return err
				}
				told.Shown = shown.Format(time.RFC3339Nano)
				form.Set("shown", told.Shown)
				lines, err = action.propose(ctx, on, form)
				return err
			})
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		told.tell(lines)
		if action.ofIntents && len(form["of"]) > 1 {
			told.Asks = question{}
		}
		if !told.Done && action.ofIntents && len(form["of"]) > mostLines {
			ids, err := subjects(form)
			if err != nil {
				s.fail(w, r, err)
				return
			}
			told.Rows = pack(ids)
		}
		s.show(w, r, http.StatusOK, "confirm", action.verb, told)
	}
}

// inChunks starts a change of many rows, and redirects to the page with its progress.
func (s *server) inChunks(w http.ResponseWriter, r *http.Request, action action, form url.Values, by operator.Signature) {
	if err := by.Validate(); err != nil {
		s.fail(w, r, err)
		return
	}
	begun, err := s.changes.begin(action.verb, by, len(form["of"]))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	go s.carryOut(r.Context(), begun, action, form, by)
	http.Redirect(w, r, "/changes/"+begun.ID, http.StatusSeeOther)
}

// subjects returns the ids in a form, sorted and without duplicates.
func subjects(form url.Values) ([]int64, error) {
	var ids []int64
	for _, text := range form["of"] {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, problem{http.StatusBadRequest, "Not understood", "the form names something that is no number"}
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	switch {
	case len(ids) == 0:
		return nil, refused("nothing was chosen; mark a row first")
	case len(ids) > mostRows:
		return nil, refused(fmt.Sprintf("more than %s rows were chosen; change them in parts", group(mostRows)))
	}
	return ids, nil
}

// onIntents returns an action on the marked intents.
func onIntents(path, verb string, change operator.Action) action {
	lines := func(verdicts []operator.Verdict, err error) ([]line, error) {
		all := make([]line, len(verdicts))
		for i, v := range verdicts {
			all[i] = line{
				Subject: fmt.Sprintf("intent %d", v.IntentID), Link: fmt.Sprintf("/intents/%d", v.IntentID),
				Tool: v.ToolName, Run: v.AgentRunID, Before: v.Before, After: v.After, Refused: v.Refused,
			}
			switch {
			case strings.HasSuffix(v.Outcome, "_may_duplicate"):
				all[i].After += ", and may happen twice"
			case v.Outcome == "brought_forward":
				all[i].After += ", due now"
			}
		}
		return all, err
	}
	return action{path: path, verb: verb, ofIntents: true, propose: func(ctx context.Context, on *operator.Console, form url.Values) ([]line, error) {
		ids, err := subjects(form)
		if err != nil {
			return nil, err
		}
		return lines(on.Preview(ctx, change, ids))
	}, carryOut: func(ctx context.Context, on *operator.Console, form url.Values, by operator.Signature) ([]line, error) {
		ids, err := subjects(form)
		if err != nil {
			return nil, err
		}
		at, err := shownAt(form)
		switch {
		case err != nil:
			return nil, err
		case at.IsZero():
			return lines(on.Change(ctx, change, by, ids))
		}
		return lines(on.Change(ctx, operator.AsShown{Action: change, At: at}, by, ids))
	}}
}

// shownAt returns when the first step was shown. It is zero for a program that skipped the first step.
func shownAt(form url.Values) (at time.Time, err error) {
	if shown := form.Get("shown"); shown != "" {
		if at, err = time.Parse(time.RFC3339Nano, shown); err != nil {
			return time.Time{}, errUnreadable
		}
	}
	return at, nil
}

// ofOneTool returns a retry that may cause a second effect. All its intents must be of the tool whose name the
// operator types.
func ofOneTool(path, verb string, retry operator.Retry) action {
	asked := onIntents(path, verb, retry)
	asked.ofTool = true
	propose := asked.propose
	asked.propose = func(ctx context.Context, on *operator.Console, form url.Values) ([]line, error) {
		lines, err := propose(ctx, on, form)
		if slices.ContainsFunc(lines, func(l line) bool { return l.Tool != lines[0].Tool }) {
			return nil, refused("these intents are of several tools; choose those of one tool, because its name is to be typed")
		}
		return lines, err
	}
	asked.carryOut = func(ctx context.Context, on *operator.Console, form url.Values, by operator.Signature) ([]line, error) {
		typed := strings.TrimSpace(form.Get("typed"))
		named := retry
		named.Tool = &typed
		return onIntents(path, verb, named).carryOut(ctx, on, form, by)
	}
	return asked
}

// sendNow returns an action that makes intents due now. It ignores the time that the agent scheduled only for a
// single intent that no filter chose.
func sendNow(path, verb string) action {
	on := func(form url.Values) action {
		return onIntents(path, verb, operator.BringForward{Scheduled: len(form["of"]) == 1 && !form.Has("bulk")})
	}
	send := on(nil)
	send.propose = func(ctx context.Context, console *operator.Console, form url.Values) ([]line, error) {
		return on(form).propose(ctx, console, form)
	}
	send.carryOut = func(ctx context.Context, console *operator.Console, form url.Values, by operator.Signature) ([]line, error) {
		return on(form).carryOut(ctx, console, form, by)
	}
	return send
}

// resolveCompleted also takes the provider's reference, for a single intent.
func resolveCompleted(path, verb string) action {
	resolve := onIntents(path, verb, operator.Resolve{As: dispatch.StatusCompleted})
	resolve.asks = question{"provider_ref", "Reference at the provider, if you know it"}
	resolve.carryOut = func(ctx context.Context, on *operator.Console, form url.Values, by operator.Signature) ([]line, error) {
		named := operator.Resolve{As: dispatch.StatusCompleted, ProviderRef: strings.TrimSpace(form.Get("provider_ref"))}
		if err := named.Validate(); err != nil {
			return nil, refused(err.Error())
		}
		return onIntents(path, verb, named).carryOut(ctx, on, form, by)
	}
	return resolve
}

func proposeAcknowledgement(ctx context.Context, on *operator.Console, form url.Values) (lines []line, err error) {
	ids, err := subjects(form)
	if err != nil {
		return nil, err
	}
	would, err := on.PreviewAcknowledge(ctx, ids)
	for _, w := range would {
		lines = append(lines, line{
			Subject: strings.TrimSpace(fmt.Sprintf("incident %d %s", w.IncidentID, w.Kind)), Tool: deref(w.ToolName), Run: w.AgentRunID,
			Before: w.State, After: w.After, Refused: w.Refused,
		})
	}
	return lines, err
}

func acknowledge(ctx context.Context, on *operator.Console, form url.Values, by operator.Signature) (lines []line, err error) {
	ids, err := subjects(form)
	if err != nil {
		return nil, err
	}
	at, err := shownAt(form)
	if err != nil {
		return nil, err
	}
	done, err := on.Acknowledge(ctx, by, ids, at)
	if err != nil && len(done) > 0 {
		return nil, errors.Join(problem{
			http.StatusInternalServerError, "Stopped",
			fmt.Sprintf("it stopped after %d of %d incidents; see the console's log, and do it again", len(done), len(ids)),
		}, err)
	}
	for _, d := range done {
		lines = append(lines, line{Subject: fmt.Sprintf("incident %d %s", d.IncidentID, d.Kind), After: d.State, Refused: d.Refused})
	}
	return lines, err
}

// acceptHistory accepts only the change of history that the first form showed, and no later one.
func acceptHistory(path, verb string, lossless bool) action {
	after := "accepted: what was queued is looked up, repeated under its key, or unknown"
	if lossless {
		after = "accepted: nothing is in doubt"
	}
	return action{path: path, verb: verb, propose: func(ctx context.Context, on *operator.Console, form url.Values) ([]line, error) {
		histories, err := on.Histories(ctx)
		if err != nil || len(histories) == 0 {
			return nil, err
		}
		newest := histories[0]
		form.Set("of", strconv.Itoa(newest.History))
		proposed := line{Subject: fmt.Sprintf("history %d of the database", newest.History), After: after}
		if newest.Change != nil {
			proposed.Before = *newest.Change
		}
		if newest.Awaited > 0 {
			proposed.Before += fmt.Sprintf("; daemons that have yet to look for their commits: %d", newest.Awaited)
		}
		if newest.Lost {
			proposed.Before += "; a daemon misses commits"
		}
		switch {
		case newest.AcceptedBy != nil:
			proposed.Refused = "it is accepted already"
		case newest.Lost && lossless:
			proposed.Refused = operator.ErrLost.Error()
		}
		return []line{proposed}, nil
	}, carryOut: func(ctx context.Context, on *operator.Console, form url.Values, by operator.Signature) ([]line, error) {
		history, err := strconv.Atoi(form.Get("of"))
		if err != nil {
			return nil, errUnreadable
		}
		done := line{Subject: fmt.Sprintf("history %d of the database", history), After: after}
		accepted, err := on.AcceptHistory(ctx, history, lossless, by)
		if !accepted {
			done.Refused = "it was accepted before, or the database has changed once more"
		}
		return []line{done}, err
	}}
}

// gate returns the action that pauses or resumes a provider.
func gate(path, verb string, pauses bool) action {
	states := map[bool]string{true: "paused: no worker sends its rows", false: "sent to"}
	return action{path: path, verb: verb, propose: func(ctx context.Context, on *operator.Console, form url.Values) ([]line, error) {
		provider, err := on.Provider(ctx, form.Get("of"))
		if err != nil {
			return nil, err
		}
		proposed := line{Subject: "provider " + provider.Provider, Before: states[provider.Paused], After: states[pauses]}
		if provider.Paused == pauses {
			proposed.Refused = "it is so already"
		}
		return []line{proposed}, nil
	}, carryOut: func(ctx context.Context, on *operator.Console, form url.Values, by operator.Signature) ([]line, error) {
		set := on.Resume
		if pauses {
			set = on.Pause
		}
		changed, err := set(ctx, form.Get("of"), by)
		done := line{Subject: "provider " + form.Get("of"), After: states[pauses]}
		if !changed {
			done.Refused = "it was so already"
		}
		return []line{done}, err
	}}
}

// onRun returns an action on the run in the form.
func onRun(path, verb string, does operator.RunAction, change func(*operator.Console, context.Context, string, operator.Signature) error) action {
	return action{path: path, verb: verb + " run", propose: func(ctx context.Context, on *operator.Console, form url.Values) ([]line, error) {
		run := form.Get("of")
		would, err := on.PreviewRun(ctx, does, run)
		if err != nil {
			return nil, err
		}
		whole := line{Subject: "run", Link: runPath(run), Run: run, Before: would.Before, After: would.After, Refused: would.Refused}
		if would.First > 0 {
			whole.After += fmt.Sprintf("; steps after the first %d become what these do", would.First)
		}
		lines := []line{whole}
		for _, step := range would.Steps {
			subject := fmt.Sprintf("intent %d", step.IntentID)
			if step.IsUndo {
				subject += ", an undo"
			}
			lines = append(lines, line{
				Subject: subject, Link: fmt.Sprintf("/intents/%d", step.IntentID), Tool: step.ToolName,
				Before: step.Before, After: step.After, Refused: would.Refused, Stays: step.Before == step.After,
			})
		}
		return lines, nil
	}, carryOut: func(ctx context.Context, on *operator.Console, form url.Values, by operator.Signature) ([]line, error) {
		run := form.Get("of")
		if err := change(on, ctx, run, by); err != nil {
			return nil, err
		}
		return []line{{Subject: "run", Link: runPath(run), Run: run, After: does.After()}}, nil
	}}
}

func cancelRun(on *operator.Console, ctx context.Context, run string, by operator.Signature) error {
	_, err := on.CancelRun(ctx, run, false, by)
	return err
}

// retrySaga also takes the ids of steps that people undid by hand.
func retrySaga(path, verb string, newKeys bool) action {
	retry := onRun(path, verb, operator.GoOnWithSaga, nil)
	retry.asks = question{"undone", "Numbers of the intents that you undid by hand, if any"}
	retry.carryOut = func(ctx context.Context, on *operator.Console, form url.Values, by operator.Signature) ([]line, error) {
		var steps []int64
		for _, text := range strings.FieldsFunc(form.Get("undone"), func(r rune) bool { return r == ',' || r == ' ' }) {
			step, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return nil, refused(fmt.Sprintf("%q is no number of an intent; write numbers with commas between them", text))
			}
			steps = append(steps, step)
		}
		change := func(on *operator.Console, ctx context.Context, run string, by operator.Signature) error {
			return on.RetrySaga(ctx, run, steps, newKeys, by)
		}
		return onRun(path, verb, operator.GoOnWithSaga, change).carryOut(ctx, on, form, by)
	}
	return retry
}

const (
	// mostRows bounds the rows of one change.
	mostRows = operator.MaxSelection
	// chunk is the number of rows after which progress is recorded. Up to this number, the reader waits for the
	// change.
	chunk = 500
	// mostLines bounds the lines of a change that a page shows.
	mostLines = 50
	// mostChanges bounds the changes that are remembered. Beyond it, the oldest is forgotten.
	mostChanges = 20
	// bulkTimeout ends a change that the database cannot finish.
	bulkTimeout = 15 * time.Minute
)

// matching returns the intents of a form's filter, the newest first. If bounded is true, older intents were not
// looked at and may match, too.
func matching(ctx context.Context, from *operator.Console, form url.Values) (found []string, bounded bool, err error) {
	filter, err := filterOf(form)
	if err != nil {
		return nil, false, err
	}
	filter.Limit = chunk
	for {
		page, err := from.List(ctx, filter)
		if err != nil {
			return nil, false, err
		}
		for _, intent := range page.Intents {
			found = append(found, strconv.FormatInt(intent.IntentID, 10))
		}
		if len(found) >= mostRows || page.Below == 0 || page.Bounded {
			return found[:min(mostRows, len(found))], page.Bounded, nil
		}
		filter.Below = page.Below
	}
}

// pack encodes ids so that thousands fit into a form. So the second step changes the rows that the first step
// showed, even if the filter matches others by then.
func pack(ids []int64) string {
	var packed []byte
	last := int64(0)
	for _, id := range ids {
		packed = binary.AppendUvarint(packed, uint64(id-last))
		last = id
	}
	return base64.RawURLEncoding.EncodeToString(packed)
}

func unpack(text string) (ids []string, err error) {
	packed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, errUnreadable
	}
	last := int64(0)
	for len(packed) > 0 {
		distance, size := binary.Uvarint(packed)
		if size <= 0 || len(ids) == mostRows {
			return nil, errUnreadable
		}
		last, packed = last+int64(distance), packed[size:]
		ids = append(ids, strconv.FormatInt(last, 10))
	}
	return ids, nil
}

var errUnreadable = problem{http.StatusBadRequest, "Not understood", "the form cannot be read"}

// changes holds the changes of many rows since the console started.
type changes struct {
	mu  sync.Mutex
	all []*progress // the oldest first
}

// progress is a change of many rows and its progress.
type progress struct {
	ID       string         `json:"id"`
	Verb     string         `json:"verb"`
	By       string         `json:"by"`
	Reason   string         `json:"reason"`
	Total    int            `json:"total"`
	Changed  int            `json:"changed"`
	Refused  int            `json:"refused"`
	Refusals map[string]int `json:"refusals"` // how many for each reason
	BegunAt  time.Time      `json:"begun_at"`
	EndedAt  *time.Time     `json:"ended_at"`
	Stopped  string         `json:"stopped,omitempty"` // the reason, if it ended early
}

// Left returns how many rows remain.
func (p progress) Left() int { return p.Total - p.Changed - p.Refused }

// find returns a copy of a change.
func (c *changes) find(id string) (now progress, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.all, func(p *progress) bool { return p.ID == id })
	if at < 0 {
		return now, false
	}
	now = *c.all[at]
	now.Refusals = maps.Clone(now.Refusals)
	return now, true
}

// begin registers a change, unless another change of many rows is running.
func (c *changes) begin(verb string, by operator.Signature, total int) (*progress, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.all {
		if other.EndedAt == nil {
			return nil, problem{http.StatusConflict, "Not now", fmt.Sprintf("another change of many rows is under way, by %s: see /changes/%s", other.By, other.ID)}
		}
	}
	if len(c.all) == mostChanges {
		c.all = c.all[1:]
	}
	begun := &progress{
		ID: rand.Text(), Verb: verb, By: by.Operator, Reason: by.Reason, Total: total, Refusals: map[string]int{}, BegunAt: time.Now().UTC(),
	}
	c.all = append(c.all, begun)
	return begun, nil
}

// carryOut changes the rows chunk by chunk. If the console ends, the remaining rows stay unchanged.
func (s *server) carryOut(ctx context.Context, begun *progress, action action, form url.Values, by operator.Signature) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bulkTimeout)
	defer cancel()
	var err error
	for part := range slices.Chunk(form["of"], chunk) {
		var lines []line
		err = s.connected(ctx, s.Pool, func(ctx context.Context, conn *pgx.Conn) (err error) {
			lines, err = action.carryOut(ctx, operator.Open(conn), url.Values{"of": part, "typed": form["typed"], "shown": form["shown"], "bulk": {"1"}}, by)
			return err
		})
		s.changes.mu.Lock()
		for _, line := range lines {
			if line.Refused == "" {
				begun.Changed++
				continue
			}
			begun.Refused++
			begun.Refusals[line.Refused]++
		}
		s.changes.mu.Unlock()
		if err != nil {
			s.Log.Error("a change of many rows stopped", "change", begun.ID, "error", err)
			break
		}
	}
	s.changes.mu.Lock()
	defer s.changes.mu.Unlock()
	now := time.Now().UTC()
	begun.EndedAt = &now
	if err != nil {
		begun.Stopped = "the database did not take it; see the console's log, and do it again"
	} else if gone := begun.Left(); gone > 0 {
		begun.Refused += gone
		begun.Refusals["it is not there any more"] += gone
	}
}

func (s *server) change(w http.ResponseWriter, r *http.Request) {
	now, found := s.changes.find(r.PathValue("id"))
	if !found {
		s.fail(w, r, notFound("this console knows no such change; it may have been restarted since"))
		return
	}
	s.show(w, r, http.StatusOK, "change", now.Verb, now)
}
