package demo

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

const latency = 50 * time.Millisecond

// odds make about every third request fail, in all known ways.
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

// ServeProvider serves the demo's simulated provider alone, until ctx ends. Its ledger is in memory, so a restart
// loses every key and every effect.
func ServeProvider(ctx context.Context, listener net.Listener, seed uint64) error {
	server := newProviderServer(dispatchtest.NewLedger(), seed)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the simulated provider: %w", err)
	}
	return nil
}

// distant delays each request. A client that hangs up meanwhile does not stop it.
func distant(provider http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-time.After(latency)
		provider.ServeHTTP(w, r)
	})
}

// finish waits for the requests that still run. After it, no effect can follow.
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

// pager receives the drainers' pages on loopback, in place of a human.
type pager struct {
	url, secret string
	verify      *standardwebhooks.Webhook
	onPage      func(summary string)
	server      *http.Server

	mu    sync.Mutex
	pages map[string]page // by message id, because a repeated message is not a second page
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

// ServeHTTP accepts signed pages.
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

//go:embed sandbox.yaml
var sandboxConfig string

// urlFile holds the database's URL. The sandbox's configuration refers to this file, so the configuration stays
// valid for the next sandbox, which has another port and another password.
const urlFile = "sandbox.url"

// Sandbox is a migrated database and a provider to try drainer with.
type Sandbox struct {
	Config   string // the path of a configuration that names both
	IsNew    bool   // Config was written now; if false, an earlier sandbox wrote it, and it is unchanged
	Provider net.Addr

	database *database
	listener net.Listener
	urlPath  string
}

// OpenSandbox starts a throwaway Postgres, or creates a database of its own on the server at databaseURL. It
// writes drainer.yaml and sandbox.url into folder. It never overwrites a drainer.yaml, and fails if one exists
// that no sandbox wrote, because that may name an important database. The provider listens on address.
func OpenSandbox(ctx context.Context, folder, address, databaseURL string) (*Sandbox, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{Config: filepath.Join(folder, "drainer.yaml"), urlPath: filepath.Join(folder, urlFile)}
	if err := s.open(ctx, address, databaseURL); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Sandbox) open(ctx context.Context, address, databaseURL string) error {
	kept, err := os.ReadFile(s.Config)
	s.IsNew = errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !s.IsNew:
		return fmt.Errorf("reading the configuration: %w", err)
	case !s.IsNew && !strings.Contains(string(kept), s.urlPath):
		return fmt.Errorf("%s is not a sandbox's, because it does not name ${file:%s}, and it was left as it is; choose another folder with --folder", s.Config, s.urlPath)
	}
	if s.listener, err = net.Listen("tcp", address); err != nil {
		return fmt.Errorf("serving the simulated provider: %w; choose another address with --listen", err)
	}
	s.Provider = s.listener.Addr()
	if s.database, err = openDatabase(ctx, databaseURL); err != nil {
		return err
	}
	if err := os.WriteFile(s.urlPath, []byte(s.database.url), 0o600); err != nil {
		return err
	}
	text := strings.NewReplacer("${env:DATABASE_URL}", "${file:"+s.urlPath+"}",
		"127.0.0.1:8080", s.Provider.String()).Replace(sandboxConfig)
	if !s.IsNew {
		return nil
	}
	file, err := os.OpenFile(s.Config, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// Serve serves the provider until ctx ends. The provider counts effects in memory and fails about every third
// request.
func (s *Sandbox) Serve(ctx context.Context, seed uint64) error {
	return ServeProvider(ctx, s.listener, seed)
}

// Close removes the database with all its data. The configuration stays.
func (s *Sandbox) Close() error {
	var problems []error
	if s.listener != nil {
		_ = s.listener.Close() // the end of the provider has closed it already
	}
	if s.database != nil {
		problems = append(problems, os.Remove(s.urlPath), s.database.close())
	}
	return errors.Join(problems...)
}
