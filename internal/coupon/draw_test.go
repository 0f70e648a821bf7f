package coupon

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// TestDraw checks that users who request before the opening are drawn in the
// verifiable order and hold their coupons, and that later users get later tickets.
func TestDraw(t *testing.T) {
	t.Parallel()
	eachServer(t, func(r *rig) {
		r.startAll(2)
		opens := time.Now().Add(6 * time.Second)
		id := r.create(reward.CouponTemplate{
			TotalQuantity: 30, OpensAt: opens, Draw: reward.Draw{From: time.Now().Add(time.Second)}, ReissueAfterCancel: true,
		})
		few := r.create(reward.CouponTemplate{TotalQuantity: 30, HoldFor: time.Hour, OpensAt: opens, Draw: reward.Draw{From: time.Now().Add(time.Second)}})
		r.want(r.instances[0], id, "early", reward.CodeNotOpen)
		before, err := r.instances[0].Catalog.Get(r.Context(), id)
		if err != nil {
			r.Fatal(err)
		}
		r.soon(r.instances[0], id, "u0", "")
		var users []string
		var wg sync.WaitGroup
		for n := range 100 {
			user := fmt.Sprint("u", n)
			users = append(users, user)
			wg.Go(func() {
				if s, code := r.request(r.instances[n%2], id, user); code != "" || s.Kind != StatusWaiting || s.Ticket != 0 {
					r.Errorf("%s: %q %+v", user, code, s)
				}
			})
		}
		wg.Wait()
		r.soon(r.instances[1], few, "u0", "")
		for n := range 10 {
			r.want(r.instances[1], few, fmt.Sprint("u", n), "")
		}
		if s, err := r.instances[1].Intake.Status(r.Context(), id, "u5"); err != nil || s.Kind != StatusWaiting {
			r.Errorf("before the draw: %+v, %v", s, err)
		}
		won, lost := 0, 0
		for _, user := range users {
			switch s := r.outcome(r.instances[0], id, user); {
			case s.Kind == StatusIssued:
				won++
			case s.Reason == reward.ReasonNotDrawn:
				lost++
			}
		}
		if won != 30 || lost != 70 {
			r.Errorf("%d won, %d lost", won, lost)
		}
		var after View
		r.until("the draw is done", func() bool {
			after, err = r.instances[0].Catalog.Get(r.Context(), id)
			return err == nil && after.Draw.State == reward.DrawDone
		})
		for n, user := range users {
			s := r.outcome(r.instances[n%2], id, user)
			h := fixture.Must(r.instances[n%2].Catalog.History(r.Context(), user))(r)
			of := slices.DeleteFunc(h.Outcomes, func(o reward.IssueOutcome) bool { return o.TemplateID != id })
			if len(of) != 1 || of[0].Issued() != (s.Kind == StatusIssued) || of[0].Reason != s.Reason {
				r.Errorf("%s: %v %s, but the history is %+v", user, s.Kind, s.Reason, of)
			}
		}
		slices.Sort(users)
		if !bytes.Equal(Commitment(after.Draw.Seed), Commitment(before.Draw.Seed)) || !bytes.Equal(after.Draw.List, listHash(users)) {
			r.Error("the seed or the list has changed")
		}
		order := drawOrder(after.Draw.Seed, after.Draw.List, users)
		for n, c := range r.coupons(id) {
			if c.UserID != order[n] || c.Ticket != int64(n+1) {
				r.Errorf("ticket %d belongs to %s, the draw order has %s", c.Ticket, c.UserID, order[n])
			}
		}
		r.want(r.instances[1], id, "later", reward.CodeSoldOut)
		if c := r.take(r.instances[1], few, "later"); c.Ticket != 11 {
			r.Errorf("the later user has ticket %d", c.Ticket)
		}
		if s := r.outcome(r.instances[0], few, "u0"); s.Coupon.Status != reward.CouponHeld {
			r.Errorf("a winner does not hold the coupon: %+v", s)
		}
		r.balanced(id)
		r.balanced(few)
	})
}

