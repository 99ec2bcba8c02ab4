package operator_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainer/operator"
	"github.com/agentoutbox/drainer/drainertest"
	"github.com/agentoutbox/drainer/migrations"
)

// listed returns an outbox with six intents, enqueued an hour apart: 1 and 4 failed, 2 is unknown, 3 completed, 5 and 6
// wait.
func listed(t *testing.T) *outbox {
	t.Helper()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, created_at)
		SELECT 'run-' || n % 2, 'step-' || n, CASE WHEN n = 4 THEN 'spare/act' ELSE 'sim/act' END, 'scope', '{}', now() - (6 - n) * interval '1 hour'
		FROM generate_series(1, 6) n`)
	o.exec(`DELETE FROM outbox.queue WHERE intent_id <= 4`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, error) VALUES
		(1, 1, 'w', 'rejected', 'failed', 'HTTP_402 card_declined'), (2, 1, 'w', 'ambiguous', 'unknown', 'timeout'),
		(3, 1, 'w', 'completed', 'completed', NULL), (4, 1, 'w', 'rejected', 'failed', 'http_404')`)
	return o
}

func (o *outbox) list(filter operator.Filter) operator.Page {
	o.t.Helper()
	page, err := o.console().List(o.t.Context(), filter)
	if err != nil {
		o.t.Fatal(err)
	}
	return page
}

func idsOf(page operator.Page) (ids []int64) {
	for _, intent := range page.Intents {
		ids = append(ids, intent.IntentID)
	}
	return ids
}

func TestAListIsNarrowedByEachFilter(t *testing.T) {
	t.Parallel()
	o := listed(t)
	o.exec(`UPDATE outbox.attempt SET provider_ref = 'ch_3' WHERE intent_id = 3`)
	o.exec(`UPDATE outbox.intent SET tenant = (SELECT tenant_id FROM outbox.tenant WHERE name = 'other') WHERE id = 5`)
	o.exec(`UPDATE outbox.intent SET business_scope = 'order' WHERE id = 6`)
	now := time.Now()
	for name, test := range map[string]struct {
		filter operator.Filter
		want   []int64
	}{
		"none":                {operator.Filter{}, []int64{6, 5, 4, 3, 2, 1}},
		"tool":                {operator.Filter{Tool: "spare/act"}, []int64{4}},
		"provider":            {operator.Filter{Provider: "spare"}, []int64{4}},
		"run":                 {operator.Filter{Run: "run-1"}, []int64{5, 3, 1}},
		"error":               {operator.Filter{Error: "http_4"}, []int64{4, 1}},
		"scope":               {operator.Filter{Scope: "order"}, []int64{6}},
		"tenant":              {operator.Filter{Tenant: "other"}, []int64{5}},
		"tenant of none":      {operator.Filter{Tenant: "unknown"}, nil},
		"reference":           {operator.Filter{Reference: "ch_3"}, []int64{3}},
		"reference in a run":  {operator.Filter{Reference: "ch_3", Run: "run-1"}, []int64{3}},
		"failed reference":    {operator.Filter{Reference: "ch_3", Status: "failed"}, nil},
		"failed":              {operator.Filter{Status: "failed"}, []int64{4, 1}},
		"unknown":             {operator.Filter{Status: "unknown"}, []int64{2}},
		"completed":           {operator.Filter{Status: "completed"}, []int64{3}},
		"pending":             {operator.Filter{Status: "pending"}, []int64{6, 5}},
		"in progress":         {operator.Filter{Status: "in_progress"}, nil},
		"dead":                {operator.Filter{Dead: true}, []int64{4, 2, 1}},
		"since":               {operator.Filter{Since: now.Add(-150 * time.Minute)}, []int64{6, 5, 4}},
		"until":               {operator.Filter{Until: now.Add(-150 * time.Minute)}, []int64{3, 2, 1}},
		"since and until":     {operator.Filter{Since: now.Add(-210 * time.Minute), Until: now.Add(-90 * time.Minute)}, []int64{4, 3}},
		"below":               {operator.Filter{Below: 3}, []int64{2, 1}},
		"several":             {operator.Filter{Status: "failed", Error: "402", Run: "run-1"}, []int64{1}},
		"failed since":        {operator.Filter{Status: "failed", Since: now.Add(-150 * time.Minute)}, []int64{4}},
		"nothing so long ago": {operator.Filter{Until: now.Add(-time.Hour * 24)}, nil},
	} {
		test.filter.Limit = 10
		if page := o.list(test.filter); !slices.Equal(idsOf(page), test.want) || page.Below != 0 || page.Bounded {
			t.Errorf("%s: got %v and %+v, want %v", name, idsOf(page), page, test.want)
		}
	}
}

