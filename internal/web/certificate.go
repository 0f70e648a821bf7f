package web

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

// certificateCheckInterval is the time that a certificate is used before its files are
// checked again.
const certificateCheckInterval = time.Second

// certificate holds the server certificate, and reloads it when its files change.
type certificate struct {
	certFile, keyFile string // PEM
	log               obs.Log

	mu        sync.Mutex // protects the rest
	checkedAt time.Time
	cert, key []byte // contents of the files at that time
	last      *tls.Certificate
}

// newCertificate reads the files, so that errors are found at the start.
func newCertificate(certFile, keyFile string, log obs.Log) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.readLocked(); err != nil {
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
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil },
	}
}

// current returns the certificate. It reads the files at most once per second. If
// they are unusable, for example while they are being replaced, it returns the
// last good certificate.
func (c *certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checkedAt) >= certificateCheckInterval {
		if err := c.readLocked(); err != nil {
			c.log.Warn("API certificate unusable, keeping the last one", err)
		}
	}
	return c.last
}

func (c *certificate) readLocked() error {
	c.checkedAt = time.Now()
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("http.tls-cert cannot be read: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("http.tls-key cannot be read: %w", err)
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("http.tls-cert and http.tls-key cannot be used: %w", err)
	}
	if c.last != nil {
		c.log.Info("API certificate loaded", "http_tls_cert", c.certFile, "expires", pair.Leaf.NotAfter)
	}
	c.cert, c.key, c.last = cert, key, &pair
	return nil
}