// TestRepeatedEntry checks that a repeated entry into a draw is a duplicate, on every
// instance, and that an entrant is told how long it takes until the draw.
func TestRepeatedEntry(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		r.startAll(2)
		opens := time.Now().Add(time.Hour)
		id := r.create(reward.CouponTemplate{TotalQuantity: 30, OpensAt: opens, Draw: reward.Draw{From: time.Now().Add(-time.Hour)}})
		for n := range 4 {
			i := r.instances[n/2]
			s, code := r.request(i, id, "u")
			if code != "" || s.Kind != StatusWaiting || s.Duplicate != (n > 0) {
				r.Errorf("request %d: %q %+v", n, code, s)
			}
			if s.Wait < 50*time.Minute || s.Wait > time.Hour {
				r.Errorf("request %d: the draw is in an hour, told %v", n, s.Wait)
			}
			if s, err := i.Intake.Status(r.Context(), id, "u"); err != nil || s.Wait < 50*time.Minute {
				r.Errorf("status: %+v, %v", s, err)
			}
		}
		var wg sync.WaitGroup
		var fresh atomic.Int64
		for n := range 20 {
			wg.Go(func() {
				if s, code := r.request(r.instances[n%2], id, "many"); code == "" && !s.Duplicate {
					fresh.Add(1)
				}
			})
		}
		wg.Wait()
		if fresh.Load() != 1 {
			r.Errorf("%d of 20 requests at once are no duplicates, want 1", fresh.Load())
		}
	})
}

// listHash and drawOrder are the hash and the order that docs/coupons.md describes.
func listHash(users []string) []byte {
	var all []byte
	for _, user := range slices.Sorted(slices.Values(users)) {
		sum := sha256.Sum256([]byte(user))
		all = append(all, sum[:]...)
	}
	sum := sha256.Sum256(all)
	return sum[:]
}

func drawOrder(seed, list []byte, users []string) []string {
	return slices.SortedFunc(slices.Values(users), func(a, b string) int {
		x, y := sha256.Sum256(slices.Concat(seed, list, []byte(a))), sha256.Sum256(slices.Concat(seed, list, []byte(b)))
		return bytes.Compare(x[:], y[:])
	})
}

// drawnRows are rows of one draw with entrants that they make up. CouponSettle stores
// nothing but what the test looks at.
type drawnRows struct {
	Store
	t        *testing.T
	template reward.CouponTemplate
	entrants int
	crashAt  int64 // CouponSettle fails once this ticket is settled; 0 = never
	winners  []string
	losers   int
	measure  bool
	heap     uint64 // the largest at a settlement, after a garbage collection
}

func entrant(n int) string { return fmt.Sprintf("entrant-%07d", n) }

func (r *drawnRows) DrawClose(context.Context, reward.TemplateID, int64) (reward.CouponTemplate, error) {
	return r.template, nil
}

func (r *drawnRows) EntrantList(_ context.Context, _ reward.TemplateID, after string, limit int) ([]string, error) {
	first := 0
	if after != "" {
		if _, err := fmt.Sscanf(after, "entrant-%d", &first); err != nil {
			return nil, err
		}
		first++
	}
	var page []string
	for n := first; n < min(first+limit, r.entrants); n++ {
		page = append(page, entrant(n))
	}
	return page, nil
}

func (r *drawnRows) CouponSettle(_ context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	if r.crashAt > 0 && r.template.Settled >= r.crashAt {
		r.crashAt = 0
		return store.CouponSettleResult{}, errors.New("crashed")
	}
	if r.measure && len(r.winners)%20_000 == 0 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		r.heap = max(r.heap, m.HeapAlloc)
	}
	for _, q := range p.Requests {
		if r.template.Settled++; q.Ticket != r.template.Settled {
			r.t.Fatalf("ticket %d follows %d", q.Ticket, r.template.Settled-1)
		}
		if q.Reason == "" {
			r.winners = append(r.winners, q.UserID)
		} else {
			r.losers++
		}
	}
	return store.CouponSettleResult{}, nil
}