// A page looks up only the intents that it shows, however many others need a human.
func TestAListLooksUpWhatItShows(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run-' || n, 'step', 'sim/act', 'scope', '{}' FROM generate_series(1, 20000) n`)
	o.exec(`TRUNCATE outbox.queue`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, error)
		SELECT id, 1, 'w', 'rejected', 'failed', 'http_404' FROM outbox.intent WHERE id % 5 = 0`)
	o.exec(`UPDATE outbox.attempt SET provider_ref = 'ref-' || intent_id`)
	o.vacuum()
	for name, test := range map[string]struct {
		filter operator.Filter
		want   []int64
	}{
		"dead":             {operator.Filter{Dead: true, Limit: 2}, []int64{20000, 19995}},
		"failed":           {operator.Filter{Status: "failed", Limit: 2}, []int64{20000, 19995}},
		"an error":         {operator.Filter{Error: "HTTP_404", Limit: 2}, []int64{20000, 19995}},
		"an error of none": {operator.Filter{Error: "timeout", Limit: 2}, nil},
		"a reference":      {operator.Filter{Reference: "ref-15", Limit: 2}, []int64{15}},
		"failed by none":   {operator.Filter{Reference: "none", Status: "failed", Limit: 2}, nil},
		"dead by none":     {operator.Filter{Reference: "none", Dead: true, Limit: 2}, nil},
		"dead in a run":    {operator.Filter{Run: "run-5", Dead: true, Limit: 2}, []int64{5}},
		"failed in a run":  {operator.Filter{Run: "run-5", Status: "failed", Limit: 2}, []int64{5}},
		"an error in one":  {operator.Filter{Run: "run-5", Error: "http_404", Limit: 2}, []int64{5}},
	} {
		conn, err := pgx.Connect(t.Context(), o.url) // a new session has counted no rows yet
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(t.Context())
		tx := drainertest.Begin(t, conn)
		page, err := operator.Open(conn).List(t.Context(), test.filter)
		if err != nil || !slices.Equal(idsOf(page), test.want) {
			t.Errorf("%s: %v, %v", name, idsOf(page), err)
		}
		var intents, attempts int
		if err := tx.QueryRow(t.Context(), `SELECT sum(seq_tup_read + idx_tup_fetch) FILTER (WHERE relname = 'intent'), sum(seq_tup_read + idx_tup_fetch) FILTER (WHERE relname = 'attempt')
			FROM pg_stat_xact_user_tables`).Scan(&intents, &attempts); err != nil || intents > 100 || attempts > 100 && test.filter.Run != "" {
			t.Errorf("%s: %d intents and %d attempts were read to show %d: %v", name, intents, attempts, len(test.want), err)
		}
	}
}

func TestPagesHoldEachIntentOnce(t *testing.T) {
	t.Parallel()
	o := listed(t)
	var seen []int64
	filter := operator.Filter{Provider: "sim", Limit: 2}
	for page := o.list(filter); ; page = o.list(filter) {
		seen = append(seen, idsOf(page)...)
		if filter.Below = page.Below; page.Below == 0 {
			break
		}
	}
	if want := []int64{6, 5, 3, 2, 1}; !slices.Equal(seen, want) {
		t.Errorf("got %v, want %v", seen, want)
	}
}

// With its index, a reference is found however old its intent is, and few rows are read. Without the index, the page
// names the command that builds it.
func TestAReferenceIsFoundByItsIndexWhereThereIsOne(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run-' || n, 'step', 'sim/act', 'scope', '{}' FROM generate_series(1, 5000) n`)
	o.exec(`TRUNCATE outbox.queue`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, provider_ref)
		SELECT id, n, 'w', 'rejected', 'failed', CASE WHEN id % 100 = 0 THEN 'again' ELSE 'ref-' || id END FROM outbox.intent, generate_series(1, 2) n`)
	o.vacuum()
	console := o.console()
	console.LookAtMost(10)
	reference := operator.Filter{Reference: "ref-15", Limit: 3}
	page, err := console.List(t.Context(), reference)
	if err != nil || len(page.Intents) != 0 || !page.Bounded || page.Index != operator.IndexReferences {
		t.Errorf("without an index: %+v, %v", page, err)
	}
	if found, err := console.Search(t.Context(), "ref-15", 3); err != nil || len(found.Intents) != 0 || found.Index != operator.IndexReferences {
		t.Errorf("without an index the search finds %+v, %v", found, err)
	}
	if page, err := console.List(t.Context(), operator.Filter{Scope: "scope", Limit: 10}); err != nil || !page.Bounded || page.Index != "" {
		t.Errorf("a filter that no index could serve: %+v, %v", page.Index, err)
	}

	if _, err := migrations.References(t.Context(), true, o.url); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		filter  operator.Filter
		want    []int64
		below   int64
		bounded bool
	}{
		"one":                 {reference, []int64{15}, 0, false},
		"one of a status":     {operator.Filter{Reference: "ref-15", Status: "completed", Limit: 3}, nil, 0, false},
		"one that is dead":    {operator.Filter{Reference: "ref-15", Dead: true, Limit: 3}, []int64{15}, 0, false},
		"one in a run":        {operator.Filter{Reference: "ref-15", Run: "run-15", Limit: 3}, []int64{15}, 0, false},
		"none":                {operator.Filter{Reference: "ref", Limit: 3}, nil, 0, false},
		"many":                {operator.Filter{Reference: "again", Limit: 3}, []int64{5000, 4900, 4800}, 4800, false},
		"the next page":       {operator.Filter{Reference: "again", Below: 4800, Limit: 2}, []int64{4700, 4600}, 4600, false},
		"more than the bound": {operator.Filter{Reference: "again", Status: "completed", Limit: 3}, nil, 4600, true},
	} {
		console, rowsRead := o.counting(10)
		page, err := console.List(t.Context(), test.filter)
		if err != nil || !slices.Equal(idsOf(page), test.want) || page.Below != test.below || page.Bounded != test.bounded || page.Index != "" {
			t.Errorf("%s: %v of %+v, %v", name, idsOf(page), page, err)
		}
		if read := rowsRead("intent", "attempt"); read > 250 {
			t.Errorf("%s: %d rows were read", name, read)
		}
	}
	console = o.console()
	console.LookAtMost(10)
	if found, err := console.Search(t.Context(), "ref-15", 3); err != nil || len(found.Intents) != 1 || found.Intents[0].IntentID != 15 || found.Index != "" {
		t.Errorf("the search finds %+v, %v", found, err)
	}
	if found, err := console.Search(t.Context(), "again", 3); err != nil || len(found.Intents) != 3 || found.Intents[0].IntentID != 5000 || !found.More {
		t.Errorf("the search finds %+v, %v", found, err)
	}
}

// A filter that no index serves searches a bounded number of rows, and the page says where the search continues.
func TestAListSaysWhereItStoppedLooking(t *testing.T) {
	t.Parallel()
	console := listed(t).console()
	console.LookAtMost(2)
	for name, test := range map[string]struct {
		filter operator.Filter
		want   operator.Page
	}{
		"an error":                   {operator.Filter{Error: "402"}, operator.Page{Below: 5, Bounded: true}},
		"the same, further on":       {operator.Filter{Error: "402", Below: 3}, operator.Page{Below: 1, Bounded: true}},
		"a status that has an index": {operator.Filter{Status: "unknown", Error: "402"}, operator.Page{}},
	} {
		test.filter.Limit = 10
		page, err := console.List(t.Context(), test.filter)
		if err != nil || page.Below != test.want.Below || page.Bounded != test.want.Bounded {
			t.Errorf("%s: %+v, %v; want %+v", name, page, err, test.want)
		}
	}
}

// counting returns a console that looks at so many rows, on a new session, which has counted no rows yet. rowsRead returns
// how many rows of these tables it has read.
func (o *outbox) counting(look int) (console *operator.Console, rowsRead func(tables ...string) int) {
	o.t.Helper()
	conn, err := pgx.Connect(o.t.Context(), o.url)
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(o.t.Context())) })
	tx := drainertest.Begin(o.t, conn)
	console = operator.Open(conn)
	console.LookAtMost(look)
	return console, func(tables ...string) (read int) {
		o.t.Helper()
		err := tx.QueryRow(o.t.Context(), `SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM pg_stat_xact_user_tables WHERE relname = ANY ($1)`, tables).Scan(&read)
		if err != nil {
			o.t.Fatal(err)
		}
		return read
	}
}

// Completed intents are found by their attempts, and unknown ones by their lookups. Waiting intents mostly have neither,
// so a backlog hides nothing and costs nothing.
func TestABacklogIsNoHindranceToAListOfWhatWasAttempted(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload)
		SELECT 'run-' || n, 'step', 'sim/act', 'scope', '{}' FROM generate_series(1, 10000) n`)
	o.exec(`DELETE FROM outbox.queue WHERE intent_id <= 4000 OR intent_id <= 5000 AND (intent_id % 100 <> 0 OR intent_id = 5000)`)
	o.exec(`UPDATE outbox.queue SET lookup = true, maybe_applied = true, attempt = 2 WHERE intent_id < 5000`)
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status, next_attempt_at)
		SELECT id, n, 'w', CASE n WHEN 1 THEN 'rejected' ELSE 'ambiguous' END, CASE WHEN n = 1 THEN 'pending' WHEN id <= 50 OR id > 4990 THEN 'completed' WHEN id % 100 = 0 THEN 'unknown' ELSE 'failed' END,
			CASE WHEN n = 1 OR id > 4000 AND id < 5000 AND id % 100 = 0 THEN now() END
		FROM outbox.intent, generate_series(1, 2) n WHERE id <= 5000`)
	o.vacuum()
	o.exec(`ANALYZE outbox.queue`)
	for name, test := range map[string]struct {
		filter  operator.Filter
		want    []int64
		bounded bool
	}{
		"completed":               {operator.Filter{Status: "completed", Limit: 2}, []int64{5000, 4999}, false},
		"completed, the next":     {operator.Filter{Status: "completed", Below: 4993, Limit: 10}, []int64{4992, 4991}, true},
		"unknown, with a lookup":  {operator.Filter{Status: "unknown", Limit: 2}, []int64{4900, 4800}, false},
		"unknown, without lookup": {operator.Filter{Status: "unknown", Below: 4100, Limit: 2}, []int64{4000, 3900}, false},
	} {
		console, rowsRead := o.counting(100)
		page, err := console.List(t.Context(), test.filter)
		if err != nil || !slices.Equal(idsOf(page), test.want) || page.Bounded != test.bounded {
			t.Errorf("%s: %v of %+v, %v; want %v", name, idsOf(page), page, err, test.want)
		}
		if read := rowsRead("attempt", "queue"); read > 500 {
			t.Errorf("%s: %d rows were read", name, read)
		}
	}
}

func TestIncidentsAreNarrowedAndPaged(t *testing.T) {
	t.Parallel()
	o := listed(t)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at)
		SELECT 'outcome_unknown', n, 'run', now() - (4 - n) * interval '1 hour' FROM generate_series(1, 4) n`)
	for name, test := range map[string]struct {
		filter operator.IncidentFilter
		want   []int64
	}{
		"tool":  {operator.IncidentFilter{Tool: "spare/act"}, []int64{4}},
		"since": {operator.IncidentFilter{Since: time.Now().Add(-90 * time.Minute)}, []int64{4, 3}},
		"until": {operator.IncidentFilter{Until: time.Now().Add(-90 * time.Minute)}, []int64{2, 1}},
		"after": {operator.IncidentFilter{After: 3}, []int64{2, 1}},
	} {
		var got []int64
		for _, incident := range o.incidents(test.filter) {
			got = append(got, incident.IncidentID)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

// After an outage there may be a million incidents. A list reads those that it shows, or the newest of a bounded number.
func TestAListOfIncidentsReadsNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	o := listed(t)
	o.exec(`INSERT INTO outbox.incident (kind, intent_id, agent_run_id, opened_at, acknowledged_at, resolved_at)
		SELECT CASE WHEN n % 1000 = 0 THEN 'forbidden' ELSE 'outcome_unknown' END, CASE WHEN n = 20000 THEN 4 ELSE 10 + n END, 'run', now() - (20000 - n) * interval '1 minute',
			CASE WHEN n % 2 = 1 THEN now() END, CASE WHEN n > 10000 AND n < 15000 THEN now() END FROM generate_series(1, 20000) n`)
	o.exec(`VACUUM ANALYZE outbox.incident`)
	const bound = 500
	type page struct {
		first  int64
		size   int
		after  int64
		looked int
	}
	for name, test := range map[string]struct {
		filter operator.IncidentFilter
		want   page
	}{
		"none":                         {operator.IncidentFilter{}, page{20000, 2, 19999, 0}},
		"behind those that are over":   {operator.IncidentFilter{After: 15000}, page{10000, 2, 9999, 0}},
		"of all":                       {operator.IncidentFilter{All: true, After: 15000}, page{14999, 2, 14998, 0}},
		"a rare kind":                  {operator.IncidentFilter{Kind: "forbidden", After: 15000}, page{10000, 2, 9000, 0}},
		"an unknown kind":              {operator.IncidentFilter{Kind: "misconfigured"}, page{}},
		"a rare kind of all":           {operator.IncidentFilter{Kind: "forbidden", All: true, After: 20000}, page{0, 0, 19499, bound}},
		"the same, further on":         {operator.IncidentFilter{Kind: "forbidden", All: true, After: 19499}, page{19000, 1, 18998, bound}},
		"a provider":                   {operator.IncidentFilter{Provider: "spare"}, page{20000, 1, 19875, bound / 4}},
		"a provider, from a time":      {operator.IncidentFilter{Provider: "spare", Since: time.Now().Add(-30 * time.Second)}, page{20000, 1, 0, 0}},
		"a tool of a kind":             {operator.IncidentFilter{Tool: "spare/act", Kind: "forbidden"}, page{20000, 1, 0, 0}},
		"open ones":                    {operator.IncidentFilter{Open: true}, page{20000, 2, 19998, 0}},
		"up to a time, behind another": {operator.IncidentFilter{After: 19000, Until: time.Now().Add(-1800*time.Minute - 30*time.Second)}, page{18199, 2, 18198, 0}},
		"behind a time, behind others": {operator.IncidentFilter{After: 16000, Until: time.Now().Add(-1800*time.Minute - 30*time.Second)}, page{15999, 2, 15998, 0}},
		"behind one that was pruned":   {operator.IncidentFilter{After: 30000}, page{}},
	} {
		console, rowsRead := o.counting(bound)
		test.filter.Limit = 2
		listed, err := console.Incidents(t.Context(), test.filter)
		got := page{size: len(listed.Incidents), after: listed.After, looked: listed.Looked}
		if got.size > 0 {
			got.first = listed.Incidents[0].IncidentID
		}
		if err != nil || got != test.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, test.want)
		}
		if read := rowsRead("incident"); read > 3*bound {
			t.Errorf("%s: %d incidents were read", name, read)
		}
	}
}

