package doctor

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
)

// lookAtTLS looks at a connection that stands: the driver may have fallen back
// to plain text on the way.
func lookAtTLS(ctx context.Context, x *examination) ([]Finding, error) {
	pooled, err := x.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer pooled.Release()
	conn := pooled.Conn().PgConn().Conn()
	if secure, isSecure := conn.(*tls.Conn); isSecure {
		return []Finding{x.verified(secure)}, nil
	}
	remote, isTCP := conn.RemoteAddr().(*net.TCPAddr)
	if !isTCP {
		return []Finding{ok("none, and none is needed on a socket of this machine")}, nil
	}
	address, _ := netip.AddrFromSlice(remote.IP)
	return []Finding{judgePlainText(address.Unmap())}, nil
}

func judgePlainText(server netip.Addr) Finding {
	const cure = "add sslmode=verify-full and, for an authority of your own, sslrootcert=/path/ca.pem to the database URL"
	switch {
	case server.IsLoopback():
		return ok("none, and none is needed on this machine")
	case server.IsPrivate():
		return warning(cure, "payloads cross the network in plain text")
	}
	return problem(cure, "payloads cross a public network in plain text")
}

func (x *examination) verified(conn *tls.Conn) Finding {
	version := tls.VersionName(conn.ConnectionState().Version)
	config := x.Database.ConnConfig.TLSConfig
	if config != nil && config.InsecureSkipVerify && config.VerifyPeerCertificate == nil && config.VerifyConnection == nil {
		return warning("say sslmode=verify-full and, for an authority of your own, sslrootcert=/path/ca.pem in the database URL",
			"%s, but anybody may pose as the server: its certificate is not verified", version)
	}
	return ok("%s, with a certificate that was verified", version)
}
