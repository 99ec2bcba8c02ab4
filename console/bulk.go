package console

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agentoutbox/drainer/drainer/operator"
)

const (
	// mostRows bounds one change.
	mostRows = operator.MaxSelection
	// chunk is how many rows are changed before the progress is told. A change of no more is
	// made while the reader waits.
	chunk = 500
	// mostLines of a change are shown one by one.
	mostLines = 50
	// mostChanges are remembered: beyond it the oldest one that ended is forgotten.
	mostChanges = 20
	// bulkTimeout ends a change that a database does not take.
	bulkTimeout = 15 * time.Minute
)

// matching finds the intents of a form's filter, the newest first.
func matching(ctx context.Context, from *operator.Console, form url.Values) ([]string, error) {
	filter := filterOf(form)
	filter.Limit = chunk
	var found []string
	for {
		page, err := from.List(ctx, filter)
		if err != nil {
			return nil, err
		}
		for _, intent := range page.Intents {
			found = append(found, strconv.FormatInt(intent.IntentID, 10))
		}
		if len(found) >= mostRows || page.Below == 0 || page.Bounded {
			return found[:min(mostRows, len(found))], nil
		}
		filter.Below = page.Below
	}
}

// pack writes ids so that thousands fit into a form: the second step changes the rows of the first
// one, and not what matches the filter by then.
func pack(ids []int64) string {
	var packed []byte
	last := int64(0)
	for _, id := range ids {
		packed = binary.AppendUvarint(packed, uint64(id-last))
		last = id
	}
	return base64.RawURLEncoding.EncodeToString(packed)
}

func unpack(text string) (ids []string, err error) {
	packed, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		return nil, errUnreadable
	}
	last := int64(0)
	for len(packed) > 0 {
		distance, size := binary.Uvarint(packed)
		if size <= 0 || len(ids) == mostRows {
			return nil, errUnreadable
		}
		last, packed = last+int64(distance), packed[size:]
		ids = append(ids, strconv.FormatInt(last, 10))
	}
	return ids, nil
}

var errUnreadable = problem{http.StatusBadRequest, "Not understood", "the form cannot be read"}

// changes are those of many rows that were begun since the console started.
type changes struct {
	mu  sync.Mutex
	all []*bulk // the oldest first
}

// bulk is a change of many rows, and how far it has come.
type bulk struct {
	mu sync.Mutex
	progress
}

type progress struct {
	ID       string         `json:"id"`
	Verb     string         `json:"verb"`
	By       string         `json:"by"`
	Reason   string         `json:"reason"`
	Total    int            `json:"total"`
	Changed  int            `json:"changed"`
	Refused  int            `json:"refused"`
	Refusals map[string]int `json:"refusals"` // how many for each reason
	BegunAt  time.Time      `json:"begun_at"`
	EndedAt  *time.Time     `json:"ended_at"`
	Stopped  string         `json:"stopped,omitempty"` // why it ended before its end
}

// Left is how many rows are still to come.
func (p progress) Left() int { return p.Total - p.Changed - p.Refused }

func (b *bulk) now() progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.progress
	now.Refusals = maps.Clone(b.Refusals)
	return now
}

// begin takes a change up, unless another is under way.
func (c *changes) begin(verb string, by operator.Signature, total int) (*bulk, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, other := range c.all {
		if now := other.now(); now.EndedAt == nil {
			return nil, problem{http.StatusConflict, "Not now", fmt.Sprintf("another change of many rows is under way, by %s: see /changes/%s", now.By, now.ID)}
		}
	}
	if len(c.all) == mostChanges {
		c.all = c.all[1:]
	}
	begun := &bulk{progress: progress{
		ID: rand.Text(), Verb: verb, By: by.Operator, Reason: by.Reason, Total: total, Refusals: map[string]int{}, BegunAt: time.Now().UTC(),
	}}
	c.all = append(c.all, begun)
	return begun, nil
}

// carryOut changes the rows chunk by chunk. A console that ends leaves the rest as it is.
func (s *server) carryOut(ctx context.Context, begun *bulk, action action, form url.Values, by operator.Signature) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bulkTimeout)
	defer cancel()
	var err error
	for part := range slices.Chunk(form["of"], chunk) {
		var lines []line
		err = s.connected(ctx, s.pool, func(ctx context.Context, conn *pgx.Conn) (err error) {
			lines, err = action.carryOut(ctx, operator.Open(conn), url.Values{"of": part, "typed": form["typed"]}, by)
			return err
		})
		begun.mu.Lock()
		for _, line := range lines {
			if line.Refused == "" {
				begun.Changed++
				continue
			}
			begun.Refused++
			begun.Refusals[line.Refused]++
		}
		begun.mu.Unlock()
		if err != nil {
			s.log.Error("a change of many rows stopped", "change", begun.ID, "error", err)
			break
		}
	}
	begun.mu.Lock()
	defer begun.mu.Unlock()
	now := time.Now().UTC()
	begun.EndedAt = &now
	if err != nil {
		begun.Stopped = "the database did not take it; see the console's log, and do it again"
	} else if gone := begun.Left(); gone > 0 {
		begun.Refused += gone
		begun.Refusals["it is not there any more"] += gone
	}
}

func (s *server) change(w http.ResponseWriter, r *http.Request) {
	s.changes.mu.Lock()
	at := slices.IndexFunc(s.changes.all, func(b *bulk) bool { return b.ID == r.PathValue("id") })
	var found *bulk
	if at >= 0 {
		found = s.changes.all[at]
	}
	s.changes.mu.Unlock()
	if found == nil {
		s.fail(w, r, notFound("this console knows no such change; it may have been restarted since"))
		return
	}
	now := found.now()
	s.show(w, r, http.StatusOK, "change", now.Verb, now)
}
