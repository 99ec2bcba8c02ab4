package config

import (
	"crypto/tls"
	"crypto/x509"
)

type tlsBlock struct {
	CA          string `yaml:"ca" jsonschema_description:"Certificates of the authorities that vouch for the provider, instead of the system's, in PEM: ${file:/etc/drainer/ca.pem}."`
	Certificate string `yaml:"certificate" jsonschema_description:"The certificate to show to the provider, with its chain, in PEM. It needs a key."`
	Key         string `yaml:"key" jsonschema_description:"The private key of the certificate, in PEM."`
	ServerName  string `yaml:"server_name" jsonschema_description:"The name that the provider's certificate must have, where it is not that of its address."`
}

// tls is nil for a block that says nothing.
func (r *reader) tls(at path, block tlsBlock) *tls.Config {
	if block == (tlsBlock{}) {
		return nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: block.ServerName}
	if block.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(block.CA)) {
			r.reject(at.child("ca"), "holds no certificate in PEM; write ${file:/path/to/ca.pem}")
		}
	}
	switch {
	case block.Certificate == "" && block.Key == "":
	case block.Certificate == "":
		r.reject(at.child("certificate"), "is missing; the key alone proves nothing")
	case block.Key == "":
		r.reject(at.child("key"), "is missing; the certificate alone proves nothing")
	default:
		pair, err := tls.X509KeyPair([]byte(block.Certificate), []byte(block.Key))
		if err != nil {
			r.reject(at.child("certificate"), "certificate and key do not make a pair, in PEM")
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config
}
