package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

// inside matches addresses and the words of the resolver and the dialer.
var inside = regexp.MustCompile(`[0-9]+\.[0-9]+\.[0-9]+|\[?::|lookup |dial |read |tcp|x509|remote error`)

// TestReasonsShowNoAddresses calls receivers that do not respond: the reason names no
// address, but the error itself, which is logged, has its cause.
func TestReasonsShowNoAddresses(t *testing.T) {
	t.Parallel()
	closing := func(response string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = conn.Write([]byte(response))
			_ = conn.Close()
		}
	}
	serve := func(start func(http.Handler) *httptest.Server, h http.HandlerFunc) string {
		t.Helper()
		receiver := start(h)
		receiver.Config.ErrorLog = nil
		t.Cleanup(receiver.Close)
		return receiver.URL
	}
	alerting := func(h http.Handler) *httptest.Server {
		receiver := httptest.NewUnstartedServer(h)
		receiver.Config.ErrorLog = log.New(io.Discard, "", 0)
		receiver.TLS = &tls.Config{
			MinVersion:         tls.VersionTLS12,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return nil, errors.New("not for you") },
		}
		receiver.StartTLS()
		return receiver
	}
	silent := errors.New("i/o trouble at 10.255.255.53")
	resolver := func(err error) *http.Transport {
		return &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: err}
		}}
	}
	for name, test := range map[string]struct {
		tr      *http.Transport
		address string
		want    string
	}{
		"AnUnknownName": {resolver(&net.DNSError{Err: "no such host", Name: "x.example", Server: "10.255.255.53:53", IsNotFound: true}), "https://x.example/", "the host name of the URL does not exist"},
		"ADeadResolver": {resolver(&net.DNSError{Err: "i/o timeout", Name: "x.example", Server: "10.255.255.53:53", IsTimeout: true}), "https://x.example/", "the host name of the URL could not be looked up"},
		"SomethingElse": {resolver(silent), "https://x.example/", "no response"},
		"APrivateOne":   {NewTransport(false), "http://127.0.0.1:9/", errPrivate.Error()},
		"Nobody":        {NewTransport(true), "http://127.0.0.1:1/secret?token=secret", "the receiver refused the connection"},
		"AClosedOne":    {NewTransport(true), serve(httptest.NewServer, closing("")), "the receiver closed the connection without a response"},
		"NoHTTP":        {NewTransport(true), serve(httptest.NewServer, closing("SSH-2.0-OpenSSH\r\n")), "the response of the receiver is not HTTP"},
		"NoTLS":         {NewTransport(true), strings.Replace(serve(httptest.NewServer, closing("")), "http:", "https:", 1), ""},
		"AnAlert":       {NewTransport(true), serve(alerting, closing("")), "the receiver refused the TLS handshake"},
		"AnUnknownCA":   {NewTransport(true), serve(httptest.NewTLSServer, closing("")), "the TLS certificate of the receiver is signed by an unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, err := Post(t.Context(), test.tr, test.address, http.Header{}, []byte("{}"))
			if status != 0 || err == nil || strings.Contains(err.Error(), "secret") {
				t.Fatalf("status %d, %v", status, err)
			}
			got := Reason(err)
			if test.want != "" && got != test.want || inside.MatchString(got) {
				t.Errorf("the reason is %q, want %q", got, test.want)
			}
			if cause := errors.Unwrap(err); cause == nil || !strings.Contains(err.Error(), cause.Error()) {
				t.Errorf("the error for the log is %v, without its cause", err)
			}
			if ShownReason(got) != got {
				t.Errorf("%q is shown as %q", got, ShownReason(got))
			}
		})
	}
	if _, err := Post(t.Context(), NewTransport(true), "http://\x7f/secret", http.Header{}, nil); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a URL that cannot be parsed: %v", err)
	}
	for stored, want := range map[string]string{
		"no response: dial tcp: lookup x on 10.255.255.53:53: no such host": "no response",
		"no response within 10s":                            "no response within 10s",
		"the receiver responded with status 500":            "the receiver responded with status 500",
		"":                                                  "",
		"the receiver refused the connection":               "the receiver refused the connection",
		"the webhook's URL cannot be parsed":                "the webhook's URL cannot be parsed",
		"the host name of the URL does not exist":           "the host name of the URL does not exist",
		"no response: read tcp 10.0.0.1:1->10.0.0.2:2: EOF": "no response",
	} {
		if got := ShownReason(stored); got != want {
			t.Errorf("%q is shown as %q, want %q", stored, got, want)
		}
	}
}

// TestTheStoredReasonHasNoAddress checks what a failed attempt stores and logs.
func TestTheStoredReasonHasNoAddress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rows, r := newFakeRows(1), newFakeReceivers()
		r.script["1.example"] = func(context.Context, int) (int, error) {
			return 0, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "1.example", Server: "10.255.255.53:53", IsNotFound: true}}
		}
		rows.add(1, 1)
		var out strings.Builder
		log := fixture.Must(obs.NewLog(&out, "info", "text"))(t)
		d := NewDeliverer(Config{Rows: rows, Metrics: obs.NewMetrics(), Log: log})
		d.transport = r
		d.Start(t.Context())
		time.Sleep(3 * time.Second)
		d.Stop()
		rows.mu.Lock()
		defer rows.mu.Unlock()
		if len(rows.records) == 0 || rows.records[0].Error != "the host name of the URL does not exist" {
			t.Errorf("%+v", rows.records)
		}
		if !strings.Contains(out.String(), "10.255.255.53") {
			t.Errorf("the log does not tell the operator the cause: %s", out.String())
		}
	})
}