func (r *drawnRows) DrawDone(_ context.Context, _ reward.TemplateID, _ int64, list []byte) (bool, error) {
	r.template.Draw.State, r.template.Draw.List = reward.DrawDone, list
	return true, nil
}

// runDraw draws coupons among entrants. After a crash at a ticket it begins again.
func runDraw(t *testing.T, entrants int, quantity, crashAt int64, measure bool) *drawnRows {
	t.Helper()
	rows := &drawnRows{t: t, entrants: entrants, crashAt: crashAt, measure: measure, template: reward.CouponTemplate{
		ID: 1, TotalQuantity: quantity, Draw: reward.Draw{State: reward.DrawClosed, Seed: NewSeed()},
	}}
	d := &drawer{parts: parts{
		rows: rows, templates: gatekeeper.NewTemplateCache(rows, time.Hour, obs.Log{}), ids: service.NewIDs(), settled: func(reward.TemplateID) {},
	}}
	err := d.draw(t.Context(), &rows.template, 0)
	if crashAt > 0 && err != nil {
		err = d.draw(t.Context(), &rows.template, 0)
	}
	if err != nil || rows.template.Draw.State != reward.DrawDone {
		t.Fatal(rows.template.Draw.State, err)
	}
	return rows
}

// TestDrawnInParts checks that a draw whose winners are found in several passes, with a
// crash in between, has the order that everybody can check.
func TestDrawnInParts(t *testing.T) {
	t.Parallel()
	type draw struct {
		entrants          int
		quantity, crashAt int64
	}
	draws := []draw{{0, 5, 0}, {1, 5, 0}, {999, 1, 0}, {1000, 1000, 0}, {70_000, 1_234, 0}}
	if !testing.Short() { // these take minutes under the race detector
		draws = append(draws, draw{120_000, 120_000, 51_000}, draw{110_000, 200_000, 1})
	}
	for _, c := range draws {
		var users []string
		for n := range c.entrants {
			users = append(users, entrant(n))
		}
		rows := runDraw(t, c.entrants, c.quantity, c.crashAt, false)
		if !bytes.Equal(rows.template.Draw.List, listHash(users)) {
			t.Errorf("%+v: another list", c)
		}
		want := drawOrder(rows.template.Draw.Seed, listHash(users), users)
		if want = want[:min(len(want), int(c.quantity))]; !slices.Equal(want, rows.winners) || rows.losers > 0 {
			t.Errorf("%+v: %d winners in another order, and rows for %d losers", c, len(rows.winners), rows.losers)
		}
	}
}

// TestDrawStaysFlat checks that a draw among many keeps few entrants in memory, and writes
// nothing for those who are not drawn.
func TestDrawStaysFlat(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	const entrants, quantity, most = 200_000, 2000, 20 << 20
	small := runDraw(t, 1000, 10, 0, true)
	large := runDraw(t, entrants, quantity, 0, true)
	if large.losers > 0 || len(large.winners) != quantity {
		t.Errorf("%d winners, %d rows of losers", len(large.winners), large.losers)
	}
	if large.heap > small.heap+most {
		t.Errorf("the memory grew from %d to %d MB", small.heap>>20, large.heap>>20)
	}
}

// TestDrawOrder checks that the order depends on the seed and the entrants only, and
// that all entrants have the same chance.
func TestDrawOrder(t *testing.T) {
	t.Parallel()
	const entrants, draws = 4, 4000
	first := make(map[string]int)
	for range draws {
		first[runDraw(t, entrants, 1, 0, false).winners[0]]++
	}
	for n := range entrants {
		if share := first[entrant(n)]; share < draws/5 || share > draws*3/10 {
			t.Errorf("%s is first %d of %d times", entrant(n), share, draws)
		}
	}
	if bytes.Equal(listHash([]string{"ab", "c"}), listHash([]string{"a", "bc"})) {
		t.Error("two lists have the same hash")
	}
}
