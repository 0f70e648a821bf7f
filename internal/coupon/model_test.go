package coupon

import (
	"database/sql"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// TestModel compares a small model with random steps: requests, leaves, issuers of
// which some are stale, cancels, holds that are confirmed or end, lost applies, lost
// data, crashes, changes of the quantity and rounds of the gatekeeper.
// TestNightlyModelAtLength takes more steps.
func TestModel(t *testing.T) {
	t.Parallel()
	exerciseModel(t, 40)
}

// exerciseModel takes this many steps per run; rapid makes thirty runs by default.
func exerciseModel(t *testing.T, steps int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows.db")
	rows := openSQLiteAt(t, path)
	clock := fixture.Must(sql.Open("sqlite", path+"?_pragma=busy_timeout(10000)"))(t)
	t.Cleanup(func() { _ = clock.Close() })
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(rt, rows)
		m.clock = clock
		defer m.memory.close()
		for _, step := range rapid.SliceOfN(rapid.Uint16(), steps, steps).Draw(rt, "steps") {
			m.step(int(step))
		}
		m.settle()
	})
}

// model holds the expected state: the users in line, the coupons of each user, and the
// stock.
type model struct {
	queued map[string]bool
	held   map[string]int
	live   int
	total  int
	limit  int
}

func (m *model) inStock() bool { return m.live+len(m.queued) < m.total }

// machine drives the parts of an instance one step at a time.
type machine struct {
	*hand
	model
	clock       *sql.DB   // moves the ends of holds into the past
	epochs      []*Issuer // the last one has the epoch
	seen        int64     // tickets whose outcome the model knows
	loseApplies bool      // applies are lost
	reissue     bool      // a cancelled coupon does not count against the limit
	sync        bool
	holds       bool // coupons are held
}

const modelUsers = 8

func newMachine(rt *rapid.T, rows Store) *machine {
	m := &machine{model: model{
		queued: make(map[string]bool), held: make(map[string]int),
		total: rapid.IntRange(1, 6).Draw(rt, "total"), limit: rapid.IntRange(1, 2).Draw(rt, "limit"),
	}}
	m.reissue = rapid.Bool().Draw(rt, "re-issue")
	m.sync = rapid.IntRange(0, 9).Draw(rt, "mode") == 0
	template := reward.CouponTemplate{
		TotalQuantity: int64(m.total), PerUserLimit: m.limit, ReissueAfterCancel: m.reissue, WhenRedisAway: reward.FallbackWait,
	}
	if m.holds = rapid.Bool().Draw(rt, "holds"); m.holds {
		template.HoldFor = time.Hour
	}
	if m.sync {
		template.Mode = reward.ModeSync
	}
	m.hand = handOf(rt, rows, template)
	m.epochs = []*Issuer{m.issuer}
	return m
}

// step takes the step of a number.
func (m *machine) step(n int) {
	user := fmt.Sprint("u", n/32%modelUsers)
	switch n % 32 {
	default: // most steps
		m.request(user)
	case 10, 11, 12, 13, 14:
		m.issue(m.epochs[len(m.epochs)-1], n/32%2 == 0)
	case 15:
		m.issue(m.epochs[n/32%len(m.epochs)], true) // possibly a stale one
	case 16:
		m.takeEpoch()
	case 17, 18, 19:
		m.cancel(n / 32)
	case 20:
		m.memory.lose()
		clear(m.queued) // the line is lost, except for settled requests
		m.learn()
	case 21:
		m.setApplies(false)
	case 22:
		m.setApplies(true)
	case 23, 24, 25:
		m.maintain()
	case 26:
		// A consumer reads requests and crashes.
		_, err := m.gate.Read(m.Context(), m.id, "ghost", 1+n/32%3)
		m.must(gatekeeper.Ignore(err, gate.ErrNotLoaded))
	case 27:
		m.resize(1 + n/32%6)
	case 28:
		m.use(n / 32)
	case 29:
		m.confirm(n / 32)
	case 30:
		m.endHold(n / 32)
	case 31:
		m.sweep()
	case 8:
		m.leave(user)
	case 9:
		m.leaveAndCrash(user)
	}
	m.learn()
	if m.live > m.total {
		m.Fatalf("%d live of %d", m.live, m.total)
	}
}

