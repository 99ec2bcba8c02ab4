package dashboards

// provider shows a single provider: the traffic to it and its answers.
func provider() Dashboard {
	return Dashboard{
		UID: "drainer-provider", Title: "drainer / provider", OneProvider: true,
		Description: "One provider: its waiting intents, its answers, and their results.",
		Rows:        []Row{providerNow(), providerFlow(), providerAnswers(), providerCorrectness()},
	}
}

func providerNow() Row {
	return Row{"Now", []Panel{
		{
			Title: "Due", Unit: Count, Number: true, Warn: 500, Alarm: 1000,
			Description: "Intents that could be sent now. Over 1,000: runbook DrainerBacklog.",
			Queries:     one(`sum(max by (namespace, job) (drainer_outbox_due_rows{<provider>}))`, "due"),
		},
		{
			Title: "Oldest due", Unit: Seconds, Number: true, Warn: 60, Alarm: 300,
			Description: "How late the latest intent is. Over 5 minutes: runbook DrainerOldestDueTooOld.",
			Queries:     one(`max(drainer_outbox_oldest_due_age_seconds{<provider>})`, "oldest due"),
		},
		{
			Title: "Oldest in progress", Unit: Seconds, Number: true, Warn: 120, Alarm: 300,
			Description: "How long the oldest claim has been worked on. Over three timeouts: runbook DrainerRowInProgressTooLong.",
			Queries:     one(`max(drainer_outbox_oldest_in_progress_age_seconds{<provider>})`, "oldest in progress"),
		},
		{
			Title: "Circuit breaker", Unit: YesNo, Number: true, Alarm: 1,
			Description: "Yes: it is not closed, because the provider failed. Runbook DrainerCircuitOpen.",
			Queries:     one(`1 - max(drainer_circuit_breaker_state{<provider>, state="closed"})`, "open"),
		},
		{
			Title: "Paused", Unit: YesNo, Number: true, Warn: 1,
			Description: "An operator's decision. `drainer providers list` says whose and why; `drainer providers resume NAME` ends it.",
			Queries:     one(`max(drainer_provider_paused{<provider>})`, "paused"),
		},
		{
			Title: "In flight", Unit: Count, Number: true,
			Description: "Rows that drainers have claimed and not ended. At the concurrency while rows are due: raise it, if the provider can take it.",
			Queries:     one(`sum(drainer_in_flight{<provider>})`, "in flight"),
		},
		{
			Title: "Concurrency", Unit: Count, Number: true,
			Description: "As configured: dispatches under way at once, over all replicas together.",
			Queries:     one(`max(drainer_provider_concurrency{<provider>})`, "concurrency"),
		},
		{
			Title: "Timeout", Unit: Seconds, Number: true,
			Description: "As configured: the longest that one dispatch may take. Compare with how long dispatches take.",
			Queries:     one(`max(drainer_provider_timeout_seconds{<provider>})`, "timeout"),
		},
	}}
}

func providerFlow() Row {
	return Row{"Flow", []Panel{
		{
			Title: "Waiting and in progress", Unit: Count,
			Description: "Due rows could go now; the other pending ones wait for a retry or for their time. Due grows: runbook DrainerBacklog.",
			Queries: []Query{
				{`max by (state) (drainer_outbox_rows{<provider>})`, "{{state}}"},
				{`max(drainer_outbox_due_rows{<provider>})`, "due"},
			},
		},
		{
			Title: "In and out", Unit: PerSecond,
			Description: "Rows claimed, and intents settled. Many more claimed than settled: attempts are repeated; look at outcomes.",
			Queries: []Query{
				{`sum(rate(drainer_claimed_rows_total{<provider>}[$__rate_interval]))`, "claimed"},
				{`sum by (status) (rate(drainer_settled_total{<provider>}[$__rate_interval]))`, "{{status}}"},
			},
		},
		{
			Title: "Delivery latency", Unit: Seconds,
			Description: "From enqueue to completion. High while dispatches are quick: intents wait, for their turn or for a retry.",
			Queries:     quantiles("drainer_delivery_latency_seconds", "<provider>", "", "", "0.50", "0.95", "0.99"),
		},
	}}
}

