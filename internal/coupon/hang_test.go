package coupon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// hangs describes a hang of Redis.
type hangs struct {
	mode reward.IssueMode
	// hang lets Redis hang until resume is called.
	hang func() (resume func())
	// lasts is how long Redis hangs. Zero means until the database path has begun.
	lasts         time.Duration
	fallbackAfter time.Duration
}

// exerciseHang lets Redis hang while users request coupons. Everyone who was told that
// they wait must get a coupon; all coupons are issued, and no more. It returns how long
// it took until coupons were issued through the database; 0 = they were not.
func exerciseHang(r *rig, h hangs) (moved time.Duration) {
	r.Helper()
	for range 2 {
		r.start(func(c *FlowConfig) { c.FallbackAfter = h.fallbackAfter })
	}
	const quantity, workers, each = 600, 8, 100
	id := r.create(reward.CouponTemplate{TotalQuantity: quantity, Mode: h.mode})
	var mu sync.Mutex // protects waiting, refused and issued
	var waiting, refused []string
	issued := 0 // at once, as in SYNC mode and through the database
	var resume func()
	var began time.Time
	hung := make(chan struct{})
	var open sync.WaitGroup
	for worker := range workers {
		open.Go(func() {
			for n := range each {
				user := fmt.Sprintf("u%d-%d", worker, n)
				got, code := r.request(r.instances[n%2], id, user)
				mu.Lock()
				switch {
				case code == reward.CodeSoldOut:
					refused = append(refused, user)
				case code != "":
					r.Errorf("%s: %s", user, code)
				case got.Kind == StatusWaiting:
					waiting = append(waiting, user)
				default:
					issued++
				}
				if resume == nil && len(waiting)+issued >= quantity/3 {
					resume, began = h.hang(), time.Now()
					close(hung)
				}
				mu.Unlock()
			}
		})
	}
	<-hung
	defer resume()
	r.until("the database path begins, or the hang ends", func() bool {
		row := fixture.Must(r.rows.TemplateGet(r.Context(), id))(r)
		if row.Path == reward.PathDatabase {
			moved = max(r.since(began), 1)
		}
		return moved > 0 || h.lasts > 0 && r.since(began) >= h.lasts
	})
	if h.lasts > 0 {
		r.sleep(h.lasts - r.since(began))
	}
	resume()
	open.Wait()
	for _, user := range waiting {
		if got := r.outcome(r.instances[0], id, user); got.Kind != StatusIssued {
			r.Errorf("%s was told to wait, and then: %+v", user, got)
		}
	}
	r.balanced(id)
	row := fixture.Must(r.rows.TemplateGet(r.Context(), id))(r)
	if row.Live != quantity || len(refused) != workers*each-quantity {
		r.Errorf("%d of %d coupons are issued, %d users were refused", row.Live, quantity, len(refused))
	}
	return moved
}

// inTime reports whether the database path began when coupon.fallback-after says.
func inTime(moved, fallbackAfter time.Duration) bool {
	return moved > fallbackAfter-time.Second && moved < fallbackAfter+time.Second
}

// TestPromisesHoldWhileRedisHangs checks that nobody loses a promised coupon while Redis
// hangs long enough for the database path, which begins in time, or too briefly for it.
func TestPromisesHoldWhileRedisHangs(t *testing.T) {
	t.Parallel()
	const fallbackAfter = 3 * time.Second
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		moved := exerciseHang(r, hangs{mode, r.memory.hang, 10 * time.Second, fallbackAfter})
		if !inTime(moved, fallbackAfter) {
			r.Errorf("the database path began after %v", moved)
		}
	})
	t.Run("TooBriefly", func(t *testing.T) {
		t.Parallel()
		each(t, func(r *rig) {
			if exerciseHang(r, hangs{reward.ModeStream, r.memory.hang, 2 * time.Second, fallbackAfter}) > 0 {
				r.Error("the database path began")
			}
		})
	})
	t.Run("Servers", func(t *testing.T) {
		t.Parallel()
		server := fixture.Own(t, fleet.NewRedis)
		exerciseHang(newRig(t, openServersAt(t, server.Address())), hangs{mode: reward.ModeStream, fallbackAfter: time.Second, hang: func() func() {
			if err := server.Hang(); err != nil {
				t.Error(err)
			}
			resume := sync.OnceFunc(func() {
				if err := server.Resume(); err != nil {
					t.Error(err)
				}
			})
			t.Cleanup(resume)
			return resume
		}})
	})
}

// TestAHangThatOnlyATaskMeets lets the gate hang within the care of a template: the outage
// begins with that call, although nobody requests a coupon and no other call is due.
func TestAHangThatOnlyATaskMeets(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		const fallbackAfter = 3 * time.Second
		i := r.start(func(c *FlowConfig) { c.FallbackAfter = fallbackAfter })
		id := r.create(reward.CouponTemplate{TotalQuantity: 10})
		r.served(id, r.rush(i, id, "u", 3))
		hung := make(chan func(), 1)
		i.gate.set(func(g *faultyGate) { g.onShrink = sync.OnceFunc(func() { hung <- r.memory.hang() }) })
		resume := <-hung
		defer resume()
		began := time.Now()
		r.onPath(id, reward.PathDatabase)
		if moved := r.since(began); moved > fallbackAfter+500*time.Millisecond {
			r.Errorf("the database path began after %v", moved)
		}
	})
}

