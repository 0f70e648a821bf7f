package coupon

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// checker has the methods that testing.TB and rapid.T share.
type checker interface {
	Helper()
	Log(args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

// hand is an instance whose loops do not run: a test makes their steps one by one.
type hand struct {
	checker
	*Flow
	rows   Store
	memory *losableGate
	gate   *faultyGate
	id     reward.TemplateID
	issuer *Issuer
}

// newHand returns a hand with a template. change may wrap its rows.
func newHand(t *testing.T, template reward.CouponTemplate, change func(Store) Store) *hand {
	t.Helper()
	var rows Store = openSQLite(t)
	if change != nil {
		rows = change(rows)
	}
	h := handOf(t, rows, template)
	t.Cleanup(h.memory.close)
	return h
}

// handOf returns a hand with these rows. The test closes its memory.
func handOf(t checker, rows Store, template reward.CouponTemplate) *hand {
	t.Helper()
	g := newLosableGate()
	h := &hand{checker: t, rows: rows, memory: g, gate: g.gate(nil)}
	var err error
	h.Flow, err = NewFlow(FlowConfig{Store: rows, Gate: h.gate, Instance: "i", Concurrency: 1, FallbackAfter: 3 * time.Second, LockWait: time.Second, LockLease: time.Second})
	h.must(err)
	template.Name = "drop"
	template.PerUserLimit = max(template.PerUserLimit, 1)
	v, err := h.Catalog.Create(h.Context(), template)
	h.must(err)
	h.id = v.ID
	h.issuer = h.newIssuer()
	return h
}

// newIssuer returns an issuer that takes the epoch.
func (h *hand) newIssuer() *Issuer {
	h.Helper()
	epochs, err := h.rows.TemplateAssign(h.Context(), []reward.TemplateID{h.id}, "i")
	h.must(err)
	return &Issuer{parts: h.issuers.parts, id: h.id, epoch: epochs[h.id], hint: service.NewHint()}
}

// row returns the row of the template.
func (h *hand) row() reward.CouponTemplate {
	h.Helper()
	row, err := h.rows.TemplateGet(h.Context(), h.id)
	h.must(err)
	return row
}

func (h *hand) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// request requests a coupon and returns the status.
func (h *hand) request(user string) Status {
	h.Helper()
	s, err := h.Intake.Request(h.Context(), IssueCommand{TemplateID: h.id, UserID: user})
	h.must(err)
	return s
}

// waits requests a coupon of a user who must wait with this ticket.
func (h *hand) waits(user string, ticket int64) {
	h.Helper()
	if s := h.request(user); s.Kind != StatusWaiting || s.Ticket != ticket {
		h.Fatalf("%s: %+v, want ticket %d", user, s, ticket)
	}
}

// move moves the template to a path, as an outage of Redis does.
func (h *hand) move(path reward.IssuePath) {
	h.Helper()
	_, moved, err := h.rows.TemplateNewGeneration(h.Context(), store.TemplateNewGenerationParams{ID: h.id, From: -1, Path: path})
	h.must(err)
	if !moved {
		h.Fatal("the template was not moved")
	}
	_, err = h.templates.Read(h.Context(), h.id)
	h.must(err)
}

// issued lets the issuer work until nothing is left, and returns the users of the
// coupons by ticket.
func (h *hand) issued() []string {
	h.Helper()
	for range 20 {
		for _, claim := range []bool{true, false} {
			if _, err := h.issuer.round(h.Context(), claim); err != nil {
				h.Log(err) // the next round claims
			}
		}
	}
	list, err := h.rows.CouponList(h.Context(), store.CouponListParams{TemplateID: h.id, Limit: store.BatchMax})
	h.must(err)
	var users []string
	for _, c := range list {
		if c.Status != reward.CouponCancelled {
			users = append(users, c.UserID)
		}
	}
	return users
}

func (h *hand) wantIssued(want ...string) {
	h.Helper()
	if got := h.issued(); !slices.Equal(got, want) {
		h.Fatalf("issued to %v, want %v", got, want)
	}
}

// TestACancelDuringAnOutageTakesNobodyOutOfTheLine checks that an apply about coupons
// with another numbering does not reach the gate that the template has left.
func TestACancelDuringAnOutageTakesNobodyOutOfTheLine(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 200}, nil)
	h.waits("ann", 1)
	h.move(reward.PathDatabase)
	s := h.request("bob") // through the database, with ticket 1
	_, err := h.Catalog.Cancel(t.Context(), s.Coupon.ID, "ann")
	h.must(err)
	h.must(h.loader.LeaveDatabase(t.Context(), h.id))
	h.waits("ann", 2)
	h.wantIssued("ann")
}

