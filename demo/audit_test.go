package demo

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

// flawless returns the facts of three intents with one effect each.
func flawless() facts {
	fine := func(key string) intent {
		return intent{Key: key, Status: "completed", Answered: true, Places: 1, HasState: true}
	}
	return facts{
		wanted:  3,
		intents: []intent{fine("a"), fine("b"), fine("c")},
		ledger: dispatchtest.Audit{
			Requests: map[string]int{"a": 2, "b": 1, "c": 1},
			Effects:  map[string]int{"a": 1, "b": 1, "c": 1},
			Faults:   map[dispatchtest.Fault]int{dispatchtest.None: 3, dispatchtest.DropAfter: 1},
		},
		counts: counts{States: 3, Attempts: 4, Retries: 1},
	}
}

func TestAuditPassesWhereEveryIntentHasOneEffect(t *testing.T) {
	t.Parallel()
	r := judge(flawless())
	if !r.Passed || len(r.Violations) > 0 {
		t.Errorf("failed: %v", r.Violations)
	}
	if r.Intents != 3 || r.Completed != 3 || r.Effects != 3 || r.Requests != 4 || r.Attempts != 4 || r.Retries != 1 {
		t.Errorf("miscounted: %+v", r)
	}
}

func TestAuditCatches(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*facts)
		count func(Report) int
		want  string
	}{
		"an effect that happened twice":           {func(f *facts) { f.ledger.Effects["a"] = 2 }, func(r Report) int { return r.DuplicateEffects }, "happened again"},
		"a completed intent without an effect":    {func(f *facts) { delete(f.ledger.Effects, "b") }, func(r Report) int { return r.Lost }, "than the ledger says"},
		"an intent that was never settled":        {func(f *facts) { f.intents[2].Status = "" }, func(r Report) int { return r.Unsettled - r.Lost }, "not ended when time was up"},
		"an intent that failed":                   {func(f *facts) { f.intents[2].Status = "failed"; delete(f.ledger.Effects, "c") }, func(r Report) int { return r.Lost }, "than they should"},
		"a response that was not stored":          {func(f *facts) { f.intents[2].Answered = false }, func(r Report) int { return r.Lost }, "stored response"},
		"an effect without a committed intent":    {func(f *facts) { f.ledger.Effects["d"] = 1 }, func(r Report) int { return r.PhantomEffects }, "no committed intent"},
		"an effect that carried no key":           {func(f *facts) { f.ledger.Effects[""] = 1 }, func(r Report) int { return r.PhantomEffects }, "no committed intent"},
		"an intent in two places":                 {func(f *facts) { f.intents[0].Places = 2 }, func(r Report) int { return r.Misplaced }, "exactly one"},
		"an intent in no place":                   {func(f *facts) { f.intents[0].Places = 0 }, func(r Report) int { return r.Misplaced }, "exactly one"},
		"an intent without the agent's state":     {func(f *facts) { f.intents[0].HasState, f.counts.States = false, 2 }, func(r Report) int { return r.HalfCommitted }, "without the other"},
		"an agent's state without its intent":     {func(f *facts) { f.counts.States = 4 }, func(r Report) int { return r.HalfCommitted }, "without the other"},
		"a key of two payloads":                   {func(f *facts) { f.counts.Collisions = 1 }, func(r Report) int { return r.KeyCollisions }, "another payload"},
		"an intent that was not committed at all": {func(f *facts) { f.wanted = 4 }, func(r Report) int { return 4 - r.Intents }, "meant to commit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spoilt := flawless()
			c.spoil(&spoilt)
			r := judge(spoilt)
			if r.Passed || len(r.Violations) != 1 || !strings.Contains(r.Violations[0], c.want) {
				t.Errorf("passed %t with %q, want one violation with %q", r.Passed, r.Violations, c.want)
			}
			if got := c.count(r); got != 1 {
				t.Errorf("counted %d, want 1", got)
			}
		})
	}
}

