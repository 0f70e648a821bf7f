package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// sentEvent is an event as a reader gets it.
type sentEvent struct{ name, id, data string }

// sentEvents takes a stream of events apart.
func sentEvents(t *testing.T, text string) []sentEvent {
	t.Helper()
	rest, ok := strings.CutPrefix(text, "retry: 2000\n\n")
	if !ok {
		t.Fatalf("the stream begins with %.40q", text)
	}
	var out []sentEvent
	for part := range strings.SplitSeq(strings.TrimSuffix(rest, "\n\n"), "\n\n") {
		if part == "" || strings.HasPrefix(part, ":") {
			continue
		}
		lines := strings.Split(part, "\n")
		if len(lines) != 3 {
			t.Fatalf("an event of %d lines: %q", len(lines), part)
		}
		var e sentEvent
		for i, field := range []struct {
			prefix string
			into   *string
		}{{"event: ", &e.name}, {"id: ", &e.id}, {"data: ", &e.data}} {
			if *field.into, ok = strings.CutPrefix(lines[i], field.prefix); !ok {
				t.Fatalf("%q is not %q", lines[i], field.prefix)
			}
		}
		out = append(out, e)
	}
	return out
}

// told returns a short form of events.
func told(t *testing.T, events []sentEvent) (out []string) {
	t.Helper()
	for _, e := range events {
		var p client.Promotion
		if err := json.Unmarshal([]byte(e.data), &p); err != nil {
			t.Fatalf("%q: %v", e.data, err)
		}
		if p.ID != "7" || p.Summaries != nil || parseEventID(e.id) != e.id || !strings.HasPrefix(e.id, p.Status+".") {
			t.Errorf("event %+v", e)
		}
		out = append(out, fmt.Sprint(e.name, " ", p.Status, " ", p.Counts.Succeeded))
	}
	return out
}

// promotionWire is a wire with promotion 7.
func promotionWire(t *testing.T, status reward.PromotionStatus) *wire {
	t.Helper()
	w := newWire(t)
	w.views = newFakeViews(7)
	w.views.edit(7, func(v *store.PromotionView) {
		v.Name, v.Type, v.Status, v.CreatedAt = "S", reward.Point, status, testTime
	})
	w.api.progress.read = w.views.read
	return w
}

func (w *wire) paid(n int64) {
	w.views.edit(7, func(v *store.PromotionView) { v.Counts.Payouts[reward.Succeeded] = n })
}

func (w *wire) become(s reward.PromotionStatus) {
	w.views.edit(7, func(v *store.PromotionView) { v.Status = s })
}

// wantNobody fails if a promotion still has watchers.
func (w *wire) wantNobody(t *testing.T) {
	t.Helper()
	time.Sleep(time.Second) // fake time
	w.api.progress.wantIdle(t)
}

const promotionEvents = "/v1/promotions/7/events"

// pass waits for more than a round, in fake time.
func pass() {
	time.Sleep(2 * progressIntervalMax)
	synctest.Wait()
}

