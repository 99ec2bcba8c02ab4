package demo

import (
	"fmt"

	"github.com/agentoutbox/drainer/dispatch"
	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// facts are what both sides say, before anybody judges.
type facts struct {
	wanted    int             // intents that the agents meant to commit
	trips     map[string]trip // that they meant to take, by run
	intents   []intent        // the undos too, in the order of their commits
	sagas     []saga
	incidents []page
	pages     []page // that arrived
	ledger    dispatchtest.Audit
	effects   []dispatchtest.Entry // in the ledger's order
	counts    counts
}

// intent is a committed intent, in the order of sql/intents.sql.
type intent struct {
	ID       int64
	Undoes   int64 // the intent that this one undoes; 0 for an agent's own
	Run      string
	Step     string
	Key      string
	Status   string // empty before it is settled
	Answered bool   // the provider's response is stored
	Places   int    // among queue, claim and settled
	HasState bool   // the agent's own state was committed too
}

// isTrue holds for an intent that ended as it should, with an effect if its
// status says so and without one if not. What an undo should come to, its
// forward intent tells.
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

// counts are in the order of sql/counts.sql.
type counts struct {
	States     int
	Attempts   int
	Retries    int
	Lost       int
	Released   int
	Duplicates int
	Collisions int
}

// Report is the audit. Fields count unless they say otherwise.
type Report struct {
	Passed             bool                       `json:"passed"`
	Violations         []string                   `json:"violations,omitempty"` // in words; none if Passed
	Intents            int                        `json:"intents"`              // that agents committed
	Completed          int                        `json:"completed"`            // of these, with the response stored
	Effects            int                        `json:"effects"`              // in the provider's ledger, undos too
	DuplicateEffects   int                        `json:"duplicate_effects"`    // beyond the first of an intent
	Lost               int                        `json:"lost"`                 // intents that ended otherwise than they should, or than the ledger says
	PhantomEffects     int                        `json:"phantom_effects"`      // effects that nobody committed
	Misplaced          int                        `json:"misplaced"`            // intents not in exactly one place
	HalfCommitted      int                        `json:"half_committed"`       // agents' states without intent, or the reverse
	Attempts           int                        `json:"attempts"`
	Retries            int                        `json:"retries"`
	RecoveredClaims    int                        `json:"recovered_claims"` // claimed intents taken over from the dead
	Released           int                        `json:"released"`         // claimed intents given back unsent
	DuplicatesAbsorbed int                        `json:"duplicates_absorbed"`
	Rollbacks          int64                      `json:"rollbacks"` // agents' transactions that ended half-way
	KeyCollisions      int                        `json:"idempotency_key_collisions"`
	Requests           int                        `json:"requests"` // that the provider saw
	Faults             map[dispatchtest.Fault]int `json:"faults"`   // requests by what befell them
	Seed               uint64                     `json:"seed"`
	DurationSeconds    float64                    `json:"duration_seconds"`
	Sagas              Sagas                      `json:"sagas"`
}

// judge compares the two sides.
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

// add takes one intent off what is counted as belonging to nobody.
func (r *Report) add(i intent, ending string, effects int) {
	if !i.isTrue(ending, effects) {
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

// addOwn counts what an agent committed itself.
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
		{r.DuplicateEffects, "effects happened again for an intent that had its effect"},
		{r.PhantomEffects, "effects belong to no committed intent"},
		{r.Misplaced, "intents are not in exactly one of queue, claim and settled"},
		{r.HalfCommitted, "agents' states and intents were committed one without the other"},
		{r.KeyCollisions, "enqueues used the key of another payload"},
		{r.Sagas.Astray, "runs did not end as they should: paid, compensated, or failed to compensate"},
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
