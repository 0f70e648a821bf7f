//go:build nightly

package coupon

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TestALongLineOutlivesALoss is TestPromisesThroughLosses with 3,000 users in line. Nobody
// has served them. In STREAM mode those whose requests Redis still has are served in
// their order.
func TestALongLineOutlivesALoss(t *testing.T) {
	t.Parallel()
	for name, open := range lossyServers {
		for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
			t.Run(name+string(mode), func(t *testing.T) {
				t.Parallel()
				exerciseLongLoss(t, mode, name == "Flush", open(t))
			})
		}
	}
}

func exerciseLongLoss(t *testing.T, mode reward.IssueMode, all bool, redis lossy) {
	t.Helper()
	const early, recent, spare = 2000, 1000, 500
	const quantity = early + recent + spare
	r := &rig{TB: t, servers: redis.servers, rows: redis.rows(t)}
	redis.keep()           // a master that gets its first replica counts as another run
	var settle atomic.Bool // in KAFKA mode the records are published, and not read before the loss
	requester := r.start(func(c *FlowConfig) {
		c.Issue, c.FallbackAfter, c.Connected = mode == reward.ModeKafka, patience, settle.Load
	})
	id := r.create(reward.CouponTemplate{TotalQuantity: quantity, Mode: mode})
	kept := r.rush(requester, id, "kept", early)
	tickets := r.inLine(requester, id)
	redis.keep()
	late := r.rush(requester, id, "late", recent)
	if len(kept) != early || len(late) != recent || len(r.inLine(requester, id)) != early+recent {
		t.Fatalf("%d and %d users were admitted, %d are in line", len(kept), len(late), len(r.inLine(requester, id)))
	}
	redis.lose()
	settle.Store(true)
	issuer := r.start(func(c *FlowConfig) { c.FallbackAfter = patience })
	lost := make(map[string]bool)
	for _, user := range slices.Concat(kept, late) {
		var got Status
		var err error
		r.until("the outcome of "+user, func() bool {
			got, err = issuer.Intake.Status(t.Context(), id, user)
			return err == nil && got.Kind != StatusWaiting || reward.HasCode(err, reward.CodeRequestUnknown)
		})
		switch {
		case err == nil && got.Kind != StatusIssued:
			t.Errorf("%s was told to wait, and then %+v", user, got)
		case err != nil && (mode == reward.ModeKafka || !all && strings.HasPrefix(user, "kept")):
			t.Errorf("%s was told to wait, and nothing that was lost was about this request: %v", user, err)
		case err != nil:
			lost[user] = true
		}
	}
	if want := map[bool]int{true: early + recent, false: recent}[all]; mode == reward.ModeStream && len(lost) != want {
		t.Errorf("Redis lost the requests of %d users, want %d", len(lost), want)
	}
	for name, users := range map[string]int{"kept": early, "late": recent} { // a repeat of those who have a coupon
		if got := r.rush(issuer, id, name, users); len(got) != users {
			t.Errorf("%d of %d users %s who requested again were admitted", len(got), users, name)
		}
	}
	if got := r.rush(issuer, id, "new", 2*spare); len(got) != spare {
		t.Errorf("%d newcomers were admitted, want %d", len(got), spare)
	}
	r.until("all are issued", func() bool { return len(r.coupons(id)) == quantity })
	users, last := make(map[string]bool), int64(0)
	for _, c := range r.coupons(id) {
		users[c.UserID] = true
		if was, known := tickets[c.UserID]; known && mode == reward.ModeStream && !lost[c.UserID] {
			if was < last {
				t.Errorf("%s had ticket %d, and was served after ticket %d", c.UserID, was, last)
			}
			last = was
		}
	}
	if len(users) != quantity || slices.ContainsFunc(slices.Concat(kept, late), func(u string) bool { return !users[u] }) {
		t.Errorf("%d coupons of %d users, and not everyone who was told to wait has one", quantity, len(users))
	}
	r.balanced(id)
	t.Logf("Redis lost %d users of %d, who requested again", len(lost), early+recent)
}

// longLine is a line of 3,000 users that nobody serves.
type longLine struct {
	*rig
	id      reward.TemplateID
	at      *instance
	tickets map[string]int64 // of the users
}

