package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// wires carries calls without a network, so that time can be fake.
type wires struct {
	answer func(r *http.Request, n int) (*http.Response, error) // n counts from 0

	mu    sync.Mutex     // protects asked
	asked []string       // path and Last-Event-ID of each call; p is the promotion's
	open  sync.WaitGroup // bodies that nobody has closed
}

func (w *wires) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	n := len(w.asked)
	path := strings.TrimPrefix(r.URL.Path, "/v1/promotions/7")
	w.asked = append(w.asked, strings.TrimSpace(fmt.Sprintf("%s %s", "p"+path, r.Header.Get("Last-Event-ID"))))
	w.mu.Unlock()
	res, err := w.answer(r, n)
	if err != nil {
		return nil, err
	}
	w.open.Add(1)
	res.Body = &tracked{ReadCloser: res.Body, closed: sync.OnceFunc(w.open.Done)}
	return res, nil
}

type tracked struct {
	io.ReadCloser
	closed func()
}

func (b *tracked) Close() error {
	defer b.closed()
	return b.ReadCloser.Close()
}

func answer(status int, kind, body string) *http.Response {
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(body))}
}

func streamOf(body string) *http.Response {
	return answer(200, "text/event-stream; charset=utf-8", body)
}

// hanging is an answer whose body continues after text, until its call is given up.
func hanging(r *http.Request, text string) *http.Response {
	read, write := io.Pipe()
	go func() {
		_, _ = io.WriteString(write, text)
		<-r.Context().Done()
		write.CloseWithError(r.Context().Err())
	}()
	res := streamOf("")
	res.Body = read
	return res
}

func promotionAt(status string, succeeded int) string {
	return fmt.Sprintf(`{"id":"7","status":%q,"totalCount":9,"counts":{"succeeded":%d}}`, status, succeeded)
}

func promotionEvent(name, status string, succeeded int) string {
	return fmt.Sprintf("event: %s\nid: %s.%d\ndata: %s\n\n", name, status, succeeded, promotionAt(status, succeeded))
}

// follow watches promotion 7 and returns what it has heard, in short.
func follow(ctx context.Context, t *testing.T, w *wires, o client.WatchOptions) (heard []string) {
	t.Helper()
	c := fixture.Must(client.New("http://largesse.test", client.Options{Transport: w}))(t)
	o.Waiting = func(err error) {
		if err == nil {
			heard = append(heard, "heard again")
		} else if last := len(heard) - 1; last < 0 || heard[last] != "not heard" {
			heard = append(heard, "not heard")
		}
	}
	for p, err := range c.WatchPromotion(ctx, "7", o) {
		if err != nil {
			return append(heard, err.Error())
		}
		heard = append(heard, fmt.Sprint(p.Status, " ", p.Counts.Succeeded))
	}
	return heard
}

const hello = "retry: 2000\n\n"

var errRefused = errors.New("connection refused")