func (m *machine) request(user string) {
	inStock, waits := m.inStock(), m.queued[user]
	status, err := m.Intake.Request(m.Context(), IssueCommand{TemplateID: m.id, UserID: user})
	var e *reward.Error
	switch {
	case err == nil && status.Kind == StatusWaiting:
		if status.Duplicate {
			break // admitted before; the outcome may not be applied yet
		}
		if waits {
			m.Fatalf("%s was admitted twice", user)
		}
		if !inStock {
			m.Fatalf("%s was admitted, with %d live and %d waiting of %d", user, m.live, len(m.queued), m.total)
		}
		if m.held[user] >= m.limit {
			m.Fatalf("%s was admitted beyond the limit", user)
		}
		m.queued[user] = true
	case err == nil && status.Duplicate:
		if m.held[user] == 0 || m.limit != 1 {
			m.Fatalf("%s got the status of a coupon they do not have: %+v", user, status)
		}
	case err == nil:
		if !inStock {
			m.Fatalf("%s got a coupon, with %d live of %d", user, m.live, m.total)
		}
	case errors.As(err, &e) && e.Code == reward.CodeUserLimit:
		if m.held[user] < m.limit && !m.behind() {
			m.Fatalf("%s was refused by a limit that they have not reached", user)
		}
	case errors.As(err, &e) && e.Code == reward.CodeSoldOut:
		if inStock && !m.behind() {
			m.Fatalf("%s was refused as sold out, with %d live and %d waiting of %d", user, m.live, len(m.queued), m.total)
		}
	case errors.As(err, &e) && e.Code == reward.CodeUnavailable && m.loseApplies:
		// The user has cancelled, and the cancel cannot be applied.
	default:
		m.Fatal(err)
	}
}

// leave lets a user leave the line.
func (m *machine) leave(user string) {
	waits := m.queued[user]
	err := m.Intake.Leave(m.Context(), m.id, user)
	switch {
	case err == nil:
		delete(m.queued, user) // or the user left before
		if !m.loseApplies && m.inLine(user) {
			m.Fatalf("%s has left and is in line", user)
		}
	case reward.HasCode(err, reward.CodeRequestEnded), reward.HasCode(err, reward.CodeRequestUnknown):
		if waits {
			m.Fatalf("%s waits and cannot leave: %v", user, err)
		}
	default:
		m.Fatal(err)
	}
}

// leaveAndCrash stores that a user leaves, and does not apply it to the gate.
func (m *machine) leaveAndCrash(user string) {
	place, err := m.gate.Place(m.Context(), m.id, user)
	if errors.Is(err, gate.ErrNotLoaded) {
		return
	}
	m.must(err)
	if !place.InLine {
		return
	}
	result, err := m.rows.CouponLeave(m.Context(), store.CouponLeaveParams{TemplateID: m.id, Now: time.Now(), Leave: rules.Leave{
		UserID: user, Ticket: place.Ticket, Generation: place.Generation, GateGeneration: place.GateGeneration,
	}})
	m.must(err)
	if result.Outcome == rules.LeaveDone {
		if !m.queued[user] {
			m.Fatalf("%s left without waiting", user)
		}
		delete(m.queued, user)
	}
}

func (m *machine) inLine(user string) bool {
	place, err := m.gate.Place(m.Context(), m.id, user)
	m.must(gatekeeper.Ignore(err, gate.ErrNotLoaded))
	return place.InLine
}

// behind reports whether the gate is behind the rows.
func (m *machine) behind() bool { return m.header().Version < m.row().Version }

func (m *machine) issue(i *Issuer, claim bool) {
	_, err := i.round(m.Context(), claim)
	if err != nil && !errors.Is(err, errEpochLost) && !errors.Is(err, errStale) && !errors.Is(err, errGap) {
		m.Fatal(err)
	}
}

func (m *machine) takeEpoch() {
	if len(m.epochs) == 3 {
		m.epochs = m.epochs[1:]
	}
	m.epochs = append(m.epochs, m.newIssuer())
}

// learn brings the model to the outcomes in the rows.
func (m *machine) learn() {
	list, err := m.rows.CouponList(m.Context(), store.CouponListParams{TemplateID: m.id, After: store.CouponPlace{Ticket: m.seen, Generation: math.MaxInt64}, Limit: store.BatchMax})
	m.must(err)
	for _, c := range list {
		m.live++
		m.held[c.UserID]++
		delete(m.queued, c.UserID)
		if m.held[c.UserID] > m.limit {
			m.Fatalf("%s has %d", c.UserID, m.held[c.UserID])
		}
	}
	t := m.row()
	if t.Settled < m.seen {
		m.Fatalf("settled went from %d to %d", m.seen, t.Settled)
	}
	var waiting []string
	for user := range m.queued {
		waiting = append(waiting, user)
	}
	outcomes, err := m.rows.IssueOutcomes(m.Context(), m.id, waiting)
	m.must(err)
	for user, o := range outcomes {
		if !o.Issued() && !o.Left() && o.Ticket > m.seen {
			delete(m.queued, user)
		}
	}
	m.seen = t.Settled
}

func (m *machine) coupon(n int) (reward.Coupon, bool) {
	list, err := m.rows.CouponList(m.Context(), store.CouponListParams{TemplateID: m.id, Limit: store.BatchMax})
	m.must(err)
	if len(list) == 0 {
		return reward.Coupon{}, false
	}
	return list[n%len(list)], true
}

func (m *machine) cancel(n int) {
	c, there := m.coupon(n)
	if !there {
		return
	}
	m.learn()
	_, err := m.Catalog.Cancel(m.Context(), c.ID, "ann")
	if c.Status != reward.CouponIssued && c.Status != reward.CouponHeld {
		if err == nil {
			m.Fatalf("a coupon that is %s was cancelled", c.Status)
		}
		return
	}
	m.must(err)
	m.free(c)
}

