package dashboards

// overview is for the person on call: is something wrong, and where.
func overview() Dashboard {
	return Dashboard{
		UID: "drainer-overview", Title: "drainer / overview",
		Description: "Is something wrong, and where? Read it from top to bottom; each panel says what to do.",
		Rows:        []Row{now(), flow(), providers(), correctness(), sagasAndPages(), database(), runtime()},
	}
}

func now() Row {
	return Row{"Now", []Panel{
		{
			Title: "Alerts", Unit: Count, Number: true, Alarm: 1,
			Description: "Alerts of drainer that fire. Each links to its runbook.",
			Queries:     one(`count(ALERTS{alertname=~"Drainer.+", alertstate="firing", <job>}) or vector(0)`, "firing"),
		},
		{
			Title: "Replicas", Unit: Count, Number: true,
			Description: "Drainers that are scraped. None: runbook DrainerDown. Fewer than deployed: DrainerReplicaDown.",
			Queries:     one(`count(drainer_build_info{<job>}) or vector(0)`, "replicas"),
		},
		{
			Title: "Due", Unit: Count, Number: true, Warn: 500, Alarm: 1000,
			Description: "Intents that could be sent now. Over 1,000: runbook DrainerBacklog. Find the provider under Flow.",
			Queries:     one(`sum(max by (namespace, job, provider) (drainer_outbox_due_rows{<provider>}))`, "due"),
		},
		{
			Title: "Oldest due", Unit: Seconds, Number: true, Warn: 60, Alarm: 300,
			Description: "How late the latest intent is. Over 5 minutes: runbook DrainerOldestDueTooOld, unless its provider is paused.",
			Queries:     one(`max(drainer_outbox_oldest_due_age_seconds{<provider>})`, "oldest due"),
		},
		{
			Title: "Oldest in progress", Unit: Seconds, Number: true, Warn: 120, Alarm: 300,
			Description: "How long the oldest claim has been worked on. Over three times its provider's timeout: runbook DrainerRowInProgressTooLong.",
			Queries:     one(`max(drainer_outbox_oldest_in_progress_age_seconds{<provider>})`, "oldest in progress"),
		},
		{
			Title: "Shut", Unit: Count, Number: true, Warn: 1,
			Description: "Providers that are paused, or whose circuit breaker is not closed. `drainer providers list` says which, since when and why. Runbooks DrainerCircuitOpen and DrainerPausedTooLong.",
			Queries: one(`count(max by (namespace, job, provider) (drainer_provider_paused{<provider>}) == 1
or max by (namespace, job, provider) (drainer_circuit_breaker_state{<provider>, state="closed"}) == 0) or vector(0)`, "shut"),
		},
		{
			Title: "Incidents", Unit: Count, Number: true, Alarm: 1,
			Description: "Incidents that no operator has acknowledged. `drainer incidents list`; acknowledge one with `drainer incidents ack`.",
			Queries:     one(`sum(max by (namespace, job, kind) (drainer_incidents_open{<job>}))`, "open"),
		},
		{
			Title: "Rollbacks under way", Unit: Count, Number: true, Warn: 100,
			Description: "Agent runs that are being undone. Many at once: a provider fails for good, look at outcomes. `drainer sagas list --state begun`.",
			Queries:     one(`sum(max by (namespace, job) (drainer_sagas{<job>, state="begun"}))`, "sagas"),
		},
	}}
}

