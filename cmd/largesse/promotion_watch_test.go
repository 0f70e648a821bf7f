package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// TestPromotionWatchFollowsEvents: what happens is shown when it does, however
// seldom --every has it look at the clock, and no look is needed.
func TestPromotionWatchFollowsEvents(t *testing.T) {
	t.Parallel()
	event := func(name, status string, succeeded int) string {
		return fmt.Sprintf("event: %s\nid: %s.%d\ndata: {\"id\":\"7\",\"status\":%q,\"totalCount\":4,\"counts\":{\"ready\":%d,\"succeeded\":%d}}\n\n",
			name, status, succeeded, status, 4-succeeded, succeeded)
	}
	var n atomic.Int32
	serve := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/promotions/7/events" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		call := n.Add(1)
		if call == 2 {
			w.Header().Set("Content-Type", "application/problem+json") // before it starts again
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"code":"DRAINING"}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		if call == 1 {
			_, _ = io.WriteString(w, "retry: 100\n\n"+event("state", "RUNNING", 0)+event("progress", "RUNNING", 1)+event("state", "PAUSED", 1))
			return
		}
		if got := r.Header.Get("Last-Event-ID"); got != "PAUSED.1" {
			t.Errorf("Last-Event-ID %q", got)
		}
		_, _ = io.WriteString(w, event("state", "RUNNING", 2)+event("progress", "RUNNING", 3)+event("done", "COMPLETED", 4))
	}
	server := httptest.NewServer(http.HandlerFunc(serve))
	t.Cleanup(server.Close)
	r := largesseRun(t.Context(), "", nil, "promotion", "watch", "7", "--every", "1h", "--server", server.URL)
	var lines []string
	for line := range strings.Lines(r.stdout) {
		lines = append(lines, strings.Join(strings.Fields(line)[:4], " "))
	}
	want := "RUNNING 0% of 4,; PAUSED 25% of 4,; RUNNING 50% of 4,; COMPLETED 100% of 4,"
	if got := strings.Join(lines, "; "); got != want || r.code != exitDone || r.stderr != "" {
		t.Errorf("%s\n%+v", got, r)
	}
}

func TestPromotionWatchEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "retry: 100\n\n")
		_ = http.NewResponseController(w).Flush()
		cancel()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	if r := largesseRun(ctx, "", nil, "promotion", "watch", "7", "--server", server.URL); r.code == exitDone || r.stdout != "" {
		t.Errorf("%+v", r)
	}
}
