package money

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestHeaderAndTokenAreShown(t *testing.T) {
	t.Parallel()
	token := filepath.Join(t.TempDir(), "token")
	writeFile(t, token, "secret\n")
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
	writeFile(t, token, "secret\n")
	s, err := newSigner(Credentials{Header: "x-api-key", TokenFile: token}, obs.Log{})
	if err != nil {
		t.Fatal(err)
	}
	h := http.Header{}
	s.sign(h)
	if diff := cmp.Diff(http.Header{"X-Api-Key": {"secret"}}, h); diff != "" {
		t.Error(diff)
	}
	_, err = newSigner(Credentials{Header: "authorization: Basic hidden", TokenFile: token}, obs.Log{})
	if err == nil || !strings.Contains(err.Error(), "keep one of them") || strings.Contains(err.Error(), "hidden") {
		t.Errorf("two Authorization headers: %v", err)
	}
}

func TestTokenIsRotated(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	synctest.Test(t, func(t *testing.T) {
		writeFile(t, file, "first")
		s, err := newSigner(Credentials{TokenFile: file}, obs.Log{})
		if err != nil {
			t.Fatal(err)
		}
		shown := func() string {
			h := http.Header{}
			s.sign(h)
			return h.Get("Authorization")
		}
		writeFile(t, file, "second")
		if got := shown(); got != "Bearer first" {
			t.Errorf("at once: %q", got)
		}
		time.Sleep(tokenMaxAge)
		if got := shown(); got != "Bearer second" {
			t.Errorf("a second later: %q", got)
		}
		writeFile(t, file, "")
		time.Sleep(tokenMaxAge)
		if got := shown(); got != "Bearer second" {
			t.Errorf("while the file is empty: %q", got)
		}
		writeFile(t, file, "third")
		time.Sleep(tokenMaxAge)
		if got := shown(); got != "Bearer third" {
			t.Errorf("after that: %q", got)
		}
	})
}

// authority signs certificates for one test.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", nil)
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// issue writes name.crt and name.key; a nil signer makes them self-signed.
func (a *authority) issue(name string, signer *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IsCA:         signer == nil, BasicConstraintsValid: true,
	}
	parent, signing := template, key
	if signer != nil {
		parent, signing = signer.cert, signer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signing)
	if err != nil {
		a.t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	writeFile(a.t, a.path(name+".crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(a.t, a.path(name+".key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// serve starts an HTTPS server that wants a client certificate and answers with
// its name as the transaction key.
func (a *authority) serve(requests *atomic.Int64) *httptest.Server {
	a.t.Helper()
	a.issue("server", a)
	pair, err := tls.LoadX509KeyPair(a.path("server.crt"), a.path("server.key"))
	if err != nil {
		a.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		_, _ = fmt.Fprintf(w, `{"transactionKey":%q}`, r.TLS.PeerCertificates[0].Subject.CommonName)
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are part of the test
	srv.EnableHTTP2 = true
	srv.StartTLS()
	a.t.Cleanup(srv.Close)
	return srv
}

func TestTLS(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	a := newAuthority(t)
	srv := a.serve(&requests)
	a.issue("us", a)
	c := newClient(t, Config{URL: srv.URL, Credentials: Credentials{
		CAFile: a.path("ca.crt"), CertFile: a.path("us.crt"), KeyFile: a.path("us.key"),
	}})

	held := c.ChargePoint(t.Context(), charge1_7, func() error { return errHeld })
	expect(t, held, reward.AnswerNotSent, CodeNotAllowed)
	if requests.Load() != 0 {
		t.Error("a held request arrived over TLS")
	}
	if got := c.ChargePoint(t.Context(), charge1_7, pass); got.TransactionKey != "us" {
		t.Errorf("with our certificate: %+v", got)
	}

	a.issue("renewed", a)
	for _, kind := range []string{".crt", ".key"} {
		if err := os.Rename(a.path("renewed"+kind), a.path("us"+kind)); err != nil {
			t.Fatal(err)
		}
	}
	c.transport.CloseIdleConnections() // as their age would
	if got := c.ChargePoint(t.Context(), charge1_7, pass); got.TransactionKey != "renewed" {
		t.Errorf("after a rotation: %+v", got)
	}

	// Between the two renames of a rotation the pair does not fit.
	a.issue("half", a)
	if err := os.Rename(a.path("half.crt"), a.path("us.crt")); err != nil {
		t.Fatal(err)
	}
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
