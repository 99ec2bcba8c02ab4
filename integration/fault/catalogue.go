package fault

// Catalogue is every case, in the order of a row's journey: worker, database,
// time, provider, saga, operation.
var Catalogue = []Case{
	{
		Number: 1, Fault: "kill after the claim's commit",
		Checked: "one effect each; accounts agree",
		Tests:   []string{"integration/faults TestAWorkerKilledAtAnyMomentLosesAndDoublesNothing"},
	},
	{
		Number: 2, Fault: "kill after the gates, before the send",
		Checked: "repeatable: one effect; else unknown, not sent",
		Tests:   []string{"integration/faults TestAWorkerKilledAtAnyMomentLosesAndDoublesNothing"},
	},
	{
		Number: 3, Fault: "kill while the provider has the request",
		Checked: "one effect, or unknown; one request of what cannot be repeated, and none before its claim is committed",
		Tests:   []string{"integration/faults TestAWorkerKilledWhileTheProviderHasTheRequestDoublesNothing"},
	},
	{
		Number: 4, Fault: "kill after the reply, before it is settled",
		Checked: "the same key is replayed; one effect; a later refusal proves nothing",
		Tests: []string{
			"integration/faults TestAWorkerKilledAtAnyMomentLosesAndDoublesNothing",
			"integration/faults TestAReplyThatDiesWithItsWorkerLeavesDoubt",
		},
	},
	{
		Number: 5, Fault: "kill after the settlement's commit",
		Checked: "nothing is sent again",
		Tests:   []string{"integration/faults TestAWorkerKilledAtAnyMomentLosesAndDoublesNothing"},
	},
	{
		Number: 6, Fault: "kill -9 at random, three replicas",
		Checked: "agents at work, runs that go back; accounts agree; each replica works after",
		Tests: []string{
			"integration/faults TestReplicasThatAreKilledAtRandomLoseAndDoubleNothing",
			"integration TestReplicasThatAreKilledDrainEverythingOnce",
		},
	},
	{
		Number: 7, Fault: "stopped past the lease, then continued",
		Checked: "the late outcome changes nothing that is settled; accounts agree",
		Tests:   []string{"integration/faults TestAWorkerSuspendedPastItsLeaseIsFencedOut"},
	},
	{
		Number: 8, Fault: "stopped between the last gate and the write",
		Checked: "at most one request of what cannot be repeated; accounts agree",
		Tests:   []string{"integration/faults TestAWorkerSuspendedBetweenGateAndSendDoublesNothing"},
	},
	{
		Number: 9, Fault: "SIGTERM with work in flight",
		Checked: "what is in flight ends, the rest is given back and costs no try; exit 0; accounts agree",
		Tests: []string{
			"integration/faults TestATerminatedWorkerEndsWhatIsInFlightAndLeaves",
			"integration TestAShutdownFinishesWhatIsInFlightAndGivesBackTheRest",
		},
	},
	{
		Number: 10, Fault: "a second SIGTERM while draining",
		Checked: "it ends at once; its rows are recovered; accounts agree",
		Tests:   []string{"integration/faults TestAWorkerThatIsTerminatedTwiceEndsAtOnceAndOthersRecover"},
	},
	{
		Number: 11, Fault: "heartbeats fail, the process lives",
		Checked: "it stops sending and starts over; accounts agree",
		Tests: []string{
			"integration/faults TestAWorkerWhoseHeartbeatsFailStopsSendingAndStartsOver",
			"integration/faults TestAWorkerWhoseHeartbeatHangsSendsNothingOnceItsLeaseIsOver",
		},
	},
	{
		Number: 12, Fault: "the same host and name after a restart",
		Checked: "the old worker is dead and its rows are recovered; accounts agree",
		Tests:   []string{"integration/faults TestAHostThatComesBackRecoversWhatItLeft"},
	},
	{
		Number: 13, Fault: "a row is settled while it is being reaped",
		Checked: "one of the two wins, whoever has the lock first; history has no second end",
		Tests:   []string{"integration/faults TestARowThatIsSettledWhileItIsReapedEndsOnce"},
	},
	{
		Number: 14, Fault: "a payload that kills every worker",
		Checked: "unknown after max_attempts; all others pass; accounts agree",
		Tests: []string{
			"integration/faults TestAPayloadThatKillsEveryWorkerEndsAtItsLastTry",
			"integration TestARowThatKillsEveryDaemonEndsAtMaxAttempts",
		},
	},
	{
		Number: 15, Fault: "panic in an adapter",
		Checked: "ambiguous; the same daemon goes on; accounts agree",
		Tests: []string{
			"integration/faults TestAnAdapterThatPanicsLeavesDoubtAndALivingDaemon",
			"integration TestAnAdapterThatPanicsIsAmbiguous",
		},
	},
	{
		Number: 16, Fault: "immediate stop and restart of Postgres",
		Checked: "agents and daemons at work, each class; accounts agree; backlog 0",
		Tests:   []string{"integration/faults TestACrashOfPostgresLosesAndDoublesNothing"},
	},
	{
		Number: 17, Fault: "a backend is killed",
		Checked: "agents and daemons at work, each class; accounts agree; backlog 0",
		Tests:   []string{"integration/faults TestACrashOfPostgresLosesAndDoublesNothing"},
	},
	{
		Number: 18, Fault: "failover to a standby that was behind",
		Checked: "once the documented SQL has run: no effect more; what can neither be repeated nor asked for is unknown; accounts agree",
		Tests:   []string{"integration/faults TestWhatAPromotedStandbyForgotIsNotDoneTwice"},
	},
	{
		Number: 19, Fault: "the primary comes back read-only",
		Checked: "connections are given up; work goes on once others write; accounts agree",
		Tests:   []string{"integration/faults TestADaemonLeavesAServerThatOnlyReads"},
	},
	{
		Number: 20, Fault: "the reply of a commit is lost",
		Checked: "claims that nobody heard of are given back unsent; agents repeat themselves or not; accounts agree",
		Tests:   []string{"integration/faults TestALostReplyOfACommitIsNeitherForgottenNorRepeated"},
	},
	{
		Number: 21, Fault: "half-open database connections",
		Checked: "both ends give up within 30 s, a saga that one had locked included; backlog 0; accounts agree",
		Tests:   []string{"integration/faults TestConnectionsThatFallSilentAreGivenUpByBothEnds"},
	},
	{
		Number: 22, Fault: "the listener's connection is dead",
		Checked: "polling finds the rows; accounts agree",
		Tests:   []string{"integration/faults TestRowsAreFoundWithoutAListener"},
	},
	{
		Number: 23, Fault: "every turn waits for somebody's lock",
		Checked: "heartbeats have a connection of their own; the lease is kept; accounts agree",
		Tests:   []string{"integration/faults TestHeartbeatsNeedNoneOfTheConnectionsThatAreTaken"},
	},
	{
		Number: 24, Fault: "max_connections is reached",
		Checked: "the lanes back off, no crash; backlog 0 after; accounts agree",
		Tests:   []string{"integration/faults TestADaemonThatMayNotConnectWaitsItsTurn"},
	},
	{
		Number: 25, Fault: "deadlock, serialization failure",
		Checked: "turns and sagas are repeated; a stricter default isolation fails none; accounts agree",
		Tests: []string{
			"integration/faults TestATurnThatDeadlocksIsRepeated",
			"integration/faults TestTurnsAndSagasThatFailToSerializeAreRepeated",
			"integration/faults TestARolesStricterIsolationFailsNothing",
		},
	},
	{
		Number: 26, Fault: "PgBouncer in transaction mode",
		Checked: "two daemons drain, sagas go back; accounts agree",
		Tests:   []string{"integration/faults TestDaemonsBehindAPoolerInTransactionModeDrain"},
	},
	{
		Number: 27, Fault: "a held snapshot and 100,000 dead tuples",
		Checked: "a look at the queue reads less than a tenth of them on average; backlog 0; accounts agree",
		Tests:   []string{"integration/faults TestClaimsPassByTheDeadRowsThatASnapshotHolds"},
	},
	{
		Number: 28, Fault: "a bad plan",
		Checked: "plans under which IN (SELECT ... LIMIT) claims too many: never more rows than the limit",
		Tests:   []string{"drainer/postgres TestTheLimitHoldsUnderABadPlan"},
	},
	{
		Number: 29, Fault: "a long transaction commits late under a low id",
		Checked: "its intents are drained behind the cursor; accounts agree",
		Tests:   []string{"integration/faults TestALongTransactionThatCommitsLateIsDrained"},
	},
	{
		Number: 30, Fault: "the database's disk is full",
		Checked: "nothing is sent without a committed claim; goes on with room; accounts agree",
		Tests:   []string{"integration/faults TestAFullDiskStopsSendingUntilThereIsRoom"},
	},
	{
		Number: 31, Fault: "workers' clocks are an hour ahead of the database's, or behind",
		Checked: "what is due, too old, lost or going back is so by the database alone; accounts agree",
		Tests:   []string{"integration/faults TestWorkersAnHourOffTheDatabaseMoveNothing"},
	},
	{
		Number: 32, Fault: "the database's clock jumps",
		Checked: "back by less than half of ttl, no key is used late; forward, doubt is unknown sooner; accounts agree",
		Tests: []string{
			"integration/faults TestNoKeyIsUsedLateThoughTheDatabasesClockJumps",
			"integration/faults TestAClockThatJumpsUnderLoadLosesAndDoublesNothing",
		},
	},
	{
		Number: 33, Fault: "a session time zone with daylight saving",
		Checked: "both changes of Europe/Berlin, beside UTC: claimed when due; accounts agree",
		Tests:   []string{"integration/faults TestDaylightSavingMovesNoInstant"},
	},
	{
		Number: 34, Fault: "Retry-After that is negative, broken, huge, past, in three date forms",
		Checked: "between 0 and a year; no retry is due before it",
		Tests: []string{
			"dispatch/internal/retryafter TestRetryAfterIsUnderstood",
			"dispatch TestARetryNeverPrecedesRetryAfter",
		},
	},
	{
		Number: 35, Fault: "attempt 1 to 1,000,000,000",
		Checked: "0 <= delay <= cap",
		Tests: []string{
			"dispatch TestTheCeilingDoublesUpToTheCap",
			"dispatch TestDelayStaysBetweenRetryAfterAndItsCeiling",
		},
	},
	{
		Number: 36, Fault: "everything fails at once",
		Checked: "no twentieth of the backoff has twice its share of the retries",
		Tests:   []string{"integration/faults TestWhatFailsAtOnceIsTriedAgainAtManyTimes"},
	},
	{
		Number: 37, Fault: "refused connection, failed TLS",
		Checked: "not sent; tried again, one effect in the ledger",
		Tests: []string{
			"dispatch/http TestARequestThatNeverLeftIsNotSent",
			"integration TestEveryClassMeetsEveryFaultAndEndsAsTheLedgerSays",
		},
	},
	{
		Number: 38, Fault: "reset after the body",
		Checked: "ambiguous; every class ends as the ledger says",
		Tests: []string{
			"dispatch/http TestAResetAfterTheBodyIsAmbiguous",
			"integration TestEveryClassMeetsEveryFaultAndEndsAsTheLedgerSays",
		},
	},
	{
		Number: 39, Fault: "the effect comes after the timeout",
		Checked: "one effect a key; what is unknown had one at most",
		Tests:   []string{"integration TestEveryClassMeetsEveryFaultAndEndsAsTheLedgerSays"},
	},
	{
		Number: 40, Fault: "reset on a reused connection",
		Checked: "the server counts one request a dispatch",
		Tests:   []string{"dispatch/http TestARequestIsSentOnceThoughItsReusedConnectionDies"},
	},
	{
		Number: 41, Fault: "429, 503, 409 and 422",
		Checked: "each as the table of outcomes says",
		Tests: []string{
			"dispatch/http TestTheStatusDecides",
			"integration TestEveryClassMeetsEveryFaultAndEndsAsTheLedgerSays",
		},
	},
	{
		Number: 42, Fault: "a 500 that the provider remembers",
		Checked: "asked for twice at most; looked up, or unknown",
		Tests:   []string{"integration TestEveryClassMeetsEveryFaultAndEndsAsTheLedgerSays"},
	},
	{
		Number: 43, Fault: "the provider may have forgotten the key",
		Checked: "not sent again; unknown, with an incident",
		Tests: []string{
			"integration TestAKeyThatTheProviderMayHaveForgottenIsNotSentAgain",
			"integration TestARowInDoubtThatWaitedPastItsKeyIsNotSent",
		},
	},
	{
		Number: 44, Fault: "redirects",
		Checked: "rejected; the other host hears nothing",
		Tests:   []string{"dispatch/http TestARedirectIsNotFollowed"},
	},
	{
		Number: 45, Fault: "endless body, 1 GB body, gzip bomb",
		Checked: "cut off; ambiguous; the process grows by less than 128 MiB; accounts agree",
		Tests:   []string{"integration/faults TestAHugeReplyDoesNotGrowTheDaemon"},
	},
	{
		Number: 46, Fault: "a reply that trickles",
		Checked: "header or body: the deadline ends it; accounts agree",
		Tests:   []string{"integration/faults TestAReplyThatTricklesIsGivenUpAtTheDeadline"},
	},
	{
		Number: 47, Fault: "NUL and lone surrogates in an error",
		Checked: "recorded with the words that can be; accounts agree",
		Tests:   []string{"integration/faults TestAFailureIsRecordedWhateverItsWords"},
	},
	{
		Number: 48, Fault: "key parts with CR LF, NUL, unicode, 300 octets",
		Checked: "a safe key, or refused; no header injected; accounts agree",
		Tests: []string{
			"dispatch TestAKeyIsStableAndFitsEveryHeader",
			"integration/faults TestKeyPartsOfAnyTextBecomeASafeKeyOrAreRefused",
		},
	},
	{
		Number: 49, Fault: "integers above 2^53, duplicate keys",
		Checked: "numbers are kept, of two values the last; the same octets each try",
		Tests:   []string{"integration/faults TestAPayloadKeepsItsNumbersAndItsOctetsFromTryToTry"},
	},
	{
		Number: 50, Fault: "a breaker's probe hangs or panics",
		Checked: "its turn passes on; the breaker closes",
		Tests: []string{
			"drainer/postgres TestTheTurnOfAProberThatDiedPassesOn",
			"integration TestAProbeThatGoesWrongLeavesTheTurnToAnother",
		},
	},
	{
		Number: 51, Fault: "the provider is down for long",
		Checked: "more probes than a row has tries, and all have one left",
		Tests: []string{
			"integration TestAnOutageDoesNotUseARowUp",
			"integration/faults TestAnOutageUsesUpNoTries",
		},
	},
	{
		Number: 52, Fault: "a name that resolves to 169.254.169.254",
		Checked: "refused at the connection, whatever the rules",
		Tests:   []string{"dispatch/egress TestANameThatIsReboundToTheMetadataServiceIsRefused"},
	},
	{
		Number: 53, Fault: "a saga is begun twice",
		Checked: "one saga a run, each undo once; accounts agree",
		Tests:   []string{"integration/faults TestARunThatIsTakenBackThriceGoesBackOnce"},
	},
	{
		Number: 54, Fault: "a step ends while its saga begins",
		Checked: "before the plan or after it: undone; accounts agree",
		Tests:   []string{"integration/faults TestAStepThatEndsWhileItsSagaBeginsIsUndone"},
	},
	{
		Number: 55, Fault: "an intent is enqueued while its run goes back",
		Checked: "refused, or cancelled and never sent",
		Tests: []string{
			"compensations TestARunThatGoesBackTakesNoFurtherStep",
			"compensations TestAStepThatSlipsInIsCancelledAndNeverSent",
			"integration/faults TestAStepThatCommitsAfterItsRunWentBackIsNotSent",
		},
	},
	{
		Number: 56, Fault: "a step in doubt while its run goes back",
		Checked: "no undo before it is settled; then undone, or not",
		Tests:   []string{"compensations TestAStepInDoubtIsWaitedForAndThenUndoneIfItHappened"},
	},
	{
		Number: 57, Fault: "an effect that comes after the run went back",
		Checked: "compensation_failed, an incident, and a page that is received",
		Tests: []string{
			"compensations TestAnEffectThatComesLateIsAnIncident",
			"integration/faults TestAnEffectThatComesAfterTheRunWentBackIsPagedOncePagersAreUp",
		},
	},
	{
		Number: 58, Fault: "River runs a job twice",
		Checked: "two daemons, each undo once, newest first",
		Tests:   []string{"integration TestASagaWhoseJobsRunTwiceUndoesOnce"},
	},
	{
		Number: 59, Fault: "no compensator is registered",
		Checked: "compensation_failed and one incident; older steps stand",
		Tests:   []string{"compensations TestWhatCannotBeUndoneEndsTheSagaWithOneIncident"},
	},
	{
		Number: 60, Fault: "the pager is down",
		Checked: "paged until it was heard",
		Tests: []string{
			"compensations/pages TestAPagerThatWasDownForTenTriesHearsOnceItIsBack",
			"integration/faults TestAnEffectThatComesAfterTheRunWentBackIsPagedOncePagersAreUp",
		},
	},
	{
		Number: 61, Fault: "replicas of two configurations",
		Checked: "an unknown tool and provider wait for who knows them, also when their worker died; accounts agree",
		Tests:   []string{"integration/faults TestAToolThatAReplicaDoesNotKnowWaitsForOneThatDoes"},
	},
	{
		Number: 62, Fault: "migration under load",
		Checked: "lock_timeout, agents and daemons pass; it succeeds later; accounts agree",
		Tests:   []string{"integration/faults TestAMigrationUnderLoadLetsAgentsPass"},
	},
	{
		Number: 63, Fault: "canary secrets in URL, headers, body and DSN",
		Checked: "in no log, metric, span, page, incident, job, nor what any command prints",
		Tests:   []string{"integration/faults TestNoSecretIsInAnyOutput"},
	},
}
