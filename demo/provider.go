package demo

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

const latency = 50 * time.Millisecond

// odds make every third request fail, in every known way.
var odds = map[dispatchtest.Fault]float64{
	dispatchtest.Slow:           0.05,
	dispatchtest.ThrottleFor:    0.04,
	dispatchtest.Unavailable:    0.04,
	dispatchtest.Overloaded:     0.03,
	dispatchtest.ErrorAfter:     0.05,
	dispatchtest.DropBefore:     0.04,
	dispatchtest.DropAfter:      0.05,
	dispatchtest.MalformedReply: 0.04,
}

// provider serves the simulated provider on loopback.
type provider struct {
	url        string
	ledger     *dispatchtest.Ledger
	ledgerPath string
	server     *http.Server
}

func serveProvider(ledgerPath string, seed uint64) (*provider, error) {
	ledger, err := dispatchtest.OpenLedger(ledgerPath)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("serving the simulated provider: %w", err), ledger.Close())
	}
	server := newProviderServer(ledger, seed)
	go func() { _ = server.Serve(listener) }() // until it is closed
	return &provider{url: "http://" + listener.Addr().String(), ledger: ledger, ledgerPath: ledgerPath, server: server}, nil
}

func newProviderServer(ledger *dispatchtest.Ledger, seed uint64) *http.Server {
	return &http.Server{
		Handler: distant(&dispatchtest.SimulatedProvider{
			Ledger: ledger, Plan: dispatchtest.Random(seed, odds), Declines: declines, SlowFor: 500 * time.Millisecond,
		}),
		ReadHeaderTimeout: 5 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
}

// ServeProvider serves the demo's simulated provider alone, until ctx ends. Its
// ledger is in memory, so that a restart forgets every key and every effect.
func ServeProvider(ctx context.Context, listener net.Listener, seed uint64) error {
	server := newProviderServer(dispatchtest.NewLedger(), seed)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the simulated provider: %w", err)
	}
	return nil
}

// distant lets each request travel for a while. A client that hangs up
// meanwhile does not call it back.
func distant(provider http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-time.After(latency)
		provider.ServeHTTP(w, r)
	})
}

// finish waits for requests that still run, after which no effect can follow.
func (p *provider) finish(ctx context.Context) error {
	if err := p.server.Shutdown(ctx); err != nil {
		return fmt.Errorf("waiting for the provider's last requests: %w", err)
	}
	return nil
}

func (p *provider) close() error { return errors.Join(p.server.Close(), p.ledger.Close()) }

const maxPage = 64 << 10

// page is the part of a page that the audit compares.
type page struct {
	Kind     string `json:"kind"`
	IntentID int64  `json:"intent_id"`
}

// pager receives the drainers' pages on loopback, like a human's telephone.
type pager struct {
	url, secret string
	verify      *standardwebhooks.Webhook
	onPage      func(summary string)
	server      *http.Server

	mu    sync.Mutex
	pages map[string]page // by message: a repetition is no second page
}

// servePager calls onPage once for each page.
func servePager(onPage func(summary string)) (*pager, error) {
	p := &pager{secret: newSecret(), onPage: onPage, pages: map[string]page{}}
	var err error
	if p.verify, err = standardwebhooks.NewWebhook(p.secret); err != nil {
		return nil, fmt.Errorf("serving the pager: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serving the pager: %w", err)
	}
	p.url = "http://" + listener.Addr().String()
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 5 * time.Second, ErrorLog: log.New(io.Discard, "", 0)}
	go func() { _ = p.server.Serve(listener) }() // until it is closed
	return p, nil
}

func newSecret() string {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return "whsec_" + base64.StdEncoding.EncodeToString(key)
}

// ServeHTTP takes what is signed.
func (p *pager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxPage))
	if err != nil || p.verify.Verify(body, r.Header) != nil {
		http.Error(w, "not a signed page", http.StatusUnauthorized)
		return
	}
	var message struct {
		Data struct {
			page
			Summary string `json:"summary"`
		}
	}
	if err := json.Unmarshal(body, &message); err != nil {
		http.Error(w, "not a page", http.StatusBadRequest)
		return
	}
	if p.keep(r.Header.Get(standardwebhooks.HeaderWebhookID), message.Data.page) {
		p.onPage(message.Data.Summary)
	}
}

// keep reports whether the message is new.
func (p *pager) keep(message string, received page) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, again := p.pages[message]
	p.pages[message] = received
	return !again
}

func (p *pager) received() []page {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]page, 0, len(p.pages))
	for _, one := range p.pages {
		all = append(all, one)
	}
	return all
}

func (p *pager) close() error { return p.server.Close() }