const longLineUsers = 3000

func newLongLine(t *testing.T) *longLine {
	t.Helper()
	s := openServers(t, "LARGESSE_TEST_REDIS")
	l := &longLine{rig: &rig{TB: t, servers: s, rows: s.rows(t)}}
	l.at = l.start(withoutIssuer)
	l.id = l.create(reward.CouponTemplate{TotalQuantity: 20_000, PerUserLimit: 1})
	l.rush(l.at, l.id, "line", longLineUsers)
	if l.tickets = l.inLine(l.at, l.id); len(l.tickets) != longLineUsers {
		t.Fatalf("%d users are in line", len(l.tickets))
	}
	return l
}

// others requests coupons through the database for users, who must get them.
func (l *longLine) others(users int) (list []reward.Coupon) {
	l.Helper()
	for n := range users {
		s, code := l.request(l.at, l.id, fmt.Sprint("other", n))
		if code != "" || s.Kind != StatusIssued {
			l.Fatalf("through the database: %q %+v", code, s)
		}
		list = append(list, s.Coupon)
	}
	return list
}

// served checks that everyone in line gets a coupon, in the order of the line.
func (l *longLine) served() {
	l.Helper()
	began := time.Now()
	l.start()
	l.rig.served(l.id, slices.Collect(maps.Keys(l.tickets)))
	last := int64(0)
	for _, c := range l.coupons(l.id) {
		if was, known := l.tickets[c.UserID]; known {
			if was < last {
				l.Errorf("%s had ticket %d, and was served after ticket %d", c.UserID, was, last)
			}
			last = was
		}
	}
	l.balanced(l.id)
	l.Logf("the line was served in %v", time.Since(began))
}

// stuckRows never read a snapshot.
type stuckRows struct{ store.Store }

func (stuckRows) CouponSnapshot(ctx context.Context, _ reward.TemplateID, _ func(reward.CouponTemplate) error, _ func([]store.CouponHolding) error) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// TestALoaderDiesBeforeAnOutageWithALongLine checks that a line outlives a loader that
// crashes after it has raised the generation, and the outage that follows, in which
// others get coupons through the database.
func TestALoaderDiesBeforeAnOutageWithALongLine(t *testing.T) {
	t.Parallel()
	l := newLongLine(t)
	before := l.stateAt(l.id)
	dies := l.start(func(c *FlowConfig) { c.Issue, c.Store = false, stuckRows{c.Store} })
	ctx, stop := context.WithCancel(t.Context())
	loaded := make(chan error, 1)
	go func() { loaded <- dies.loader.reload(ctx, l.id, before.Version+1) }()
	l.until("the loader has raised the generation", func() bool { return l.stateAt(l.id).Generation > before.Generation })
	dies.stop()
	stop()
	if err := <-loaded; err == nil {
		t.Fatal("it loaded the gate")
	}
	l.at.gate.set(func(g *faultyGate) { g.down = true })
	l.onPath(l.id, reward.PathDatabase)
	l.others(1000)
	l.at.gate.set(func(g *faultyGate) { g.down = false })
	l.served()
}

// TestCancelsDuringAnOutageWithALongLine checks that a line outlives the cancels of
// coupons that were issued through the database, although the instance that cancels
// reaches Redis.
func TestCancelsDuringAnOutageWithALongLine(t *testing.T) {
	t.Parallel()
	l := newLongLine(t)
	if _, moved, err := l.rows.TemplateNewGeneration(t.Context(), store.TemplateNewGenerationParams{ID: l.id, From: -1, Path: reward.PathDatabase}); err != nil || !moved {
		t.Fatal(moved, err)
	}
	l.until("the instance knows", func() bool {
		row, err := l.at.templates.get(t.Context(), l.id)
		return err == nil && row.Path == reward.PathDatabase
	})
	for _, c := range l.others(1000) {
		if _, err := l.at.Catalog.Cancel(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
	}
	headers, err := l.at.gate.Headers(t.Context(), []reward.TemplateID{l.id})
	if err != nil || headers[0].Waiting != longLineUsers {
		t.Errorf("%d of %d users are still in line, %v", headers[0].Waiting, longLineUsers, err)
	}
	l.served()
}
