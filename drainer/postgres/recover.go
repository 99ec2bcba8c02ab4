package postgres

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agentoutbox/drainer/drainer"
	"github.com/agentoutbox/drainer/internal/failpoint"
)

var (
	//go:embed sql/join.sql
	joinSQL string
	//go:embed sql/beat.sql
	beatSQL string
	//go:embed sql/retire.sql
	retireSQL string
	//go:embed sql/leave.sql
	leaveSQL string
	//go:embed sql/beats.sql
	beatsSQL string
	//go:embed sql/declare_dead.sql
	declareDeadSQL string
)

// Join makes the worker known. Before that, it can claim nothing.
func (s *Store) Join(ctx context.Context, worker string, providers, tools []string, digests ...[]byte) error {
	if err := s.look(ctx); err != nil {
		return err
	}
	fingerprints, err := s.fingerprints(ctx, digests)
	if err != nil {
		return err
	}
	whole := ""
	if len(fingerprints) > len(providers) {
		fingerprints, whole = fingerprints[:len(providers)], fingerprints[len(providers)]
	}
	if _, err := s.execute(ctx, "join", joinSQL, worker, providers, tools, fingerprints, whole); err != nil {
		return err
	}
	s.memory.join(worker)
	return nil
}

// fingerprints returns keyed hashes that are equal in every replica with the same configuration. Operators and auditors
// cannot read the key, so they cannot try guesses of the hashed values. Without a digest the fingerprint is empty.
func (s *Store) fingerprints(ctx context.Context, digests [][]byte) ([]string, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	var key []byte
	if err := s.life.QueryRow(ctx, `SELECT key FROM outbox.fingerprint_key`).Scan(&key); err != nil {
		return nil, fmt.Errorf("read the key of fingerprints: %w", err)
	}
	shown := make([]string, len(digests))
	for i, digest := range digests {
		if len(digest) > 0 {
			keyed := hmac.New(sha256.New, key)
			keyed.Write(digest)
			shown[i] = hex.EncodeToString(keyed.Sum(nil)[:6])
		}
	}
	return shown, nil
}

// Beat reports false for a worker that was declared dead. It returns [drainer.ErrLostCommits] if rows that were
// committed to the worker are gone.
func (s *Store) Beat(ctx context.Context, worker string) (bool, error) {
	if err := failpoint.Heartbeat.Fail(); err != nil {
		return false, err
	}
	tag, err := s.execute(ctx, "beat", beatSQL, worker)
	if err == nil {
		err = s.look(ctx)
	}
	if err == nil && s.memory.mustRejoin(worker) {
		err = drainer.ErrLostCommits
	}
	return tag.RowsAffected() == 1, err
}

// Retire gives the worker's share of all limits to the other workers. The worker keeps its claims.
func (s *Store) Retire(ctx context.Context, worker string) error {
	_, err := s.execute(ctx, "retire", retireSQL, worker)
	return err
}

// Leave removes a worker that has stopped normally. Claims that it left behind can be recovered at once.
func (s *Store) Leave(ctx context.Context, worker string) error {
	_, err := s.execute(ctx, "leave", leaveSQL, worker)
	if err == nil {
		s.memory.leave(worker)
	}
	return err
}

// Beats reads the last heartbeat of each worker, and whether it is older than the lease while the worker holds
// rows.
func (s *Store) Beats(ctx context.Context, lease time.Duration) ([]drainer.Heartbeat, error) {
	rows, _ := s.control.Query(ctx, beatsSQL, lease.Seconds()) // CollectRows returns the error too
	beats, err := pgx.CollectRows(rows, pgx.RowToStructByPos[drainer.Heartbeat])
	if err != nil {
		return nil, fmt.Errorf("read the heartbeats: %w", err)
	}
	return beats, nil
}

// DeclareDead removes the workers whose last heartbeat is still the given one.
func (s *Store) DeclareDead(ctx context.Context, silent []drainer.Heartbeat) error {
	workers, beats := make([]string, len(silent)), make([]time.Time, len(silent))
	for i, beat := range silent {
		workers[i], beats[i] = beat.Worker, beat.At
	}
	if _, err := s.control.Exec(ctx, declareDeadSQL, workers, beats); err != nil {
		return fmt.Errorf("declare workers dead: %w", err)
	}
	return nil
}

