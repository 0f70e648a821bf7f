package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

const templateEvents = "/v1/coupon-templates/42/events"

// edit changes a template of the shop.
func (f *fakeShop) edit(id reward.TemplateID, edit func(v *coupon.View)) {
	defer f.lock()()
	v := f.templates[id]
	edit(&v)
	f.templates[id] = v
}

// sell issues coupons and lets requests wait.
func (f *fakeShop) sell(issued, waiting int64) {
	f.edit(42, func(v *coupon.View) {
		v.IssuedTotal, v.Live = v.IssuedTotal+issued, v.Live+issued
		v.Waiting, v.Wait = waiting, time.Duration(waiting)*50*time.Millisecond
		v.Stock = v.TotalQuantity - v.Live - waiting
	})
}

// toldCounters returns a short form of the events of template 42.
func toldCounters(t *testing.T, text string) (out []string) {
	t.Helper()
	for _, e := range sentEvents(t, text) {
		var p client.TemplateProgress
		if err := json.Unmarshal([]byte(e.data), &p); err != nil {
			t.Fatalf("%q: %v", e.data, err)
		}
		if e.name != "counters" || p.ID != "42" || p.At.IsZero() || parseEventID(e.id) != e.id {
			t.Errorf("event %+v", e)
		}
		rate := "-"
		if p.IssuedPerSecond != nil {
			rate = fmt.Sprint(*p.IssuedPerSecond)
		}
		c := p.Counters
		out = append(out, fmt.Sprint(p.State, " stock ", c.Stock, " issued ", c.IssuedTotal, " waiting ", c.Waiting, " rate ", rate))
	}
	return out
}

// wantNoWatchers fails if a template still has watchers.
func (w *wire) wantNoWatchers(t *testing.T) {
	t.Helper()
	time.Sleep(time.Second) // fake time
	synctest.Wait()
	w.api.counters.wantIdle(t)
}

func TestTemplateEvents(t *testing.T) {
	t.Parallel()

	fixture.OnFakeTime(t, "TellHowADropComesOn", func(t *testing.T) {
		w := newWire(t)
		w.shop.edit(42, func(v *coupon.View) { v.OpensAt = time.Now().Add(20 * time.Second) })
		ctx, leave := context.WithCancel(t.Context())
		r := w.send(ctx, "GET", templateEvents, "")
		time.Sleep(25 * time.Second) // it opens by itself
		for _, step := range []func(){
			func() { w.shop.sell(4, 3) }, func() { w.shop.sell(3, 3) }, // sold out with the line
			func() { w.shop.sell(-1, 3) }, // a coupon was cancelled
			func() { w.shop.edit(42, func(v *coupon.View) { v.ClosesAt = time.Now() }) },
			func() { w.shop.edit(42, func(v *coupon.View) { v.GateUnavailable = true }) },
		} {
			step()
			time.Sleep(20 * time.Second)
		}
		leave()
		<-r.done
		var got []string
		for _, line := range toldCounters(t, r.text()) {
			at, rate, _ := strings.Cut(line, " rate ")
			if rate == "0" || rate == "-" { // how the rate rises and falls is shown below
				got = append(got, at+" rate "+rate)
			}
		}
		want := []string{
			"UPCOMING stock 10 issued 0 waiting 0 rate -", "UPCOMING stock 10 issued 0 waiting 0 rate 0", "OPEN stock 10 issued 0 waiting 0 rate 0",
			"OPEN stock 3 issued 4 waiting 3 rate 0", "SOLD_OUT stock 0 issued 7 waiting 3 rate 0",
		}
		fixture.Equal(t, want, got[:min(len(want), len(got))])
		if !strings.Contains(r.text(), `"waiting":3},"issuedPerSecond":0,"estimatedWaitMillis":150,`) {
			t.Errorf("no event has the wait that is told: %s", r.text())
		}
		events := sentEvents(t, r.text())
		if last := events[len(events)-1].data; !strings.Contains(last, `"CLOSED"`) || !strings.Contains(last, `"degraded":["gate"]`) || !strings.Contains(last, `"path":"GATE"`) {
			t.Errorf("the last is %s", last)
		}
		if h := r.Header(); h.Get("Content-Type") != web.StreamType || r.status != http.StatusOK {
			t.Errorf("%d %v", r.status, h)
		}
		w.wantNoWatchers(t)
	})

	fixture.OnFakeTime(t, "TellHowFastCouponsAreIssued", func(t *testing.T) {
		w := newWire(t)
		w.shop.template(42, 1_000_000)
		ctx, leave := context.WithCancel(t.Context())
		r := w.send(ctx, "GET", templateEvents, "")
		for range 200 { // 20 s of 50 coupons per second
			w.shop.sell(5, 0)
			time.Sleep(100 * time.Millisecond)
		}
		var rate float64
		line := toldCounters(t, r.text())
		if _, err := fmt.Sscan(line[len(line)-1][strings.LastIndex(line[len(line)-1], " "):], &rate); err != nil || rate < 45 || rate > 55 {
			t.Errorf("%s: %v", line[len(line)-1], err)
		}
		time.Sleep(10 * time.Second)
		leave()
		<-r.done
		if line := toldCounters(t, r.text()); !strings.HasSuffix(line[len(line)-1], " rate 0") {
			t.Errorf("the last is %s", line[len(line)-1])
		}
		w.wantNoWatchers(t)
	})

	fixture.OnFakeTime(t, "AreAtMostTwoASecondByOneReadForAll", func(t *testing.T) {
		w := newWire(t)
		w.shop.template(42, 1_000_000)
		ctx, leave := context.WithCancel(t.Context())
		var all []*recorder
		for range 50 {
			all = append(all, w.send(ctx, "GET", templateEvents, ""))
		}
		for range 1000 {
			w.shop.sell(1, 0)
			time.Sleep(10 * time.Millisecond)
		}
		leave()
		for _, r := range all {
			<-r.done
			if n := strings.Count(r.text(), "event: "); n < 17 || n > 21 {
				t.Errorf("a reader got %d events in 10 s", n)
			}
		}
		w.wantNoWatchers(t)
		if w.shop.manyReads > 22 {
			t.Errorf("%d reads in 10 s", w.shop.manyReads)
		}
	})

	fixture.OnFakeTime(t, "GoOnAfterTheLastOneSeen", func(t *testing.T) {
		w := newWire(t)
		ctx, leave := context.WithCancel(t.Context())
		r := w.send(ctx, "GET", templateEvents, "")
		time.Sleep(5 * time.Second)
		events := sentEvents(t, r.text())
		again := w.send(ctx, "GET", templateEvents, "", "Last-Event-ID", events[len(events)-1].id)
		time.Sleep(5 * time.Second)
		if again.text() != "retry: 2000\n\n" {
			t.Errorf("a reader that has seen all got %q", again.text())
		}
		w.shop.sell(0, 1)
		time.Sleep(2*web.HeartbeatInterval + time.Second)
		leave()
		<-r.done
		<-again.done
		if got := toldCounters(t, again.text()); len(got) != 1 || got[0] != "OPEN stock 9 issued 0 waiting 1 rate 0" || strings.Count(again.text(), ": beat\n\n") != 2 {
			t.Errorf("%q", again.text())
		}
		w.wantNoWatchers(t)
	})
}
