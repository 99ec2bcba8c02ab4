package demo

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

func TestTheProviderIsServedAloneUntilToldToStop(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- ServeProvider(ctx, listener, 1) }()

	reply, err := http.Get("http://" + listener.Addr().String() + "/effects/idem_v1_unknown")
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if reply.StatusCode != http.StatusNotFound {
		t.Errorf("asked about a key that it has never seen, it answers %s", reply.Status)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestThePagerHearsEachSignedMessageOnce(t *testing.T) {
	t.Parallel()
	var heard []string
	pager, err := servePager(func(summary string) { heard = append(heard, summary) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pager.close() }()
	const first, second = `{"data":{"kind":"compensation_failed","intent_id":5,"summary":"one"}}`,
		`{"data":{"kind":"compensation_failed","intent_id":6,"summary":"two"}}`
	for _, c := range []struct {
		message, secret, body string
		status                int
	}{
		{"m1", pager.secret, first, http.StatusOK},
		{"m1", pager.secret, first, http.StatusOK},
		{"m2", newSecret(), first, http.StatusUnauthorized},
		{"m3", pager.secret, second, http.StatusOK},
	} {
		if got := sendPage(t, pager.url, c.message, c.secret, c.body); got != c.status {
			t.Errorf("%+v: status %d", c, got)
		}
	}
	if !slices.Equal(heard, []string{"one", "two"}) {
		t.Errorf("heard %q", heard)
	}
	received := pager.received()
	slices.SortFunc(received, func(a, b page) int { return int(a.IntentID - b.IntentID) })
	if want := []page{{"compensation_failed", 5}, {"compensation_failed", 6}}; !slices.Equal(received, want) {
		t.Errorf("received %v, want %v", received, want)
	}
}

func sendPage(t *testing.T, url, message, secret, body string) int {
	t.Helper()
	signer, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	signature, err := signer.Sign(message, now, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(standardwebhooks.HeaderWebhookID, message)
	request.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(now.Unix(), 10))
	request.Header.Set(standardwebhooks.HeaderWebhookSignature, signature)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	return response.StatusCode
}

func TestATripEndsAsFarBackAsItCanBeTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		number int
		saga   string
		wants  []string // of its steps
	}{
		{0, "", []string{"completed", "completed", "completed", "completed", "completed"}},
		{1, "compensated", []string{"compensated", "compensated", "compensated", "compensated", "failed"}},
		{ferryTrip, "compensation_failed", []string{"completed", "completed", "compensation_failed", "compensated", "failed"}},
	} {
		trip := tripNumber(c.number)
		var endings []string
		for _, step := range append(trip.bookings(), trip.payment()) {
			endings = append(endings, trip.ending(step.tuple.StepID))
		}
		if trip.saga() != c.saga || !slices.Equal(endings, c.wants) {
			t.Errorf("trip %d: %q, %q, want %q, %q", c.number, trip.saga(), endings, c.saga, c.wants)
		}
		if len(endings) != stepsOfTrip {
			t.Errorf("trip %d takes %d steps, want %d", c.number, len(endings), stepsOfTrip)
		}
	}
}

func TestScreenRedrawsItsBlockOnATerminalOnly(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{true, false} {
		var out bytes.Buffer
		screen := NewScreen(&out, terminal)
		screen.Show(Progress{Wanted: 100, Enqueued: 50})
		screen.Say("half-way")
		screen.Show(Progress{Wanted: 100, Enqueued: 100})
		screen.Close()
		if redrawn := strings.Contains(out.String(), "\x1b["); redrawn != terminal {
			t.Errorf("terminal %t: redrawn %t", terminal, redrawn)
		}
		if !strings.Contains(out.String(), "half-way\n") || !strings.Contains(out.String(), "50") {
			t.Errorf("terminal %t: said %q", terminal, out.String())
		}
	}
}
