package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestEveryLineIsWrittenOnceAndWhole(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 500
	var log bytes.Buffer
	lines := newLogWriter(&log)
	var writing sync.WaitGroup
	for writer := range writers {
		writing.Go(func() {
			for line := range each {
				fmt.Fprintf(lines, "writer %d line %d\n", writer, line)
			}
		})
	}
	writing.Wait()
	lines.Close()
	seen := map[string]bool{}
	for line := range strings.Lines(log.String()) {
		if seen[line] {
			t.Fatalf("written twice: %q", line)
		}
		seen[line] = true
	}
	if len(seen) != writers*each || !seen["writer 7 line 499\n"] {
		t.Errorf("%d lines are written, want %d", len(seen), writers*each)
	}
}

func TestALineComesThoughNoOtherFollows(t *testing.T) {
	t.Parallel()
	reader, out := io.Pipe()
	lines := newLogWriter(out)
	fmt.Fprint(lines, "alone\n")
	octets := make([]byte, 100)
	if n, err := reader.Read(octets); err != nil || string(octets[:n]) != "alone\n" {
		t.Errorf("read %q, %v", octets[:n], err)
	}
	lines.Close()
}

func TestManyLinesWaitForNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reader, out := io.Pipe()
		lines := newLogWriter(out)
		began := time.Now()
		go func() { _, _ = lines.Write(make([]byte, enoughLines)) }()
		if _, err := io.ReadFull(reader, make([]byte, enoughLines)); err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("they waited %s for company", waited)
		}
		lines.Close()
	})
}

func TestALogThatNobodyReadsHoldsItsWritersUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const octets, count = mostWaiting / 8, 32
		reader, out := io.Pipe()
		lines := newLogWriter(out)
		var written atomic.Int64
		go func() {
			for range count {
				_, _ = lines.Write(bytes.Repeat([]byte("x"), octets))
				written.Add(1)
			}
			lines.Close()
			_ = out.Close()
		}()
		synctest.Wait()
		if held := written.Load(); held == count {
			t.Error("every line was taken into memory")
		}
		if log, err := io.ReadAll(reader); err != nil || len(log) != count*octets {
			t.Errorf("%d octets and %v came, want %d", len(log), err, count*octets)
		}
	})
}

func TestALineAfterTheEndIsWrittenAtOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	lines := newLogWriter(&log)
	lines.Close()
	lines.Close()
	fmt.Fprint(lines, "late\n")
	if log.String() != "late\n" {
		t.Errorf("the log says %q", log.String())
	}
}