func providerAnswers() Row {
	return Row{"Answers", []Panel{
		{
			Title: "Attempts by outcome", Unit: PerSecond,
			Description: "`throttled`: lower `rate_limit`. `not_sent`: network, DNS, TLS. `ambiguous`: answers get lost; timeouts, 5xx. `rejected`: look at one with `drainer intents show`.",
			Queries:     one(`sum by (outcome) (rate(drainer_dispatch_attempts_total{<provider>}[$__rate_interval]))`, "{{outcome}}"),
		},
		{
			Title: "Attempts by operation", Unit: PerSecond,
			Description: "Which tool is called. One that is new, or far over its usual rate, belongs to an agent that changed.",
			Queries:     one(`sum by (operation) (rate(drainer_dispatch_attempts_total{<provider>}[$__rate_interval]))`, "{{operation}}"),
		},
		{
			Title: "Not completed, by operation", Unit: Ratio, Warn: 0.1, Alarm: 0.5,
			Description: "The share of attempts that did not complete. One operation alone: its configuration or its payloads. All: the provider.",
			Queries: one(`1 - sum by (operation) (rate(drainer_dispatch_attempts_total{<provider>, outcome="completed"}[$__rate_interval]))
/ sum by (operation) (rate(drainer_dispatch_attempts_total{<provider>}[$__rate_interval]))`, "{{operation}}"),
		},
		{
			Title: "Dispatch duration", Unit: Seconds,
			Description: "One call, from start to outcome. p99 at the timeout: the provider hangs.",
			Queries:     quantiles("drainer_dispatch_duration_seconds", "<provider>", "", "", "0.50", "0.95", "0.99"),
		},
		{
			Title: "How full", Unit: Ratio, Warn: 0.9,
			Description: "In flight over concurrency, by replica, and together.",
			Queries: []Query{
				{`sum by (instance) (drainer_in_flight{<provider>}) / ignoring (instance) group_left max(drainer_provider_concurrency{<provider>})`, "{{instance}}"},
				{`sum(drainer_in_flight{<provider>}) / max(drainer_provider_concurrency{<provider>})`, "together"},
			},
		},
		{
			Title: "Circuit breaker", Unit: YesNo,
			Description: "The state that all replicas share. Half open: one intent tries the provider. Runbook DrainerCircuitOpen.",
			Queries:     one(`max by (state) (drainer_circuit_breaker_state{<provider>})`, "{{state}}"),
		},
		{
			Title: "Shut operations", Unit: YesNo,
			Description: "Yes: the operation's breaker is not closed. Its intents wait, and those of its neighbours do not. Runbook DrainerCircuitOpen.",
			Queries: one(`max by (operation) (drainer_operation_circuit_breaker_open{<provider>})
or 0 * max(drainer_provider_paused{<provider>})`, "{{operation}}"), // before the first breaker opens there is no series
		},
	}}
}

func providerCorrectness() Row {
	return Row{"Correctness", []Panel{
		{
			Title: "Failed and unknown", Unit: Count, Warn: 1,
			Description: "Intents that ended badly: `drainer intents list --dead --provider NAME`. Unknown ones: runbook DrainerOutcomeUnknown.",
			Queries:     one(`sum by (status) (increase(drainer_settled_total{<provider>, status!="completed"}[$__rate_interval]))`, "{{status}}"),
		},
		{
			Title: "Collisions, duplicates, replays", Unit: Count,
			Description: "Collisions must stay at 0: runbook DrainerKeyCollision. Duplicates were caught here, replays by the provider: that is normal.",
			Queries: []Query{
				{`sum(increase(drainer_idempotency_key_collisions_total{<provider>}[$__rate_interval]))`, "collisions"},
				{`sum(increase(drainer_duplicates_total{<provider>}[$__rate_interval]))`, "duplicates"},
				{`sum(increase(drainer_replays_total{<provider>}[$__rate_interval]))`, "replays"},
			},
		},
		{
			Title: "At risk", Unit: Count, Alarm: 1,
			Description: "Rows whose key runs out, rows in progress for over a minute, and outcomes that came after their lease. Runbooks DrainerKeyTTLNear, DrainerRowInProgressTooLong, DrainerLeasesLost.",
			Queries: []Query{
				{`max(drainer_outbox_key_ttl_near_rows{<provider>})`, "key runs out"},
				{`max(drainer_outbox_long_in_progress_rows{<provider>})`, "in progress for long"},
				{`sum(increase(drainer_leases_lost_total{<provider>}[$__rate_interval]))`, "leases lost"},
			},
		},
	}}
}
