// Package producer commits a tool's effect as an intent, in the agent's own transaction, and waits for its result.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		// … the agent's own state is written here …
//		recorded, err = producer.Enqueue(ctx, tx, producer.Intent{
//			Run: "ticket-17", Step: "charge", Tool: "stripe/create_charge", Scope: "invoice_442",
//			Payload: map[string]any{"amount": 1200},
//		})
//		return err
//	})
//	result, err := results.Wait(ctx, recorded.ID) // after the commit
package producer

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Intent is an effect that must happen once. Another intent with the same Run, Step, Tool and Scope is the same
// effect.
type Intent struct {
	Run   string // the business process; create its id once, and store it before the first step
	Step  string // the purpose of the step, as a name
	Tool  string // <provider>/<operation>
	Scope string // the object of the effect: an invoice, a recipient
	// Payload is encoded as JSON. Pass existing JSON as a json.RawMessage.
	Payload   any
	NotBefore time.Time         // zero: now
	Headers   map[string]string // the trace context to pass on
}

// Recorded is the outbox's answer. It is valid once the transaction commits.
type Recorded struct {
	ID      int64
	Created bool   // false: the intent existed already, and Status is its status
	Status  string // as in the view outbox.status
	Key     string // the key that the provider receives
}

// ForModel returns a sentence for the model, for a tool that does not wait for the result.
func (Recorded) ForModel() string { return sentences["recorded"] }

// Every value is sent as text, because a jsonb codec of the caller's connection would encode it twice.
const enqueue = `SELECT intent_id, created, status, idempotency_key
	FROM outbox.enqueue($1::text, $2::text, $3::text, $4::text, $5::text::jsonb, $6::text::timestamptz, $7::text::jsonb)`

// sqlTx is a *sql.Tx, or a type that wraps one, such as GORM's with PrepareStmt. In database/sql, only a
// transaction has both StmtContext and Commit.
type sqlTx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt
	Commit() error
}

// Enqueue records the intent in tx, which the caller commits. tx is a [pgx.Tx], a [*sql.Tx], or a type that wraps
// one and passes its statements on unchanged, as GORM's does and Bun's does not. For a pool or a connection it
// returns [ErrNotInTransaction]. After any error but this and an [ErrInvalid] found before the server was asked,
// the transaction is aborted.
func Enqueue(ctx context.Context, tx any, intent Intent) (Recorded, error) {
	arguments, err := intent.arguments()
	if err != nil {
		return Recorded{}, err
	}
	var recorded Recorded
	into := []any{&recorded.ID, &recorded.Created, &recorded.Status, &recorded.Key}
	switch tx := tx.(type) {
	case pgx.Tx:
		err = tx.QueryRow(ctx, enqueue, arguments...).Scan(into...)
	case sqlTx:
		err = only(ctx, tx, arguments, into)
	default:
		return Recorded{}, fmt.Errorf("%w: a %T is neither a pgx.Tx nor a *sql.Tx", ErrNotInTransaction, tx)
	}
	if err != nil {
		return Recorded{}, refusal(err)
	}
	return recorded, nil
}