func flow() Row {
	return Row{"Flow", []Panel{
		{
			Title: "Due, by provider", Unit: Count, Alarm: 1000,
			Description: "Grows: more intents are enqueued than sent. Compare with Shut, and with the provider's concurrency. Runbook DrainerBacklog.",
			Queries:     one(`max by (provider) (drainer_outbox_due_rows{<provider>})`, "{{provider}}"),
		},
		{
			Title: "Oldest due, by provider", Unit: Seconds, Alarm: 300,
			Description: "Grows by a second each second: nothing is sent. Stays high: too little is sent. Runbooks DrainerStalled and DrainerOldestDueTooOld.",
			Queries:     one(`max by (provider) (drainer_outbox_oldest_due_age_seconds{<provider>})`, "{{provider}}"),
		},
		{
			Title: "In and out", Unit: PerSecond,
			Description: "Intents enqueued, rows claimed, and intents settled. More enqueued than settled: a backlog grows. Many more claimed than settled: attempts fail and are repeated; look at outcomes.",
			Queries: []Query{
				{`sum(rate(drainer_enqueued_total{<provider>}[$__rate_interval]))`, "enqueued"},
				{`sum(rate(drainer_claimed_rows_total{<provider>}[$__rate_interval]))`, "claimed"},
				{`sum by (status) (rate(drainer_settled_total{<provider>}[$__rate_interval]))`, "{{status}}"},
			},
		},
		{
			Title: "Delivery latency", Unit: Seconds,
			Description: "From enqueue to completion. High while dispatches are quick: intents wait, for their turn or for a retry. Too many over a minute: runbook DrainerDeliveriesLate.",
			Queries:     quantiles("drainer_delivery_latency_seconds", "<provider>", "", "", "0.50", "0.95", "0.99"),
		},
		{
			Title: "Attempts by outcome", Unit: PerSecond,
			Description: "`completed` should be nearly all. `throttled`: too fast for the provider. `not_sent`: network. `ambiguous`: answers get lost. `rejected`: the agent or the configuration is wrong. `credentials_refused` and `forbidden`: the configuration is. `lost`: workers die.",
			Queries:     one(`sum by (outcome) (rate(drainer_dispatch_attempts_total{<provider>}[$__rate_interval]))`, "{{outcome}}"),
		},
		{
			Title: "Waiting and in progress", Unit: Count,
			Description: "Pending rows include those that wait for a retry or for their time, counted to a limit.",
			Queries:     one(`sum by (state) (max by (namespace, job, provider, state) (drainer_outbox_rows{<provider>}))`, "{{state}}"),
		},
	}}
}

func providers() Row {
	return Row{"Providers", []Panel{
		{
			Title: "Not completed, by provider", Unit: Ratio, Warn: 0.1, Alarm: 0.5,
			Description: "The share of attempts that did not complete. Open the provider's own dashboard to see how they ended.",
			Queries: one(`1 - sum by (provider) (rate(drainer_dispatch_attempts_total{<provider>, outcome="completed"}[$__rate_interval]))
/ sum by (provider) (rate(drainer_dispatch_attempts_total{<provider>}[$__rate_interval]))`, "{{provider}}"),
		},
		{
			Title: "Dispatch p99, by provider", Unit: Seconds,
			Description: "At the provider's timeout: it hangs. Intents are in doubt then, and retried with the same key.",
			Queries:     quantiles("drainer_dispatch_duration_seconds", "<provider>", "provider", " {{provider}}", "0.99"),
		},
		{
			Title: "How full", Unit: Ratio, Warn: 0.9,
			Description: "In flight over concurrency. At 100 % while rows are due: raise `concurrency`, if the provider can take it.",
			Queries:     one(`sum by (provider) (drainer_in_flight{<provider>}) / max by (provider) (drainer_provider_concurrency{<provider>})`, "{{provider}}"),
		},
		{
			Title: "Circuit breaker not closed", Unit: YesNo,
			Description: "Yes: the provider fails. Its intents wait, and use up no attempts. Runbook DrainerCircuitOpen.",
			Queries:     one(`1 - max by (provider) (drainer_circuit_breaker_state{<provider>, state="closed"})`, "{{provider}}"),
		},
		{
			Title: "Paused", Unit: YesNo,
			Description: "An operator's decision. `drainer providers list` says whose and why; `drainer providers resume NAME` ends it.",
			Queries:     one(`max by (provider) (drainer_provider_paused{<provider>})`, "{{provider}}"),
		},
		{
			Title: "Rows of unconfigured providers", Unit: Count, Alarm: 1,
			Description: "Rows for a provider that the leading replica has not configured. Runbook DrainerUnconfiguredProvider; `drainer status` names it.",
			Queries:     one(`max by (namespace, job) (drainer_outbox_rows{<job>, provider="unconfigured", state="pending"})`, "{{namespace}} {{job}}"),
		},
	}}
}

