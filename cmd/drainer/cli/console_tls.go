package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/agentoutbox/drainer/drainer/config"
)

// encryption is the TLS of a console. It is read again when one of its files changes.
type encryption struct {
	setup   consoleSetup
	files   []config.File // as they were last read
	inForce atomic.Pointer[tls.Config]
}

// encryption returns nil if the console serves plain HTTP.
func (c consoleSetup) encryption() (*encryption, error) {
	if err := c.CheckTLS(); err != nil {
		return nil, err
	}
	if c.TLS.CertificateFile == "" {
		return nil, nil
	}
	e := &encryption{setup: c}
	return e, e.read()
}

// read keeps the TLS in force if a file is wrong. It reads all files before it judges one, because Watch compares with
// what was read last.
func (e *encryption) read() error {
	certificate, key, authority := e.setup.TLS.CertificateFile, e.setup.TLS.KeyFile, e.setup.ProxyCAFile
	texts, wrong := map[string][]byte{}, error(nil)
	e.files = nil
	for _, of := range []struct{ flag, path string }{{"tls-certificate-file", certificate}, {"tls-key-file", key}, {"proxy-ca-file", authority}} {
		if of.path == "" {
			continue
		}
		file, text, err := config.ReadToWatch(of.path)
		if err != nil && wrong == nil {
			wrong = fmt.Errorf("%s: %w", e.setup.named(of.flag), err)
		}
		e.files = append(e.files, file)
		texts[of.path] = text
	}
	if wrong != nil {
		return wrong
	}
	pair, err := tls.X509KeyPair(texts[certificate], texts[key])
	if err != nil {
		return fmt.Errorf("%s %s with %s %s: %w", e.setup.named("tls-certificate-file"), certificate, e.setup.named("tls-key-file"), key, err)
	}
	next := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		SessionTicketsDisabled: true, // a resumed session would not be judged by an authority that was replaced
	}
	if authority != "" {
		next.ClientAuth, next.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		if !next.ClientCAs.AppendCertsFromPEM(texts[authority]) {
			return fmt.Errorf("%s: %s holds no certificate in PEM", e.setup.named("proxy-ca-file"), authority)
		}
	}
	e.inForce.Store(next)
	return nil
}

// listen decrypts the connections of a listener, with the files as they are in force at each handshake.
func (e *encryption) listen(ctx context.Context, listener net.Listener, log *slog.Logger) net.Listener {
	// The program does not wait for this: a file system that hangs must not delay the end.
	go config.Watch(ctx, reloadInterval, e.files, nil, func(config.Cause) []config.File {
		if err := e.read(); err != nil {
			log.Error("the console's new certificate is not used; the one before stays in force", "error", err)
		} else {
			log.Info("the console's certificate was read again")
		}
		return e.files
	})
	return tls.NewListener(listener, &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return e.inForce.Load(), nil },
	})
}

// complaints logs what an HTTP server complains of. Every client can cause a failed handshake, so their lines are
// limited. A probe of Kubernetes connects and leaves, which is no failure.
type complaints struct {
	log        *slog.Logger
	handshakes *rate.Limiter
}

func (c complaints) Write(line []byte) (int, error) {
	text := bytes.TrimSpace(line)
	if !bytes.HasPrefix(text, []byte("http: TLS handshake error")) || !isProbe(text) && c.handshakes.Allow() {
		c.log.Warn(string(text))
	}
	return len(line), nil
}

func isProbe(handshake []byte) bool {
	return bytes.HasSuffix(handshake, []byte(": EOF")) || bytes.HasSuffix(handshake, []byte("connection reset by peer"))
}