func TestSagasAreNarrowedAndPaged(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.saga (agent_run_id, state, begun_at)
		SELECT 'run-' || n, CASE WHEN n = 2 THEN 'resolved' ELSE 'begun' END, now() - (4 - n) * interval '1 hour' FROM generate_series(1, 4) n`)
	for name, test := range map[string]struct {
		filter operator.SagaFilter
		want   []string
	}{
		"all":   {operator.SagaFilter{}, []string{"run-4", "run-3", "run-2", "run-1"}},
		"state": {operator.SagaFilter{State: "begun"}, []string{"run-4", "run-3", "run-1"}},
		"since": {operator.SagaFilter{Since: time.Now().Add(-90 * time.Minute)}, []string{"run-4", "run-3"}},
		"until": {operator.SagaFilter{Until: time.Now().Add(-90 * time.Minute)}, []string{"run-2", "run-1"}},
		"after": {operator.SagaFilter{After: "run-3"}, []string{"run-2", "run-1"}},
	} {
		test.filter.Limit = 10
		sagas, err := o.console().Sagas(t.Context(), test.filter)
		var got []string
		for _, saga := range sagas {
			got = append(got, saga.AgentRunID)
		}
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v (%v), want %v", name, got, err, test.want)
		}
	}
}

func TestASearchFindsWhereATextStands(t *testing.T) {
	t.Parallel()
	o := listed(t)
	o.exec(`UPDATE outbox.attempt SET provider_ref = 'ch_3' WHERE intent_id = 3`)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload) VALUES ('3', 's', 'sim/act', 'invoice_442', '{}')`)
	o.exec(`INSERT INTO outbox.intent (agent_run_id, step_id, tool_name, business_scope, payload, namespace) VALUES ('läufe', 's,1', 'sim/act', 'ß', '{}', 'eu')`)
	o.exec(`INSERT INTO outbox.generation (intent_id, generation, doubt) VALUES (5, 2, false), (8, 12, false)`)
	keyOf := func(intent int) string {
		return one[string](o, `SELECT idempotency_key FROM outbox.status WHERE intent_id = $1`, intent)
	}
	for text, want := range map[string]struct {
		runs    []string
		intents []int64
	}{
		"ch_3":        {nil, []int64{3}},
		"invoice_442": {nil, []int64{7}},
		"3":           {[]string{"3"}, []int64{3}},
		"run-":        {[]string{"run-0", "run-1"}, nil},
		keyOf(2):      {nil, []int64{2}},
		keyOf(5):      {nil, []int64{5}},
		keyOf(8):      {nil, []int64{8}},
		"ch_":         {nil, nil},
		"%":           {nil, nil},
	} {
		found, err := o.console().Search(t.Context(), text, 10)
		if err != nil {
			t.Fatal(err)
		}
		var intents []int64
		for _, intent := range found.Intents {
			intents = append(intents, intent.IntentID)
		}
		if !slices.Equal(found.Runs, want.runs) || !slices.Equal(intents, want.intents) || found.Bounded || found.More {
			t.Errorf("%q: got runs %q and intents %v (%+v), want %+v", text, found.Runs, intents, found, want)
		}
	}
	if found, err := o.console().Search(t.Context(), "scope", 5); err != nil || len(found.Intents) != 5 || !found.More {
		t.Errorf("more than the limit: %d intents, more is %t (%v)", len(found.Intents), found.More, err)
	}
	console := o.console()
	console.LookAtMost(2)
	if found, err := console.Search(t.Context(), "ch_3", 5); err != nil || len(found.Intents) != 0 || !found.Bounded {
		t.Errorf("an intent that was not looked at: %+v (%v)", found, err)
	}
}

