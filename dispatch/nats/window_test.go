package nats_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/agentoutbox/drainer/dispatch"
)

func TestNothingIsSentToAStreamThatForgetsTheKeyTooSoon(t *testing.T) {
	t.Parallel()
	c := startWithStream(t, func(config *jetstream.StreamConfig) { config.Duplicates = 2 * time.Minute })
	adapter := adapterFor(t, c)

	wants(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.NotSent, "duplicate_window_too_short")
	if messages := c.stored(t); len(messages) != 0 {
		t.Errorf("%d messages", len(messages))
	}

	c.update(t, func(config *jetstream.StreamConfig) { config.Duplicates = 24 * time.Hour })
	wants(t, adapter.Dispatch(t.Context(), request(`{}`)), dispatch.Completed, "")
}

func TestTheWindowIsThatOfTheStreamThatIsNamed(t *testing.T) {
	t.Parallel()
	c := startWithStream(t)
	wants(t, newAdapter(t, spec(c.ClientURL(), "", `{subject: charges.created, stream: OTHER}`)).Dispatch(t.Context(), request(`{}`)),
		dispatch.NotSent, "stream_not_found")
}

func TestAToolWhoseKeyNobodyNeedsToRecogniseSendsWhateverTheWindow(t *testing.T) {
	t.Parallel()
	c := startWithStream(t, func(config *jetstream.StreamConfig) { config.Duplicates = time.Second })
	for _, class := range []dispatch.Class{dispatch.NaturallyIdempotent, dispatch.NonIdempotent} {
		adapter := newAdapter(t, ofClass(class, spec(c.ClientURL(), "", "subject: "+subject)))
		wants(t, adapter.Dispatch(t.Context(), intent(string(class))), dispatch.Completed, "")
	}
}
