package doctor

import (
	"net/netip"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestWhatAPoolerDoesDecidesWhichStatementsItCanTake(t *testing.T) {
	t.Parallel()
	perTransaction := pooling{isPooler: true, perTransaction: true}
	keeping := pooling{isPooler: true, perTransaction: true, keepsPrepared: true}
	for _, test := range []struct {
		seen pooling
		mode pgx.QueryExecMode
		want Verdict
	}{
		{pooling{}, pgx.QueryExecModeCacheStatement, OK},
		{pooling{isPooler: true}, pgx.QueryExecModeCacheStatement, OK},
		{pooling{isPooler: true, isNarrow: true}, pgx.QueryExecModeCacheStatement, Warning},
		{pooling{isPooler: true, perStatement: true}, pgx.QueryExecModeExec, Problem},
		{perTransaction, pgx.QueryExecModeExec, OK},
		{perTransaction, pgx.QueryExecModeSimpleProtocol, OK},
		{perTransaction, pgx.QueryExecModeCacheStatement, Problem},
		{perTransaction, pgx.QueryExecModeCacheDescribe, Problem},
		{perTransaction, pgx.QueryExecModeDescribeExec, Problem},
		{keeping, pgx.QueryExecModeCacheStatement, OK},
		{keeping, pgx.QueryExecModeDescribeExec, Problem},
	} {
		if got := judgePooling(test.seen, test.mode); got.Verdict != test.want || (got.Cure == "") != (got.Verdict == OK) {
			t.Errorf("%+v with %s: %+v", test.seen, test.mode, got)
		}
	}
}

func TestPlainTextIsWorseTheFartherItGoes(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]Verdict{
		"127.0.0.1": OK, "::1": OK, "10.1.2.3": Warning, "192.168.0.7": Warning, "fd12::1": Warning, "8.8.8.8": Problem, "2606:4700::1111": Problem,
	} {
		if got := judgePlainText(netip.MustParseAddr(server)); got.Verdict != want {
			t.Errorf("%s: %+v", server, got)
		}
	}
}

// A slow round trip hides a skew, and must not make one up.
func TestASkewIsBelievedBeyondTheRoundTripOnly(t *testing.T) {
	t.Parallel()
	asked := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		took, behind time.Duration
		want         Verdict
	}{
		{0, 0, OK},
		{0, 900 * time.Millisecond, OK},
		{0, 2 * time.Second, Warning},
		{0, -2 * time.Second, Warning},
		{4 * time.Second, 2 * time.Second, OK},
		{0, time.Minute, Problem},
		{0, -time.Minute, Problem},
		{time.Minute, 40 * time.Second, Warning},
	} {
		r := reading{asked: asked, heard: asked.Add(test.took), server: asked.Add(test.took/2 + test.behind)}
		if got := judgeSkew(r); got.Verdict != test.want {
			t.Errorf("%+v: %+v", test, got)
		}
	}
}
