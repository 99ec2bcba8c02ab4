package drainer

import (
	"slices"

	"github.com/agentoutbox/drainer/internal/failpoint"
)

// hearClaimed begins what a turn claimed.
func (l *lane) hearClaimed(news claimNews) {
	l.pending.hasClaimed(news.of)
	if news.err != nil {
		l.scan.restart()
		l.fail(news.err)
		return
	}
	l.plan(news.of, news.reply)
	l.start(news.reply.Rows)
	l.heard()
}

// hearSettled forgets what a turn settled. After an error nothing is forgotten:
// the commit may or may not have happened, and settling again is harmless.
func (l *lane) hearSettled(news settleNews) {
	l.pending.hasSettled(news.of)
	if news.err != nil {
		l.keep(news.of)
		l.fail(news.err)
		return
	}
	l.confirm(news.of, news.refused)
	l.heard()
}

// fail keeps turns from beginning until all that have begun are heard of.
func (l *lane) fail(err error) {
	if l.failed == nil {
		l.failed = err
	}
}

// heard notes, where no turn is in doubt any more, that the database answers.
func (l *lane) heard() {
	if l.pending.any() || l.failed != nil {
		return
	}
	if l.failures > 0 {
		l.log.Info("database is back", "failed_turns", l.failures)
	}
	l.failures = 0
}

func (l *lane) plan(turn *laneTurn, reply ClaimReply) {
	l.scan.looked(turn.claim, reply)
	if !l.isDetour() && l.idle.looked(turn.claim.Idle, turn.begunAt, reply.Found) {
		l.scan.owe()
	}
}

func (l *lane) start(rows []*Row) {
	if len(rows) > 0 {
		failpoint.ClaimCommitted.Hit()
	}
	octets := 0
	for _, row := range rows {
		octets += len(row.Payload)
		l.remembered[row.ClaimID]++
		if row.Probe {
			l.probes++
		}
		if upstream, configured := l.upstreams[row.server()]; configured {
			upstream.spend()
		}
		l.dispatchers.hand(row)
	}
	if len(rows) > 0 {
		l.heft = octets / len(rows)
	}
	l.outstanding += len(rows)
	l.observer.claimed(l.provider, len(rows))
}

// keep takes back what a failed turn may not have settled, before what came later.
func (l *lane) keep(turn *laneTurn) {
	for i := range turn.settle {
		turn.settle[i].Repeats = true
	}
	l.settled = append(turn.settle, l.settled...)
	for _, claim := range turn.finish {
		if l.remembered[claim] == 0 { // others settled its rows
			l.emptied = append(l.emptied, claim)
		}
	}
}

func (l *lane) confirm(turn *laneTurn, refused []Settlement) {
	// A refusal may be the echo of a settlement that was committed although its
	// reply was lost.
	refused = slices.DeleteFunc(refused, func(s Settlement) bool { return s.Repeats })
	l.observer.refused(l.provider, refused)
	for i := range refused {
		refused[i].Row.spans.refused()
	}
	if len(turn.settle) > 0 {
		failpoint.SettleCommitted.Hit()
	}
	for i := range turn.settle {
		l.forgetRow(turn.settle[i].Row, turn.finish)
		l.sagaMoved(turn.settle[i])
		turn.settle[i].Row.spans.settled()
	}
	for _, claim := range turn.finish {
		delete(l.remembered, claim)
	}
	l.prefetch = 0
	if l.mayPrefetch() {
		l.prefetch = worthPrefetching(len(turn.settle), l.heft)
	}
	l.shelf.put(turn.settle)
}

// forgetRow leaves a claim to the next turn where the last of its rows were settled
// by several: none of these could know that the others would succeed.
func (l *lane) forgetRow(row *Row, finished []int64) {
	if row.Probe {
		l.probes--
	}
	l.remembered[row.ClaimID]--
	if l.remembered[row.ClaimID] == 0 && !slices.Contains(finished, row.ClaimID) {
		l.emptied = append(l.emptied, row.ClaimID)
	}
}
