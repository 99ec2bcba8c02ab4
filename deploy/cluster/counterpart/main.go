// counterpart is every other program in the cluster: a provider whose ledger is a file, a sidecar, and, without
// arguments, the process that keeps a pod's namespaces open.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/agentoutbox/drainer/dispatch/dispatchtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 0:
		<-ctx.Done()
	case args[0] == "provider":
		err = provide(ctx, args[1], args[2])
	case args[0] == "sidecar":
		err = adapt(ctx, args[1])
	case args[0] == "check": // whether a sidecar listens
		_, err = net.Dial("unix", args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// adapt serves the adapter protocol. It closes every ticket.
func adapt(ctx context.Context, socket string) error {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /v1/hello", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"protocol": [1], "name": "tickets"}`)
	})
	routes.HandleFunc("POST /v1/dispatch", func(w http.ResponseWriter, r *http.Request) {
		var request struct {
			ID string `json:"id"`
		}
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, `{"id": %q, "outcome": "completed"}`, request.ID)
	})
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: routes, ReadHeaderTimeout: 5 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); ctx.Err() == nil {
		return err
	}
	return nil
}

// odds make every fourth request fail, in ways that a retry cures.
var odds = map[dispatchtest.Fault]float64{
	dispatchtest.ThrottleFor: 0.03,
	dispatchtest.Unavailable: 0.06,
	dispatchtest.ErrorAfter:  0.08,
	dispatchtest.DropAfter:   0.08,
}

func provide(ctx context.Context, address, path string) error {
	ledger, err := dispatchtest.OpenLedger(path)
	if err != nil {
		return err
	}
	faulty := &dispatchtest.SimulatedProvider{Ledger: ledger, Plan: dispatchtest.Random(1, odds)}
	faithful := &dispatchtest.SimulatedProvider{Ledger: ledger}
	forgetful := &dispatchtest.SimulatedProvider{Ledger: ledger, IgnoreKeys: true}
	server := &http.Server{Addr: address, ReadHeaderTimeout: 5 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		latency, provider := 150*time.Millisecond, forgetful
		switch {
		case strings.HasPrefix(r.URL.Path, "/act"):
			provider = faulty
		case strings.HasPrefix(r.URL.Path, "/slow"): // longer than the termination period of a pod
			latency, provider = 40*time.Second, faithful
		case r.URL.Path == "/healthz":
			return
		}
		time.Sleep(latency) // not stopped by a client that hangs up
		provider.ServeHTTP(w, r)
	})}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return ledger.Close()
}
