package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/web"
)

// wire is an API whose requests pass through no network, so that time in a
// synctest bubble can be waited for.
type wire struct {
	api   *API
	shop  *fakeShop
	views *fakeViews // of promotions, unless it is nil
}

func newWire(t *testing.T) *wire {
	t.Helper()
	log := fixture.Must(obs.NewLog(io.Discard, "error", "text"))(t)
	w := &wire{shop: newFakeShop()}
	w.shop.template(42, 10)
	w.api = New(Config{Templates: w.shop, Coupons: w.shop, Issuing: w.shop, Watch: w.shop.Watch, Log: log})
	return w
}

// recorder stores a response that is still being written.
type recorder struct {
	done   chan struct{}
	header http.Header
	status int

	mu     sync.Mutex // protects what follows
	body   bytes.Buffer
	broken error // answer of every write
}

func (r *recorder) Header() http.Header    { return r.header }
func (r *recorder) WriteHeader(status int) { r.status = status }
func (r *recorder) FlushError() error      { return nil }

func (r *recorder) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken != nil {
		return 0, r.broken
	}
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.body.Write(b)
}

func (r *recorder) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.body.String()
}

// send begins a request; headers are pairs.
func (w *wire) send(ctx context.Context, method, path, body string, headers ...string) *recorder {
	req := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	r := &recorder{done: make(chan struct{}), header: make(http.Header)}
	go func() {
		defer close(r.done)
		w.api.ServeHTTP(r, req)
	}()
	return r
}

