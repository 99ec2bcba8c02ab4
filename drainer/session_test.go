package drainer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

var errAway = errors.New("no database")

// awayStore is a store whose database goes away, once it has told of the gates.
type awayStore struct {
	Store
	gates []Gate
}

func (s awayStore) Gates(context.Context, string) ([]Gate, error)       { return s.gates, nil }
func (awayStore) Closed(context.Context, string) ([]string, error)      { return nil, errAway }
func (awayStore) Join(context.Context, string, []string) error          { return errAway }
func (awayStore) Leave(context.Context, string) error                   { return errAway }
func (awayStore) Due(context.Context, []string) (map[string]int, error) { return nil, errAway }

func TestAWorkerThatCannotSayGoodbyeSaysWhatWillHappen(t *testing.T) {
	t.Parallel()
	o, said := observing()
	(&session{store: awayStore{}, log: o.log}).leave()
	if want := "cannot say goodbye; the worker will be buried when its lease is over"; !strings.Contains(said.String(), want) {
		t.Errorf("it says %q, want %q", said, want)
	}
}

// Half of what the workers share would send rows of runs that were closed.
func TestWhatTheWorkersShareIsLearntWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	l := laneTo(nil)
	s := &session{upstreams: l.upstreams, closings: l.closings, observer: l.observer, store: awayStore{gates: []Gate{{Provider: "sim", Paused: true}}}}
	s.closings.learn([]string{"run"})
	if err := s.readFleet(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("%v, want that the database is away", err)
	}
	if l.isPaused() || !s.closings.bars(&Row{Tuple: tracedRow(nil).Tuple}) {
		t.Error("the last known does not stand")
	}
}

func TestDrainingOnceFailsIfNobodyCanTellWhatIsLeft(t *testing.T) {
	t.Parallel()
	shut, open := &lane{shut: true}, &lane{}
	s := &session{settings: Settings{Once: true}, store: awayStore{}, lanes: map[route]*lane{{"sim", "sim"}: shut}}
	if err := s.countLeft(t.Context()); !errors.Is(err, errAway) {
		t.Errorf("%v, want that the database is away", err)
	}
	s.lanes = map[route]*lane{{"sim", "sim"}: open}
	if err := s.countLeft(t.Context()); err != nil {
		t.Errorf("no gate was shut, and it says %v", err)
	}
}

func TestALostLeaseIsToldFromEveryOtherEnd(t *testing.T) {
	t.Parallel()
	for cause, want := range map[error]error{errBuried: errBuried, errMute: errMute, errShutdown: nil, errUnsettled: nil, nil: nil} {
		if got := leaseLoss(cause); !errors.Is(got, want) || (got == nil) != (want == nil) {
			t.Errorf("%v: %v, want %v", cause, got, want)
		}
	}
}

func TestANotificationWakesEveryLaneOfItsProviderAndNoOther(t *testing.T) {
	t.Parallel()
	s := &session{lanes: map[route]*lane{}}
	for _, r := range []route{{"sim", "sim"}, {"sim", "backup"}, {"backup", "backup"}} {
		s.lanes[r] = &lane{wake: make(chan struct{}, 1)}
	}
	s.wake("sim")
	s.wake("sim") // one that has not looked yet need not be told twice
	var woken []string
	for r, lane := range s.lanes {
		if len(lane.wake) > 0 {
			woken = append(woken, r.provider+" through "+r.server)
		}
	}
	slices.Sort(woken)
	if want := []string{"sim through backup", "sim through sim"}; !slices.Equal(woken, want) {
		t.Errorf("%q woke, want %q", woken, want)
	}
}
