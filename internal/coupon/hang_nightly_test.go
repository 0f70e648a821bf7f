//go:build nightly

package coupon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// TestTheDatabasePathBeginsInTime checks in every mode that coupons are issued through
// the database within a second after coupon.fallback-after, although Redis hangs and
// refuses nothing.
func TestTheDatabasePathBeginsInTime(t *testing.T) {
	t.Parallel()
	const fallbackAfter = 3 * time.Second
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka, reward.ModeSync} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			for _, lasts := range []time.Duration{5 * time.Second, 30 * time.Second} {
				moved := exerciseHang(t, mode, lasts, fallbackAfter)
				if moved < fallbackAfter-time.Second || moved > fallbackAfter+time.Second {
					t.Errorf("a hang of %v: the database path began after %v", lasts, moved)
				}
			}
		})
	}
}

// TestTheDatabasePathBeginsWithoutAnIssuer checks the same for instances without the role
// issuer, when no other instance is there. Nobody is served before an issuer starts, but
// everyone who asks during the hang gets a coupon.
func TestTheDatabasePathBeginsWithoutAnIssuer(t *testing.T) {
	t.Parallel()
	const fallbackAfter, quantity, line = 3 * time.Second, 4000, 1000
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeSync} { // in KAFKA mode nobody gets an answer without an issuer
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			server := ownServer(t)
			s := openServersAt(t, server.Address())
			r := &rig{TB: t, servers: s, rows: s.rows(t)}
			for range 2 {
				r.start(func(c *FlowConfig) { c.Issue, c.FallbackAfter = false, fallbackAfter })
			}
			id := r.create(reward.CouponTemplate{TotalQuantity: quantity, Mode: mode})
			told := r.rush(r.instances[0], id, "line", line)
			if err := server.Hang(); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			wake := time.AfterFunc(8*time.Second, func() {
				if err := server.Resume(); err != nil {
					t.Error(err)
				}
			})
			defer wake.Stop()
			var newcomers sync.WaitGroup
			var got []string
			newcomers.Go(func() { got = r.rush(r.instances[1], id, "new", line) })
			r.onPath(id, reward.PathDatabase)
			if moved := time.Since(began); moved < fallbackAfter-time.Second || moved > fallbackAfter+time.Second {
				t.Errorf("the database path began after %v", moved)
			}
			newcomers.Wait()
			r.start()
			r.onPath(id, reward.PathGate)
			r.served(id, append(told, got...))
			if len(told) != line || len(got) != line {
				t.Errorf("%d and %d users were admitted", len(told), len(got))
			}
			r.balanced(id)
		})
	}
}

// TestALongLineOutlivesAHang checks a line of 3,000 users that nobody has served when
// Redis begins to hang for 30 s. Each of them gets one coupon, although newcomers
// request coupons through the database meanwhile, and with a limit of 2 the users in
// line request again. The newcomers get the rest, and no more.
func TestALongLineOutlivesAHang(t *testing.T) {
	t.Parallel()
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
		for _, limit := range []int{1, 2} {
			t.Run(fmt.Sprint(mode, "Limit", limit), func(t *testing.T) {
				t.Parallel()
				exerciseHangingLine(t, mode, limit)
			})
		}
	}
}

// lateRows settle nobody in line before serve is true.
type lateRows struct {
	store.Store
	serve *atomic.Bool
}

func (r *lateRows) CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	if p.Kind == rules.SettleInOrder && !r.serve.Load() {
		return store.CouponSettleResult{}, errors.New("the line is not served yet")
	}
	return r.Store.CouponSettle(ctx, p)
}

func exerciseHangingLine(t *testing.T, mode reward.IssueMode, limit int) {
	t.Helper()
	const line, newcomers, lasts, workers = 3000, 2000, 30 * time.Second, 8
	quantity := int64(4000)
	if limit > 1 {
		quantity = 20_000 // more than a grant: users in line find free places, too
	}
	server := ownServer(t)
	s := openServersAt(t, server.Address())
	r := &rig{TB: t, servers: s, rows: s.rows(t)}
	var serve atomic.Bool
	for range 2 {
		r.start(func(c *FlowConfig) {
			c.Connected = serve.Load // in KAFKA mode the records are published, and not read before the end of the hang
			c.Store = &lateRows{Store: c.Store, serve: &serve}
		})
	}
	id := r.create(reward.CouponTemplate{TotalQuantity: quantity, PerUserLimit: limit, Mode: mode})
	told := r.rush(r.instances[0], id, "line", line)
	if len(told) != line {
		t.Fatalf("%d of %d users were admitted", len(told), line)
	}
	if err := server.Hang(); err != nil {
		t.Fatal(err)
	}
	began, hang := time.Now(), time.NewTimer(lasts)
	defer hang.Stop()
	r.until("the database path", func() bool {
		row, err := r.rows.TemplateGet(t.Context(), id)
		return err == nil && row.Path == reward.PathDatabase
	})
	t.Logf("the database path began after %v", time.Since(began))
	var rushing, requesting sync.WaitGroup
	var got []string
	rushing.Go(func() { got = r.rush(r.instances[1], id, "new", newcomers) }) // repeats what is unavailable, also after the hang
	var again atomic.Int64
	if limit > 1 {
		for worker := range workers { // each user once, without a repeat
			requesting.Go(func() {
				for n := worker; n < len(told); n += workers {
					s, err := r.instances[n%2].Intake.Request(t.Context(), IssueCommand{TemplateID: id, UserID: told[n]})
					switch e := (*reward.Error)(nil); {
					case err == nil && s.Kind == StatusIssued:
						again.Add(1)
					case err != nil && (!errors.As(err, &e) || e.Code != reward.CodeUnavailable):
						t.Errorf("%s again: %v", told[n], err)
					}
				}
			})
		}
	}
	// The hang lasts until everyone in line has requested again: after it, a user may
	// have the coupon of the line already, and a request is a new one.
	requesting.Wait()
	<-hang.C
	if err := server.Resume(); err != nil {
		t.Error(err)
	}
	serve.Store(true)
	rushing.Wait()
	for _, user := range told {
		if s := r.outcome(r.instances[0], id, user); s.Kind != StatusIssued {
			t.Errorf("%s was told to wait, and then: %+v", user, s)
		}
	}
	want := min(newcomers, int(quantity)-line)
	if len(got) != want {
		t.Errorf("%d newcomers were admitted, want %d", len(got), want)
	}
	r.until("all are issued", func() bool { return len(r.coupons(id)) >= line+want })
	has := make(map[string]int)
	for _, c := range r.coupons(id) {
		has[c.UserID]++
	}
	twice, none := 0, 0
	for _, user := range told {
		switch {
		case has[user] == 0:
			none++
		case has[user] > 1:
			twice++
		}
	}
	if none > 0 || twice > 0 {
		t.Errorf("of %d users in line, %d have no coupon and %d have two for one request", line, none, twice)
	}
	if limit > 1 && again.Load() < line/2 {
		t.Errorf("only %d users in line got their coupon through the database", again.Load())
	}
	r.balanced(id)
	t.Logf("%d users in line got theirs through the database; %d coupons", again.Load(), len(r.coupons(id)))
}
