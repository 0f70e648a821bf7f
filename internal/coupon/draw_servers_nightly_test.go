//go:build nightly

package coupon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// measuredRows measure the memory of the process during a draw, and end the draw once.
type measuredRows struct {
	store.Store
	calls   int
	crashAt int    // CouponSettle fails at this call; 0 = never
	heap    uint64 // the largest, after a garbage collection
}

func heapNow() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func (r *measuredRows) CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	if r.calls++; r.calls == r.crashAt {
		return store.CouponSettleResult{}, errors.New("crashed")
	}
	if r.calls%10 == 0 {
		r.heap = max(r.heap, heapNow())
	}
	return r.Store.CouponSettle(ctx, p)
}

// TestNightlyAMillionEntrantsInPostgreSQL draws 100,000 of a million entrants in PostgreSQL, with
// a crash in between. The memory does not grow with the entrants, the order is the one
// that everybody can check, and each entrant has one outcome.
func TestNightlyAMillionEntrantsInPostgreSQL(t *testing.T) { //nolint:paralleltest // it measures the memory of the process
	const entrants, quantity, most = 1_000_000, 100_000, 20 << 20
	s := openServers(t)
	r := &rig{TB: t, servers: s}
	rows := &measuredRows{Store: s.rows(t), crashAt: 60}
	r.rows = rows
	ctx := t.Context()
	id := reward.TemplateID(service.NewIDs().Next())
	template, err := rows.TemplateCreate(ctx, reward.CouponTemplate{
		ID: id, Name: "drop", TotalQuantity: quantity, PerUserLimit: 1, Mode: reward.ModeStream, Path: reward.PathGate, WhenRedisAway: reward.FallbackDatabase,
		OpensAt: time.Now().Add(time.Hour), Draw: reward.Draw{State: reward.DrawOpen, From: time.Now().Add(-time.Hour), Seed: NewSeed()},
	})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	db, err := pgx.Connect(ctx, s.database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(context.WithoutCancel(ctx)) }()
	for _, sql := range []string{
		fmt.Sprintf(`INSERT INTO coupon_entrants (template_id, user_id) SELECT %d, 'entrant-' || lpad(n::text, 7, '0') FROM generate_series(0, %d) n`, id, entrants-1),
		`ANALYZE coupon_entrants`,
		fmt.Sprintf(`UPDATE coupon_templates SET opens_at = clock_timestamp() WHERE id = %d`, id),
	} {
		if _, err := db.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("a million entered in %v", time.Since(began))

	began = time.Now()
	before := heapNow()
	for try := range 2 {
		epochs, err := rows.TemplateAssign(ctx, []reward.TemplateID{id}, fmt.Sprint("i", try))
		if err != nil {
			t.Fatal(err)
		}
		d := &drawer{rows: rows, templates: newTemplateCache(rows, time.Hour, obs.Log{}), ids: service.NewIDs(), settled: func(reward.TemplateID) {}}
		if template, err = rows.TemplateGet(ctx, id); err != nil {
			t.Fatal(err)
		}
		if err := d.draw(ctx, &template, epochs[id]); (err != nil) != (try == 0) {
			t.Fatalf("try %d: %v", try, err)
		}
	}
	t.Logf("%d of %d drawn in %v, with %d MB more than before", quantity, entrants, time.Since(began), (int64(rows.heap)-int64(before))>>20) //nolint:gosec // far below 2^63
	if rows.heap > before+most {
		t.Errorf("the memory grew from %d to %d MB", before>>20, rows.heap>>20)
	}

	began = time.Now()
	if template, err = rows.TemplateGet(ctx, id); err != nil || template.Draw.State != reward.DrawDone || template.Live != quantity || template.Settled != quantity {
		t.Fatalf("%+v, %v", template, err)
	}
	count, err := rows.CouponRecount(ctx, id)
	if err != nil || count.Live != quantity || count.KeptLive != quantity || count.IssuedTotal != quantity {
		t.Errorf("%+v, %v", count, err)
	}
	users := make([]string, entrants)
	for n := range users {
		users[n] = entrant(n)
	}
	if !bytes.Equal(template.Draw.List, listHash(users)) {
		t.Error("another list")
	}
	order := drawOrder(template.Draw.Seed, template.Draw.List, users)
	list := r.coupons(id)
	for n, c := range list {
		if c.UserID != order[n] || c.Ticket != int64(n+1) {
			t.Fatalf("ticket %d belongs to %s, the draw order has %s", c.Ticket, c.UserID, order[n])
		}
	}
	if len(list) != quantity {
		t.Errorf("%d coupons", len(list))
	}
	won := make(map[string]bool, quantity)
	for _, user := range order[:quantity] {
		won[user] = true
	}
	const pages = 20 // of the users, who are many
	for from := 0; from < entrants; from += entrants / pages {
		page := users[from : from+store.BatchMax]
		outcomes, err := rows.IssueOutcomes(ctx, id, page)
		if err != nil {
			t.Fatal(err)
		}
		if err := addNotDrawn(ctx, rows, &template, page, outcomes); err != nil {
			t.Fatal(err)
		}
		for _, user := range page {
			if o, found := outcomes[user]; !found || o.Issued() != won[user] || !o.Issued() && o.Reason != reward.ReasonNotDrawn {
				t.Fatalf("%s: %+v, drawn: %v", user, o, won[user])
			}
		}
	}
	t.Logf("checked in %v", time.Since(began))
}
