package money

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/config/configtest"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

func TestHeaderAndTokenAreShown(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	configtest.PutFile(t, token, "secret\n")
	got := make(chan http.Header, 2)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header
		_, _ = io.WriteString(w, `{"transactionKey":"T1"}`)
	}))
	defer srv.Close()
	c := newClient(t, Config{URL: srv.URL, Credentials: Credentials{Header: "x-api-key: k1", TokenFile: token}})
	expect(t, c.ChargePoint(t.Context(), charge1_7, pass), reward.AnswerPaid, "")
	if l := c.Lookup(t.Context(), 1, 7); !l.Found {
		t.Errorf("lookup: %+v", l)
	}
	for range 2 {
		if h := <-got; h.Get("X-Api-Key") != "k1" || h.Get("Authorization") != "Bearer secret" {
			t.Errorf("headers %v", h)
		}
	}
}

func TestTokenMayHaveAHeaderOfItsOwn(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	configtest.PutFile(t, token, "secret\n")
	s := fixture.Must(newSigner(Credentials{Header: "x-api-key", TokenFile: token}, obs.Log{}))(t)
	h := http.Header{}
	s.sign(h)
	fixture.Equal(t, http.Header{"X-Api-Key": {"secret"}}, h)
	_, err := newSigner(Credentials{Header: "authorization: Basic hidden", TokenFile: token}, obs.Log{})
	if err == nil || !strings.Contains(err.Error(), "keep one of them") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("two Authorization headers: %v", err)
	}
}

func TestTokenIsRotated(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	synctest.Test(t, func(t *testing.T) {
		configtest.PutFile(t, file, "first")
		s := fixture.Must(newSigner(Credentials{TokenFile: file}, obs.Log{}))(t)
		shown := func() string {
			h := http.Header{}
			s.sign(h)
			return h.Get("Authorization")
		}
		configtest.PutFile(t, file, "second")
		if got := shown(); got != "Bearer first" {
			t.Errorf("at once: %q", got)
		}
		time.Sleep(tokenMaxAge)
		if got := shown(); got != "Bearer second" {
			t.Errorf("a second later: %q", got)
		}
		configtest.PutFile(t, file, "")
		time.Sleep(tokenMaxAge)
		if got := shown(); got != "Bearer second" {
			t.Errorf("while the file is empty: %q", got)
		}
		configtest.PutFile(t, file, "third")
		time.Sleep(tokenMaxAge)
		if got := shown(); got != "Bearer third" {
			t.Errorf("after that: %q", got)
		}
	})
}

// TestTLS calls an HTTPS server that wants a client certificate and answers with its name
// as the transaction key.
func TestTLS(t *testing.T) {
	t.Parallel()
	dir, until := t.TempDir(), time.Now().Add(time.Hour)
	path := func(name string) string { return filepath.Join(dir, name) }
	pool := x509.NewCertPool()
	for _, name := range []string{"server", "us", "renewed", "half"} {
		cert, _ := configtest.IssueCert(t, dir, name, until)
		text, err := os.ReadFile(cert)
		if err != nil || !pool.AppendCertsFromPEM(text) {
			t.Fatal(name, err)
		}
	}
	pair := fixture.Must(tls.LoadX509KeyPair(path("server.crt"), path("server.key")))(t)
	var requests atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = fmt.Fprintf(w, `{"transactionKey":%q}`, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are part of the test
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	c := newClient(t, Config{URL: srv.URL, Credentials: Credentials{
		CAFile: path("server.crt"), CertFile: path("us.crt"), KeyFile: path("us.key"),
	}})

	held := c.ChargePoint(t.Context(), charge1_7, func() error { return errHeld })
	expect(t, held, reward.AnswerNotSent, CodeNotAllowed)
	if requests.Load() != 0 {
		t.Error("a held request arrived over TLS")
	}
	if got := c.ChargePoint(t.Context(), charge1_7, pass); got.TransactionKey != "us" {
		t.Errorf("with our certificate: %+v", got)
	}

	for _, kind := range []string{".crt", ".key"} {
		fixture.OK(t, os.Rename(path("renewed"+kind), path("us"+kind)))
	}
	c.transport.CloseIdleConnections() // as their age would
	if got := c.ChargePoint(t.Context(), charge1_7, pass); got.TransactionKey != "renewed" {
		t.Errorf("after a rotation: %+v", got)
	}

	// Between the two renames of a rotation the pair does not fit.
	fixture.OK(t, os.Rename(path("half.crt"), path("us.crt")))
	c.transport.CloseIdleConnections()
	if got := c.ChargePoint(t.Context(), charge1_7, pass); got.TransactionKey != "renewed" {
		t.Errorf("in the middle of a rotation: %+v", got)
	}

	stranger := newClient(t, Config{URL: srv.URL})
	expect(t, stranger.ChargePoint(t.Context(), charge1_7, pass), reward.AnswerNotSent, CodeNotConnected)
	if requests.Load() != 3 {
		t.Errorf("%d requests", requests.Load())
	}
}
