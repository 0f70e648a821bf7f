package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestAWaitMayBeLongerThanTheTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &wires{answer: func(r *http.Request, _ int) (*http.Response, error) {
			select {
			case <-time.After(10 * time.Second):
				return answer(201, "application/json", `{"status":"ISSUED"}`), nil
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
		}}
		c := fixture.Must(client.New("http://largesse.test", client.Options{Timeout: time.Second, Transport: w}))(t)
		if r, err := c.IssueCoupon(t.Context(), "42", "u7", 20*time.Second); err != nil || r.Status != "ISSUED" {
			t.Errorf("%+v, %v", r, err)
		}
		if _, err := c.IssueCoupon(t.Context(), "42", "u7", 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

// TestWatchIssueRequest: what TestWatchPromotion does not show.
func TestWatchIssueRequest(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const (
		stream = "retry: 100\n\nevent: rank\nid: 9.3\ndata: {\"status\":\"WAITING\",\"queueRank\":3}\n\n: beat\n\n" +
			"event: rank\nid: 9.0\ndata: {\"status\":\"WAITING\",\ndata: \"queueRank\":0}\n\n"
		result = "event: result\nid: 9.ISSUED\ndata: {\"status\":\"ISSUED\"}\n\n"
	)
	// Over a real connection, which is cut once.
	var calls []string
	c := serve(t, client.Options{Timeout: time.Nanosecond}, func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.RequestURI+" "+r.Header.Get("Accept")+" "+r.Header.Get("Last-Event-ID"))
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, map[bool]string{true: stream, false: result}[len(calls) == 1])
	})
	var statuses []string
	for r, err := range c.WatchIssueRequest(ctx, "42:u7", client.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if (r.QueueRank != nil) != (r.Status == "WAITING") {
			t.Errorf("%+v", r)
		}
		statuses = append(statuses, r.Status)
	}
	fixture.Equal(t, []string{"WAITING", "WAITING", "ISSUED"}, statuses)
	fixture.Equal(t, []string{"/v1/issue-requests/42:u7/events text/event-stream ", "/v1/issue-requests/42:u7/events text/event-stream 9.0"}, calls)

	t.Run("Looks", func(t *testing.T) {
		t.Parallel()
		c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/events") {
				w.WriteHeader(http.StatusNotImplemented)
				return
			}
			_, _ = io.WriteString(w, `{"requestId":"42:u7","status":"REJECTED","reason":"SOLD_OUT"}`)
		})
		for r, err := range c.WatchIssueRequest(ctx, "42:u7", client.WatchOptions{}) {
			if err != nil || r.Status != "REJECTED" || r.Reason != "SOLD_OUT" {
				t.Errorf("%+v, %v", r, err)
			}
		}
	})
}

// TestWatchTemplate: what TestWatchPromotion does not show.
func TestWatchTemplate(t *testing.T) {
	t.Parallel()
	counters := func(state string, stock int) string {
		return fmt.Sprintf("event: counters\nid: %s.%d\ndata: {\"id\":\"42\",\"state\":%q,\"counters\":{\"stock\":%d},\"issuedPerSecond\":2.5}\n\n", state, stock, state, stock)
	}
	var calls []string
	c := serve(t, client.Options{}, func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.RequestURI+" "+r.Header.Get("Last-Event-ID"))
		if len(calls) == 3 { // a proxy that knows no events
			w.WriteHeader(http.StatusNotImplemented)
			return
		}
		if !strings.HasSuffix(r.URL.Path, "/events") {
			_, _ = io.WriteString(w, `{"id":"42","name":"Drop","counters":{"stock":1}}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, []string{"retry: 100\n\n" + counters("OPEN", 2), counters("SOLD_OUT", 0)}[len(calls)-1])
	})
	var got []string
	for p, err := range c.WatchTemplate(t.Context(), "42", client.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, fmt.Sprint(p.State, " ", p.Counters.Stock, " ", p.IssuedPerSecond != nil)); len(got) == 3 {
			break
		}
	}
	fixture.Equal(t, []string{"OPEN 2 true", "SOLD_OUT 0 true", " 1 false"}, got)
	const events = "/v1/coupon-templates/42/events"
	fixture.Equal(t, []string{events + " ", events + " OPEN.2", events + " SOLD_OUT.0", "/v1/coupon-templates/42 "}, calls)
}
