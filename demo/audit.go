package demo

import (
	"context"
	_ "embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// facts holds the records of both sides, the outbox and the provider, before they are compared.
type facts struct {
	wanted    int             // intents that the agents wanted to commit
	trips     map[string]trip // trips that the agents wanted to take, by run
	intents   []intent        // also the undos, in the order of their commits
	sagas     []saga
	incidents []page
	pages     []page // the pages that arrived
	ledger    dispatchtest.Audit
	effects   []dispatchtest.Entry // in the ledger's order
	counts    counts
}

// intent is a committed intent. Its fields are in the order of sql/intents.sql.
type intent struct {
	ID       int64
	Undoes   int64 // the intent that this one undoes; 0 for an agent's own
	Run      string
	Step     string
	Key      string
	Status   string // empty before it is settled
	Answered bool   // the provider's response is stored
	Places   int    // in how many of queue, claim and settled it is
	HasState bool   // the agent's own state was committed with it
}

// isTrue reports whether an intent ended as planned, and had an effect exactly if its status says so. For an undo,
// only the effect is checked: its forward intent has the planned ending.
func (i intent) isTrue(ending string, effects int) bool {
	if i.Undoes == 0 && i.Status != ending {
		return false
	}
	switch i.Status {
	case string(dispatch.StatusCompleted), compensated, compensationFailed:
		return i.Answered && effects > 0
	}
	return effects == 0
}

// counts holds totals, in the order of sql/counts.sql.
type counts struct {
	States     int
	Attempts   int
	Retries    int
	Lost       int
	Released   int
	Duplicates int
	Collisions int
}

// Report is the audit. Fields are counts unless they say otherwise.
type Report struct {
	Passed             bool                       `json:"passed"`
	Violations         []string                   `json:"violations,omitempty"` // as sentences; empty if Passed
	Intents            int                        `json:"intents"`              // intents that agents committed
	Completed          int                        `json:"completed"`            // of these, the completed ones whose response is stored
	Effects            int                        `json:"effects"`              // in the provider's ledger, also of undos
	DuplicateEffects   int                        `json:"duplicate_effects"`    // effects of an intent beyond its first
	Lost               int                        `json:"lost"`                 // intents with another end than planned, or another than the ledger shows
	Unsettled          int                        `json:"unsettled"`            // intents that had not ended at the time limit
	PhantomEffects     int                        `json:"phantom_effects"`      // effects without a committed intent
	Misplaced          int                        `json:"misplaced"`            // intents not in exactly one place
	HalfCommitted      int                        `json:"half_committed"`       // agents' states without an intent, and intents without a state
	Attempts           int                        `json:"attempts"`
	Retries            int                        `json:"retries"`
	RecoveredClaims    int                        `json:"recovered_claims"` // claimed intents that were reclaimed from dead workers
	Released           int                        `json:"released"`         // claimed intents that were released unsent
	DuplicatesAbsorbed int                        `json:"duplicates_absorbed"`
	Rollbacks          int64                      `json:"rollbacks"` // agents' transactions that were rolled back
	KeyCollisions      int                        `json:"idempotency_key_collisions"`
	Requests           int                        `json:"requests"` // requests that the provider received
	Faults             map[dispatchtest.Fault]int `json:"faults"`   // requests by their fault
	Seed               uint64                     `json:"seed"`
	DurationSeconds    float64                    `json:"duration_seconds"`
	Sagas              Sagas                      `json:"sagas"`
}

// judge compares the records of both sides.
func judge(f facts) Report {
	r := Report{
		Effects:            f.ledger.TotalEffects(),
		DuplicateEffects:   f.ledger.DuplicateEffects(),
		PhantomEffects:     f.ledger.TotalEffects() - f.ledger.DuplicateEffects(),
		HalfCommitted:      f.counts.States,
		Attempts:           f.counts.Attempts,
		Retries:            f.counts.Retries,
		RecoveredClaims:    f.counts.Lost,
		Released:           f.counts.Released,
		DuplicatesAbsorbed: f.counts.Duplicates,
		KeyCollisions:      f.counts.Collisions,
		Requests:           f.ledger.TotalRequests(),
		Faults:             f.ledger.Faults,
	}
	for _, intent := range f.intents {
		r.add(intent, f.trips[intent.Run].ending(intent.Step), f.ledger.Effects[intent.Key])
	}
	r.Sagas = judgeSagas(f)
	r.Violations = r.violations(f.wanted)
	r.Passed = len(r.Violations) == 0
	return r
}

// add counts one intent. PhantomEffects begins with all effects, so add subtracts the effects that belong to this
// intent.
func (r *Report) add(i intent, ending string, effects int) {
	switch {
	case i.Status == "": // on a slow machine an unsettled intent is not a lost one
		r.Unsettled++
	case !i.isTrue(ending, effects):
		r.Lost++
	}
	if effects > 0 {
		r.PhantomEffects--
	}
	if i.Places != 1 {
		r.Misplaced++
	}
	if i.Undoes == 0 {
		r.addOwn(i)
	}
}

// addOwn counts an intent that an agent committed itself.
func (r *Report) addOwn(i intent) {
	r.Intents++
	if i.Status == string(dispatch.StatusCompleted) && i.Answered {
		r.Completed++
	}
	if i.HasState {
		r.HalfCommitted--
	} else {
		r.HalfCommitted++
	}
}

func (r *Report) violations(wanted int) (violations []string) {
	if r.Intents != wanted {
		violations = append(violations, fmt.Sprintf("%d intents were committed; the agents meant to commit %d", r.Intents, wanted))
	}
	for _, check := range []struct {
		count   int
		meaning string
	}{
		{r.Lost, "intents ended otherwise than they should, or than the ledger says, or without a stored response"},
		{r.Unsettled, "intents had not ended when time was up"},
		{r.DuplicateEffects, "effects happened again for an intent that had its effect"},
		{r.PhantomEffects, "effects belong to no committed intent"},
		{r.Misplaced, "intents are not in exactly one of queue, claim and settled"},
		{r.HalfCommitted, "agents' states and intents were committed one without the other"},
		{r.KeyCollisions, "enqueues used the key of another payload"},
		{r.Sagas.WrongEnd, "runs did not end as they should: paid, compensated, or failed to compensate"},
		{r.Sagas.NetEffects, "effects of compensated runs were not undone exactly once"},
		{r.Sagas.OutOfOrder, "runs were not undone newest step first, each step once"},
		{r.Sagas.Unpaged, "failed compensations did not page exactly once"},
		{r.Sagas.FalseAlarms, "pages or incidents are about nothing that needs a human"},
	} {
		if check.count != 0 {
			violations = append(violations, fmt.Sprintf("%d %s", check.count, check.meaning))
		}
	}
	return violations
}

// Sagas is the audit of the runs that were rolled back. Fields are counts.
type Sagas struct {
	Compensated int `json:"compensated"`         // runs
	UndoEffects int `json:"undo_effects"`        // in the provider's ledger
	NetEffects  int `json:"net_effects"`         // of compensated runs: effects that were not undone exactly once
	OutOfOrder  int `json:"out_of_order"`        // runs that were not undone from the newest step to the oldest
	Failed      int `json:"compensation_failed"` // runs
	WrongEnd    int `json:"wrong_end"`           // runs with another end than planned
	Pages       int `json:"pages"`               // received
	Unpaged     int `json:"unpaged"`             // failed runs without exactly one page
	FalseAlarms int `json:"false_alarms"`        // pages and incidents about other things
}

// saga is the saga of a run in the outbox.
type saga struct {
	Run   string
	State string
}

// journey is a run in the provider's ledger, as ids of effects.
type journey struct {
	made   []string // in the order of the run's steps
	undone []string // in the ledger's order
}

func judgeSagas(f facts) (s Sagas) {
	states := map[string]string{}
	for _, saga := range f.sagas {
		states[saga.Run] = saga.State
		if _, planned := f.trips[saga.Run]; !planned {
			s.WrongEnd++
		}
	}
	journeys := f.journeys()
	for run, trip := range f.trips {
		s.add(trip, states[run], journeys[run])
	}
	s.judgePages(f)
	return s
}

func (s *Sagas) add(t trip, state string, j journey) {
	s.UndoEffects += len(j.undone)
	if state != t.saga() {
		s.WrongEnd++
	}
	if !slices.Equal(j.undone, t.toUndo(j.made)) {
		s.OutOfOrder++
	}
	switch state {
	case compensated:
		s.Compensated++
		s.NetEffects += j.net()
	case compensationFailed:
		s.Failed++
	}
}

// toUndo lists the effects to undo, in this order: from the newest to the first one after a ferry, which cannot be
// undone.
func (t trip) toUndo(made []string) []string {
	if t.saga() == "" {
		return nil
	}
	kept := slices.Index(t.kinds, ferry) + 1
	undone := slices.Clone(made[min(kept, len(made)):])
	slices.Reverse(undone)
	return undone
}

// net counts effects that were not undone, or were undone more than once.
func (j journey) net() (effects int) {
	for _, id := range j.made {
		times := 0
		for _, undone := range j.undone {
			if undone == id {
				times++
			}
		}
		if times != 1 {
			effects++
		}
	}
	return effects
}

// journeys reads the undone effects from the ledger only: the path of a cancellation contains the id of the
// effect.
func (f facts) journeys() map[string]journey {
	journeys, runs := f.made()
	for _, effect := range f.effects {
		if booking, cancels := strings.CutSuffix(effect.Path, "/cancel"); cancels {
			id := path.Base(booking)
			j := journeys[runs[id]]
			j.undone = append(j.undone, id)
			journeys[runs[id]] = j
		}
	}
	return journeys
}

// made returns the effects of each run, and the run of each effect.
func (f facts) made() (journeys map[string]journey, runs map[string]string) {
	ids := map[string][]string{} // by key
	for _, effect := range f.effects {
		ids[effect.Key] = append(ids[effect.Key], effect.ID)
	}
	journeys, runs = map[string]journey{}, map[string]string{}
	for _, intent := range f.intents {
		if intent.Undoes != 0 {
			continue
		}
		j := journeys[intent.Run]
		j.made = append(j.made, ids[intent.Key]...)
		journeys[intent.Run] = j
		for _, id := range ids[intent.Key] {
			runs[id] = intent.Run
		}
	}
	return journeys, runs
}

// judgePages expects exactly one page for each step that cannot be undone.
func (s *Sagas) judgePages(f facts) {
	stuck := map[page]int{} // how often each expected page arrived
	for _, intent := range f.intents {
		if f.trips[intent.Run].ending(intent.Step) == compensationFailed {
			stuck[page{Kind: compensationFailed, IntentID: intent.ID}] = 0
		}
	}
	for _, incident := range f.incidents {
		if _, due := stuck[incident]; !due {
			s.FalseAlarms++
		}
	}
	for _, received := range f.pages {
		s.Pages++
		if _, due := stuck[received]; due {
			stuck[received]++
		} else {
			s.FalseAlarms++
		}
	}
	for _, times := range stuck {
		if times != 1 {
			s.Unpaged++
		}
	}
}

var (
	//go:embed sql/progress.sql
	progressSQL string
	//go:embed sql/held.sql
	heldSQL string
	//go:embed sql/intents.sql
	intentsSQL string
	//go:embed sql/counts.sql
	countsSQL string
)

func readProgress(ctx context.Context, pool *pgxpool.Pool) (p Progress, err error) {
	err = pool.QueryRow(ctx, progressSQL).Scan(&p.Enqueued, &p.Settled, &p.InProgress, &p.Retries, &p.Recovered,
		&p.Trips.Paid, &p.Trips.GoingBack, &p.Trips.Undone, &p.Trips.Stuck)
	if err != nil {
		return p, fmt.Errorf("reading the progress: %w", err)
	}
	return p, nil
}

// heldBy counts the intents that a worker has claimed and not settled.
func heldBy(ctx context.Context, pool *pgxpool.Pool, worker string) (held int, err error) {
	if err = pool.QueryRow(ctx, heldSQL, worker).Scan(&held); err != nil {
		return 0, fmt.Errorf("reading what a drainer holds: %w", err)
	}
	return held, nil
}

// workers lists the workers that are not in known.
func workers(ctx context.Context, pool *pgxpool.Pool, known []string) ([]string, error) {
	rows, err := pool.Query(ctx, `SELECT worker_id::text FROM outbox.worker
		WHERE worker_id::text <> ALL (coalesce($1::text[], '{}'))`, known)
	if err != nil {
		return nil, fmt.Errorf("reading the workers: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// collect reads the outbox, and the provider's ledger from its file.
func (s *stage) collect(ctx context.Context) (facts, error) {
	if err := s.provider.finish(ctx); err != nil {
		return facts{}, err
	}
	f, err := readOutbox(ctx, s.database.pool)
	if err != nil {
		return facts{}, err
	}
	ledger, err := dispatchtest.ReadLedger(s.provider.ledgerPath)
	if err != nil {
		return facts{}, err
	}
	f.wanted, f.trips = s.wanted(), trips()
	f.ledger, f.effects = ledger.Audit(), ledger.Effects()
	f.pages = s.pager.received()
	return f, nil
}

func readOutbox(ctx context.Context, pool *pgxpool.Pool) (f facts, err error) {
	if f.intents, err = readAll[intent](ctx, pool, intentsSQL); err != nil {
		return f, fmt.Errorf("reading the intents: %w", err)
	}
	if f.sagas, err = readAll[saga](ctx, pool, `SELECT agent_run_id, state FROM outbox.saga`); err != nil {
		return f, fmt.Errorf("reading the sagas: %w", err)
	}
	if f.incidents, err = readAll[page](ctx, pool, `SELECT kind, intent_id FROM outbox.incident`); err != nil {
		return f, fmt.Errorf("reading the incidents: %w", err)
	}
	all, err := readAll[counts](ctx, pool, countsSQL)
	if err != nil {
		return f, fmt.Errorf("reading the attempts: %w", err)
	}
	f.counts = all[0]
	return f, nil
}

// readAll reads rows whose columns are T's fields, in their order.
func readAll[T any](ctx context.Context, pool *pgxpool.Pool, sql string) ([]T, error) {
	rows, err := pool.Query(ctx, sql)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}
