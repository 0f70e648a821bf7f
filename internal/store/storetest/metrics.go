package storetest

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// ExerciseMetrics checks that m, which counts the calls of s, has each call by a name of
// its own, and the pools of connections. hold takes every connection for viewers.
func ExerciseMetrics(t *testing.T, s *rows.Tables, m *obs.Metrics, pools []string, hold func() (release func(), err error)) {
	t.Helper()
	scrape := func() string {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", http.NoBody))
		return w.Body.String()
	}
	has := func(text string, lines ...string) {
		t.Helper()
		for _, line := range lines {
			if !strings.Contains(text, line+"\n") {
				t.Errorf("there is no line %s", line)
			}
		}
	}
	if _, err := s.PromotionGet(t.Context(), 1); !reward.HasCode(err, reward.CodeNotFound) {
		t.Error(err)
	}
	if err := s.DeadLetterAdd(t.Context(), []reward.DeadLetter{{Source: "x", Offset: "1", Reason: "MALFORMED", At: epoch}}); err != nil {
		t.Error(err)
	}
	text := scrape()
	for _, call := range []string{"read a promotion", "store dead letters"} {
		has(text, `largesse_database_call_seconds_count{call="`+call+`"} 1`)
	}
	for _, pool := range pools {
		has(text, `largesse_database_connections_in_use{pool="`+pool+`"} 0`, `largesse_database_connections_waiting{pool="`+pool+`"} 0`)
	}

	// A read that waits for a connection is shown as long as it waits.
	release := fixture.Must(hold())(t)
	done := make(chan error, 1)
	go func() {
		_, err := s.PromotionList(store.ForViewer(t.Context()), store.PromotionListParams{Limit: 1})
		done <- err
	}()
	const waiting = `largesse_database_connections_waiting{pool="reads"} 1`
	for !strings.Contains(scrape(), waiting) {
		select {
		case err := <-done:
			t.Fatal("the read did not wait, or no scrape showed it:", err)
		default:
		}
	}
	has(scrape(), `largesse_database_connections_in_use{pool="reads"} 5`, `largesse_database_connections_max{pool="reads"} 5`)
	release()
	if err := <-done; err != nil {
		t.Error(err)
	}
	has(scrape(), `largesse_database_connections_waiting{pool="reads"} 0`, `largesse_database_call_seconds_count{call="list promotions"} 1`)
}
