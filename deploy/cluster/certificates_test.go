package cluster_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of the components.
type authority struct {
	folder string
	parsed *x509.Certificate
	key    *ecdsa.PrivateKey
}

// writeCertificates writes a certificate and a kubeconfig for each component.
func writeCertificates(folder string) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	ca := &authority{folder: folder}
	if err := ca.issue("ca", pkix.Name{CommonName: "drainer-cluster"}); err != nil {
		return err
	}
	user := func(name, group string) pkix.Name {
		if group == "" {
			return pkix.Name{CommonName: name}
		}
		return pkix.Name{CommonName: name, Organization: []string{group}}
	}
	hosts := []string{"127.0.0.1", apiIP, "172.30.0.11", "172.30.0.12", "10.96.0.1", "kubernetes.default.svc", "n1", "n2"}
	return errors.Join(
		ca.issue("apiserver", user("kube-apiserver", ""), hosts...),
		ca.issue("accounts", user("accounts", "")),
		ca.issue("admin", user("admin", "system:masters")),
		ca.issue("controllers", user("system:kube-controller-manager", "")),
		ca.issue("scheduler", user("system:kube-scheduler", "")),
		ca.issue("proxy", user("system:kube-proxy", "")),
		ca.issue("n1", user("system:node:n1", "system:nodes"), hosts...),
		ca.issue("n2", user("system:node:n2", "system:nodes"), hosts...))
}

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%[1]s:6443", certificate-authority: %[2]s/ca.crt}}]
users: [{name: u, user: {client-certificate: %[2]s/%[3]s.crt, client-key: %[2]s/%[3]s.key}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
`

// issue writes NAME.crt, NAME.key and NAME.kubeconfig. The first certificate is the authority's.
func (a *authority) issue(name string, subject pkix.Name, hosts ...string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	parent, signer := a.parsed, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.ExtKeyUsage = true, true, nil
		template.KeyUsage |= x509.KeyUsageCertSign
		parent, signer = template, key
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		return fmt.Errorf("signing %s: %w", name, err)
	}
	if a.parsed == nil {
		if a.parsed, err = x509.ParseCertificate(signed); err != nil {
			return err
		}
		a.key = key
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	path := filepath.Join(a.folder, name)
	return errors.Join(
		os.WriteFile(path+".crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), 0o600),
		os.WriteFile(path+".key", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded}), 0o600),
		os.WriteFile(path+".kubeconfig", fmt.Appendf(nil, kubeconfig, apiIP, a.folder, name), 0o600))
}
