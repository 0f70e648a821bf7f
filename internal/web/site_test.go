package web

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

func TestMain(m *testing.M) { fixture.Main(m) }

// site is a Router with a few operations, behind a server.
type site struct {
	api  *Router
	url  string
	http *http.Client
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	log  *fixture.Buffer
	obs  obs.Log
}

// newSite returns a site without a server.
func newSite(t *testing.T) *site {
	t.Helper()
	b := &site{log: &fixture.Buffer{}, dial: new(net.Dialer).DialContext}
	var err error
	if b.obs, err = obs.NewLog(b.log, "info", "text"); err != nil {
		t.Fatal(err)
	}
	b.api = newRouter(b.obs)
	return b
}

// setup returns a site behind a server of the standard library.
func setup(t *testing.T) *site {
	t.Helper()
	b := newSite(t)
	srv := httptest.NewServer(b.api)
	t.Cleanup(srv.Close)
	b.url, b.http = srv.URL, srv.Client()
	return b
}

// newRouter returns a Router with some operations that everybody may call.
func newRouter(log obs.Log) *Router {
	open := func(r *http.Request, _ string) (*http.Request, func(), error) { return r, func() {}, nil }
	a := NewRouter(RouterConfig{Title: "Site", Version: "1", Gate: open, Log: log})
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	a.Handle("alive", "GET /healthz", answer(http.StatusOK))
	a.Handle("ready", "GET /readyz", answer(http.StatusOK))
	a.Handle("list-things", "GET /v1/things", answer(http.StatusOK))
	a.Handle("create-thing", "POST /v1/things", answer(http.StatusCreated))
	AddDocs(a, []map[string]string{{"code": "NOT_FOUND", "meaning": "a </script> of others"}})
	pages, err := ReadPages(fstest.MapFS{
		"index.html": {Data: []byte("<!doctype html>console")}, "drop/index.html": {Data: []byte(`<!doctype html><html lang="en"><title>drop</title>`)},
		"assets/index.js": {Data: []byte("let a")}, "assets/app.css": {Data: []byte("a{}")},
	}, Look{Languages: []string{"ko", "en"}, ShopName: `A "<shop>"`, Logo: []byte("<svg/>"), LogoKind: "image/svg+xml"})
	if err != nil {
		panic(err)
	}
	a.AddPages(pages)
	return a
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) want(t *testing.T, status int) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
}

// do sends a request; headers are pairs.
func (b *site) do(t *testing.T, method, path string, body io.Reader, headers ...string) answer {
	t.Helper()
	req := fixture.Must(http.NewRequestWithContext(t.Context(), method, b.url+path, body))(t)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := b.http.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// others sends an ordinary request, like other callers in the meantime.
func (b *site) others(t *testing.T) {
	t.Helper()
	b.do(t, "GET", "/v1/things", nil).want(t, http.StatusOK)
}

// serve puts a site behind a Server. It listens in memory if in is not nil.
func (b *site) serve(t *testing.T, cfg ServerConfig, in *fixture.Listener) *Server {
	t.Helper()
	cfg.Listen, cfg.AuthMode, cfg.Log = "127.0.0.1:0", auth.ModeNone, b.obs
	s := fixture.Must(NewServer(cfg))(t)
	if in != nil {
		s.bound, s.addr, b.dial = in, in.Addr().String(), in.Dial
	}
	fixture.OK(t, s.Start(t.Context(), b.api))
	t.Cleanup(s.Stop)
	transport := &http.Transport{DialContext: b.dial}
	t.Cleanup(transport.CloseIdleConnections)
	b.url, b.http = "http://"+s.Addr(), &http.Client{Transport: transport}
	return s
}

// raw opens a connection and sends text as it is.
func (b *site) raw(t *testing.T, text string) net.Conn {
	t.Helper()
	conn := fixture.Must(b.dial(t.Context(), "tcp", strings.TrimPrefix(b.url, "http://")))(t)
	t.Cleanup(func() { _ = conn.Close() })
	fixture.Must(io.WriteString(conn, text))(t)
	return conn
}
