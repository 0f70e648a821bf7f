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

// certificateFor is how long a certificate is used before its files are looked
// at again.
const certificateFor = time.Second

// certificate is what the server shows, as its files are now.
type certificate struct {
	certFile, keyFile string // PEM
	log               obs.Log

	mu        sync.Mutex // protects the rest
	lookedAt  time.Time
	cert, key []byte // what the files held then
	last      *tls.Certificate
}

// newCertificate reads the files once, so that wrong ones are known at the start.
func newCertificate(certFile, keyFile string, log obs.Log) (*certificate, error) {
	c := &certificate{certFile: certFile, keyFile: keyFile, log: log}
	if err := c.readLocked(); err != nil {
		return nil, err
	}
	return c, nil
}

// tlsConfig is for a listener. HTTP/2 is not spoken: there a connection has any
// number of requests, so that a bound on connections would bound nothing.
func (c *certificate) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current(), nil },
	}
}

// current reads the files at most once a second. Those that cannot be used (one
// of the two is just being replaced) leave the last good certificate in use.
func (c *certificate) current() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.lookedAt) >= certificateFor {
		if err := c.readLocked(); err != nil {
			c.log.Warn(obs.Unavailable, err)
		}
	}
	return c.last
}

func (c *certificate) readLocked() error {
	c.lookedAt = time.Now()
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
		c.log.Info(obs.Loaded, "http_tls_cert", c.certFile, "expires", pair.Leaf.NotAfter)
	}
	c.cert, c.key, c.last = cert, key, &pair
	return nil
}