func (s *Store) execute(ctx context.Context, what, sql string, args ...any) (pgconn.CommandTag, error) {
	tag, err := s.life.Exec(ctx, sql, args...)
	if err != nil {
		return tag, fmt.Errorf("%s: %w", what, err)
	}
	return tag, nil
}

var (
	//go:embed sql/publish.sql
	publishSQL string
	//go:embed sql/fleet.sql
	fleetSQL string
	//go:embed sql/closed.sql
	closedSQL string
	//go:embed sql/breaker.sql
	breakerTemplate string
)

var (
	providerBreakerSQL  = rendered(breakerTemplate, struct{ Table string }{"provider"})
	operationBreakerSQL = rendered(breakerTemplate, struct{ Table string }{"tool"})
)

// Publish sets the namespaces for the keys of intents that are enqueued from now on.
func (s *Store) Publish(ctx context.Context, namespaces map[string]string) error {
	var providers []string
	var own []*string
	for provider, namespace := range namespaces {
		providers, own = append(providers, provider), append(own, orNull(namespace))
	}
	if _, err := s.control.Exec(ctx, publishSQL, providers, own); err != nil {
		return fmt.Errorf("publish namespaces: %w", err)
	}
	return nil
}

// Gates reads the gates of all providers, including those that are not configured here, and of the operations that are shut.
func (s *Store) Gates(ctx context.Context, worker string) ([]drainer.Gate, error) {
	rows, _ := s.control.Query(ctx, fleetSQL, worker) // CollectRows returns the error too
	gates, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (gate drainer.Gate, err error) {
		var openFor *float64
		err = row.Scan(&gate.Name, &gate.Paused, &gate.Breaker, &gate.Reason, &openFor, &gate.Workers, &gate.Rank)
		gate.OpenFor = seconds(openFor)
		return gate, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the gates: %w", err)
	}
	return gates, nil
}

// Closed reads the closed runs of which the worker has claimed rows.
func (s *Store) Closed(ctx context.Context, worker string) ([]string, error) {
	rows, _ := s.control.Query(ctx, closedSQL, worker)
	runs, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read which runs were closed: %w", err)
	}
	return runs, nil
}

// queueBreakers applies what the settled attempts mean for the breakers. It comes before the claims of the same
// batch, so that these respect it.
func queueBreakers(batch *pgx.Batch, worker string, settlements []drainer.Settlement) {
	var providers, operations breakerColumns
	for i := range settlements {
		for _, change := range settlements[i].Breakers {
			if strings.Contains(change.Gate, "/") {
				operations.add(change, settlements[i].Row.IntentID)
			} else {
				providers.add(change, settlements[i].Row.IntentID)
			}
		}
	}
	providers.queue(batch, worker, providerBreakerSQL)
	operations.queue(batch, worker, operationBreakerSQL)
}

// breakerColumns holds changes by column: one array for each column of breaker.sql.
type breakerColumns struct {
	gates, reasons []string
	opens, probes  []bool
	forSeconds     []float64
	intents        []int64 // the intents whose attempts caused the changes
}

// add keeps one opening for each gate, with the longest cool-down in the batch. With several the statement would
// take any of them.
func (c *breakerColumns) add(change drainer.BreakerChange, intent int64) {
	for i, gate := range c.gates {
		if gate == change.Gate && c.probes[i] == change.Probe && c.opens[i] == change.Open && c.reasons[i] == string(change.Reason) {
			c.forSeconds[i] = max(c.forSeconds[i], change.For.Seconds())
			return
		}
	}
	c.gates, c.reasons = append(c.gates, change.Gate), append(c.reasons, string(change.Reason))
	c.opens, c.probes = append(c.opens, change.Open), append(c.probes, change.Probe)
	c.forSeconds, c.intents = append(c.forSeconds, change.For.Seconds()), append(c.intents, intent)
}

func (c *breakerColumns) queue(batch *pgx.Batch, worker, statement string) {
	if len(c.gates) > 0 {
		batch.Queue(statement, worker, c.gates, c.opens, c.reasons, c.forSeconds, c.probes, c.intents)
	}
}