// wentBack returns the facts of a trip that was compensated, and of one whose compensation stopped at its ferry.
func wentBack() facts {
	f := facts{
		wanted: 7,
		trips: map[string]trip{
			"back":  {run: "back", kinds: []string{"flight", "hotel"}, card: expiredCard},
			"stuck": {run: "stuck", kinds: []string{"flight", ferry, "hotel"}, card: expiredCard},
		},
		intents: []intent{
			{ID: 1, Run: "back", Step: "book-flight", Key: "back flight", Status: "compensated", Answered: true},
			{ID: 2, Run: "back", Step: "book-hotel", Key: "back hotel", Status: "compensated", Answered: true},
			{ID: 3, Run: "back", Step: "pay", Key: "back pay", Status: "failed"},
			{ID: 4, Run: "stuck", Step: "book-flight", Key: "stuck flight", Status: "completed", Answered: true},
			{ID: 5, Run: "stuck", Step: "book-ferry", Key: "stuck ferry", Status: "compensation_failed", Answered: true},
			{ID: 6, Run: "stuck", Step: "book-hotel", Key: "stuck hotel", Status: "compensated", Answered: true},
			{ID: 7, Run: "stuck", Step: "pay", Key: "stuck pay", Status: "failed"},
			{ID: 8, Run: "back", Step: "compensate:2", Key: "back undo hotel", Status: "completed", Answered: true, Undoes: 2},
			{ID: 9, Run: "stuck", Step: "compensate:6", Key: "stuck undo hotel", Status: "completed", Answered: true, Undoes: 6},
			{ID: 10, Run: "back", Step: "compensate:1", Key: "back undo flight", Status: "completed", Answered: true, Undoes: 1},
			{ID: 11, Run: "stuck", Step: "compensate:5", Key: "stuck undo ferry", Status: "failed", Undoes: 5},
		},
		sagas:     []saga{{"back", "compensated"}, {"stuck", "compensation_failed"}},
		incidents: []page{{"compensation_failed", 5}},
		pages:     []page{{"compensation_failed", 5}},
		ledger:    dispatchtest.Audit{Effects: map[string]int{}},
		counts:    counts{States: 7},
	}
	for i := range f.intents {
		f.intents[i].Places, f.intents[i].HasState = 1, f.intents[i].Undoes == 0
	}
	f.happened("stuck flight", "/flight/bookings", "e1")
	f.happened("back hotel", "/hotel/bookings", "e2") // the hotel is booked before the flight, which is the earlier step
	f.happened("back flight", "/flight/bookings", "e3")
	f.happened("stuck ferry", "/ferry/bookings", "e4")
	f.happened("stuck hotel", "/hotel/bookings", "e5")
	f.happened("back undo hotel", "/hotel/bookings/e2/cancel", "e6")
	f.happened("stuck undo hotel", "/hotel/bookings/e5/cancel", "e7")
	f.happened("back undo flight", "/flight/bookings/e3/cancel", "e8")
	return f
}

func (f *facts) happened(key, path, id string) {
	f.effects = append(f.effects, dispatchtest.Entry{Key: key, Path: path, ID: id})
	f.ledger.Effects[key]++
}

// never removes an effect from the ledger.
func (f *facts) never(key string) {
	f.effects = slices.DeleteFunc(f.effects, func(e dispatchtest.Entry) bool { return e.Key == key })
	delete(f.ledger.Effects, key)
}

func (f *facts) effect(key string) *dispatchtest.Entry {
	return &f.effects[slices.IndexFunc(f.effects, func(e dispatchtest.Entry) bool { return e.Key == key })]
}

func TestAuditPassesWhereWhatWentBackIsUndone(t *testing.T) {
	t.Parallel()
	r := judge(wentBack())
	if !r.Passed {
		t.Errorf("failed: %v", r.Violations)
	}
	if want := (Sagas{Compensated: 1, UndoEffects: 3, Failed: 1, Pages: 1}); r.Sagas != want {
		t.Errorf("counted %+v, want %+v", r.Sagas, want)
	}
	if r.Intents != 7 || r.Completed != 1 || r.Effects != 8 {
		t.Errorf("miscounted: %+v", r)
	}
}

func TestAuditCatchesWhatIsNotUndone(t *testing.T) {
	t.Parallel()
	const (
		lost     = "ended otherwise than they should"
		phantom  = "belong to no committed intent"
		wrongEnd = "did not end as they should"
		net      = "not undone exactly once"
		disorder = "newest step first"
		unpaged  = "page exactly once"
		alarm    = "nothing that needs a human"
	)
	for name, c := range map[string]struct {
		spoil func(*facts)
		wants []string
	}{
		"an undo without an effect": {func(f *facts) { f.never("back undo flight") }, []string{lost, net, disorder}},
		"an undo that failed":       {func(f *facts) { f.never("back undo flight"); f.intents[0].Status = "compensation_failed" }, []string{lost, net, disorder}},
		"undos in the order of the steps": {
			func(f *facts) {
				hotel, flight := f.effect("back undo hotel"), f.effect("back undo flight")
				*hotel, *flight = *flight, *hotel
			},
			[]string{disorder},
		},
		"an undo of something else":                   {func(f *facts) { f.effect("back undo flight").Path = "/flight/bookings/e99/cancel" }, []string{net, disorder}},
		"a booking that was cancelled twice":          {func(f *facts) { f.happened("key-without-intent", "/hotel/bookings/e2/cancel", "e9") }, []string{phantom, net, disorder}},
		"an undo beyond what cannot be undone":        {func(f *facts) { f.happened("key-without-intent", "/flight/bookings/e1/cancel", "e9") }, []string{phantom, disorder}},
		"a refused payment that was taken":            {func(f *facts) { f.happened("back pay", "/cards/expired/charges", "e9") }, []string{lost, net, disorder}},
		"a compensated run with a step that is not":   {func(f *facts) { f.intents[0].Status = "completed" }, []string{lost}},
		"a run still going back":                      {func(f *facts) { f.sagas[0].State = "begun" }, []string{wrongEnd}},
		"a run that was never rolled back":            {func(f *facts) { f.sagas = f.sagas[1:] }, []string{wrongEnd}},
		"a run that was rolled back without a reason": {func(f *facts) { f.sagas = append(f.sagas, saga{"run-00001", "compensated"}) }, []string{wrongEnd}},
		"a failed compensation without a page":        {func(f *facts) { f.pages = nil }, []string{unpaged}},
		"a failed compensation that paged twice":      {func(f *facts) { f.pages = append(f.pages, f.pages[0]) }, []string{unpaged}},
		"a page about a step that was undone":         {func(f *facts) { f.pages = append(f.pages, page{"compensation_failed", 1}) }, []string{alarm}},
		"an incident of another kind":                 {func(f *facts) { f.incidents = append(f.incidents, page{"outcome_unknown", 5}) }, []string{alarm}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spoilt := wentBack()
			c.spoil(&spoilt)
			r := judge(spoilt)
			missing := slices.DeleteFunc(slices.Clone(c.wants), func(want string) bool {
				return slices.ContainsFunc(r.Violations, func(violation string) bool { return strings.Contains(violation, want) })
			})
			if r.Passed || len(missing) > 0 || len(r.Violations) != len(c.wants) {
				t.Errorf("passed %t with %q, want %q", r.Passed, r.Violations, c.wants)
			}
		})
	}
}