// TestTheDatabasePathBeginsWithoutAnIssuer checks the same for instances without the role
// issuer, when no other instance is there. Nobody is served before an issuer starts, but
// everyone who asks during the hang gets a coupon.
func TestTheDatabasePathBeginsWithoutAnIssuer(t *testing.T) {
	t.Parallel()
	const fallbackAfter, quantity, line = 3 * time.Second, 1200, 300
	modes := []reward.IssueMode{reward.ModeStream, reward.ModeSync} // in KAFKA mode nobody gets an answer without an issuer
	eachMode(t, modes, func(r *rig, mode reward.IssueMode) {
		for range 2 {
			r.start(func(c *FlowConfig) { c.Issue, c.FallbackAfter = false, fallbackAfter })
		}
		id := r.create(reward.CouponTemplate{TotalQuantity: quantity, Mode: mode})
		waits := r.create(reward.CouponTemplate{TotalQuantity: 1, WhenRedisAway: reward.FallbackWait})
		told := r.rush(r.instances[0], id, "line", line)
		resume := r.memory.hang()
		defer resume()
		began := time.Now()
		var newcomers sync.WaitGroup
		var got []string
		newcomers.Go(func() { got = r.rush(r.instances[1], id, "new", line) })
		r.onPath(id, reward.PathDatabase)
		if moved := r.since(began); !inTime(moved, fallbackAfter) {
			r.Errorf("the database path began after %v", moved)
		}
		newcomers.Wait()
		if row, err := r.rows.TemplateGet(r.Context(), waits); err != nil || row.Path != reward.PathGate {
			r.Errorf("a template that waits moved: %+v, %v", row, err)
		}
		resume()
		r.start()
		r.onPath(id, reward.PathGate)
		r.served(id, append(told, got...))
		if len(told) != line || len(got) != line {
			r.Errorf("%d and %d users were admitted", len(told), len(got))
		}
		r.balanced(id)
	})
}

// TestALongLineOutlivesAHang checks a line of 1,200 users that nobody has served when
// Redis begins to hang for 15 s. Each of them gets one coupon, although newcomers
// request coupons through the database meanwhile, and with a limit of 2 the users in
// line request again. The newcomers get the rest, and no more.
func TestALongLineOutlivesAHang(t *testing.T) {
	t.Parallel()
	for _, limit := range []int{1, 2} {
		t.Run(fmt.Sprint("Limit", limit), func(t *testing.T) {
			t.Parallel()
			eachMode(t, lineModes, func(r *rig, mode reward.IssueMode) { exerciseHangingLine(r, mode, limit) })
		})
	}
}

// lateRows settle nobody in line before serve is true.
type lateRows struct {
	Store
	serve *atomic.Bool
}

func (r *lateRows) CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	if p.Kind == rules.SettleInOrder && !r.serve.Load() {
		return store.CouponSettleResult{}, errors.New("the line is not served yet")
	}
	return r.Store.CouponSettle(ctx, p)
}

func exerciseHangingLine(r *rig, mode reward.IssueMode, limit int) {
	r.Helper()
	const line, newcomers, lasts, workers = 1200, 600, 15 * time.Second, 8
	quantity := int64(1500)
	if limit > 1 {
		quantity = 20_000 // more than a grant: users in line find free places, too
	}
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
		r.Fatalf("%d of %d users were admitted", len(told), line)
	}
	resume := r.memory.hang()
	defer resume()
	began := time.Now()
	r.onPath(id, reward.PathDatabase)
	var rushing, requesting sync.WaitGroup
	var got []string
	rushing.Go(func() { got = r.rush(r.instances[1], id, "new", newcomers) }) // repeats what is unavailable, also after the hang
	var again atomic.Int64
	if limit > 1 {
		for worker := range workers { // each user once, without a repeat
			requesting.Go(func() {
				for n := worker; n < len(told); n += workers {
					s, err := r.instances[n%2].Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: told[n]})
					switch e := (*reward.Error)(nil); {
					case err == nil && s.Kind == StatusIssued:
						again.Add(1)
					case err != nil && (!errors.As(err, &e) || e.Code != reward.CodeUnavailable):
						r.Errorf("%s again: %v", told[n], err)
					}
				}
			})
		}
	}
	// The hang lasts until everyone in line has requested again: after it, a user may
	// have the coupon of the line already, and a request is a new one.
	requesting.Wait()
	r.sleep(lasts - r.since(began))
	resume()
	serve.Store(true)
	rushing.Wait()
	for n := 0; n < len(told); n += 10 { // served checks all
		if s, err := r.end(r.instances[0], id, told[n]); err != nil || s.Kind != StatusIssued {
			r.Errorf("%s was told to wait, and then: %+v, %v", told[n], s, err)
		}
	}
	want := min(newcomers, int(quantity)-line)
	if len(got) != want {
		r.Errorf("%d newcomers were admitted, want %d", len(got), want)
	}
	r.served(id, told)
	if limit > 1 && again.Load() < line/2 {
		r.Errorf("only %d users in line got their coupon through the database", again.Load())
	}
	r.balanced(id)
}
