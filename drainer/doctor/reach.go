package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os/exec"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agentoutbox/drainer/dispatch"
)

const (
	reachTimeout  = 5 * time.Second
	reachAtOnce   = 8
	soonExpired   = 14 * 24 * time.Hour
	alertPatience = 250 * time.Millisecond
)

// reachProviders goes to each provider as its adapter would, and comes back
// without having said a word of its protocol.
func reachProviders(ctx context.Context, patient Patient) (found []Finding) {
	if patient.Providers == nil {
		return name("providers", []Finding{notChecked("say --config FILE", "there is no configuration")})
	}
	results := make([][]Finding, len(patient.Providers))
	var group errgroup.Group
	group.SetLimit(reachAtOnce)
	for i, provider := range patient.Providers {
		group.Go(func() error {
			results[i] = name("provider "+provider.Name, provider.reach(ctx, patient.Now()))
			return nil
		})
	}
	_ = group.Wait()
	for _, result := range results {
		found = append(found, result...)
	}
	return found
}

func (p Provider) reach(ctx context.Context, now time.Time) (found []Finding) {
	located, isLocated := p.Adapter.(dispatch.Located)
	if !isLocated {
		return []Finding{notChecked("", "its adapter does not say where it connects to")}
	}
	for _, destination := range located.Destinations() {
		found = append(found, p.reachOne(ctx, destination, now))
	}
	if len(found) == 0 {
		found = append(found, notChecked("", "it connects to nothing itself"))
	}
	return found
}

func (p Provider) reachOne(ctx context.Context, to dispatch.Destination, now time.Time) Finding {
	if to.Network == "program" {
		return findProgram(to.Address)
	}
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	start := time.Now()
	conn, err := p.dial(ctx, to)
	switch {
	case errors.Is(err, dispatch.ErrEgressRefused):
		return problem(fmt.Sprintf("if it is meant: allow %s under providers.%s.egress (private: allow, or allow: [%[1]q]); addresses of metadata services are never allowed", to.Address, p.Name),
			"the egress rules forbid %s", to.Address)
	case err != nil:
		seen, cure := explainDial(err, to.Address)
		return problem(cure, "%s", seen)
	}
	defer func() { _ = conn.Close() }()
	took := short(time.Since(start))
	switch to.TLS {
	case dispatch.ImplicitTLS:
		return p.shakeHands(ctx, conn, to.Address, now)
	case dispatch.UpgradedTLS:
		return ok("TCP: %s answers in %s; TLS, which is agreed to later there, was not tried", to.Address, took)
	}
	return ok("TCP: %s answers in %s, without TLS", to.Address, took)
}

// findProgram looks for it as whoever starts it would, and does not start it.
func findProgram(name string) Finding {
	path, err := exec.LookPath(name)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return problem("chmod +x it, for the user that the daemon runs as", "%s may not be executed", name)
	case err != nil:
		return problem("install it where the daemon runs, or correct the command", "there is no program %s", name)
	}
	return ok("the program is %s; it was not started", path)
}

func (p Provider) dial(ctx context.Context, to dispatch.Destination) (net.Conn, error) {
	if to.Network == "unix" {
		return (&net.Dialer{}).DialContext(ctx, to.Network, to.Address)
	}
	return p.Network.DialContext(ctx, to.Network, to.Address)
}

func (p Provider) shakeHands(ctx context.Context, conn net.Conn, address string, now time.Time) Finding {
	secure, wanted := p.client(conn, address)
	err := secure.HandshakeContext(ctx)
	if err == nil && *wanted {
		err = awaitRefusal(secure)
	}
	if err != nil {
		if seen, cure, isTLS := explainTLS(err); isTLS {
			return problem(cure, "TLS: %s %s", address, seen)
		}
		return problem("see its log, and whether the port is one for TLS", "TLS: %s did not complete the handshake", address)
	}
	state := secure.ConnectionState()
	if left := state.PeerCertificates[0].NotAfter.Sub(now); left < soonExpired {
		return warning("have it renewed", "%s: its certificate expires in %s", address, left.Round(time.Hour))
	}
	return ok("%s: %s", address, tls.VersionName(state.Version))
}

// client also notes whether the server wants to see a certificate.
func (p Provider) client(conn net.Conn, address string) (secure *tls.Conn, wanted *bool) {
	config := p.Network.TLSConfig()
	if host, _, err := net.SplitHostPort(address); err == nil && config.ServerName == "" {
		config.ServerName = host
	}
	wanted = new(bool)
	certificates := config.Certificates
	config.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		*wanted = true
		for i := range certificates {
			if request.SupportsCertificate(&certificates[i]) == nil {
				return &certificates[i], nil
			}
		}
		return new(tls.Certificate), nil
	}
	return tls.Client(conn, config), wanted
}

// awaitRefusal: with TLS 1.3 a client is done before its certificate is looked
// at, and hears of that afterwards.
func awaitRefusal(conn *tls.Conn) error {
	if err := conn.SetReadDeadline(time.Now().Add(alertPatience)); err != nil {
		return err
	}
	var alert *net.OpError
	if _, err := conn.Read(make([]byte, 1)); errors.As(err, &alert) && !alert.Timeout() {
		return err
	}
	return nil
}
