package main

import (
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestServeHTTPS says https:// where it speaks TLS, and does.
func TestServeHTTPS(t *testing.T) {
	t.Parallel()
	borrowed := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer borrowed.Close()
	pair := borrowed.TLS.Certificates[0]
	raw := fixture.Must(x509.MarshalPKCS8PrivateKey(pair.PrivateKey))(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		fixture.OK(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
	}
	up := begin(t, nil, []string{
		"serve", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--money-url", "http://127.0.0.1:1", "--log-level", "error",
		"--http-tls-cert", cert, "--http-tls-key", key,
	})
	first := up.line(t)
	server, _, _ := strings.Cut(strings.TrimPrefix(first, "serving on "), ", Kafka at ")
	if !strings.HasPrefix(server, "https://127.0.0.1:") {
		t.Errorf("serve says %q", first)
	}
	req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, server+"/readyz", nil))(t)
	res, err := borrowed.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("status %d", res.StatusCode)
	}
	borrowed.Client().CloseIdleConnections()
	if code := up.end(); code != exitDone {
		t.Errorf("serve ends with %d\n%s", code, up.stderr)
	}
}