func TestPromotionEvents(t *testing.T) {
	t.Parallel()

	fixture.OnFakeTime(t, "TellHowItComesOnAndEndWhenItIsDone", func(t *testing.T) {
		w := promotionWire(t, reward.Draft)
		r := w.send(t.Context(), "GET", promotionEvents, "")
		for _, step := range []func(){
			func() { w.become(reward.Running) }, func() { w.paid(1) }, func() { w.paid(2) },
			func() { w.become(reward.Paused) }, func() { w.become(reward.Running); w.paid(3) }, func() { w.paid(4); w.become(reward.Completed) },
		} {
			pass()
			step()
		}
		<-r.done
		want := []string{
			"state DRAFT 0", "state RUNNING 0", "progress RUNNING 1", "progress RUNNING 2", "state PAUSED 2", "state RUNNING 3", "done COMPLETED 4",
		}
		fixture.Equal(t, want, told(t, sentEvents(t, r.text())))
		if h := r.Header(); h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store" || r.status != http.StatusOK {
			t.Errorf("%d %v", r.status, h)
		}
		w.wantNobody(t)
	})

	fixture.OnFakeTime(t, "ACancelledOneIsDoneWhenItIsFinished", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		r := w.send(t.Context(), "GET", promotionEvents, "")
		pass()
		w.become(reward.PromotionCancelled)
		pass()
		w.paid(1) // a late yes
		pass()
		w.views.edit(7, func(v *store.PromotionView) { v.FinishedAt = testTime })
		<-r.done
		want := []string{"state RUNNING 0", "state CANCELLED 0", "progress CANCELLED 1", "done CANCELLED 1"}
		fixture.Equal(t, want, told(t, sentEvents(t, r.text())))
		w.wantNobody(t)
	})

	t.Run("AnswerHEADWithoutAWatch", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		head := b.do(t, "HEAD", "/v1/promotions/"+b.create(t, `{"name":"x","type":"POINT","amount":5}`)+"/events", nil)
		head.want(t, http.StatusOK)
		if got := head.header.Get("Content-Type"); got != web.StreamType || head.body != "" {
			t.Errorf("HEAD: %s, %q", got, head.body)
		}
		if n, _, _ := b.api.progress.standing(); n != 0 {
			t.Errorf("%d still watch", n)
		}
	})

	fixture.OnFakeTime(t, "AreAtMostFourPerSecond", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		r := w.send(t.Context(), "GET", promotionEvents, "")
		began := time.Now()
		var at []time.Duration // of each event
		for n := range int64(1000) {
			w.paid(n + 1)
			if n%100 == 7 { // others come all the time, and are read for
				w.send(t.Context(), "HEAD", promotionEvents, "")
			}
			time.Sleep(10 * time.Millisecond)
			for events := strings.Count(r.text(), "event: "); len(at) < events; {
				at = append(at, time.Since(began))
			}
		}
		for i := range len(at) - 4 {
			if at[i+4]-at[i] <= time.Second {
				t.Errorf("five events within %s", at[i+4]-at[i])
			}
		}
		if len(at) < 30 {
			t.Errorf("%d events in 10 s", len(at))
		}
		w.become(reward.Completed)
		<-r.done
		if all := told(t, sentEvents(t, r.text())); all[len(all)-1] != "done COMPLETED 1000" {
			t.Errorf("the last is %s", all[len(all)-1])
		}
		w.wantNobody(t)
	})

	fixture.OnFakeTime(t, "EndWhenTheReaderGoesBeforeTheFirst", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		w.api.progress.read = func(ctx context.Context, _ []reward.PromotionID) ([]store.PromotionView, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ctx, leave := context.WithCancel(t.Context())
		r := w.send(ctx, "GET", promotionEvents, "")
		time.Sleep(time.Second)
		left := time.Now()
		leave()
		<-r.done
		if waited := time.Since(left); waited > 0 {
			t.Errorf("the stream ended %s after its reader had left", waited)
		}
		w.wantNobody(t)
	})

	fixture.OnFakeTime(t, "GoOnAfterTheLastOneSeen", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		w.paid(1)
		ctx, leave := context.WithCancel(t.Context())
		r := w.send(ctx, "GET", promotionEvents, "")
		pass()
		leave()
		<-r.done
		seen := sentEvents(t, r.text())[0].id
		for _, tc := range []struct {
			name, last string
			change     func()
			want       []string
		}{
			{"nothing", "", func() {}, []string{"state RUNNING 1", "done COMPLETED 1"}},
			{"all", seen, func() {}, []string{"done COMPLETED 1"}},
			{"other counts", seen, func() { w.paid(2) }, []string{"progress RUNNING 2", "done COMPLETED 2"}},
			{"another status", seen, func() { w.become(reward.Paused) }, []string{"state PAUSED 2", "done COMPLETED 2"}},
			{"what is none", "RUNNING", func() {}, []string{"state RUNNING 2", "done COMPLETED 2"}},
			{"what is none either", strings.Repeat("RUNNING.", 4000), func() {}, []string{"state RUNNING 2", "done COMPLETED 2"}},
			{"an end that was none", seen, func() { w.become(reward.Completed) }, []string{"done COMPLETED 2"}},
		} {
			w.become(reward.Running)
			tc.change()
			r := w.send(t.Context(), "GET", promotionEvents, "", "Last-Event-ID", tc.last)
			pass()
			w.become(reward.Completed)
			<-r.done
			if diff := cmp.Diff(tc.want, told(t, sentEvents(t, r.text()))); diff != "" {
				t.Errorf("a reader that has seen %s (-want +got):\n%s", tc.name, diff)
			}
		}
		w.wantNobody(t)
	})

	fixture.OnFakeTime(t, "OfWhatIsDoneAreThatAlone", func(t *testing.T) {
		w := promotionWire(t, reward.Completed)
		r := w.send(t.Context(), "GET", promotionEvents, "")
		<-r.done
		all := sentEvents(t, r.text())
		fixture.Equal(t, []string{"done COMPLETED 0"}, told(t, all))
		// A reader that reconnects automatically learns that the stream is complete.
		again := w.send(t.Context(), "GET", promotionEvents, "", "Last-Event-ID", all[0].id)
		<-again.done
		if again.status != http.StatusNoContent || again.text() != "" {
			t.Errorf("%d: %s", again.status, again.text())
		}
		// What it can still come to, an UNKNOWN one that is paid, is another end.
		w.paid(1)
		more := w.send(t.Context(), "GET", promotionEvents, "", "Last-Event-ID", all[0].id)
		<-more.done
		fixture.Equal(t, []string{"done COMPLETED 1"}, told(t, sentEvents(t, more.text())))
		w.wantNobody(t)
	})

	fixture.OnFakeTime(t, "SayOnceThatTheTimeLeftIsNotKnownAnyMore", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		w.views.edit(7, func(v *store.PromotionView) { v.Counts.Payouts[reward.Ready] = 1000 })
		ctx, leave := context.WithCancel(t.Context())
		r := w.send(ctx, "GET", promotionEvents, "")
		for n := range int64(150) {
			w.paid(n)
			time.Sleep(100 * time.Millisecond)
		}
		before := len(sentEvents(t, r.text()))
		time.Sleep(10 * time.Second)
		leave()
		<-r.done
		all := sentEvents(t, r.text())
		with, without := all[before-1].data, all[len(all)-1].data
		if !strings.Contains(with, "etaSeconds") || strings.Contains(without, "etaSeconds") || len(all) > before+2 {
			t.Errorf("%d events, then %d:\n%s\n%s", before, len(all), with, without)
		}
		w.wantNobody(t)
	})

	fixture.OnFakeTime(t, "EndWhenTheInstanceStops", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		r := w.send(t.Context(), "GET", promotionEvents, "")
		pass()
		w.api.Drain()
		<-r.done
		late := w.send(t.Context(), "GET", promotionEvents, "")
		<-late.done
		if late.status != http.StatusServiceUnavailable || !strings.Contains(late.text(), CodeDraining) {
			t.Errorf("a reader that connects now: %d %s", late.status, late.text())
		}
		w.wantNobody(t)
	})

	fixture.OnFakeTime(t, "EndWhenItCannotBeReadForLong", func(t *testing.T) {
		w := promotionWire(t, reward.Running)
		r := w.send(t.Context(), "GET", promotionEvents, "")
		pass()
		w.views.set(errors.New("password=hunter2"), nil)
		<-r.done
		again := w.send(t.Context(), "GET", promotionEvents, "")
		<-again.done
		if again.status != http.StatusServiceUnavailable || !strings.Contains(again.text(), `"UNAVAILABLE"`) || strings.Contains(again.text(), "hunter2") {
			t.Errorf("%d: %s", again.status, again.text())
		}
		if again.Header().Get("Retry-After") == "" {
			t.Error("no event says when to reconnect")
		}
		w.wantNobody(t)
	})
}