func TestATenantIsShownWithItsLimitsAndWhatItUses(t *testing.T) {
	t.Parallel()
	o := newOutbox(t)
	o.exec(`INSERT INTO outbox.tenant (name, role, namespace, weight, max_due, max_bytes, max_rate, max_in_flight) VALUES
		('acme', 'acme', 'prod/acme', 3, 100, 4096, 50, 7), ('globex', 'globex', NULL, 1, NULL, NULL, NULL, NULL), ('idle', 'idle', NULL, 1, NULL, NULL, NULL, NULL)`)
	of := func(tenant string, ids []int64) {
		o.exec(`UPDATE outbox.intent SET tenant = (SELECT tenant_id FROM outbox.tenant WHERE name = $1) WHERE id = ANY ($2)`, tenant, ids)
		o.exec(`UPDATE outbox.queue SET bytes = 10, tenant = (SELECT tenant_id FROM outbox.tenant WHERE name = $1) WHERE intent_id = ANY ($2)`, tenant, ids)
	}
	acme, globex := o.enqueue("of acme", 5), o.enqueue("of globex", operator.TenantLook+5)
	of("acme", acme)
	of("globex", globex)
	// Two are claimed, and one of them has ended. One waits for its time. One is in another lane.
	o.exec(`DELETE FROM outbox.queue WHERE intent_id = ANY ($1)`, acme[:2])
	o.exec(`INSERT INTO outbox.claim (worker_id, provider, server, intent_ids, attempts, tries, first_attempt_ats, maybe_applied, lookups, vias)
		VALUES (gen_random_uuid(), 'sim', 'sim', $1, '{1,1}', '{1,1}', '{NULL,NULL}', '{f,f}', '{f,f}', '{NULL,NULL}')`, acme[:2])
	o.exec(`INSERT INTO outbox.attempt (intent_id, attempt, worker, outcome, status) VALUES ($1, 1, 'w', 'completed', 'completed')`, acme[0])
	o.exec(`UPDATE outbox.queue SET next_attempt_at = now() + interval '1 hour' WHERE intent_id = $1`, acme[2])
	o.exec(`UPDATE outbox.queue SET provider = 'other' WHERE intent_id = $1`, acme[3])

	console := o.console()
	tenants, err := console.Tenants(t.Context(), "", 3) // other tenants come after these
	if err != nil || len(tenants) != 3 {
		t.Fatalf("%+v, %v", tenants, err)
	}
	a, g, idle := tenants[0], tenants[1], tenants[2]
	if a.Name != "acme" || a.Role != "acme" || a.Namespace != "prod/acme" || a.Weight != 3 || *a.MaxDue != 100 || *a.MaxBytes != 4096 || *a.MaxRate != 50 || *a.MaxInFlight != 7 {
		t.Errorf("acme is %+v", a)
	}
	if a.Due != 2 || a.Queued != 3 || a.Bytes != 30 || a.InFlight != 1 || a.InFlightBounded {
		t.Errorf("acme uses %+v", a)
	}
	if g.Due != operator.TenantLook || g.Queued != operator.TenantLook || g.Bytes != 10*operator.TenantLook || g.MaxDue != nil {
		t.Errorf("globex is %+v", g)
	}
	if idle.Due+idle.Queued+idle.Bytes+idle.InFlight != 0 {
		t.Errorf("the idle one uses %+v", idle)
	}
	if rest, err := console.Tenants(t.Context(), "acme", 1); err != nil || len(rest) != 1 || rest[0].Name != "globex" {
		t.Errorf("after acme comes %+v, %v", rest, err)
	}
}
