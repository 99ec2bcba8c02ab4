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
	if !s.settings.Once || stop.Err() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(stop, turnTimeout)
	defer cancel()
	shut, err := s.shutProviders(ctx)
	if err != nil {
		return err
	}
	if len(shut) == 0 {
		return nil
	}
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

// shutProviders asks the database too: a claim heeds a gate that others have just shut
// before its lane has heard of that, and finds nothing.
func (s *session) shutProviders(ctx context.Context) (map[string]bool, error) {
	gates, err := s.store.Gates(ctx, s.worker)
	if err != nil {
		return nil, fmt.Errorf("look whether a provider is shut: %w", err)
	}
	shut := map[string]bool{}
	for _, gate := range gates {
		_, own := s.upstreams[gate.Provider]
		if own && (gate.Paused || gate.Breaker != BreakerClosed) {
			shut[gate.Provider] = true
		}
	}
	for route, lane := range s.lanes {
		if lane.shut {
			shut[route.provider] = true
		}
	}
	return shut, nil
}