// TestALoaderCrashesBeforeAnOutage checks that the users of a gate that is a generation
// behind when an outage begins still wait when it ends.
func TestALoaderCrashesBeforeAnOutage(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 200}, nil)
	h.waits("ann", 1)
	h.move(reward.PathGate) // a loader raised the generation and crashed
	h.move(reward.PathDatabase)
	h.request("bob")
	h.must(h.loader.LeaveDatabase(t.Context(), h.id))
	h.waits("ann", 2)
	h.wantIssued("bob", "ann")
}

// TestAnOutageWithoutRequestsKeepsTheTickets checks that a template that issued nothing
// through the database returns to its gate as it was.
func TestAnOutageWithoutRequestsKeepsTheTickets(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 200}, nil)
	h.waits("ann", 1)
	h.waits("bob", 2)
	h.wantIssued("ann", "bob")
	h.waits("cid", 3)
	h.waits("dan", 4)
	h.move(reward.PathDatabase)
	h.must(h.loader.LeaveDatabase(t.Context(), h.id))
	h.waits("dan", 4)
	h.wantIssued("ann", "bob", "cid", "dan")
}

// TestAnswersThroughTheDatabaseCountForTheLine checks that a user in line who got a
// coupon through the database gets no second one for the same request.
func TestAnswersThroughTheDatabaseCountForTheLine(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 200, PerUserLimit: 2}, nil)
	h.waits("ann", 1)
	h.waits("bob", 2)
	h.move(reward.PathDatabase)
	if s := h.request("ann"); s.Kind != StatusIssued {
		t.Fatalf("%+v", s)
	}
	h.must(h.loader.LeaveDatabase(t.Context(), h.id))
	h.wantIssued("ann", "bob")
}

// snapshotRows call a function right before each snapshot of a load.
type snapshotRows struct {
	Store
	before func()
}

func (r *snapshotRows) CouponSnapshot(
	ctx context.Context, id reward.TemplateID, begin func(reward.CouponTemplate) error, facts func([]store.CouponHolding) error,
) error {
	r.before()
	return r.Store.CouponSnapshot(ctx, id, begin, facts)
}

// newSnapshotHand returns a hand with snapshotRows.
func newSnapshotHand(t *testing.T) (*hand, *snapshotRows) {
	t.Helper()
	rows := &snapshotRows{before: func() {}}
	return newHand(t, reward.CouponTemplate{TotalQuantity: 200}, func(s Store) Store {
		rows.Store = s
		return rows
	}), rows
}

// TestARemakeDuringALoad checks that the lost requests of a line are written again although
// a load runs that keeps the line, and that this is done once.
func TestARemakeDuringALoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, rows := newSnapshotHand(t)
		h.waits("ann", 1)
		h.waits("bob", 2)
		lost := h.header().Generation
		h.move(reward.PathGate)
		held := make(chan struct{})
		rows.before = func() { <-held }
		var loads sync.WaitGroup
		loads.Go(func() { h.must(h.loader.Ensure(t.Context(), h.id)) })
		synctest.Wait() // the load waits for its snapshot
		fixture.Must(h.gate.Ack(t.Context(), h.id, lost, []int64{2}))(t)
		for range 3 {
			loads.Go(func() { h.must(h.loader.Remake(t.Context(), h.id, lost)) })
		}
		synctest.Wait() // they wait for that load
		close(held)
		loads.Wait()
		after := h.header()
		if after.Backlog != 2 || after.Waiting != 2 || after.Generation != lost+3 { // moved, loaded, made again
			t.Errorf("%+v", after)
		}
		h.must(h.loader.Remake(t.Context(), h.id, lost))
		if again := h.header(); again.Generation != after.Generation {
			t.Errorf("made again twice: %+v", again)
		}
		h.wantIssued("ann", "bob")
	})
}

