package drainer

import (
	"context"
	"errors"
	"testing"
)

func TestWhoDrainsOnceTellsThatAGateShutMeanwhileKeptRows(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		gate Gate
		due  int
		left bool
	}{
		"others paused it":            {Gate{Provider: "sim", Paused: true, Breaker: BreakerClosed}, 3, true},
		"others opened its breaker":   {Gate{Provider: "sim", Breaker: BreakerOpen}, 3, true},
		"another one is trying it":    {Gate{Provider: "sim", Breaker: BreakerHalfOpen}, 3, true},
		"nothing is due behind it":    {Gate{Provider: "sim", Paused: true, Breaker: BreakerClosed}, 0, false},
		"it is not shut":              {Gate{Provider: "sim", Breaker: BreakerClosed}, 3, false},
		"it is none of this worker's": {Gate{Provider: "other", Paused: true, Breaker: BreakerClosed}, 3, false},
	} {
		s := &session{
			settings:  Settings{Once: true},
			store:     gateStore{gate: test.gate, due: test.due},
			upstreams: map[string]*upstream{"sim": newUpstream(Provider{Name: "sim"})},
		}
		if err := s.countLeft(t.Context()); errors.Is(err, ErrRowsLeft) != test.left {
			t.Errorf("%s: it says %v, want rows left %v", name, err, test.left)
		}
	}
}

type gateStore struct {
	Store
	gate Gate
	due  int
}

func (s gateStore) Gates(context.Context, string) ([]Gate, error) { return []Gate{s.gate}, nil }

func (s gateStore) Due(_ context.Context, providers []string) (map[string]int, error) {
	due := map[string]int{}
	for _, provider := range providers {
		due[provider] = s.due
	}
	return due, nil
}
