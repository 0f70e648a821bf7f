package coupon

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// slowRows are rows whose every settlement of a batch takes a given time.
type slowRows struct {
	Store

	mu    sync.Mutex // protects the fields below
	took  time.Duration
	first int64 // ticket of the first batch at this speed; 0 = none yet
}

func (r *slowRows) slow(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took, r.first = took, 0
}

func (r *slowRows) speed() (took time.Duration, first int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.took, r.first
}

func (r *slowRows) CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	r.mu.Lock()
	took := r.took
	if r.first == 0 {
		r.first = p.Requests[0].Ticket
	}
	r.mu.Unlock()
	service.Sleep(ctx, took) // before the commit: nobody sees it earlier
	return r.Store.CouponSettle(ctx, p)
}

// promptRows settle every request of one template at once.
type promptRows struct {
	Store
	template reward.CouponTemplate
}

func (r *promptRows) CouponSettle(_ context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	out := store.CouponSettleResult{Results: make([]store.RequestResult, len(p.Requests))}
	for i := range out.Results {
		out.Results[i] = store.RequestResult{Outcome: rules.RequestIssued}
	}
	t := &r.template
	out.From = t.Version
	t.Version++
	t.Settled += int64(len(p.Requests))
	t.Live, t.IssuedTotal = t.Settled, t.Settled
	out.To, out.Template = t.Version, *t
	return out, nil
}

// promise is a wait that somebody was told.
type promise struct {
	at       time.Time
	wait     time.Duration
	took     time.Duration // of a batch, at that time
	batches  int64         // that had been settled at that speed
	servedAt time.Time
	slowed   bool // the database had slowed down when they were served
}

// linePeople is the length of the line that honest follows.
const linePeople = 16 * batchMax

// honest follows a line of 16 batches, in which the database slows down fivefold after
// six, and compares the waits that people were told after each batch with the real
// ones. It leaves out those who were told before the second batch of a speed, or were
// served at another speed, or are served within two batches, because a batch is served
// all at once. It returns how many it compared at each speed, and which were more than
// 30 % off.
func honest(t testing.TB, id reward.TemplateID, g gate.Gate, rows *slowRows, batch time.Duration) (compared map[time.Duration]int, wrong []string) {
	t.Helper()
	var users []string
	for n := 0; n < linePeople; n += batchMax / 2 {
		users = append(users, fmt.Sprint("u", n))
	}
	told := make(map[string][]promise)
	front := int64(0) // the lowest ticket in line
	for deadline := time.Now().Add(fixture.Patience); len(users) > 0; {
		time.Sleep(batch / 50) // polls the line
		if time.Now().After(deadline) {
			t.Fatalf("%d people still wait", len(users))
		}
		now := time.Now()
		took, first := rows.speed()
		p := fixture.Must(g.Positions(t.Context(), id, users))(t)
		left := 0
		for ; left < len(users) && !p.Positions[left].InLine; left++ {
			list := told[users[left]]
			for k := range list {
				list[k].servedAt, list[k].slowed = now, took > batch
			}
		}
		users = users[left:]
		if len(users) == 0 || p.Positions[left].Ticket == front {
			continue // nobody has left: nothing new is told
		}
		front = p.Positions[left].Ticket
		one := promise{at: now, took: took}
		if first > 0 {
			one.batches = (front - first) / batchMax
		}
		for i, user := range users {
			one.wait = waitOf(p.Positions[left+i].Rank, p.ServiceTime)
			told[user] = append(told[user], one)
		}
		if len(users) <= 2*10 && took == batch {
			rows.slow(5 * batch)
		}
	}
	compared = make(map[time.Duration]int)
	for user, list := range told {
		for _, one := range list {
			real := one.servedAt.Sub(one.at)
			if one.batches < 2 || one.slowed != (one.took > batch) || real < 2*one.took+one.took/2 {
				continue
			}
			compared[one.took]++
			if share := float64(one.wait) / float64(real); share < 0.7 || share > 1.3 {
				wrong = append(wrong, fmt.Sprintf("%s was told %v after %d batches of %v, and waited %v", user, one.wait, one.batches, one.took, real))
			}
		}
	}
	return compared, wrong
}

// TestWaitsAreHonest checks with fake time that the waits people are told are within
// 30 % of the real ones.
func TestWaitsAreHonest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := fixture.Must(obs.NewLog(io.Discard, "error", "text"))(t)
		template := reward.CouponTemplate{
			ID: 42, TotalQuantity: 1_000_000, PerUserLimit: 1, Mode: reward.ModeStream, Generation: 1, Path: reward.PathGate,
			Granted: 1_000_000, Grants: 1,
		}
		g := loadedMemory(t, &template)
		rows := &slowRows{Store: &promptRows{template: template}}
		templates := gatekeeper.NewTemplateCache(&outcomeRows{template: template}, time.Hour, log)
		p := parts{
			instance: "me", rows: rows, gate: g, templates: templates, ids: service.NewIDs(), log: log, settled: func(reward.TemplateID) {},
		}
		p.applier = gatekeeper.New(gatekeeper.Config{Store: rows, Gate: g}).Applier
		issuer := &Issuer{parts: p, id: 42, hint: service.NewHint()}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { issuer.run(ctx) })

		// The very first request meets a cold database.
		rows.slow(5 * time.Second)
		admit(t, g, 42, "first")
		issuer.hint.Give()
		time.Sleep(6 * time.Second)
		rows.slow(100 * time.Millisecond)
		for n := range linePeople {
			admit(t, g, 42, fmt.Sprint("u", n))
		}
		issuer.hint.Give()
		compared, wrong := honest(t, 42, g, rows, 100*time.Millisecond)
		if len(wrong) > 0 || compared[100*time.Millisecond] < 2 || compared[500*time.Millisecond] < 30 {
			t.Errorf("compared %v; %v", compared, wrong)
		}
		cancel()
		running.Wait()
		g.Close()
	})
}

func admit(t testing.TB, g gate.Gate, id reward.TemplateID, users ...string) {
	t.Helper()
	result, err := g.Admit(t.Context(), id, users, true)
	if err != nil || slices.ContainsFunc(result.Answers, func(a gate.Answer) bool { return a.Verdict != gate.Admitted }) {
		t.Fatalf("%+v, %v", result.Answers, err)
	}
}

// TestWaitsAreToldBeforeAnythingIsMeasured checks that also the first request of an idle
// template gets an estimate.
func TestWaitsAreToldBeforeAnythingIsMeasured(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rank          int64
		service, want time.Duration
	}{
		{0, 0, 10 * time.Millisecond},
		{99, 0, 100 * time.Millisecond},
		{1500, 0, 2 * time.Second},
		{0, 50 * time.Microsecond, 10 * time.Millisecond},
		{0, 50 * time.Millisecond, 50 * time.Millisecond},
		{999, time.Millisecond, time.Second},
	} {
		if got := waitOf(tt.rank, tt.service); got != tt.want {
			t.Errorf("rank %d at %v per request: %v, want %v", tt.rank, tt.service, got, tt.want)
		}
	}
	each(t, func(r *rig) {
		r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 10})
		for n := range 2 {
			s, code := r.request(r.instances[0], id, "u")
			if code != "" || s.Kind != StatusWaiting || s.Duplicate != (n > 0) || s.Wait != waitMin {
				r.Errorf("%q %+v", code, s)
			}
		}
	})
}
