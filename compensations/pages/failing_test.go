package pages

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
)

func TestARequestThatDoesNotReachTheDatabaseSaysWhatItWas(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	over, end := context.WithCancel(t.Context())
	end()
	for want, ask := range map[string]func() error{
		"count page jobs: ":         func() error { _, err := o.underWay(over, pager); return err },
		"look for due pages: ":      func() error { _, err := o.due(over, pager, 1); return err },
		"look for key collisions: ": func() error { return o.notice(over, nil) },
		"begin a page: ":            func() error { return o.begin(over, "pager", Page{}) },
		"record a page: ":           func() error { return o.told(over, "pager", Page{}) },
	} {
		if err := ask(); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q and the cause", err, want)
		}
	}
}

func TestAChannelThatDoesNotAnswerInTimeIsOutOfReach(t *testing.T) {
	t.Parallel()
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server hear of the client's end
		<-r.Context().Done()
	}))
	t.Cleanup(silent.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := NewSlack(silent.URL+"/canary").Send(ctx, Page{})
	if !errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "canary") {
		t.Errorf("it says %v, want that the time was up, without the address", err)
	}
}

// JSON has no form for a time of more than four digits a year.
func TestAPageThatCannotBeWrittenIsNotSent(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was sent") }))
	t.Cleanup(server.Close)
	webhook, err := NewWebhook(server.URL, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	page := Page{State: Open, OpenedAt: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}
	for name, sender := range map[string]Sender{"pagerduty": NewPagerDuty(server.URL, "R0"), "webhook": webhook} {
		if err := sender.Send(t.Context(), page); err == nil || !strings.HasPrefix(err.Error(), "write the page: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type sent struct{ t *testing.T }

func (s sent) Send(context.Context, Page) error {
	s.t.Error("it was sent")
	return nil
}

// Nobody could tell later that a channel may have heard of it.
func TestAPageThatCannotBeNotedIsNotSent(t *testing.T) {
	t.Parallel()
	o := newTables(t)
	over, end := context.WithCancel(t.Context())
	end()
	channel := Channel{Name: "pager", Sender: sent{t}}
	p := New(o.pool, Defaults([]Channel{channel}, nil), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := p.deliver(over, channel, Page{}); !errors.Is(err, context.Canceled) {
		t.Errorf("begun without a database: %v", err)
	}
	if err := (&sendWorker{pager: p}).Work(over, &river.Job[sendArgs]{Args: sendArgs{Channel: "pager"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("looked up without a database: %v", err)
	}
}
