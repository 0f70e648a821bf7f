package coupon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/sqlite"
)

// TestModel: gate, issuers of which some are stale, cancels, lost applies, lost
// data, crashes, changes of the quantity and the keeper, in any order, against a
// model of a few lines. TestModelAtLength takes more steps.
func TestModel(t *testing.T) {
	t.Parallel()
	exerciseModel(t, 40)
}

// exerciseModel takes so many steps in each run; rapid makes a hundred by itself.
func exerciseModel(t *testing.T, steps int) {
	t.Helper()
	rows, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "rows.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rows.Close)
	if err := rows.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(t.Context(), rt, rows)
		defer m.memory.close()
		for _, step := range rapid.SliceOfN(rapid.Uint16(), steps, steps).Draw(rt, "steps") {
			m.step(int(step))
		}
		m.settle()
	})
}

// model is what should be: who was let in and is not settled, who holds how
// many, what there is.
type model struct {
	waits map[string]bool
	held  map[string]int
	live  int
	total int
	limit int
}

func (m *model) room() bool { return m.live+len(m.waits) < m.total }

// machine drives the parts of an instance by hand, one step at a time.
type machine struct {
	*rapid.T
	model
	ctx     context.Context
	rows    store.Store
	memory  *forgetful
	gate    *faultyGate
	flow    *Flow
	id      reward.TemplateID
	issuers []*Issuer // the last one has the epoch
	seen    int64     // tickets whose outcome the model knows
	deaf    bool      // applies are lost
	again   bool      // whether a cancelled coupon may be had anew
	sync    bool
}

const modelUsers = 8