var (
	//go:embed sql/probe_now.sql
	probeNowSQL string
	//go:embed sql/rendered.sql
	renderedSQL string
	//go:embed sql/is_rendered.sql
	isRenderedSQL string
	//go:embed sql/try.sql
	trySQL string
	//go:embed sql/refused.sql
	refusedSQL string
	//go:embed sql/expired.sql
	expiredSQL string
	//go:embed sql/unpark.sql
	unparkSQL string
	//go:embed sql/orphaned.sql
	orphanedSQL string
	//go:embed sql/forgotten.sql
	forgottenSQL string
	//go:embed sql/unsettled.sql
	unsettledSQL string
)

// Reap settles the rows of dead workers, a few claims in each transaction, until there is no claim left that this
// caller can judge and no other reaper holds.
func (s *Store) Reap(ctx context.Context, providers []string, judge drainer.Judge) ([]drainer.Settlement, error) {
	var all []drainer.Settlement
	for last := int64(0); ; {
		claims, settled, err := s.takeBack(ctx, judge, orphanedSQL, providers, last)
		all = append(all, settled...)
		if err != nil || len(claims) == 0 {
			return all, err
		}
		last = claims[len(claims)-1].ID
	}
}

// TryOperation does not remember a call whose reply was lost: the turn to probe passes on when its time is over,
// as it does when a prober hangs.
func (s *Store) TryOperation(ctx context.Context, worker, gate string, probeFor time.Duration) (bool, error) {
	tried, err := s.control.Exec(ctx, trySQL, worker, gate, probeFor.Seconds())
	if err != nil {
		return false, fmt.Errorf("try an operation: %w", err)
	}
	return tried.RowsAffected() == 1, nil
}

// Reclaim settles rows of the worker's own claims on a provider that are not among the remembered ones. Only the
// lane that claims there may call it.
func (s *Store) Reclaim(ctx context.Context, worker, provider, server string, remembered []int64, judge drainer.Judge) ([]drainer.Settlement, error) {
	if remembered == nil {
		remembered = []int64{} // NULL would make the comparison unknown
	}
	known := s.memory.historyOf(worker)
	_, settled, err := s.takeBack(ctx, judge, forgottenSQL, worker, provider, remembered, server, known.History, known.LSN)
	return settled, err
}

// Expire settles rows that were parked for too long, a few hundred in each transaction. It claims and settles them in
// one commit, so others never see the claim.
func (s *Store) Expire(ctx context.Context, worker string, providers []string, after time.Duration, judge drainer.Judge) ([]drainer.Settlement, error) {
	return s.expire(ctx, expiredSQL, worker, providers, after, judge)
}

// ExpireRefused settles rows that waited too long for a configuration that their provider accepts.
func (s *Store) ExpireRefused(ctx context.Context, worker string, providers []string, after time.Duration, judge drainer.Judge) ([]drainer.Settlement, error) {
	return s.expire(ctx, refusedSQL, worker, providers, after, judge)
}

func (s *Store) expire(ctx context.Context, statement, worker string, providers []string, after time.Duration, judge drainer.Judge) ([]drainer.Settlement, error) {
	var all []drainer.Settlement
	for {
		_, settled, err := s.takeBack(ctx, judge, statement, worker, providers, after.Seconds(), mostExpired)
		all = append(all, settled...)
		if err != nil || len(settled) == 0 || len(all) >= 10*mostExpired {
			return all, err
		}
	}
}

const (
	mostExpired  = 500
	mostUnparked = 5000 // each half second
)

// ProbeNow ends the cool-down of gates that are shut because this side was refused.
func (s *Store) ProbeNow(ctx context.Context, providers []string) error {
	if _, err := s.control.Exec(ctx, probeNowSQL, providers); err != nil {
		return fmt.Errorf("try again what refused this side: %w", err)
	}
	return nil
}

// NoteRendered records that requests of these operations were rendered with the worker's configuration.
func (s *Store) NoteRendered(ctx context.Context, worker string, operations []string) error {
	if _, err := s.control.Exec(ctx, renderedSQL, worker, operations); err != nil {
		return fmt.Errorf("note of which operations a request was made: %w", err)
	}
	return nil
}

// IsRendered reports whether a worker with the same configuration has rendered a request of the operation. It
// fails for a worker that was retired or declared dead.
func (s *Store) IsRendered(ctx context.Context, worker, operation string) (is bool, err error) {
	if err = s.control.QueryRow(ctx, isRenderedSQL, worker, operation).Scan(&is); err != nil {
		return false, fmt.Errorf("look whether a request of an operation was made: %w", err)
	}
	return is, nil
}