func correctness() Row {
	return Row{"Correctness", []Panel{
		{
			Title: "Key collisions", Unit: Count, Alarm: 1,
			Description: "An agent used a key for another payload, and was refused: its effect is missing. Must stay at 0. Runbook DrainerKeyCollision.",
			Queries:     one(`sum by (provider) (increase(drainer_idempotency_key_collisions_total{<provider>}[$__rate_interval]))`, "{{provider}}"),
		},
		{
			Title: "Duplicates", Unit: PerSecond,
			Description: "Keys enqueued again; each was caught. Three times the usual: agents retry or run twice. Runbook DrainerDuplicatesHigh.",
			Queries:     one(`sum by (provider) (rate(drainer_duplicates_total{<provider>}[$__rate_interval]))`, "{{provider}}"),
		},
		{
			Title: "Failed and unknown", Unit: Count, Warn: 1,
			Description: "Intents that ended badly. `drainer intents list --dead` shows them. For unknown ones ask the provider: runbook DrainerOutcomeUnknown.",
			Queries:     one(`sum by (provider, status) (increase(drainer_settled_total{<provider>, status!="completed"}[$__rate_interval]))`, "{{provider}} {{status}}"),
		},
		{
			Title: "Leases lost", Unit: Count, Warn: 1,
			Description: "Rows that were taken from a worker: it died (lost), or froze and came back (late). Runbook DrainerLeasesLost.",
			Queries: []Query{
				{`sum by (provider) (increase(drainer_leases_lost_total{<provider>}[$__rate_interval]))`, "{{provider}} late"},
				{`sum by (provider) (increase(drainer_dispatch_attempts_total{<provider>, outcome="lost"}[$__rate_interval]))`, "{{provider}} lost"},
			},
		},
		{
			Title: "Keys that run out", Unit: Count, Alarm: 1,
			Description: "Intents that may have been applied, and can soon not be retried safely. Get an answer before that: runbook DrainerKeyTTLNear.",
			Queries:     one(`max by (provider) (drainer_outbox_key_ttl_near_rows{<provider>})`, "{{provider}}"),
		},
		{
			Title: "In progress for over a minute", Unit: Count, Warn: 1,
			Description: "Dispatches that hang, or outcomes that cannot be settled. Runbook DrainerRowInProgressTooLong.",
			Queries:     one(`max by (provider) (drainer_outbox_long_in_progress_rows{<provider>})`, "{{provider}}"),
		},
	}}
}

func sagasAndPages() Row {
	return Row{"Sagas and pages", []Panel{
		{
			Title: "Incidents open", Unit: Count, Alarm: 1,
			Description: "By kind. `drainer incidents list`. Each kind has a runbook: DrainerOutcomeUnknown, DrainerCompensationFailed, DrainerKeyCollision, DrainerHistoryChanged, DrainerRefused, DrainerUnconfiguredProvider.",
			Queries:     one(`max by (kind) (drainer_incidents_open{<job>})`, "{{kind}}"),
		},
		{
			Title: "Oldest open incident", Unit: Seconds, Warn: 900, Alarm: 1800,
			Description: "How long it was not acknowledged, and how long no channel took a page about one. Runbooks DrainerIncidentUnacknowledged and DrainerIncidentUnpaged.",
			Queries: []Query{
				{`max by (kind) (drainer_incidents_oldest_open_age_seconds{<job>})`, "{{kind}}"},
				{`max(drainer_incidents_oldest_unpaged_age_seconds{<job>})`, "not paged"},
			},
		},
		{
			Title: "Pages", Unit: Count,
			Description: "Attempts to send a page. Without `delivered`, no page arrives: runbook DrainerPagingFailing.",
			Queries:     one(`sum by (channel, outcome) (increase(drainer_pages_total{<job>}[$__rate_interval]))`, "{{channel}} {{outcome}}"),
		},
		{
			Title: "Jobs that wait", Unit: Seconds, Warn: 60, Alarm: 120,
			Description: "How long the oldest job has been due, and how long ago the last looks for incidents and at sagas began. Pages and compensations may stand still: runbook DrainerJobsStuck.",
			Queries: []Query{
				{`max by (kind) (drainer_oldest_job_age_seconds{<job>})`, "{{kind}}"},
				{`max(drainer_page_look_age_seconds{<job>})`, "last look for incidents"},
				{`max(drainer_saga_look_age_seconds{<job>})`, "last look at sagas"},
			},
		},
		{
			Title: "Sagas", Unit: Count,
			Description: "Sagas that have not ended, and those that failed. `drainer sagas list --state compensation_failed`; runbook DrainerCompensationFailed.",
			Queries:     one(`max by (state) (drainer_sagas{<job>})`, "{{state}}"),
		},
		{
			Title: "Oldest saga under way", Unit: Seconds, Warn: 900, Alarm: 3600,
			Description: "It waits for an unknown step, for a provider or for a tool. Runbook DrainerSagaTooLong.",
			Queries:     one(`max(drainer_sagas_oldest_begun_age_seconds{<job>})`, "oldest"),
		},
		{
			Title: "Compensations", Unit: Count,
			Description: "Undos that were enqueued, and sagas that ended. Any `compensation_failed` pages.",
			Queries:     one(`sum by (outcome) (increase(drainer_compensations_total{<job>}[$__rate_interval]))`, "{{outcome}}"),
		},
	}}
}

