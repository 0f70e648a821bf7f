package web

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

const certificateCheckInterval = time.Second

// certificate holds the server certificate, and reloads it when its files change. While they
// are unusable, for example because they are being replaced, it keeps the last good one.
type certificate struct {
	certFile, keyFile string // PEM
	log               obs.Log
	latest            *service.Reloaded[*tls.Certificate]

	// cert and key are the files that made last. Only read uses them.
	cert, key []byte
	last      *tls.Certificate
}

// newCertificate reads the files, so that errors are found at the start.
func newCertificate(certFile, keyFile string, log obs.Log) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	report := log.Streak("API certificate unusable, keeping the last one", "API certificate usable again")
	var err error
	c.latest, err = service.NewReloaded(certificateCheckInterval, c.read, func(err error) { report(err) })
	if err != nil {
		return nil, err
	}
	return c, nil
}

// tlsConfig returns the configuration of a listener. It does not offer HTTP/2: a
// connection could have any number of requests, and the limit on connections
// would limit nothing.
func (c *certificate) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.latest.Get(), nil },
	}
}

// read reads the files. Files that have not changed make the same certificate.
func (c *certificate) read() (*tls.Certificate, error) {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return nil, fmt.Errorf("http.tls-cert cannot be read: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return nil, fmt.Errorf("http.tls-key cannot be read: %w", err)
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return c.last, nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("http.tls-cert and http.tls-key cannot be used: %w", err)
	}
	if c.last != nil {
		c.log.Info("API certificate loaded", "http_tls_cert", c.certFile, "expires", pair.Leaf.NotAfter)
	}
	c.cert, c.key, c.last = cert, key, &pair
	return c.last, nil
}
