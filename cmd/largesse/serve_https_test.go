package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestServeHTTPS says https:// where it speaks TLS, and does.
func TestServeHTTPS(t *testing.T) {
	t.Parallel()
	borrowed := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer borrowed.Close()
	pair := borrowed.TLS.Certificates[0]
	raw, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, terminate := context.WithCancel(t.Context())
	defer terminate()
	out, in := io.Pipe()
	done := make(chan int, 1)
	var log bytes.Buffer
	go func() {
		defer in.Close()
		done <- run(ctx, []string{
			"serve", "--data-dir", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--money-url", "http://127.0.0.1:1", "--log-level", "error",
			"--http-tls-cert", cert, "--http-tls-key", key,
		}, world{stdout: in, stderr: &log})
	}()
	first, err := bufio.NewReader(out).ReadString('\n')
	server, _, _ := strings.Cut(strings.TrimPrefix(first, "serving on "), ", Kafka at ")
	if err != nil || !strings.HasPrefix(server, "https://127.0.0.1:") {
		t.Fatalf("serve says %q (%v), code %d\n%s", first, err, <-done, &log)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := borrowed.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("status %d", res.StatusCode)
	}
	borrowed.Client().CloseIdleConnections()
	terminate()
	if code := <-done; code != exitDone {
		t.Errorf("serve ends with %d\n%s", code, &log)
	}
}
