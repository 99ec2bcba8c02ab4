package census

import "github.com/prometheus/client_golang/prometheus"

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("drainer_"+name, help, labels, nil)
}

var (
	outboxRows       = gauge("outbox_rows", "Rows by state, pending ones counted to 10,000 due and 10,000 not yet due.", "provider", "state")
	dueRows          = gauge("outbox_due_rows", "Rows due now, counted to 10,000.", "provider")
	oldestDue        = gauge("outbox_oldest_due_age_seconds", "How long the oldest due row has been due.", "provider")
	oldestInProgress = gauge("outbox_oldest_in_progress_age_seconds", "How long the oldest claim has been in progress.", "provider")
	longRows         = gauge("outbox_long_in_progress_rows", "Rows in progress for more than a minute.", "provider")
	nearEndRows      = gauge("outbox_key_ttl_near_rows", "Rows that may have been applied, and are tried no more soon, because the provider may forget their key; looked for among the 500 oldest.", "provider")

	sagas      = gauge("sagas", "Agent runs that go back, or could not, counted to 10,000.", "state")
	oldestSaga = gauge("sagas_oldest_begun_age_seconds", "How long the oldest saga under way has been under way.")

	incidentsOpen  = gauge("incidents_open", "Incidents that nobody has acknowledged or resolved, counted to 10,000.", "kind")
	oldestIncident = gauge("incidents_oldest_open_age_seconds", "How long the oldest open incident has been open.", "kind")
	oldestUntold   = gauge("incidents_oldest_untold_age_seconds", "How long the oldest open incident has been open that no channel of pages was told of.")

	deadTuples       = gauge("postgres_dead_tuples", "Dead rows that vacuum has not removed, by the database's estimate.", "table")
	tableBytes       = gauge("postgres_table_bytes", "Size on disk, indexes included.", "table")
	xminSeconds      = gauge("postgres_oldest_xmin_age_seconds", "How long the holder of the oldest snapshot has kept dead rows from being removed, as far as that is known.", "holder")
	xminTransactions = gauge("postgres_oldest_xmin_age_transactions", "How many transactions have begun since the oldest snapshot.", "holder")

	duration = gauge("census_duration_seconds", "How long the last sample of all these took.")
)

var gauges = []*prometheus.Desc{
	outboxRows, dueRows, oldestDue, oldestInProgress, longRows, nearEndRows,
	sagas, oldestSaga, incidentsOpen, oldestIncident, oldestUntold,
	deadTuples, tableBytes, xminSeconds, xminTransactions, duration,
}
