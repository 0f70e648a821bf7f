package engine

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

// Run ends when its context ends, or when the instance must stop.
func TestRun(t *testing.T) {
	t.Parallel()
	lost, broken := errors.New("the lease is lost"), errors.New("nobody listens")
	for name, tc := range map[string]struct {
		up   func(e *Engine, stop context.CancelFunc) error
		want error
	}{
		"ContextEnds": {func(_ *Engine, stop context.CancelFunc) error { stop(); return nil }, nil},
		"LeaseIsLost": {func(e *Engine, _ context.CancelFunc) error { e.fail(lost); return nil }, lost},
		"UpFails":     {func(*Engine, context.CancelFunc) error { return broken }, broken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config.Default()
			cfg.Data.Dir, cfg.Money.URL = t.TempDir(), "http://127.0.0.1:9"
			e := fixture.Must(New(cfg, obs.Log{}, WithoutListener()))(t)
			answer := func() int {
				w := httptest.NewRecorder()
				e.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://any.example/healthz", http.NoBody))
				return w.Code
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			before, during := answer(), 0
			err := e.Run(ctx, func() error {
				during = answer()
				return tc.up(e, stop)
			})
			if !errors.Is(err, tc.want) || (err != nil) != (tc.want != nil) {
				t.Errorf("Run = %v, want %v", err, tc.want)
			}
			if after := answer(); before != 503 || during != 200 || after != 503 || e.Addr() != "" || e.URL() != "" {
				t.Errorf("answers %d, %d, %d; address %q", before, during, after, e.Addr())
			}
		})
	}
	t.Run("StartFails", func(t *testing.T) {
		t.Parallel()
		cfg := config.Default()
		cfg.Data.Dir, cfg.Money.URL = "/dev/null/data", "http://127.0.0.1:9"
		e := fixture.Must(New(cfg, obs.Log{}, WithoutListener()))(t)
		if err := e.Run(t.Context(), func() error { t.Error("up was called"); return nil }); err == nil {
			t.Error("Run = nil")
		}
	})
}