func newMachine(ctx context.Context, rt *rapid.T, rows store.Store) *machine {
	m := &machine{T: rt, ctx: ctx, rows: rows, memory: newForgetful()}
	m.gate = m.memory.gate(nil)
	flow, err := NewFlow(FlowConfig{
		Store: rows, Gate: m.gate, Instance: "i", Concurrency: 1, LockWait: time.Second, LockLease: time.Second, RefusalTTL: 0,
	})
	if err != nil {
		rt.Fatal(err)
	}
	m.flow = flow
	m.model = model{
		waits: make(map[string]bool), held: make(map[string]int),
		total: rapid.IntRange(1, 6).Draw(rt, "total"), limit: rapid.IntRange(1, 2).Draw(rt, "limit"),
	}
	m.again = rapid.Bool().Draw(rt, "re-issue")
	m.sync = rapid.IntRange(0, 9).Draw(rt, "mode") == 0
	template := reward.CouponTemplate{
		Name: "model", TotalQuantity: int64(m.total), PerUserLimit: m.limit, ReissueAfterCancel: m.again, WhenRedisAway: reward.AwayWait,
	}
	if m.sync {
		template.Mode = reward.ModeSync
	}
	v, err := flow.Catalog.Create(ctx, template)
	if err != nil {
		rt.Fatal(err)
	}
	m.id = v.ID
	m.steal()
	return m
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// step does what a number says.
func (m *machine) step(n int) {
	user := fmt.Sprint("u", n/32%modelUsers)
	switch n % 32 {
	default: // most of all
		m.ask(user)
	case 10, 11, 12, 13, 14:
		m.issue(m.issuers[len(m.issuers)-1], n/32%2 == 0)
	case 15:
		m.issue(m.issuers[n/32%len(m.issuers)], true) // a stale one, perhaps
	case 16:
		m.steal()
	case 17, 18, 19:
		m.cancel(n / 32)
	case 20:
		m.memory.forget()
		clear(m.waits) // whoever waited is lost, unless it is settled already
		m.learn()
	case 21:
		m.hear(false)
	case 22:
		m.hear(true)
	case 23, 24, 25:
		m.keep()
	case 26:
		// Read by somebody who dies with it.
		_, err := m.gate.Read(m.ctx, m.id, "ghost", 1+n/32%3)
		m.must(ignore(err, gate.ErrNotLoaded))
	case 27:
		m.resize(1 + n/32%6)
	case 28:
		m.use(n / 32)
	}
	m.learn()
	if m.live > m.total {
		m.Fatalf("%d live of %d", m.live, m.total)
	}
}

func (m *machine) ask(user string) {
	room, waits := m.room(), m.waits[user]
	status, err := m.flow.Intake.Request(m.ctx, IssueCommand{TemplateID: m.id, UserID: user})
	var e *reward.Error
	switch {
	case err == nil && status.Kind == StatusWaiting:
		if status.Duplicate {
			break // let in before; the gate may not have heard yet what came of it
		}
		if waits {
			m.Fatalf("%s was let in twice", user)
		}
		if !room {
			m.Fatalf("%s was let in, with %d live and %d waiting of %d", user, m.live, len(m.waits), m.total)
		}
		if m.held[user] >= m.limit {
			m.Fatalf("%s was let in beyond the limit", user)
		}
		m.waits[user] = true
	case err == nil && status.Duplicate:
		if m.held[user] == 0 || m.limit != 1 {
			m.Fatalf("%s was told of a coupon that he has not: %+v", user, status)
		}
	case err == nil:
		if !room {
			m.Fatalf("%s got a coupon, with %d live of %d", user, m.live, m.total)
		}
	case errors.As(err, &e) && e.Code == reward.CodeUserLimit:
		if m.held[user] < m.limit && !m.behind() {
			m.Fatalf("%s was refused by a limit that he has not reached", user)
		}
	case errors.As(err, &e) && e.Code == reward.CodeSoldOut:
		if room && !m.behind() {
			m.Fatalf("%s was told sold out, with %d live and %d waiting of %d", user, m.live, len(m.waits), m.total)
		}
	case errors.As(err, &e) && e.Code == reward.CodeUnavailable && m.deaf:
		// He has cancelled, and the gate cannot be told.
	default:
		m.Fatal(err)
	}
}

// behind says whether the gate has not heard of all that is committed.
func (m *machine) behind() bool {
	h, err := m.gate.Headers(m.ctx, []reward.TemplateID{m.id})
	m.must(err)
	t, err := m.rows.TemplateGet(m.ctx, m.id)
	m.must(err)
	return h[0].Version < t.Version
}

func (m *machine) issue(i *Issuer, claim bool) {
	_, err := i.round(m.ctx, claim)
	if err != nil && !errors.Is(err, errEpochLost) && !errors.Is(err, errStale) && !errors.Is(err, errGap) {
		m.Fatal(err)
	}
}

func (m *machine) steal() {
	epochs, err := m.rows.TemplateOwn(m.ctx, []reward.TemplateID{m.id}, "i")
	m.must(err)
	if len(m.issuers) == 3 {
		m.issuers = m.issuers[1:]
	}
	m.issuers = append(m.issuers, m.flow.issuers.newIssuer(m.id, epochs[m.id]))
}

// learn brings the model up to the outcomes that rows have.
func (m *machine) learn() {
	list, err := m.rows.CouponList(m.ctx, store.CouponListParams{TemplateID: m.id, AfterTicket: m.seen, Limit: store.BatchMax})
	m.must(err)
	for _, c := range list {
		m.live++
		m.held[c.UserID]++
		delete(m.waits, c.UserID)
		if m.held[c.UserID] > m.limit {
			m.Fatalf("%s has %d", c.UserID, m.held[c.UserID])
		}
	}
	t, err := m.rows.TemplateGet(m.ctx, m.id)
	m.must(err)
	if t.Settled < m.seen {
		m.Fatalf("settled went from %d to %d", m.seen, t.Settled)
	}
	var waiting []string
	for user := range m.waits {
		waiting = append(waiting, user)
	}
	outcomes, err := m.rows.IssueOutcomes(m.ctx, m.id, waiting)
	m.must(err)
	for user, o := range outcomes {
		if !o.Issued() && o.Ticket > m.seen {
			delete(m.waits, user)
		}
	}
	m.seen = t.Settled
}

func (m *machine) coupon(n int) (reward.Coupon, bool) {
	list, err := m.rows.CouponList(m.ctx, store.CouponListParams{TemplateID: m.id, Limit: store.BatchMax})
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
	_, err := m.flow.Catalog.Cancel(m.ctx, c.ID)
	if c.Status != reward.CouponIssued {
		if err == nil {
			m.Fatalf("a coupon that is %s was cancelled", c.Status)
		}
		return
	}
	m.must(err)
	m.live--
	if m.again {
		m.held[c.UserID]--
	}
}

func (m *machine) use(n int) {
	if c, there := m.coupon(n); there && c.Status == reward.CouponIssued {
		_, err := m.flow.Catalog.Use(m.ctx, c.ID)
		m.must(err)
	}
}

func (m *machine) resize(total int) {
	n := int64(total)
	_, err := m.flow.Catalog.Change(m.ctx, store.TemplateChangeParams{ID: m.id, TotalQuantity: &n})
	switch {
	case err == nil:
		if total < m.live+len(m.waits) {
			m.Fatalf("%d is below %d live and %d waiting", total, m.live, len(m.waits))
		}
		m.total = total
	case !reward.HasCode(err, reward.CodeConflict):
		m.Fatal(err)
	}
}

// keep is a round of the keeper, whatever it has seen before.
func (m *machine) keep() {
	t, err := m.flow.templates.read(m.ctx, m.id)
	m.must(err)
	headers, err := m.gate.Headers(m.ctx, []reward.TemplateID{m.id})
	m.must(err)
	if headers[0].Exists {
		m.must(m.flow.maintainer.catchUp(m.ctx, t, headers[0], &gateStatus{version: headers[0].Version, behindSince: time.Now().Add(-time.Minute)}))
	}
}

// hear says whether the gate hears of what is committed.
func (m *machine) hear(hears bool) {
	m.deaf = !hears
	m.gate.set(func(g *faultyGate) { g.loseApply = !hears })
}

// settle lets everything come to rest, and compares.
func (m *machine) settle() {
	m.hear(true)
	m.steal()
	for n := 0; ; n++ {
		m.keep()
		m.issue(m.issuers[len(m.issuers)-1], n%2 == 0)
		m.learn()
		h, err := m.gate.Headers(m.ctx, []reward.TemplateID{m.id})
		m.must(err)
		t, err := m.rows.TemplateGet(m.ctx, m.id)
		m.must(err)
		if !h[0].Exists || h[0].Backlog == 0 && h[0].Waiting == 0 && h[0].Version == t.Version {
			break
		}
		if n > 100 {
			m.Fatalf("it does not come to rest: %+v, row %+v", h[0], t)
		}
	}
	if len(m.waits) > 0 {
		m.Fatalf("still wait: %v", m.waits)
	}
	count, err := m.rows.CouponRecount(m.ctx, m.id)
	m.must(err)
	if count.Live != int64(m.live) || count.KeptLive != count.Live || count.IssuedTotal != count.KeptIssuedTotal {
		m.Fatalf("%+v, and the model has %d live", count, m.live)
	}
	report, err := m.flow.Reconciler.Run(m.ctx, ReconcileCommand{TemplateID: &m.id})
	if err != nil || len(report.Drifts) > 0 {
		m.Fatalf("%+v, %v", report, err)
	}
	// Whoever may have one more gets it, as long as there is one.
	for u := range modelUsers {
		user := fmt.Sprint("u", u)
		if m.held[user] >= m.limit || !m.room() {
			continue
		}
		if _, err := m.flow.Intake.Request(m.ctx, IssueCommand{TemplateID: m.id, UserID: user}); err != nil {
			m.Fatalf("%s is refused with %d live of %d: %v", user, m.live, m.total, err)
		}
		if !m.sync {
			m.waits[user] = true
		}
		m.learn()
	}
}
