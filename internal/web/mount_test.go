package web

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

func newMount(t *testing.T, origins ...string) *Mount {
	t.Helper()
	return fixture.Must(NewMount(origins, "not yet"))(t)
}

func ask(m *Mount, method, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	return w
}

func TestMountAnswersWhileOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	m := newMount(t, "https://shop.example")
	closed := func(when, why string) {
		t.Helper()
		w := ask(m, http.MethodGet, "http://anywhere.example/v1/things")
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), why) || !strings.Contains(w.Body.String(), CodeUnavailable) ||
			w.Header().Get("Retry-After") == "" || w.Header().Get("X-Request-Id") == "" || w.Header().Get("Content-Type") != ProblemType {
			t.Errorf("%s: %d %v %s", when, w.Code, w.Header(), w.Body)
		}
	}
	closed("before", "not yet")
	m.Close("never opened") // does nothing
	closed("still before", "not yet")

	m.Open(b.api)
	// Any host name will do, and other origins may change nothing.
	if w := ask(m, http.MethodGet, "http://anywhere.example/v1/things"); w.Code != http.StatusOK {
		t.Errorf("open: %d %s", w.Code, w.Body)
	}
	if w := ask(m, http.MethodPost, "http://anywhere.example/v1/things", "Origin", "https://evil.example"); w.Code != http.StatusForbidden {
		t.Errorf("from another origin: %d", w.Code)
	}
	if w := ask(m, http.MethodPost, "http://anywhere.example/v1/things", "Origin", "https://shop.example"); w.Code != http.StatusCreated || w.Header().Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("from a named origin: %d %v", w.Code, w.Header())
	}

	m.Close("gone")
	closed("after", "gone")
	m.Close("again")
	closed("still after", "gone")
	m.Open(b.api)
	if w := ask(m, http.MethodGet, "/readyz"); w.Code != http.StatusOK || b.api.IsDraining() {
		t.Errorf("open again: %d", w.Code)
	}
	m.Close("gone")
}

func TestMountRefusesBadOrigins(t *testing.T) {
	t.Parallel()
	if _, err := NewMount([]string{"shop"}, ""); err == nil || !strings.Contains(err.Error(), "http.allowed-origins") {
		t.Errorf("NewMount = %v", err)
	}
}

// Close lets requests end, ends those that wait, and cuts the rest.
func TestMountCloses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		work  func(ctx context.Context, drain <-chan struct{})
		takes time.Duration
	}{
		"Ends":     {func(context.Context, <-chan struct{}) { time.Sleep(time.Second) }, time.Second},
		"Waits":    {func(_ context.Context, drain <-chan struct{}) { <-drain }, 0},
		"MustCut":  {func(ctx context.Context, _ <-chan struct{}) { <-ctx.Done() }, drainTimeout},
		"WontStop": {func(context.Context, <-chan struct{}) { time.Sleep(time.Minute) }, drainTimeout + cutTimeout},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			router := newRouter(obs.Log{})
			router.Handle("work", "GET /v1/work", func(w http.ResponseWriter, r *http.Request) {
				tc.work(r.Context(), router.DrainBegins())
				w.WriteHeader(http.StatusOK)
			})
			m := newMount(t)
			m.Open(router)
			answered := make(chan int, 1)
			go func() { answered <- ask(m, http.MethodGet, "/v1/work").Code }()
			synctest.Wait()
			began := time.Now()
			m.Close("gone")
			if took := time.Since(began); took != tc.takes {
				t.Errorf("took %s, want %s", took, tc.takes)
			}
			<-answered
		})
	}
}

// A caller that neither reads nor writes does not block the end of a handler.
func TestMountCutsConnections(t *testing.T) {
	t.Parallel()
	b := setup(t)
	reading := make(chan struct{})
	failed := make(chan error, 1)
	b.api.Handle("read", "POST /v1/read", func(_ http.ResponseWriter, r *http.Request) {
		close(reading)
		_, err := io.ReadAll(r.Body)
		failed <- err
	})
	m := newMount(t)
	m.limits.Leftover = time.Hour
	m.Open(b.api)
	server := httptest.NewServer(m)
	defer server.Close()
	body, never := io.Pipe()
	defer never.Close()
	go func() {
		res, err := server.Client().Post(server.URL+"/v1/read", "text/plain", body)
		if err == nil {
			_ = res.Body.Close()
		}
	}()
	<-reading
	m.cut(m.now)
	if err := <-failed; err == nil {
		t.Error("a body that never ended was read whole")
	}
	m.Close("gone")
}