// TestASnapshotOfAnotherGenerationIsNotLoaded checks that a loader gives up if the
// generation is raised before its snapshot.
func TestASnapshotOfAnotherGenerationIsNotLoaded(t *testing.T) {
	t.Parallel()
	h, rows := newSnapshotHand(t)
	h.waits("ann", 1)
	h.move(reward.PathGate)
	rows.before = func() {
		rows.before = func() {}
		for _, path := range []reward.IssuePath{reward.PathGate, reward.PathDatabase} {
			if _, _, err := rows.TemplateNewGeneration(t.Context(), store.TemplateNewGenerationParams{ID: h.id, From: -1, Path: path}); err != nil {
				t.Error(err)
			}
		}
	}
	if err := h.loader.Ensure(t.Context(), h.id); err == nil {
		t.Fatal("a gate was loaded although the template is on the database path")
	}
	if g := h.header(); g.Loaded || g.Generation != 1 || g.Waiting != 1 {
		t.Fatalf("header %+v", g)
	}
	if s := h.request("bob"); s.Kind != StatusIssued {
		t.Fatalf("through the database: %+v", s)
	}
	h.must(h.loader.LeaveDatabase(t.Context(), h.id))
	h.wantIssued("bob", "ann")
}

// TestHandsOfAnEarlierGateAreRefused checks that requests read from a gate are not
// settled once the generation is raised, although a load may keep them.
func TestHandsOfAnEarlierGateAreRefused(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 200}, nil)
	h.waits("ann", 1)
	h.waits("bob", 2)
	read, err := h.gate.Read(t.Context(), h.id, "i", 10)
	h.must(err)
	h.move(reward.PathGate)
	if _, err := h.issuer.commit(t.Context(), read); err == nil {
		t.Fatal("requests of an earlier gate were settled")
	}
	// The load that follows keeps the requests, and the issuer claims them.
	h.waits("bob", 2)
	h.wantIssued("ann", "bob")
	if c, err := h.rows.CouponList(t.Context(), store.CouponListParams{TemplateID: h.id, Limit: 2}); err != nil || c[0].Generation != 1 {
		t.Fatalf("%+v, %v: the request must keep its generation", c, err)
	}
}

// forgetfulPublisher confirms records that it does not publish.
type forgetfulPublisher struct {
	bus.Publisher
	forget atomic.Bool
}

func (p *forgetfulPublisher) Publish(ctx context.Context, records []bus.Record) error {
	if p.forget.Load() {
		return nil
	}
	return p.Publisher.Publish(ctx, records)
}

// TestTheBrokerLosesRecords checks that users whose records the broker has confirmed
// and then lost get their coupons, and newcomers the others.
func TestTheBrokerLosesRecords(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		const lost = 8
		i := r.start()
		publisher := &forgetfulPublisher{Publisher: i.topic.Publisher}
		publisher.forget.Store(true)
		i.topic.Publisher = publisher // no issuer runs yet
		id := r.create(reward.CouponTemplate{TotalQuantity: lost + 2, Mode: reward.ModeKafka})
		for n := range lost {
			if s, code := r.request(i, id, fmt.Sprint("u", n)); code != "" || s.Kind != StatusWaiting {
				r.Fatalf("%q %+v", code, s)
			}
		}
		publisher.forget.Store(false)
		for n := range lost {
			if s := r.outcome(i, id, fmt.Sprint("u", n)); s.Kind != StatusIssued {
				r.Fatalf("%+v", s)
			}
		}
		r.take(i, id, "bob")
		r.take(i, id, "cid")
		r.want(i, id, "dan", reward.CodeSoldOut)
		r.balanced(id)
	})
}

