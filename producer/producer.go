// Package producer commits what an agent's tool would do as an intent, in the
// agent's own transaction, and waits for its result.
//
//	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
//		// … the agent's own state is written here …
//		recorded, err = producer.Enqueue(ctx, tx, producer.Intent{
//			Run: "ticket-17", Step: "charge", Tool: "stripe/create_charge", Scope: "invoice_442",
//			Payload: map[string]any{"amount": 1200},
//		})
//		return err
//	})
//	result, err := results.Wait(ctx, recorded) // after the commit
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

// Intent is an effect to be carried out once. The same Run, Step, Tool and
// Scope again are the same effect.
type Intent struct {
	Run   string // the business process: made once, and stored before the first step
	Step  string // what the step is for, by name
	Tool  string // <provider>/<operation>
	Scope string // what the effect is about: an invoice, a recipient
	// Payload is encoded as JSON. JSON that is there already is passed as a
	// json.RawMessage.
	Payload   any
	NotBefore time.Time         // zero: now
	Headers   map[string]string // the trace context, to be passed on
}

// Recorded is the outbox's answer to an intent. It takes effect once the
// transaction commits.
type Recorded struct {
	ID      int64
	Created bool   // false: it was there already, and Status says where it stands
	Status  string // as in the view outbox.status
	Key     string // that the provider is sent

	xid string // the transaction's
}

// ForModel is a sentence for the model, to return where the result is not
// waited for.
func (Recorded) ForModel() string { return sentences["recorded"] }

// Every value travels as text: a codec of the caller's connection for jsonb
// would encode it twice.
const enqueue = `SELECT intent_id, created, status, idempotency_key, pg_current_xact_id()::text
	FROM outbox.enqueue($1::text, $2::text, $3::text, $4::text, $5::text::jsonb, $6::text::timestamptz, $7::text::jsonb)`

// sqlTx is a *sql.Tx, or what wraps one, such as GORM's with PrepareStmt. Of database/sql only a transaction has
// StmtContext and Commit.
type sqlTx interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	StmtContext(ctx context.Context, stmt *sql.Stmt) *sql.Stmt
	Commit() error
}

// Enqueue records the intent in tx, which the caller commits: a [pgx.Tx], a [*sql.Tx],
// or a type that wraps one and passes on its statements as they are, as GORM's does and Bun's does not. It returns [ErrNotInTransaction] for a pool or a connection. After
// another error than that or an offline [ErrInvalid] the transaction is aborted.
func Enqueue(ctx context.Context, tx any, intent Intent) (Recorded, error) {
	arguments, err := intent.arguments()
	if err != nil {
		return Recorded{}, err
	}
	var recorded Recorded
	into := []any{&recorded.ID, &recorded.Created, &recorded.Status, &recorded.Key, &recorded.xid}
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

// only scans the one row. The QueryRowContext of GORM's wrapper would give no error, but a row that panics.
func only(ctx context.Context, tx sqlTx, arguments, into []any) error {
	rows, err := tx.QueryContext(ctx, enqueue, arguments...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // a second time, unless the scan failed
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

// arguments are those of outbox.enqueue, refused here where the server would.
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

// Half a surrogate pair is the first group. A backslash that is escaped itself begins no escape.
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
	case !raw && text == "null": // also of a nil map
		return "", invalid("%s is nil; pass an empty map for none", name)
	// An invalid byte is written as this escape, U+FFFD itself as it is. What holds a json.RawMessage keeps its bytes.
	case !raw && escaped(text, "ufffd"), !utf8.ValidString(text):
		return "", invalid("%s has a text that is not valid UTF-8", name)
	case escaped(text, "u0000"):
		return "", invalid("%s has a NUL character, which Postgres cannot store", name)
	case slices.ContainsFunc(halfPair.FindAllStringSubmatch(text, -1), func(escape []string) bool { return escape[1] != "" }):
		return "", invalid("%s has half a surrogate pair, which is no text", name)
	}
	return text, nil
}

// escaped says whether that escape is in the JSON text. A backslash before it
// may be escaped itself.
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

// idempotencyKey is the key of such an intent, as the server computes it.
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
