package real

import (
	"maps"
	"slices"
	"sync"
	"testing"
)

// Outcomes are those that outboxes stored. Tests that run at once share one.
type Outcomes struct {
	mu     sync.Mutex
	stored map[string]bool
}

// Add reads an outbox.
func (s *Outcomes) Add(o *Outbox) {
	o.T.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stored == nil {
		s.stored = map[string]bool{}
	}
	for _, outcome := range All[string](o, `SELECT DISTINCT outcome FROM outbox.attempt`) {
		s.stored[outcome] = true
	}
}

// AssertAre fails for an outcome that a model does not know, and for one that
// none of its steps brings about.
func (s *Outcomes) AssertAre(t *testing.T, known ...string) {
	t.Helper()
	slices.Sort(known)
	if stored := slices.Sorted(maps.Keys(s.stored)); !slices.Equal(stored, known) {
		t.Errorf("the steps stored the outcomes\n%v, want\n%v", stored, known)
	}
}
