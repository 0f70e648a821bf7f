package redis

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/config/configtest"
)

// TestCAFile checks that each connection trusts the CA that is in the file, and no other.
func TestCAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := configtest.IssueCert(t, dir, "server", time.Now().Add(time.Hour))
	other, _ := configtest.IssueCert(t, dir, "other", time.Now().Add(time.Hour))
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	server, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = conn.(*tls.Conn).Handshake()
				_ = conn.Close()
			}()
		}
	}()

	file := filepath.Join(dir, "ca.pem")
	url := "rediss://" + server.Addr().String()
	if _, err := (Config{URL: url, CAFile: file}).Option(); err == nil || !strings.HasPrefix(err.Error(), "redis.ca-file cannot be read") {
		t.Fatalf("a missing file: %v", err)
	}
	for i, step := range []struct {
		text  []byte
		trust bool
	}{{read(t, other), false}, {read(t, cert), true}, {[]byte("damaged"), true}} {
		if err := os.WriteFile(file, step.text, 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := Config{URL: url, CAFile: file}.Option()
		if i < 2 && err != nil || i == 2 && err == nil {
			t.Fatalf("step %d: %v", i, err)
		}
		if err != nil {
			continue
		}
		if err := dial(t, o.DialCtxFn, o.InitAddress[0], &o.Dialer, o.TLSConfig); (err == nil) != step.trust {
			t.Errorf("step %d: %v, want trust %t", i, err, step.trust)
		}
		// The file changes after the client was made.
		if err := os.WriteFile(file, read(t, cert), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := dial(t, o.DialCtxFn, o.InitAddress[0], &o.Dialer, o.TLSConfig); err != nil {
			t.Errorf("step %d, after the right CA is in the file: %v", i, err)
		}
		if err := os.WriteFile(file, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := dial(t, o.DialCtxFn, o.InitAddress[0], &o.Dialer, o.TLSConfig); err != nil {
			t.Errorf("step %d, with an unusable file the last CA stays in use: %v", i, err)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func dial(t *testing.T, connect func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error), address string, dialer *net.Dialer, config *tls.Config) error {
	t.Helper()
	conn, err := connect(t.Context(), address, dialer, config)
	if err != nil {
		return err
	}
	return conn.Close()
}