// Unpark moves parked rows of these tools to the lanes of their providers. detours are the tools whose provider
// has a fallback.
func (s *Store) Unpark(ctx context.Context, tools, detours []string) error {
	if _, err := s.control.Exec(ctx, unparkSQL, tools, detours, mostUnparked); err != nil {
		return fmt.Errorf("unpark rows: %w", err)
	}
	return nil
}

type heldClaim struct {
	ID     int64
	Worker string
}

// takeBack locks claims, reads their rows that have no outcome, and settles them as judge decides. Locking and
// reading are two statements, because reading needs a snapshot that is newer than the lock.
func (s *Store) takeBack(ctx context.Context, judge drainer.Judge, lockSQL string, args ...any) (claims []heldClaim, settled []drainer.Settlement, err error) {
	err = pgx.BeginTxFunc(ctx, s.control, recovery, func(tx pgx.Tx) error {
		if claims, err = lockClaims(ctx, tx, lockSQL, args...); err != nil || len(claims) == 0 {
			return err
		}
		failpoint.ClaimsLocked.Hit()
		left, err := unsettledRows(ctx, tx, claims)
		if err != nil {
			return err
		}
		failpoint.ClaimsRead.Hit()
		settled, err = settleLeft(ctx, tx, claims, left, judge)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("take back claims: %w", err)
	}
	return claims, settled, nil
}

func lockClaims(ctx context.Context, tx pgx.Tx, lockSQL string, args ...any) ([]heldClaim, error) {
	rows, _ := tx.Query(ctx, lockSQL, args...) // CollectRows returns the error too
	return pgx.CollectRows(rows, pgx.RowToStructByPos[heldClaim])
}

func unsettledRows(ctx context.Context, tx pgx.Tx, claims []heldClaim) (map[int64][]*drainer.Row, error) {
	ids := make([]int64, len(claims))
	for i, claim := range claims {
		ids[i] = claim.ID
	}
	rows, _ := tx.Query(ctx, unsettledSQL, ids)
	left := map[int64][]*drainer.Row{}
	var row drainer.Row
	var sinceFirst, sinceClaim *float64
	_, err := pgx.ForEachRow(rows, []any{
		&row.ClaimID, &row.IntentID, &row.Attempt, &row.Tries, &row.FirstAttemptAt, &sinceFirst, &sinceClaim, &row.MaybeApplied, &row.Lookup, &row.Via, &row.Undoes,
		&row.Tuple.AgentRunID, &row.Tuple.StepID, &row.Tuple.ToolName, &row.Tuple.BusinessScope,
		&row.Key.Namespace, &row.Key.Generation, &row.OlderDoubt, &row.InSaga,
	}, func() error {
		found := row
		found.SinceFirstSend = seconds(sinceFirst)
		found.ClaimedAt = time.Now().Add(-seconds(sinceClaim))
		left[row.ClaimID] = append(left[row.ClaimID], &found)
		return nil
	})
	return left, err
}

// settleLeft settles claim by claim, because each is fenced by its own worker. A claim with a row that judge does
// not decide about stays for another process.
func settleLeft(ctx context.Context, tx pgx.Tx, claims []heldClaim, left map[int64][]*drainer.Row, judge drainer.Judge) ([]drainer.Settlement, error) {
	var all []drainer.Settlement
	var batch pgx.Batch
	for _, claim := range claims {
		var settlements []drainer.Settlement
		for _, row := range left[claim.ID] {
			if settlement, judged := judge(row); judged {
				settlements = append(settlements, settlement)
			}
		}
		var reply drainer.BatchReply // refuses none: the claim is locked and its rows had no outcome
		queueSettle(&batch, claim.Worker, settlements, false, &reply)
		if len(settlements) == len(left[claim.ID]) {
			queueFinish(&batch, claim.Worker, []int64{claim.ID})
		}
		all = append(all, settlements...)
	}
	// All gates are changed at once, so that they are locked in the order in which batches lock them. Only a worker's own
	// claims change gates here: a dead worker's row says nothing about a provider.
	queueBreakers(&batch, claims[0].Worker, all)
	return all, tx.SendBatch(ctx, &batch).Close()
}

func seconds(s *float64) time.Duration {
	if s == nil {
		return 0
	}
	return time.Duration(*s * float64(time.Second))
}