func TestWatchPromotion(t *testing.T) {
	t.Parallel()

	// Each test says what comes, call by call, what is heard, what was asked, and
	// how long that took.
	notFound := `{"code":"PROMOTION_NOT_FOUND","detail":"there is no promotion 7"}`
	events, look, lookLong := "p/events", "p", slices.Repeat([]string{"p"}, 3)
	for _, tc := range []struct {
		name        string
		options     client.WatchOptions
		answer      func(r *http.Request, n int) (*http.Response, error)
		heard       []string
		asked       []string
		least, most time.Duration
	}{
		{
			name: "TellsAllEvents",
			answer: func(*http.Request, int) (*http.Response, error) {
				return streamOf(hello + promotionEvent("state", "RUNNING", 0) + ": beat\n\n" + promotionEvent("progress", "RUNNING", 1) + promotionEvent("done", "COMPLETED", 2) + promotionEvent("state", "RUNNING", 3)), nil
			},
			heard: []string{"RUNNING 0", "RUNNING 1", "COMPLETED 2"}, asked: []string{events},
		},
		{
			name: "ContinuesAfterACut",
			answer: func(_ *http.Request, n int) (*http.Response, error) {
				return streamOf([]string{
					hello + promotionEvent("state", "RUNNING", 0) + promotionEvent("progress", "RUNNING", 1) + "event: progress\ndata: {}",
					hello,
					"retry: 0\nid: x\n\n" + promotionEvent("progress", "RUNNING", 1) + promotionEvent("state", "PAUSED", 1),
					promotionEvent("done", "CANCELLED", 1),
				}[n]), nil
			},
			heard: []string{"RUNNING 0", "RUNNING 1", "PAUSED 1", "CANCELLED 1"},
			asked: []string{events, events + " RUNNING.1", events + " RUNNING.1", events + " PAUSED.1"}, least: 2 * time.Second, most: 7 * time.Second,
		},
		{
			name: "WaitsForAServerThatStartsAgain",
			answer: func(_ *http.Request, n int) (*http.Response, error) {
				switch {
				case n == 0:
					return streamOf(hello + promotionEvent("state", "RUNNING", 0)), nil
				case n < 6:
					return nil, errRefused
				}
				return streamOf(hello + promotionEvent("done", "COMPLETED", 2)), nil
			},
			heard: []string{"RUNNING 0", "not heard", "heard again", "COMPLETED 2"},
			asked: append([]string{events}, slices.Repeat([]string{events + " RUNNING.0"}, 6)...), least: 2 * time.Second, most: 10 * time.Second,
		},
		{
			name: "GivesUpOnOneThatStaysAway", options: client.WatchOptions{Patience: time.Minute},
			answer: func(_ *http.Request, n int) (*http.Response, error) {
				if n == 0 {
					return streamOf(hello + promotionEvent("state", "RUNNING", 0)), nil
				}
				return nil, errRefused
			},
			heard: []string{"RUNNING 0", "not heard", "calling GET /v1/promotions/7/events: connection refused"}, least: time.Minute, most: 70 * time.Second,
		},
		{
			name:   "DoesNotWaitForOneThatWasNeverThere",
			answer: func(*http.Request, int) (*http.Response, error) { return nil, errRefused },
			heard:  []string{"calling GET /v1/promotions/7/events: connection refused"}, asked: []string{events},
		},
		{
			name: "EndsWithWhatTheServerSays",
			answer: func(*http.Request, int) (*http.Response, error) {
				return answer(404, "application/problem+json", notFound), nil
			},
			heard: []string{"there is no promotion 7 (PROMOTION_NOT_FOUND)"}, asked: []string{events},
		},
		{
			name: "WaitsAsLongAsTheServerAsks",
			answer: func(_ *http.Request, n int) (*http.Response, error) {
				switch n {
				case 0:
					return streamOf(hello + promotionEvent("state", "RUNNING", 0)), nil
				case 1:
					res := answer(503, "application/problem+json", `{"code":"UNAVAILABLE"}`)
					res.Header.Set("Retry-After", "20")
					return res, nil
				}
				return streamOf(hello + promotionEvent("done", "COMPLETED", 0)), nil
			},
			heard: []string{"RUNNING 0", "not heard", "heard again", "COMPLETED 0"},
			asked: []string{events, events + " RUNNING.0", events + " RUNNING.0"}, least: 21 * time.Second, most: 23 * time.Second,
		},
		{
			name: "LooksWhereThereAreNoEvents", options: client.WatchOptions{Every: 10 * time.Second},
			answer: func(_ *http.Request, n int) (*http.Response, error) {
				return answer(200, "application/json", promotionAt([]string{"", "RUNNING", "RUNNING", "PAUSED", "COMPLETED"}[n], n/2)), nil
			},
			heard: []string{"RUNNING 0", "RUNNING 1", "PAUSED 1", "COMPLETED 2"}, asked: append([]string{events, look}, lookLong...),
			least: 30 * time.Second, most: 30 * time.Second,
		},
		{
			name: "LooksAtAnOlderServer",
			answer: func(_ *http.Request, n int) (*http.Response, error) {
				if n == 0 {
					return answer(404, "application/problem+json", `{"code":"ROUTE_NOT_FOUND"}`), nil
				}
				return answer(200, "application/json", promotionAt("COMPLETED", 0)), nil
			},
			heard: []string{"COMPLETED 0"}, asked: []string{events, look},
		},
		{
			name: "LooksBehindAProxyThatKnowsNoEvents",
			answer: func(_ *http.Request, n int) (*http.Response, error) {
				if n == 0 {
					return answer(405, "text/html", "<h1>no</h1>"), nil
				}
				return answer(404, "application/problem+json", notFound), nil
			},
			heard: []string{"there is no promotion 7 (PROMOTION_NOT_FOUND)"}, asked: []string{events, look},
		},
		{
			name: "LooksBehindAProxyThatHoldsEventsBack",
			answer: func(r *http.Request, n int) (*http.Response, error) {
				if n == 0 {
					return hanging(r, ""), nil
				}
				return answer(200, "application/json", promotionAt([]string{"", "RUNNING", "COMPLETED"}[n], 0)), nil
			},
			heard: []string{"RUNNING 0", "COMPLETED 0"}, asked: []string{events, look, look}, least: 11 * time.Second, most: 11 * time.Second,
		},
		{
			name: "LooksBehindAProxyThatHoldsTheAnswerBack",
			answer: func(r *http.Request, n int) (*http.Response, error) {
				if n == 0 {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				return answer(200, "application/json", promotionAt("COMPLETED", 0)), nil
			},
			heard: []string{"COMPLETED 0"}, asked: []string{events, look}, least: 10 * time.Second, most: 10 * time.Second,
		},
		{
			name: "LooksWhereStreamsFailAndLooksDoNot",
			answer: func(r *http.Request, n int) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/events") {
					return answer(504, "text/html", "<h1>time is over</h1>"), nil
				}
				return answer(200, "application/json", promotionAt(map[bool]string{false: "RUNNING", true: "COMPLETED"}[n > 7], n)), nil
			},
			heard: []string{"RUNNING 1", "RUNNING 3", "RUNNING 5", "RUNNING 6", "RUNNING 7", "COMPLETED 8"},
			asked: append([]string{events, look, events, look, events, look}, lookLong...),
		},
		{
			name: "LooksWhereEventsAreBroken",
			answer: func(_ *http.Request, n int) (*http.Response, error) {
				switch n {
				case 0:
					return streamOf(hello + "data: {\n\n"), nil
				case 2:
					return streamOf(hello + "data: " + strings.Repeat("x", 2<<20)), nil
				case 4:
					return streamOf(hello + promotionEvent("done", "COMPLETED", 0)), nil
				}
				return answer(200, "application/json", promotionAt("RUNNING", 0)), nil
			},
			heard: []string{"RUNNING 0", "COMPLETED 0"}, asked: []string{events, look, events, look, events},
		},
		{
			name: "ConnectsAgainWhenNothingComesForLong",
			answer: func(r *http.Request, n int) (*http.Response, error) {
				if n == 0 {
					return hanging(r, hello+promotionEvent("state", "RUNNING", 0)), nil
				}
				return streamOf(hello + promotionEvent("done", "COMPLETED", 0)), nil
			},
			heard: []string{"RUNNING 0", "COMPLETED 0"}, asked: []string{events, events + " RUNNING.0"}, least: 46 * time.Second, most: 48 * time.Second,
		},
		{
			name: "LooksWhereTheServerSaysThatItHasToldAll",
			answer: func(_ *http.Request, n int) (*http.Response, error) {
				switch n {
				case 0:
					return answer(204, "", ""), nil
				default:
					return answer(200, "application/json", promotionAt("COMPLETED", 0)), nil
				}
			},
			heard: []string{"COMPLETED 0"}, asked: []string{events, look},
		},
	} {
		fixture.OnFakeTime(t, tc.name, func(t *testing.T) {
			w := &wires{answer: tc.answer}
			began := time.Now()
			fixture.Equal(t, tc.heard, follow(t.Context(), t, w, tc.options))
			if took := time.Since(began); took < tc.least || tc.most > 0 && took > tc.most {
				t.Errorf("it took %s, want %s to %s", took, tc.least, tc.most)
			}
			if tc.asked != nil {
				fixture.Equal(t, tc.asked, w.asked)
			}
			w.open.Wait()
		})
	}

	fixture.OnFakeTime(t, "EndsWithWhoListens", func(t *testing.T) {
		w := &wires{answer: func(r *http.Request, _ int) (*http.Response, error) {
			return hanging(r, hello+promotionEvent("state", "RUNNING", 0)), nil
		}}
		c := fixture.Must(client.New("http://largesse.test", client.Options{Transport: w}))(t)
		for p, err := range c.WatchPromotion(t.Context(), "7", client.WatchOptions{}) {
			if err != nil || p.Status != "RUNNING" {
				t.Errorf("%+v, %v", p, err)
			}
			time.Sleep(10 * time.Minute) // taking its time is not silence
			break
		}
		w.open.Wait()
	})

	fixture.OnFakeTime(t, "EndsWithItsContext", func(t *testing.T) {
		for name, answer := range map[string]func(r *http.Request, n int) (*http.Response, error){
			"in a stream": func(r *http.Request, _ int) (*http.Response, error) { return hanging(r, hello), nil },
			"in a pause":  func(*http.Request, int) (*http.Response, error) { return streamOf(hello), nil },
			"in a look": func(r *http.Request, n int) (*http.Response, error) {
				if n > 0 {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				return answer(200, "text/html", ""), nil
			},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			w := &wires{answer: answer}
			fixture.Equal(t, []string{name, context.DeadlineExceeded.Error()}, append([]string{name}, follow(ctx, t, w, client.WatchOptions{})...))
			cancel()
			w.open.Wait()
		}
	})
}

func TestPromotionEnded(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, tc := range []struct {
		p    client.Promotion
		want bool
	}{
		{client.Promotion{Status: "COMPLETED"}, true},
		{client.Promotion{Status: "CANCELLED"}, false},
		{client.Promotion{Status: "CANCELLED", FinishedAt: &at}, true},
		{client.Promotion{Status: "RUNNING", FinishedAt: &at}, false},
	} {
		if got := tc.p.Ended(); got != tc.want {
			t.Errorf("%s, finished at %v: %v", tc.p.Status, tc.p.FinishedAt, got)
		}
	}
}