// TestPlacesOfTheLineAreNotGivenAway checks that users in line keep their places while
// others request coupons through the database, and that the others get what is left: a
// part, also of a small drop.
func TestPlacesOfTheLineAreNotGivenAway(t *testing.T) {
	t.Parallel()
	for quantity, line := range map[int]int{100: 40, 10: 1, 2: 1} {
		t.Run(fmt.Sprintf("%d of %d", line, quantity), func(t *testing.T) {
			t.Parallel()
			h := newHand(t, reward.CouponTemplate{TotalQuantity: int64(quantity)}, nil)
			for n := range line {
				h.waits(fmt.Sprint("line", n), int64(n+1))
			}
			row := h.row()
			if free := int64(quantity-line) / 2; row.Promised() < int64(line) || row.TotalQuantity-row.Promised() < max(free, 1) {
				t.Fatalf("%d places of %d are promised to %d users", row.Promised(), quantity, line)
			}
			h.move(reward.PathDatabase)
			issued, promised := 0, 0
			for n := range quantity {
				_, err := h.Intake.Request(t.Context(), IssueCommand{TemplateID: h.id, UserID: fmt.Sprint("other", n)})
				switch {
				case err == nil:
					issued++
				case reward.HasCode(err, reward.CodeUnavailable) && strings.Contains(err.Error(), "set aside for its waiting line"):
					promised++
				default:
					t.Fatal(err)
				}
			}
			if want := quantity - int(row.Promised()); issued != want || promised != quantity-want {
				t.Fatalf("%d got one and %d were told to wait; %d places are promised", issued, promised, row.Promised())
			}
			h.must(h.loader.LeaveDatabase(t.Context(), h.id))
			if users := h.issued(); len(users) != issued+line {
				t.Fatalf("%d coupons, want %d", len(users), issued+line)
			}
			for n := range quantity - issued - line { // the rest is for newcomers
				h.waits(fmt.Sprint("new", n), int64(issued+line+1+n))
			}
			if _, err := h.Intake.Request(t.Context(), IssueCommand{TemplateID: h.id, UserID: "late"}); !reward.HasCode(err, reward.CodeSoldOut) {
				t.Fatal(err)
			}
		})
	}
}

// TestAShrinkThatCrashes checks that a gate that gave up its places, while its caller
// crashed, gets them again.
func TestAShrinkThatCrashes(t *testing.T) {
	t.Parallel()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: 3}, nil)
	h.waits("ann", 1)
	fixture.Must(h.gate.Shrink(t.Context(), h.id))(t)
	h.waits("bob", 2)
	h.waits("cid", 3)
	h.wantIssued("ann", "bob", "cid")
}

// TestConcurrentChangesOfTheQuantity checks that everyone who was admitted gets a
// coupon, although several people change the quantity at once.
func TestConcurrentChangesOfTheQuantity(t *testing.T) {
	t.Parallel()
	eachMode(t, lineModes, (*rig).changeTheQuantity)
}

func (r *rig) changeTheQuantity(mode reward.IssueMode) {
	r.startAll(2)
	id := r.create(reward.CouponTemplate{TotalQuantity: 2000, Mode: mode})
	var changing sync.WaitGroup
	stop := make(chan struct{})
	for admin := range 4 {
		changing.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				r.sleep(20 * time.Millisecond)
				total := int64(300 + (n*377+admin*211)%1700)
				i := r.instances[admin%2]
				_, err := i.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: &total})
				if err != nil && !reward.HasCode(err, reward.CodeConflict) {
					r.Errorf("lowering to %d: %v", total, err)
				}
			}
		})
	}
	var admitted []string
	for n := range 60 {
		admitted = append(admitted, r.rush(r.instances[n%2], id, fmt.Sprint("u", n, "-"), 8)...)
		r.sleep(5 * time.Millisecond)
	}
	close(stop)
	changing.Wait()
	for _, user := range admitted {
		if s := r.outcome(r.instances[0], id, user); s.Kind != StatusIssued {
			r.Errorf("%s was admitted, and then %+v", user, s)
		}
	}
	r.balanced(id)
}

// TestWithoutAGate checks a template of instances that share a database and no Redis.
func TestWithoutAGate(t *testing.T) {
	t.Parallel()
	rows := openSQLite(t)
	lost := newLosableGate()
	t.Cleanup(lost.close)
	away := lost.gate(t)
	away.set(func(g *faultyGate) { g.down = true })
	flow := fixture.Must(NewFlow(FlowConfig{Store: rows, Gate: away, NoGate: true, Instance: "i", Concurrency: 1}))(t)
	create := func(fallback reward.RedisFallback) (View, error) {
		return flow.Catalog.Create(t.Context(), reward.CouponTemplate{Name: "drop", TotalQuantity: 10, PerUserLimit: 1, WhenRedisAway: fallback})
	}
	if _, err := create(reward.FallbackWait); !reward.HasCode(err, reward.CodeInvalid) {
		t.Fatalf("a template that would wait forever: %v", err)
	}
	v, err := create("")
	if err != nil {
		t.Fatal(err)
	}
	wait, lower := reward.FallbackWait, int64(5)
	if _, err := flow.Catalog.Change(t.Context(), rules.TemplateChange{ID: v.ID, WhenRedisAway: &wait}); !reward.HasCode(err, reward.CodeInvalid) {
		t.Fatal(err)
	}
	if v, err = flow.Catalog.Change(t.Context(), rules.TemplateChange{ID: v.ID, TotalQuantity: &lower}); err != nil || v.TotalQuantity != 5 {
		t.Fatalf("%+v, %v", v, err)
	}
}

