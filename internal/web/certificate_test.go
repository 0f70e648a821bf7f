package web

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/config/configtest"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

// issue returns a certificate for 127.0.0.1 and its key, as PEM.
func issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	certPath, keyPath := configtest.IssueCert(t, t.TempDir(), name, time.Now().Add(time.Hour))
	return string(fixture.Must(os.ReadFile(certPath))(t)), string(fixture.Must(os.ReadFile(keyPath))(t))
}

// put replaces a file at once, as those do that renew certificates.
func put(t *testing.T, path, text string) {
	t.Helper()
	fixture.OK(t, os.Rename(configtest.PutFile(t, path+".new", text), path))
}

func (c *certificate) name() string { return c.latest.Get().Leaf.Subject.CommonName }

func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	firstCert, firstKey := issue(t, "first")
	secondCert, secondKey := issue(t, "second")
	if _, err := newCertificate(cert, key, obs.Log{}); err == nil || !strings.Contains(err.Error(), "http.tls-cert cannot be read") {
		t.Errorf("without files: %v", err)
	}
	put(t, cert, firstCert)
	if _, err := newCertificate(cert, key, obs.Log{}); err == nil || !strings.Contains(err.Error(), "http.tls-key cannot be read") {
		t.Errorf("without a key: %v", err)
	}
	put(t, key, secondKey)
	if _, err := newCertificate(cert, key, obs.Log{}); err == nil || !strings.Contains(err.Error(), "http.tls-cert and http.tls-key cannot be used") {
		t.Errorf("with another's key: %v", err)
	}
	put(t, key, firstKey)
	synctest.Test(t, func(t *testing.T) {
		c := fixture.Must(newCertificate(cert, key, obs.Log{}))(t)
		put(t, cert, secondCert)
		if c.name() != "first" {
			t.Error("the files were read again within a second")
		}
		time.Sleep(certificateCheckInterval)
		if c.name() != "first" {
			t.Error("half a rotation was taken")
		}
		put(t, key, secondKey)
		time.Sleep(certificateCheckInterval)
		if c.name() != "second" {
			t.Error("a rotation was not seen")
		}
		fixture.OK(t, os.Remove(key))
		time.Sleep(certificateCheckInterval)
		if c.name() != "second" {
			t.Error("without a file nothing is shown")
		}
	})
}

func TestHTTPS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	firstCert, firstKey := issue(t, "first")
	put(t, cert, firstCert)
	put(t, key, firstKey)
	b := setup(t)
	b.serve(t, ServerConfig{TLSCert: cert, TLSKey: key, Limits: Limits{Header: fixture.Patience, Write: fixture.Patience}}, nil)
	addr := strings.TrimPrefix(b.url, "http://")
	// ask connects again and returns the certificate of the server.
	ask := func(trust string, edit func(*tls.Config)) (string, error) {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(trust))
		cfg := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
		edit(cfg)
		transport := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true, ForceAttemptHTTP2: true}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+"/healthz", nil)
		if err != nil {
			return "", err
		}
		res, err := transport.RoundTrip(req)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK || res.ProtoMajor != 1 {
			t.Errorf("%s %s", res.Status, res.Proto)
		}
		return res.TLS.PeerCertificates[0].Subject.CommonName, nil
	}
	as := func(*tls.Config) {}
	if name, err := ask(firstCert, as); err != nil || name != "first" {
		t.Fatalf("%q, %v", name, err)
	}
	if _, err := ask(firstCert, func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }); err == nil {
		t.Error("TLS 1.1 was taken")
	}
	if name, err := ask(firstCert, func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }); err != nil || name != "first" {
		t.Errorf("TLS 1.2: %q, %v", name, err)
	}

	t.Run("ARenewedCertificateNeedsNoRestart", func(t *testing.T) { //nolint:paralleltest // it changes what the others see
		secondCert, secondKey := issue(t, "second")
		put(t, key, secondKey)
		put(t, cert, secondCert)
		fixture.Until(t, "the second certificate is shown", func() bool {
			name, err := ask(secondCert, as)
			return err == nil && name == "second"
		})
	})

	t.Run("WhoSaysNothingIsCut", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.serve(t, ServerConfig{TLSCert: cert, TLSKey: key, Limits: Limits{Header: 300 * time.Millisecond, Write: 600 * time.Millisecond}}, nil)
		for _, sent := range []string{"", "\x16\x03\x01"} {
			conn := b.raw(t, sent)
			fixture.OK(t, conn.SetReadDeadline(time.Now().Add(fixture.Patience)))
			if _, err := io.ReadAll(conn); err != nil {
				t.Errorf("%q: %v", sent, err)
			}
		}
	})

	t.Run("PlainTextIsTold", func(t *testing.T) {
		t.Parallel()
		conn := b.raw(t, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		text, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(text), "400") || !strings.Contains(string(text), "HTTPS") {
			t.Errorf("%q, %v", text, err)
		}
	})

	if log := b.log.String(); strings.Contains(log, "handshake error") {
		t.Errorf("a failed handshake is logged: %s", log)
	}
}