// FuzzLastEventID: with any Last-Event-ID, a reader gets the current state, or learns
// that it has seen it.
func FuzzLastEventID(f *testing.F) {
	b := &wire{shop: newFakeShop(), views: newFakeViews(7)}
	b.views.edit(7, func(v *store.PromotionView) { v.Status = reward.Completed })
	b.shop.stand("42:u7", coupon.Status{Kind: coupon.StatusRejected, Ticket: 9, Reason: reward.ReasonSoldOut}, nil)
	b.api = New(Config{Templates: b.shop, Coupons: b.shop, Issuing: b.shop, Watch: b.shop.Watch})
	seen := b.api.progress.frame(b.views.views[7]).id
	for _, s := range []string{
		seen, strings.ToLower(seen), seen + " ", seen[:len(seen)-1], "COMPLETED.", "." + strings.Repeat("0", 16), "9.REJECTED", "9.0", "", "\x00\r\nSet-Cookie: a=b",
		"é.0123456789abcdef", strings.Repeat("9", 1<<16), "-0.+000000000000001", "\xff\xfe",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, last string) {
		b.api.progress = newPromotionHub(b.api) // the one before rests for a moment
		b.api.progress.read = b.views.read
		for _, tc := range []struct{ path, end, seen string }{
			{"/v1/promotions/7/events", "event: done\nid: " + seen + "\n", seen},
			{"/v1/issue-requests/42:u7/events", "event: result\nid: 9.REJECTED\n", "9.REJECTED"},
		} {
			r := b.send(t.Context(), "GET", tc.path, "", "Last-Event-ID", last)
			<-r.done
			want, end := http.StatusOK, 1
			if last == tc.seen {
				want, end = http.StatusNoContent, 0
			}
			if text := r.text(); r.status != want || strings.Count(text, "event: ") != end || strings.Count(text, tc.end) != end {
				t.Errorf("%s after %q: %d %q", tc.path, last, r.status, text)
			}
		}
		if id := parseEventID(last); id != "" && (id != last || len(id) > 33) {
			t.Errorf("%q was read as %q", last, id)
		}
	})
}
