package drainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrRowsLeft says that draining once could not drain all that is due.
var ErrRowsLeft = errors.New("due rows are left, because their provider is paused or its circuit breaker is open; look at drainer status, and run again once it is neither")

// isShut reports, of a lane that drains once and has ended, whether rows may be
// due that it was not allowed to send.
func (l *lane) isShut(stop context.Context) bool {
	return l.once && stop.Err() == nil && (!l.scan.nothing || l.server.breaker.passage() != passRows)
}

// countLeft tells lanes that found their gate shut from those that had nothing
// to send anyway.
func (s *session) countLeft(stop context.Context) error {
	shut := map[string]bool{}
	for route, lane := range s.lanes {
		if lane.shut {
			shut[route.provider] = true
		}
	}
	if len(shut) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(stop, turnTimeout)
	defer cancel()
	due, err := s.store.Due(ctx, slices.Sorted(maps.Keys(shut)))
	if err != nil {
		return fmt.Errorf("count the due rows that are left: %w", err)
	}
	var left []string
	for _, provider := range slices.Sorted(maps.Keys(due)) {
		if due[provider] > 0 {
			left = append(left, fmt.Sprintf("%s %d", provider, due[provider]))
		}
	}
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("%w (%s)", ErrRowsLeft, strings.Join(left, ", "))
}