// free counts a coupon whose place is free again.
func (m *machine) free(c reward.Coupon) {
	m.live--
	if m.reissue {
		m.held[c.UserID]--
	}
}

// ended reports whether the hold of a coupon has ended.
func ended(c reward.Coupon) bool {
	return c.Status == reward.CouponHeld && time.Until(c.HeldUntil) < 0
}

// endHold ends the hold of a coupon; nobody has noticed yet.
func (m *machine) endHold(n int) {
	if c, there := m.coupon(n); there {
		_, err := m.clock.ExecContext(m.Context(), `UPDATE coupons SET held_until = 1 WHERE id = ? AND status = 4`, int64(c.ID))
		m.must(err)
	}
}

func (m *machine) confirm(n int) {
	c, there := m.coupon(n)
	if !there {
		return
	}
	after, err := m.Catalog.Confirm(m.Context(), c.ID)
	switch {
	case c.Status == reward.CouponIssued, c.Status == reward.CouponHeld && !ended(c):
		m.must(err)
		if after.Status != reward.CouponIssued {
			m.Fatalf("a coupon that was %s is %s after its confirmation", c.Status, after.Status)
		}
	case ended(c), c.CancelReason == reward.ReasonHoldExpired:
		if !reward.HasCode(err, reward.CodeHoldExpired) {
			m.Fatalf("the confirmation of a hold that has ended: %v", err)
		}
	case err == nil:
		m.Fatalf("a coupon that is %s was confirmed", c.Status)
	}
}

// sweep cancels the coupons whose hold has ended. Two instances do it, one after
// the other; the race is tested on the store.
func (m *machine) sweep() {
	m.learn()
	list, err := m.rows.CouponList(m.Context(), store.CouponListParams{TemplateID: m.id, Limit: store.BatchMax})
	m.must(err)
	for range 2 {
		_, err := m.Flow.Catalog.endHolds(m.Context())
		m.must(err)
	}
	for _, c := range list {
		if ended(c) {
			m.free(c)
		}
	}
}

func (m *machine) use(n int) {
	if c, there := m.coupon(n); there && c.Status == reward.CouponIssued {
		_, err := m.Catalog.Use(m.Context(), c.ID)
		m.must(err)
	}
}

func (m *machine) resize(total int) {
	n := int64(total)
	_, err := m.Catalog.Change(m.Context(), rules.TemplateChange{ID: m.id, TotalQuantity: &n})
	switch {
	case err == nil:
		if total < m.live+len(m.queued) {
			m.Fatalf("%d is below %d live and %d waiting", total, m.live, len(m.queued))
		}
		m.total = total
	case !reward.HasCode(err, reward.CodeConflict):
		m.Fatal(err)
	}
}

// maintain makes the gatekeeper catch up at once.
func (m *machine) maintain() {
	if h := m.header(); h.Exists {
		m.must(gatekeeper.Ignore(m.loader.Ensure(m.Context(), m.id), gatekeeper.ErrNotNow))
		m.must(m.applier.CatchUp(m.Context(), m.id, h.Version))
	}
}

// setApplies decides whether applies reach the gate.
func (m *machine) setApplies(work bool) {
	m.loseApplies = !work
	m.gate.set(func(g *faultyGate) { g.loseApply = !work })
}

// settle lets all requests be settled, and compares rows, gate and model.
func (m *machine) settle() {
	m.setApplies(true)
	m.takeEpoch()
	m.sweep()
	for n := 0; ; n++ {
		m.maintain()
		m.issue(m.epochs[len(m.epochs)-1], n%2 == 0)
		m.learn()
		h, t := m.header(), m.row()
		if !h.Exists || h.Backlog == 0 && h.Waiting == 0 && h.Version == t.Version {
			break
		}
		if n > 100 {
			m.Fatalf("requests are never settled: %+v, row %+v", h, t)
		}
	}
	if len(m.queued) > 0 {
		m.Fatalf("still wait: %v", m.queued)
	}
	count, err := m.rows.CouponRecount(m.Context(), m.id)
	m.must(err)
	if count.Live != int64(m.live) || count.KeptLive != count.Live || count.IssuedTotal != count.KeptIssuedTotal {
		m.Fatalf("%+v, and the model has %d live", count, m.live)
	}
	report, err := m.Reconciler.Run(m.Context(), gatekeeper.ReconcileCommand{TemplateID: &m.id})
	if err != nil || len(report.Drifts) > 0 {
		m.Fatalf("%+v, %v", report, err)
	}
	// A user below the limit gets one more while coupons are in stock.
	for u := range modelUsers {
		user := fmt.Sprint("u", u)
		if m.held[user] >= m.limit || !m.inStock() {
			continue
		}
		if _, err := m.Intake.Request(m.Context(), IssueCommand{TemplateID: m.id, UserID: user}); err != nil {
			m.Fatalf("%s is refused with %d live of %d: %v", user, m.live, m.total, err)
		}
		if !m.sync {
			m.queued[user] = true
		}
		m.learn()
	}
}
