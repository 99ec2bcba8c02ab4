package conformance

import (
	"bytes"
	"context"
	"fmt"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// owner marks goroutines by whom they belong to. A goroutine inherits the mark
// of the one that started it, so an adapter's are told from those of its
// counterpart and of other tests.
type owner string

const ownerLabel = "drainer_conformance"

var owners atomic.Int64

func newOwner() owner { return owner(strconv.FormatInt(owners.Add(1), 10)) }

func (o owner) do(ctx context.Context, run func(context.Context)) {
	pprof.Do(ctx, pprof.Labels(ownerLabel, string(o)), run)
}

// awaitNone waits until no goroutine of the owner is left, or returns what the
// others are at when patience ends.
func (o owner) awaitNone(patience time.Duration) []string {
	var left []string
	await(patience, func() bool {
		left = o.goroutines()
		return len(left) == 0
	})
	return left
}

// goroutines names the owner's by the functions that they began with. The
// profile of runtime/pprof is the one place that shows labels.
func (o owner) goroutines() []string {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return []string{err.Error()}
	}
	mark := fmt.Sprintf("%q:%q", ownerLabel, string(o))
	var found []string
	for record := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(record, mark) {
			found = append(found, multitude(record)+" × "+origin(record))
		}
	}
	return found
}

// multitude is how many goroutines are at the same: a record begins "3 @ 0x…".
func multitude(record string) string {
	before, _, _ := strings.Cut(record, " @ ")
	return before[strings.LastIndex(before, "\n")+1:]
}

// origin is the outermost frame of a record, which stands last:
// "#\t0x4dc104\tpackage.function+0x64\tfile:line".
func origin(record string) string {
	lines := strings.Split(strings.TrimSpace(record), "\n")
	fields := strings.Fields(lines[len(lines)-1])
	if len(fields) < 3 {
		return "unknown"
	}
	name, _, _ := strings.Cut(fields[2], "+0x")
	return name
}