// TestRedisIsRemoved checks that the places that are set aside for a line in Redis
// can be released once no instance has a gate, and not before.
func TestRedisIsRemoved(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		with := r.start(func(c *FlowConfig) { c.FallbackAfter = time.Hour })
		id := r.create(reward.CouponTemplate{TotalQuantity: 10})
		r.take(with, id, "ann")
		if n, err := with.Catalog.ReleasePlaces(r.Context(), id); !reward.HasCode(err, reward.CodeIllegalState) {
			r.Fatalf("with Redis: %d, %v", n, err)
		}
		with.stop()
		without := r.start(func(c *FlowConfig) { c.NoGate = true })
		without.gate.set(func(g *faultyGate) { g.down = true })
		r.onPath(id, reward.PathDatabase)
		for n := range 5 { // the gate was granted at most half of nine
			r.take(without, id, fmt.Sprint("u", n))
		}
		if _, err := without.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: "bob"}); !reward.HasCode(err, reward.CodeUnavailable) {
			r.Errorf("bob found a place that is promised: %v", err)
		}
		lower := int64(8)
		if _, err := without.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: &lower}); !reward.HasCode(err, reward.CodeConflict) {
			r.Errorf("the promised places do not keep the quantity: %v", err)
		}
		for _, want := range []int64{4, 0} { // a repeat releases nothing
			if n, err := without.Catalog.ReleasePlaces(r.Context(), id); err != nil || n != want {
				r.Fatalf("released %d, want %d: %v", n, want, err)
			}
		}
		fixture.Must(without.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: &lower}))(r)
		r.take(without, id, "bob")
		r.take(without, id, "cid")
		r.want(without, id, "late", reward.CodeSoldOut)
	})
}

// TestATicketThatNoGateGave checks that a forged record becomes a dead letter, and does
// not move the tickets of the template.
func TestATicketThatNoGateGave(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: 5, Mode: reward.ModeKafka})
		r.take(i, id, "ann")
		row := fixture.Must(r.rows.TemplateGet(r.Context(), id))(r)
		e := reward.CouponIssueEvent{TemplateID: id, UserID: "eve", Ticket: 1<<63 - 1, Generation: row.Generation, RequestID: reward.RequestID(id, "eve")}
		r.publish(string(e.JSON()))
		r.take(i, id, "bob")
		r.until("it is a dead letter", func() bool {
			letters := fixture.Must(r.rows.DeadLetterList(r.Context(), store.DeadLetterListParams{Limit: 10}))(r)
			return len(letters) == 1 && letters[0].Reason == reward.CodeNeverGiven
		})
		if row, err := r.rows.TemplateGet(r.Context(), id); err != nil || row.Settled > 10 || row.Live != 2 {
			r.Fatalf("%+v, %v", row, err)
		}
		r.balanced(id)
	})
}

// TestLoweringThatGrantsOvertake checks that a quantity is lowered although a user of
// another instance needs a place each time the gate has given up its own.
func TestLoweringThatGrantsOvertake(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		alone := func(c *FlowConfig) { c.Issue, c.Housekeeping = false, false }
		i, other := r.start(alone), r.start(alone)
		id := r.create(reward.CouponTemplate{TotalQuantity: 100_000})
		r.want(i, id, "first", "")
		var requests sync.WaitGroup
		shrinks := 0
		i.gate.set(func(g *faultyGate) {
			g.onShrink = func() {
				shrinks++
				user, answered := fmt.Sprint("u", shrinks), make(chan struct{})
				other.gate.set(func(g *faultyGate) { g.admits = 0 })
				requests.Go(func() {
					defer close(answered)
					r.want(other, id, user, "")
				})
				r.until("the user has a place, or waits for one", func() bool {
					select {
					case <-answered:
						return true
					default:
					}
					waits := false
					// A request that gets a place asks twice.
					other.gate.set(func(g *faultyGate) { waits = g.admits > 2 })
					return waits
				})
			}
		})
		for n := range 3 {
			lower := int64(30 - n)
			if _, err := i.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: &lower}); err != nil {
				r.Errorf("lowering to %d after %d tries: %v", lower, shrinks, err)
			}
			requests.Wait()
		}
		// Or the changing instance crashes after its shrink.
		i.gate.set(func(g *faultyGate) { g.onShrink = nil })
		fixture.OK(r, i.gate.PauseGrants(r.Context(), id, 2*time.Second))
		fixture.Must(i.gate.Shrink(r.Context(), id))(r)
		r.want(other, id, "last", "")
	})
}