func database() Row {
	return Row{"Postgres", []Panel{
		{
			Title: "Batch duration", Unit: Seconds, Warn: 0.1,
			Description: "One settle-and-claim commit. Slow: the disk, a pinned snapshot, or too many connections. Look at dead rows.",
			Queries:     quantiles("drainer_batch_duration_seconds", "<job>", "", "", "0.50", "0.99"),
		},
		{
			Title: "Batches failed", Unit: Count, Alarm: 1,
			Description: "The database is away or too slow. Run `drainer doctor`; do not restart drainers. Runbook DrainerBatchesFailing.",
			Queries:     one(`sum by (instance) (increase(drainer_batch_failures_total{<job>}[$__rate_interval]))`, "{{instance}}"),
		},
		{
			Title: "Counting", Unit: Seconds, Warn: 0.05,
			Description: "Duration of one count of the tables. No line: no replica counts, and half of this page is empty: runbook DrainerNotCounting.",
			Queries:     one(`max(drainer_census_duration_seconds{<job>})`, "sample"),
		},
		{
			Title: "Dead rows", Unit: Count, Warn: 100000,
			Description: "Dead rows that vacuum has not removed. Grows without end: a session pins a snapshot, or autovacuum does not keep up.",
			Queries:     one(`max by (table) (drainer_postgres_dead_tuples{<job>})`, "{{table}}"),
		},
		{
			Title: "Oldest snapshot", Unit: Seconds, Warn: 300, Alarm: 900,
			Description: "Who keeps dead rows from being removed, by kind. `drainer doctor` names it. Runbook DrainerPinnedXmin.",
			Queries:     one(`max by (holder) (drainer_postgres_oldest_xmin_age_seconds{<job>})`, "{{holder}}"),
		},
		{
			Title: "Table sizes", Unit: Bytes,
			Description: "`intent` and `attempt` grow with the retention. `queue` and `claim` should stay small: if not, they are bloated by dead rows.",
			Queries:     one(`max by (table) (drainer_postgres_table_bytes{<job>})`, "{{table}}"),
		},
		{
			Title: "Transactions since the oldest snapshot", Unit: Count,
			Description: "Age of the oldest snapshot in transactions, also if its age in time is not known.",
			Queries:     one(`max by (holder) (drainer_postgres_oldest_xmin_age_transactions{<job>})`, "{{holder}}"),
		},
		{
			Title: "Pruned", Unit: PerSecond,
			Description: "Settled intents pruned because their retention is over. None although tables grow: look at the retention, and at the log of the leader of jobs.",
			Queries:     one(`sum(rate(drainer_pruned_total{<job>}[$__rate_interval]))`, "pruned"),
		},
	}}
}

func runtime() Row {
	return Row{"Runtime", []Panel{
		{
			Title: "CPU", Unit: Count,
			Description: "Cores used by each replica. At its limit while rows are due: add replicas.",
			Queries:     one(`rate(process_cpu_seconds_total{<job>}[$__rate_interval]) and on (namespace, job, instance) drainer_build_info{<job>}`, "{{instance}}"),
		},
		{
			Title: "Memory", Unit: Bytes,
			Description: "Resident memory of each replica. Grows with the requests in flight and the size of responses. Near its limit: lower `concurrency`, or raise the limit.",
			Queries:     one(`process_resident_memory_bytes{<job>} and on (namespace, job, instance) drainer_build_info{<job>}`, "{{instance}}"),
		},
		{
			Title: "Goroutines", Unit: Count,
			Description: "Follows the requests in flight. Grows without end: an adapter leaks; restart the replica, and report it.",
			Queries:     one(`go_goroutines{<job>} and on (namespace, job, instance) drainer_build_info{<job>}`, "{{instance}}"),
		},
		{
			Title: "Age of the configuration", Unit: Seconds,
			Description: "How long it has been in force. Older than your last rollout: that replica has not read it, or rejected it.",
			Queries:     one(`time() - drainer_config_last_reload_success_timestamp_seconds{<job>}`, "{{instance}}"),
		},
		{
			Title: "Configuration rejected", Unit: YesNo,
			Description: "Yes: the newest configuration has a mistake, and a restart would fail. Runbook DrainerConfigReloadFailed.",
			Queries:     one(`1 - drainer_config_last_reload_successful{<job>}`, "{{instance}}"),
		},
		{
			Title: "Versions", Unit: Count,
			Description: "Replicas by version. Two versions may run side by side during a rollout; not for days.",
			Queries:     one(`count by (version) (drainer_build_info{<job>})`, "{{version}}"),
		},
	}}
}
