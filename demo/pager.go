package demo

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

const maxPage = 64 << 10

// page is what a human is told, as far as the audit asks.
type page struct {
	Kind     string `json:"kind"`
	IntentID int64  `json:"intent_id"`
}

// pager receives the drainers' pages on loopback, like a human's telephone.
type pager struct {
	url, secret string
	verify      *standardwebhooks.Webhook
	heard       func(summary string)
	server      *http.Server

	mu    sync.Mutex
	pages map[string]page // by message: a repetition is no second page
}

// servePager tells heard of each page once.
func servePager(heard func(summary string)) (*pager, error) {
	p := &pager{secret: newSecret(), heard: heard, pages: map[string]page{}}
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
	octets := make([]byte, 32)
	_, _ = rand.Read(octets) // never fails
	return "whsec_" + base64.StdEncoding.EncodeToString(octets)
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
		p.heard(message.Data.Summary)
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
