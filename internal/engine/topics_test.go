package engine

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

var errSlowBrokers = errors.New("list Kafka topics: context deadline exceeded")

// TestTopicsAreLate checks that an instance starts although the brokers do not create the
// topics in time, says so, and creates them later.
func TestTopicsAreLate(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Data.Dir, cfg.Money.URL = t.TempDir(), "http://127.0.0.1:9"
	var lines fixture.Buffer
	log := fixture.Must(obs.NewLog(&lines, "info", "text"))(t)
	e := fixture.Must(New(cfg, log, WithoutListener()))(t)
	var answers atomic.Bool
	var tries atomic.Int64
	e.ensureTopics = func(ctx context.Context) error {
		if tries.Add(1); !answers.Load() {
			return errSlowBrokers
		}
		return e.bus.EnsureTopics(ctx)
	}
	ready := func() string {
		w := httptest.NewRecorder()
		e.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://any.example/readyz", http.NoBody))
		return w.Body.String()
	}
	err := e.Run(t.Context(), func() error {
		fixture.Until(t, "it tries again", func() bool { return tries.Load() >= 3 })
		if body := ready(); !strings.Contains(body, obs.PartTopics) || !strings.Contains(body, "tries again for 10 minutes") {
			t.Errorf("readyz: %s", body)
		}
		answers.Store(true)
		fixture.Until(t, "the topics are there", func() bool { return !strings.Contains(ready(), obs.PartTopics) })
		if _, err := e.bus.Ends(t.Context(), bus.TopicCouponIssue); err != nil {
			t.Error(err)
		}
		return context.Canceled
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v", err)
	}
	reports := 0
	for line := range strings.Lines(lines.String()) {
		if strings.Contains(line, "WARN") && strings.Contains(line, "topics") {
			reports++
		}
	}
	if reports != 1 {
		t.Errorf("%d lines about the topics:\n%s", reports, lines.String())
	}
}

// TestTopicsStayAway checks that an instance stops if the brokers create no topics for
// long, and at once if they never will.
func TestTopicsStayAway(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err         error
		least, most time.Duration
	}{
		"TooSlow":    {errSlowBrokers, topicsMax, topicsMax + 2*topicsBackoffMax},
		"Retriable":  {kerr.RequestTimedOut, topicsMax, topicsMax + 2*topicsBackoffMax},
		"NotAllowed": {kerr.TopicAuthorizationFailed, 0, 2 * topicsBackoff},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			failed := make(chan error, 1)
			k := &topicKeeper{ensure: func(context.Context) error { return tc.err }, fail: func(err error) { failed <- err }}
			began := time.Now()
			running := run(t, k.run)
			err := <-failed
			if took := time.Since(began); !errors.Is(err, tc.err) || took < tc.least || took > tc.most {
				t.Errorf("after %v: %v", took, err)
			}
			running.Stop()
		})
	}
}