// only scans the only row. GORM's wrapper is the reason for QueryContext: on an error, its QueryRowContext returns
// a row that panics.
func only(ctx context.Context, tx sqlTx, arguments, into []any) error {
	rows, err := tx.QueryContext(ctx, enqueue, arguments...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // closes a second time, unless the scan failed
	if !rows.Next() {
		return cmp.Or(rows.Err(), sql.ErrNoRows)
	}
	if err := rows.Scan(into...); err != nil {
		return err
	}
	return rows.Close()
}

const (
	maxPart    = 255
	maxPayload = 1 << 20
	maxHeaders = 64 << 10
)

// arguments returns the arguments of outbox.enqueue. It refuses values that the server would refuse.
func (i Intent) arguments() ([]any, error) {
	parts := []struct{ name, value string }{{"run", i.Run}, {"step", i.Step}, {"tool", i.Tool}, {"scope", i.Scope}}
	for _, part := range parts {
		switch {
		case part.value == "":
			return nil, invalid("%s is empty", part.name)
		case len(part.value) > maxPart:
			return nil, invalid("%s is %d bytes long; at most %d are allowed", part.name, len(part.value), maxPart)
		case strings.Contains(part.value, "\x00"):
			return nil, invalid("%s has a NUL character, which Postgres cannot store", part.name)
		case !utf8.ValidString(part.value):
			return nil, invalid("%s is not valid UTF-8", part.name)
		}
	}
	if strings.HasPrefix(i.Step, "compensate:") {
		return nil, invalid(`step begins with "compensate:", which is kept for undos`)
	}
	if strings.HasPrefix(i.Tool, "/") {
		return nil, invalid("tool begins with a slash; write <provider>/<operation>")
	}
	payload, err := encode("payload", i.Payload)
	if err != nil {
		return nil, err
	}
	if len(payload) > maxPayload {
		return nil, invalid("payload is longer than 1 MiB; keep what is large elsewhere, and enqueue where it is")
	}
	arguments := []any{i.Run, i.Step, i.Tool, i.Scope, payload, nil, nil}
	if !i.NotBefore.IsZero() {
		if i.NotBefore.Year() > 9998 {
			return nil, invalid("not_before is later than the year 9998")
		}
		arguments[5] = i.NotBefore.Format(time.RFC3339Nano)
	}
	if i.Headers != nil {
		headers, err := encode("headers", i.Headers)
		if err != nil {
			return nil, err
		}
		if len(headers) > maxHeaders {
			return nil, invalid("headers are longer than 64 KiB")
		}
		arguments[6] = headers
	}
	return arguments, nil
}

// halfPair matches half of a surrogate pair as its first group. An escaped backslash does not begin an escape.
var halfPair = regexp.MustCompile(`\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)`)

func encode(name string, payload any) (string, error) {
	_, raw := payload.(json.RawMessage)
	switch value := payload.(type) {
	case []byte:
		return "", invalid("payload is []byte; pass JSON as a json.RawMessage")
	case string:
		if start := strings.TrimLeft(value, " \t\r\n"); start != "" && strings.ContainsAny(start[:1], `{["`) && json.Valid([]byte(value)) {
			return "", invalid("payload is a text that holds JSON; pass the value itself, or a json.RawMessage")
		}
	}
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(payload); err != nil {
		return "", invalid("%s cannot be written as JSON: %v", name, err)
	}
	text := strings.TrimSuffix(encoded.String(), "\n")
	switch {
	case !raw && text == "null": // also for a nil map
		return "", invalid("%s is nil; pass an empty map for none", name)
	// The encoder writes an invalid byte as this escape, but U+FFFD itself without an escape. A json.RawMessage
	// keeps its bytes.
	case !raw && escaped(text, "ufffd"), !utf8.ValidString(text):
		return "", invalid("%s has a text that is not valid UTF-8", name)
	case escaped(text, "u0000"):
		return "", invalid("%s has a NUL character, which Postgres cannot store", name)
	case slices.ContainsFunc(halfPair.FindAllStringSubmatch(text, -1), func(escape []string) bool { return escape[1] != "" }):
		return "", invalid("%s has half a surrogate pair, which is no text", name)
	}
	return text, nil
}

// escaped reports whether the JSON text contains the escape. A backslash before it may be escaped itself.
func escaped(text, escape string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' {
			i++
			if strings.HasPrefix(text[i:], escape) {
				return true
			}
		}
	}
	return false
}

// idempotencyKey returns the key of an intent, as the server computes it.
func idempotencyKey(run, step, tool, scope, namespace, tenant string, generation int) string {
	parts := []string{run, step, tool, scope}
	if namespace != "" {
		parts = append(parts, "ns="+namespace)
	}
	if tenant != "" {
		parts = append(parts, "tenant="+tenant)
	}
	if generation > 1 {
		parts = append(parts, "gen="+strconv.Itoa(generation))
	}
	digest := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(digest, "%d:%s,", len(part), part)
	}
	return "idem_v1_" + hex.EncodeToString(digest.Sum(nil)[:16])
}
