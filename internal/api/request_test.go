package api

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if a := b.do(t, "GET", "/healthz", nil, "X-Request-Id", "abc-1:2"); a.header.Get("X-Request-Id") != "abc-1:2" {
		t.Errorf("%v", a.header)
	}
	for _, bad := range []string{"", "a b", strings.Repeat("x", 129), "é"} {
		got := b.do(t, "GET", "/healthz", nil, "X-Request-Id", bad).header.Get("X-Request-Id")
		if got == bad || got == "" {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestErrorsOfOursDoNotLeak(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.store.promotion(t, 1, reward.Draft)
	b.store.fail("PromotionGet", errors.New("password=hunter2"))
	a := b.json(t, "GET", "/v1/promotions/1", "")
	p := a.wantProblem(t, http.StatusInternalServerError, "INTERNAL")
	if strings.Contains(a.body, "hunter2") {
		t.Errorf("leaked: %s", a.body)
	}
	b.store.fail("PromotionGet", &reward.Error{Kind: reward.KindUnavailable, Code: "UNAVAILABLE", Detail: "the store is away", Err: errors.New("hunter2")})
	a = b.json(t, "GET", "/v1/promotions/1", "")
	a.wantProblem(t, http.StatusServiceUnavailable, "UNAVAILABLE")
	if strings.Contains(a.body, "hunter2") || a.header.Get("Retry-After") == "" {
		t.Errorf("%+v", a)
	}
	if log := b.log.String(); !strings.Contains(log, "hunter2") || !strings.Contains(log, p.RequestID) {
		t.Errorf("the log does not say what happened: %s", log)
	}
}

func TestPanicsBecomeProblems(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.Degraded = func() []string { panic("boom") } })
	b.json(t, "GET", "/readyz", "").wantProblem(t, http.StatusInternalServerError, "INTERNAL")
	b.api.Handle("alive", "GET /half", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half"))
		panic("boom")
	})
	req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/half", nil))(t)
	res, err := b.http.Do(req)
	if err == nil {
		_, err = io.ReadAll(res.Body)
		_ = res.Body.Close()
	}
	if err == nil {
		t.Error("half an answer looks like a whole one")
	}
	if !strings.Contains(b.log.String(), "boom") {
		t.Errorf("log %s", b.log)
	}
}