func TestIssueEvents(t *testing.T) {
	t.Parallel()
	const path = "/v1/issue-requests/42:u7/events"
	rank := func(n int64) coupon.Status {
		return coupon.Status{RequestID: "42:u7", Kind: coupon.StatusWaiting, Ticket: 9, Rank: n}
	}
	got := coupon.Status{RequestID: "42:u7", Kind: coupon.StatusIssued, Ticket: 9, Coupon: issued(2, 42, "u7", 9)}
	const result = "event: result\nid: 9.ISSUED\ndata: {\"requestId\":\"42:u7\",\"status\":\"ISSUED\",\"ticket\":9," +
		"\"coupon\":{\"id\":\"2\",\"code\":\"CODE-2\",\"templateId\":\"42\",\"userId\":\"u7\",\"ticket\":9,\"status\":\"ISSUED\",\"issuedAt\":\"2026-11-21T01:02:03Z\"}}\n\n"
	earlier := coupon.Status{RequestID: "42:u7", Kind: coupon.StatusIssued, Ticket: 4, Coupon: issued(1, 42, "u7", 4)}
	event := func(n string) string {
		return "event: rank\nid: 9." + n + "\ndata: {\"requestId\":\"42:u7\",\"status\":\"WAITING\",\"ticket\":9,\"queueRank\":" + n + ",\"estimatedWaitMillis\":0}\n\n"
	}
	const beat = ": beat\n\n"

	fixture.OnFakeTime(t, "TellHowItComesOnAndEndWithTheResult", func(t *testing.T) {
		w := newWire(t)
		w.shop.stand("42:u7", rank(5), nil)
		r := w.send(t.Context(), "GET", path, "")
		for _, s := range []coupon.Status{rank(5), rank(3), rank(4), rank(0)} {
			w.shop.news <- s
		}
		time.Sleep(2*web.HeartbeatInterval + time.Second) // fake time
		w.shop.news <- got
		<-r.done
		fixture.Equal(t, "retry: 2000\n\n"+event("5")+event("3")+event("0")+beat+beat+result, r.text())
		if h := r.Header(); h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%v", h)
		}
		w.shop.watchers.Wait()
	})

	const entered = "event: rank\nid: 0.0\ndata: {\"requestId\":\"42:u7\",\"status\":\"WAITING\",\"estimatedWaitMillis\":0}\n\n"
	for name, tc := range map[string]struct {
		standing coupon.Status
		news     []coupon.Status
		want     string
	}{
		"GoOnAfterADraw": {coupon.Status{Kind: coupon.StatusWaiting}, []coupon.Status{rank(5), got}, entered + event("5") + result},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			w := newWire(t)
			w.shop.stand("42:u7", tc.standing, nil)
			r := w.send(t.Context(), "GET", path, "")
			if told := <-w.shop.begun; told != tc.standing.Ticket {
				t.Errorf("watched ticket %d", told)
			}
			for _, s := range tc.news {
				w.shop.news <- s
			}
			<-r.done
			fixture.Equal(t, "retry: 2000\n\n"+tc.want, r.text())
			w.shop.watchers.Wait()
		})
	}

	fixture.OnFakeTime(t, "OfWhatHasEndedAreTheResultAlone", func(t *testing.T) {
		w := newWire(t)
		w.shop.stand("42:u7", got, nil)
		r := w.send(t.Context(), "GET", path, "", "Last-Event-ID", "9.0")
		<-r.done
		fixture.Equal(t, "retry: 2000\n\n"+result, r.text())
		// A reader that reconnects automatically learns that the stream is complete.
		again := w.send(t.Context(), "GET", path, "", "Last-Event-ID", "9.ISSUED")
		<-again.done
		if again.status != http.StatusNoContent || again.text() != "" {
			t.Errorf("%d: %s", again.status, again.text())
		}
	})

	fixture.OnFakeTime(t, "EndWhenTheReaderGoes", func(t *testing.T) {
		w := newWire(t)
		w.shop.stand("42:u7", rank(5), nil)
		ctx, leave := context.WithCancel(t.Context())
		left := w.send(ctx, "GET", path, "")
		stuck := w.send(t.Context(), "GET", path, "")
		<-w.shop.begun
		<-w.shop.begun
		leave()
		<-left.done
		stuck.mu.Lock()
		stuck.broken = errors.New("i/o timeout")
		stuck.mu.Unlock()
		<-stuck.done // at the next beat
		w.shop.watchers.Wait()
	})

	fixture.OnFakeTime(t, "EndWhenTheInstanceStops", func(t *testing.T) {
		w := newWire(t)
		w.shop.stand("42:u7", rank(5), nil)
		r := w.send(t.Context(), "GET", path, "")
		<-w.shop.begun
		w.api.Drain()
		<-r.done
		w.shop.watchers.Wait()
	})

	fixture.OnFakeTime(t, "EndWhenTheRequestIsLost", func(t *testing.T) {
		w := newWire(t)
		w.shop.stand("42:u7", rank(5), nil)
		began := time.Now()
		r := w.send(t.Context(), "GET", path, "")
		<-w.shop.begun
		w.shop.forget("42:u7")
		<-r.done
		if took := time.Since(began); took != 2*web.HeartbeatInterval {
			t.Errorf("it took %s", took)
		}
		again := w.send(t.Context(), "GET", path, "")
		<-again.done
		if again.status != http.StatusNotFound || !strings.Contains(again.text(), "REQUEST_UNKNOWN") {
			t.Errorf("%d: %s", again.status, again.text())
		}
		w.shop.watchers.Wait()
	})

	fixture.OnFakeTime(t, "EndWhenTheTicketIsLost", func(t *testing.T) {
		w := newWire(t)
		w.shop.stand("42:u7", rank(5), nil)
		began := time.Now()
		r := w.send(t.Context(), "GET", path, "")
		<-w.shop.begun
		w.shop.stand("42:u7", earlier, nil) // their earlier request
		<-r.done
		if took := time.Since(began); took != 2*web.HeartbeatInterval || strings.Contains(r.text(), "result") {
			t.Errorf("after %s: %s", took, r.text())
		}
		again := w.send(t.Context(), "GET", path, "")
		<-again.done
		if !strings.Contains(again.text(), "id: 4.ISSUED\n") {
			t.Errorf("%s", again.text())
		}
		w.shop.watchers.Wait()
	})
}
