// Package fault is the catalogue of faults that a daemon must survive, each with the tests that inject it. A test
// reports with [Injected] how often it did so. The program in report runs all these tests and prints a table.
package fault

import (
	"fmt"
	"testing"
)

// Case is one fault.
type Case struct {
	Number  int
	Fault   string
	Checked string   // the property that must hold, and how it is checked
	Open    bool     // the program does not survive the fault by itself, although its tests pass
	Tests   []string // the tests that inject it: folder and name, "integration/faults TestX"
}

func find(number int) (Case, bool) {
	for _, c := range Catalogue {
		if c.Number == number {
			return c, true
		}
	}
	return Case{}, false
}

// Attribute is the name of the attribute that holds a test's report.
const Attribute = "fault"

// Injected reports how often a test injected the case. It fails the test if times is not positive, because the test
// then proves nothing. Call it before the checks, so that a case whose check fails counts as injected.
func Injected(t testing.TB, number, times int) {
	t.Helper()
	if _, listed := find(number); !listed {
		t.Fatalf("there is no case %d in the catalogue", number)
	}
	if times <= 0 {
		t.Fatalf("case %d was not injected: the run shows nothing", number)
	}
	t.Attr(Attribute, fmt.Sprintf("%d %d", number, times))
}

// Catalogue lists every case, in the order of a row's life: worker, database, time, provider, saga, operation.
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
		Tests:   []string{"integration/faults TestReplicasThatAreKilledAtRandomLoseAndDoubleNothing"},
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
		Tests:   []string{"integration/faults TestATerminatedWorkerEndsWhatIsInFlightAndLeaves"},
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
		Checked: "one of the two wins, the one that has the lock first; history has no second end",
		Tests:   []string{"integration/faults TestARowThatIsSettledWhileItIsReapedEndsOnce"},
	},
	{
		Number: 14, Fault: "a payload that kills every worker",
		Checked: "unknown after max_attempts; all others pass; accounts agree",
		Tests:   []string{"integration/faults TestAPayloadThatKillsEveryWorkerEndsAtItsLastTry"},
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
		Checked: "what has a key goes on under it; the rest waits for an operator, and then no effect more: what can neither be repeated nor asked for is unknown; accounts agree",
		Tests: []string{
			"integration/faults TestWhatAPromotedStandbyForgotIsNotDoneTwice", "integration/faults TestAPromotedStandbyThatMissesCommitsSendsNothingTwice",
			"integration/faults TestAnUndoThatAPromotedStandbyForgotIsInDoubt", "integration/faults TestAnUndoThatWasForgottenIsNotDoneTwice",
			"integration/faults TestAFailoverThatLostNothingResumesByItself", "integration/faults TestEveryKindOfCopyIsNoticed",
		},
	},
	{
		Number: 19, Fault: "the primary comes back read-only",
		Checked: "connections are given up; work goes on once others write; accounts agree",
		Tests:   []string{"integration/faults TestADaemonLeavesAServerThatOnlyReads"},
	},
	{
		Number: 20, Fault: "the reply of a commit is lost",
		Checked: "claims without an answer are given back unsent; agents repeat themselves or not; accounts agree",
		Tests:   []string{"integration/faults TestALostReplyOfACommitIsNeitherForgottenNorRepeated"},
	},
	{
		Number: 21, Fault: "half-open database connections",
		Checked: "both ends give up within a minute, a saga that one had locked included; backlog 0; accounts agree",
		Tests:   []string{"integration/faults TestConnectionsThatFallSilentAreGivenUpByBothEnds"},
	},
	{
		Number: 22, Fault: "the listener's connection is dead",
		Checked: "polling finds the rows; accounts agree",
		Tests:   []string{"integration/faults TestRowsAreFoundWithoutAListener"},
	},
	{
		Number: 23, Fault: "every batch waits for a stranger's lock",
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
		Checked: "back by less than half of ttl, no key is used late; forward, doubt is unknown sooner; no live worker is declared dead; accounts agree",
		Tests: []string{
			"integration/faults TestNoKeyIsUsedLateThoughTheDatabasesClockJumps",
			"integration/faults TestAClockThatJumpsUnderLoadLosesAndDoublesNothing",
			"integration/faults TestALeapOfTheDatabasesClockDeclaresNoLiveWorkerDead",
		},
	},
	{
		Number: 33, Fault: "a session time zone with daylight saving",
		Checked: "both changes of Europe/Berlin, beside UTC: claimed when due; accounts agree",
		Tests:   []string{"integration/faults TestDaylightSavingMovesNoInstant"},
	},
	{
		Number: 34, Fault: "Retry-After that is negative, broken, huge, past, in three date forms",
		Checked: "between 0 and a year; no retry is due before it, up to retry.max_wait",
		Tests: []string{
			"dispatch/internal/evidence TestRetryAfterIsUnderstood",
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
		Checked: "rejected; the other host gets no request",
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
		Number: 48, Fault: "key parts with CR LF, NUL, unicode, 300 bytes",
		Checked: "a safe key, or refused; no header injected; accounts agree",
		Tests: []string{
			"dispatch TestAKeyIsStableAndFitsEveryHeader",
			"integration/faults TestKeyPartsOfAnyTextBecomeASafeKeyOrAreRefused",
		},
	},
	{
		Number: 49, Fault: "integers above 2^53, duplicate keys",
		Checked: "numbers are kept, of two values the last; the same bytes each try",
		Tests:   []string{"integration/faults TestAPayloadKeepsItsNumbersAndItsBytesFromTryToTry"},
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
		Number: 55, Fault: "an intent is enqueued while its run is rolled back",
		Checked: "refused, or cancelled and never sent",
		Tests: []string{
			"compensations TestARunThatGoesBackTakesNoFurtherStep",
			"compensations TestAStepThatSlipsInIsCancelledAndNeverSent",
			"integration/faults TestAStepThatCommitsAfterItsRunWentBackIsNotSent",
		},
	},
	{
		Number: 56, Fault: "a step in doubt while its run is rolled back",
		Checked: "no undo before it is settled; then undone, or not",
		Tests:   []string{"compensations TestAStepInDoubtIsWaitedForAndThenUndoneIfItHappened"},
	},
	{
		Number: 57, Fault: "an effect that comes after the run was rolled back",
		Checked: "compensation_failed, an incident, and a page that is received",
		Tests: []string{
			"compensations TestAnEffectThatComesLateIsAnIncident",
			"integration/faults TestAnEffectThatComesAfterTheRunWentBackIsPagedOncePagersAreUp",
		},
	},
	{
		Number: 58, Fault: "a saga is moved by many at once",
		Checked: "two daemons, each undo once, newest first",
		Tests:   []string{"integration TestASagaThatManyMoveAtOnceUndoesOnce"},
	},
	{
		Number: 59, Fault: "no compensator is registered",
		Checked: "compensation_failed and one incident; older steps stand; once one is, an operator's retry undoes the step",
		Tests: []string{
			"compensations TestWhatCannotBeUndoneEndsTheSagaWithOneIncident",
			"integration/faults TestWhoDidAStepAndWhenDecidesHowItIsUndone",
		},
	},
	{
		Number: 60, Fault: "the pager is down",
		Checked: "paged until the pager has it",
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
	{
		Number: 64, Fault: "an agent shadows types, functions and operators, in pg_temp and in public",
		Checked: "nothing of it runs as the schema's owner or as a reader; every function pins its path, River's too",
		Tests: []string{
			"migrations TestAnAgentCannotRunCodeAsTheSchemaOwner",
			"migrations TestEveryFunctionOfTheSchemaNamesItsSearchPath",
		},
	},
	{
		Number: 65, Fault: "an agent shadows functions and operators in a schema that daemon and operator have on their path",
		Checked: "no statement of theirs calls one, directly and behind a pooler; River's neither",
		Tests: []string{
			"integration/faults TestWhatAnAgentCreatesInPublicRunsAsNoDaemonAndNoOperator",
		},
	},
	{
		Number: 66, Fault: "a stranger's NOTIFY on each channel that daemons or River know",
		Checked: "pages and compensations go on; a lane looks at most once in 10 ms; no log line",
		Tests: []string{
			"integration/faults TestAStrangerWhoNotifiesStopsNoPageAndNoCompensation",
			"integration/faults TestAStrangersNotificationsCostALaneFewLooks",
		},
	},
	{
		Number: 67, Fault: "another process puts its socket where a sidecar's was",
		Checked: "nothing is sent to it, no token either",
		Tests:   []string{"dispatch/sidecar TestASocketThatOthersCouldReplaceGetsNoToken"},
	},
	{
		Number: 68, Fault: "an invalid intent under another one's run: against the schema, unrenderable, endless to render",
		Checked: "it fails alone, with an incident; nothing of the run is undone; in doubt it stays unknown",
		Tests: []string{
			"integration TestAPayloadThatIsRefusedHereTakesNoRunBack",
			"integration TestARefusalAfterASendInDoubtStaysUnknown",
		},
	},
	{
		Number: 70, Fault: "a daemon's login forgets early, and signs as an operator; an operator's as a daemon",
		Checked: "nothing is forgotten before the owner's floor; refused; the login on record is the session's",
		Tests: []string{
			"migrations TestNoLoginPrunesBelowTheOwnersFloor",
			"migrations TestADaemonCannotForgeOrRewriteHistory",
			"migrations TestAnOperatorCannotForgeOrRewriteHistory",
			"migrations TestADecisionOnAnIncidentStandsUntilItOpensAgain",
		},
	},
	{
		Number: 69, Fault: "a provider that repeats the credential it was sent",
		Checked: "in no response, header, error, problem or reference, whatever its form; also after a rotation",
		Tests: []string{
			"integration/faults TestACredentialThatAProviderRepeatsIsNotKept",
			"drainer TestNoConfiguredSecretIsKeptOfAnAnswer",
			"drainer TestARotatedSecretIsTakenOutToo",
		},
	},
	{
		Number: 71, Fault: "300 idle clients of the metrics port",
		Checked: "deliveries, probes and scrapes go on; few files are taken; accounts agree",
		Tests:   []string{"integration/faults TestIdleClientsOfTheMetricsPortStopNeitherDeliveriesNorScrapes"},
	},
	{
		Number: 72, Fault: "expressions that ask for gigabytes, or for minutes",
		Checked: "little is built, whatever they ask for; large ones one at a time; others get through; the intent alone is refused",
		Tests: []string{
			"internal/jq TestNoExpressionBuildsMoreThanItMay",
			"internal/jq TestHeavyExpressionsRunOneAtATime",
			"internal/jq TestExpressionsThatAreApartWaitForNoOthers",
			"dispatch/http TestAPayloadThatAnExpressionBlowsUpIsRefused",
		},
	},
	{
		Number: 73, Fault: "small ways in: form fields of one name or like the key's, %2F in a path, metadata services by IPv6, SIIT and ISATAP or from pages, an agent's locks and settings, a tool's name as a link",
		Checked: "each attempt sends the same bytes under its key, to its path; such addresses are refused; migrations go on; collisions are seen; a page shows plain letters",
		Tests: []string{
			"dispatch/http TestAFormIsTheSameBytesEachTimeThoughTwoFieldsShareAName",
			"dispatch/http TestAFieldThatAServerMayTakeForTheKeyIsRefused",
			"dispatch/http FuzzAValueStaysInItsSegment",
			"dispatch/egress TestSomeAddressesAreNeverReached",
			"compensations/pages TestAPageReachesNoMetadataServiceAndNoAmbientProxy",
			"migrations TestAnAgentHoldsNoMigrationUp", "migrations TestAnAgentsLockKeepsNoOwnerFromItsTenants",
			"migrations TestNoFunctionOfTheSchemaWaitsForALockThatAnyLoginCanHold",
			"migrations TestASettingOfTheClientHidesNoCollision",
			"compensations/pages TestAToolsNameWritesNoLinkAndNoMentionIntoAPage",
		},
	},
	{
		Number: 74, Fault: "one large run, whose passes kill a process",
		Checked: "a pass reads one step; three that died are an incident, and cost their neighbours nothing",
		Tests: []string{
			"compensations TestAPassOfALargeRunReadsOneStep", "compensations TestAnUndoOfALongRunCostsAsMuchAsOfAShortOne",
			"compensations TestNumbersThatAreLongOnlyAsTextDoNotGrowAPass",
			"compensations TestSlowExpressionsOfManyRunsKeepNoPassFromMovingSome",
			"compensations TestASagaWhosePassesDieIsLeftToAHumanAndItsNeighboursAreNot",
			"integration/faults TestLargeRunsAreTakenBackInLittleMemoryAndHoldNobodyUp",
		},
	},
	{
		Number: 75, Fault: "a pass takes long, and its saga is settled meanwhile",
		Checked: "the saga's row is free while a pass is under way",
		Tests:   []string{"compensations TestASettlementDoesNotWaitForAPass"},
	},
	{
		Number: 76, Fault: "very many runs fail at once, or wait for humans",
		Checked: "many sagas move in one transaction, without a job; those that wait are not looked at",
		Tests:   []string{"compensations TestManySagasAreMovedTogetherAndThoseThatWaitNotAtAll", "compensations TestAFewUndosReadNoOtherSagas"},
	},
	{
		Number: 77, Fault: "a link too slow for all that is due",
		Checked: "claims are bounded in bytes and halved on failure; accounts agree; a lane that gets nowhere is not ready",
		Tests: []string{
			"integration/faults TestALinkTooSlowForAllThatIsDueCarriesItInPieces",
			"drainer TestAClaimThatFailsAsksForHalf",
			"drainer TestALaneWhoseBatchesFailIsNotReady",
		},
	},
	{
		Number: 78, Fault: "a page was tried by a process whose clock is ahead, or that was killed",
		Checked: "another try within seconds, or a lease of 20 s, by the database's clock",
		Tests: []string{
			"integration/faults TestAPageThatAProcessAheadOfTheDatabaseTriedComesWithinSeconds",
			"integration/faults TestAPageThatAKilledProcessWasSendingIsSentByAnother",
		},
	},
	{
		Number: 79, Fault: "two outboxes whose agents use the same words on one account",
		Checked: "with a namespace each has its effect; without, the replay for a first attempt is an incident in the commit that settles it; a reload changes no key of what waits",
		Tests: []string{
			"integration TestTwoOutboxesOnOneAccountSwallowNoEffectOfEachOther",
			"integration TestAReplayForAFirstAttemptIsCountedAndAnIncidentUnlessItsToolAcceptsIt",
			"drainer/postgres TestAFirstReplayIsAnIncidentInTheSameCommit",
			"drainer/config TestTwoFilesThatReachOneAccountAreFound",
		},
	},
	{
		Number: 80, Fault: "Retry-After of a year, for an intent and for an undo",
		Checked: "parked for retry.max_wait at most, logged; sent once an operator brings it forward",
		Tests: []string{
			"dispatch TestNoProviderParksARowForLongerThanMaxWait",
			"integration TestABogusRetryAfterParksNeitherAnIntentNorAnUndo",
		},
	},
	{
		Number: 82, Fault: "a run outlives the retention of its tools, or the longest life of a run",
		Checked: "a run in use keeps its steps; one that lost a step ends as compensation_failed, with an incident",
		Tests: []string{
			"migrations TestARunThatIsInUseKeepsItsOldSteps",
			"migrations TestARunThatLostAStepToPruningSaysSo",
			"compensations TestARunThatLostAStepToPruningIsNotCalledCompensated",
		},
	},
	{
		Number: 81, Fault: "an operation that its provider does not have, thousands of times",
		Checked: "parked once, no attempt on record; one incident; failed in time, and no saga; known elsewhere: sent there",
		Tests: []string{
			"integration TestAnOperationThatItsProviderDoesNotHaveIsSeenAndEnds",
			"integration TestAWorkerThatKnowsTheOperationGetsWhatAnotherReplicaParked",
		},
	},
	{
		Number: 83, Fault: "a refusal that the provider saved with the key",
		Checked: "retried in vain under the key; sent once under a new one; the history has both",
		Tests:   []string{"integration TestANewKeyGetsPastARefusalThatTheProviderSaved"},
	},
	{
		Number: 84, Fault: "PgBouncer, which refuses settings at login",
		Checked: "each transaction makes its own; none stays on the server connection",
		Tests:   []string{"internal/pgpool TestNothingThatTheProgramSetsStaysOnAPooledConnection"},
	},
	{
		Number: 85, Fault: "a reused connection dies under a request, over HTTP/1.1, TLS and HTTP/2",
		Checked: "one request a dispatch, whatever net/http would repeat; accounts agree",
		Tests:   []string{"integration/faults TestARequestWhoseReusedConnectionDiesIsSentOnceOnEveryWire"},
	},
	{
		Number: 86, Fault: "the first try of a step is older than its reversal window, the last one is not; steps end in another order than they began; an id that the database lost is given again",
		Checked: "nothing is undone, and an incident; what completed last is undone first; an undo has its step's key",
		Tests: []string{
			"integration/faults TestWhoDidAStepAndWhenDecidesHowItIsUndone",
			"compensations TestUndosGoByCompletionAndNotByEnqueueing",
			"compensations TestTheKeyOfAnUndoIsOfItsStepAndNotOfItsNumber",
		},
	},
	{
		Number: 87, Fault: "a fallback throttles and goes away",
		Checked: "its provider has the intent again; accounts agree",
		Tests:   []string{"integration/faults TestWhoDidAStepAndWhenDecidesHowItIsUndone"},
	},
	{
		Number: 88, Fault: "a run is closed by a transaction that began before a claim and commits after it",
		Checked: "what was claimed is not sent; without this guard, or another of integration/program/mutants.go, a scenario sees it",
		Tests: []string{
			"integration/faults TestWhoDidAStepAndWhenDecidesHowItIsUndone",
			"integration/faults TestEachMutantIsCaughtByAScenarioThatTheProgramPasses",
		},
	},
	{
		Number: 89, Fault: "a run has news, or its time is over, between a pass that decided ahead and the end of the undo",
		Checked: "the commit enqueues no undo; the next pass does",
		Tests:   []string{"compensations TestAfterNewsAPassDecidesWhatFollowsAnUndo"},
	},
	{
		Number: 90, Fault: "two tenants flood a provider, one of which has a limit in flight, and two replicas drain",
		Checked: "another tenant's intents do not wait for the flood; the limit is not exceeded",
		Tests:   []string{"integration/faults TestAFloodOfOneTenantNeitherKeepsOthersWaitingNorExceedsItsLimit"},
	},
	{
		Number: 91, Fault: "one run has more steps than two replicas can send",
		Checked: "the intents of another run of its tenant do not wait for them",
		Tests:   []string{"integration/faults TestARunWithManyIntentsKeepsNoOtherOfItsTenantWaiting"},
	},
	{
		Number: 92, Fault: "an agent makes every statement against another tenant's run, also after SET ROLE",
		Checked: "nothing of the run is seen or moved, and no saga of it begins",
		Tests: []string{
			"migrations TestAStrangerSeesNothingAndMovesNothing", "migrations TestTheTenantStaysThatOfTheLoginWhateverRoleItTakesOn",
			"compensations TestAnotherTenantsIntentClosesNoRun",
		},
	},
	{
		Number: 93, Fault: "producers of one tenant race its limits, and the clock is set back",
		Checked: "six seconds after it was exceeded by 10 % the queue takes no more; no second takes twice the rate; a clock that was set back refuses nothing",
		Tests: []string{
			"migrations TestProducersThatRaceKeepTheLimitsOfTheQueue", "migrations TestProducersThatRaceKeepTheRate",
			"migrations TestACounterThatIsAheadOfTheClockRefusesNothing",
		},
	},
}