func TestTheProviderIsServedAloneUntilToldToStop(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- ServeProvider(ctx, listener, 1) }()

	reply, err := http.Get("http://" + listener.Addr().String() + "/effects/idem_v1_unknown")
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if reply.StatusCode != http.StatusNotFound {
		t.Errorf("asked about a key that it has never seen, it answers %s", reply.Status)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestThePagerHearsEachSignedMessageOnce(t *testing.T) {
	t.Parallel()
	var heard []string
	pager, err := servePager(func(summary string) { heard = append(heard, summary) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pager.close() }()
	const first, second = `{"data":{"kind":"compensation_failed","intent_id":5,"summary":"one"}}`,
		`{"data":{"kind":"compensation_failed","intent_id":6,"summary":"two"}}`
	for _, c := range []struct {
		message, secret, body string
		status                int
	}{
		{"m1", pager.secret, first, http.StatusOK},
		{"m1", pager.secret, first, http.StatusOK},
		{"m2", newSecret(), first, http.StatusUnauthorized},
		{"m3", pager.secret, second, http.StatusOK},
	} {
		if got := sendPage(t, pager.url, c.message, c.secret, c.body); got != c.status {
			t.Errorf("%+v: status %d", c, got)
		}
	}
	if !slices.Equal(heard, []string{"one", "two"}) {
		t.Errorf("heard %q", heard)
	}
	received := pager.received()
	slices.SortFunc(received, func(a, b page) int { return int(a.IntentID - b.IntentID) })
	if want := []page{{"compensation_failed", 5}, {"compensation_failed", 6}}; !slices.Equal(received, want) {
		t.Errorf("received %v, want %v", received, want)
	}
}

func sendPage(t *testing.T, url, message, secret, body string) int {
	t.Helper()
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	signature, err := signer.Sign(message, now, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(standardwebhooks.HeaderWebhookID, message)
	request.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	request.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func TestATripEndsAsFarBackAsItCanBeTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number int
		saga   string
		wants  []string // the statuses of its steps
	}{
		{0, "", []string{"completed", "completed", "completed", "completed", "completed"}},
		{1, "compensated", []string{"compensated", "compensated", "compensated", "compensated", "failed"}},
		{ferryTrip, "compensation_failed", []string{"completed", "completed", "compensation_failed", "compensated", "failed"}},
	} {
		trip := tripNumber(c.number)
		var endings []string
		for _, step := range append(trip.bookings(), trip.payment()) {
			endings = append(endings, trip.ending(step.tuple.StepID))
		}
		if trip.saga() != c.saga || !slices.Equal(endings, c.wants) {
			t.Errorf("trip %d: %q, %q, want %q, %q", c.number, trip.saga(), endings, c.saga, c.wants)
		}
		if len(endings) != stepsOfTrip {
			t.Errorf("trip %d takes %d steps, want %d", c.number, len(endings), stepsOfTrip)
		}
	}
}

func TestScreenRedrawsItsBlockOnATerminalOnly(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{true, false} {
		var out bytes.Buffer
		screen := NewScreen(&out, terminal)
		screen.Show(Progress{Wanted: 100, Enqueued: 50})
		screen.Say("half-way")
		screen.Show(Progress{Wanted: 100, Enqueued: 100})
		screen.Close()
		if redrawn := strings.Contains(out.String(), "\x1b["); redrawn != terminal {
			t.Errorf("terminal %t: redrawn %t", terminal, redrawn)
		}
		if !strings.Contains(out.String(), "half-way\n") || !strings.Contains(out.String(), "50") {
			t.Errorf("terminal %t: said %q", terminal, out.String())
		}
	}
}