// TestLoweringAfterALoss checks that places of users that Redis has lost do not keep the
// quantity from being lowered.
func TestLoweringAfterALoss(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start(func(c *FlowConfig) { c.Issue = false })
		id := r.create(reward.CouponTemplate{TotalQuantity: 100})
		r.want(i, id, "ann", "")
		r.flush(r)
		lower := int64(1)
		fixture.Must(i.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: &lower}))(r)
		r.want(i, id, "bob", "")
		if _, code := r.request(i, id, "ann"); code != reward.CodeSoldOut {
			r.Errorf("ann got %q", code)
		}
	})
}

// withoutPlaces returns a hand with a line of version 1, whose users have no places: its
// migration adds granted, used and grants with 0 to the row, and the gate has none of them.
func withoutPlaces(t *testing.T, total int64, users []string) *hand {
	t.Helper()
	h := newHand(t, reward.CouponTemplate{TotalQuantity: total}, nil)
	for n, user := range users {
		h.waits(user, int64(n+1))
	}
	row := h.row()
	row, done, err := h.rows.TemplateShrink(t.Context(), h.id, rules.Shrunk{Generation: row.Generation, Grants: row.Grants})
	if err != nil || !done || row.Promised() != 0 {
		t.Fatalf("%+v, %v", row, err)
	}
	_, err = h.gate.Apply(t.Context(), gate.ApplyParams{TemplateID: h.id, From: row.Version - 1, State: gatekeeper.StateOf(&row)})
	h.must(err)
	if g := h.header(); int(g.Waiting) != len(users) || g.Granted != g.Used {
		t.Fatalf("%+v", g)
	}
	return h
}

// TestALineWithoutPlacesGetsThem checks that the users of a line without places, as
// after an upgrade, get them before others can.
func TestALineWithoutPlacesGetsThem(t *testing.T) {
	t.Parallel()
	h := withoutPlaces(t, 3, []string{"ann", "bob", "cid"})
	h.must(h.granter.Cover(t.Context(), h.id, h.header()))
	h.move(reward.PathDatabase)
	if _, err := h.Intake.Request(t.Context(), IssueCommand{TemplateID: h.id, UserID: "dan"}); !reward.HasCode(err, reward.CodeUnavailable) {
		t.Fatalf("a newcomer: %v", err)
	}
	h.must(h.loader.LeaveDatabase(t.Context(), h.id))
	h.wantIssued("ann", "bob", "cid")
}

// TestLoweringCoversTheLineOfVersion1 checks that a lower quantity does not take the
// coupons of such users. The gate is loaded already, or not yet.
func TestLoweringCoversTheLineOfVersion1(t *testing.T) {
	t.Parallel()
	for name, loaded := range map[string]bool{"Loaded": true, "NotLoaded": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := withoutPlaces(t, 100, []string{"ann", "bob", "cid"})
				if !loaded {
					begun, err := h.gate.LoadBegin(t.Context(), h.id, "version 1")
					h.must(err)
					h.must(h.gate.LoadClose(t.Context(), gate.Load{TemplateID: h.id, Token: "version 1", Run: begun.Run}))
					time.Sleep(gate.LoadMarkerTTL) // its loader has gone
				}
				for _, total := range []int64{2, 3} {
					_, err := h.Catalog.Change(t.Context(), rules.TemplateChange{ID: h.id, TotalQuantity: &total})
					if (err == nil) != (total == 3) || err != nil && !reward.HasCode(err, reward.CodeConflict) {
						t.Errorf("lowering to %d with 3 in line: %v", total, err)
					}
				}
				h.wantIssued("ann", "bob", "cid")
			})
		})
	}
}
