package coupon

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

// patience limits every wait for an expected event.
const patience = 60 * time.Second

// servers are the servers that the instances of one test share.
type servers struct {
	// rows and gate return a new connection.
	rows    func(t testing.TB) store.Store
	gate    func(t testing.TB) *faultyGate
	brokers []string
	prefix  string // of topics
	// database is the URL of the rows' database. It is empty for SQLite.
	database string
	// flush deletes all data of the gate's server.
	flush func(t testing.TB)
	// do sends the gate's server a command for a key, given without its prefix. It is
	// nil for an in-process gate.
	do func(t testing.TB, command, key string, args ...string)
}

// worlds open separate servers for one test. The build tag servers adds real ones.
var worlds = map[string]func(t testing.TB) servers{"Embedded": openEmbedded}

// openSQLite opens a new SQLite database.
func openSQLite(t testing.TB) store.Store {
	t.Helper()
	return openSQLiteAt(t, filepath.Join(t.TempDir(), "rows.db"))
}

// openSQLiteAt opens a new SQLite database at path.
func openSQLiteAt(t testing.TB, path string) store.Store {
	t.Helper()
	rows := storetest.OpenFile(t, path, sqlite.Open)
	t.Cleanup(rows.Close)
	return rows
}

func openEmbedded(t testing.TB) servers {
	t.Helper()
	rows := openSQLite(t)
	broker, err := bus.StartBroker(t.Context(), bus.BrokerConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	g := newLosableGate()
	t.Cleanup(g.close)
	return servers{
		rows:    func(testing.TB) store.Store { return rows },
		gate:    g.gate,
		brokers: []string{broker.Addr()},
		flush:   func(testing.TB) { g.lose() },
	}
}

// rig holds the instances of one test.
type rig struct {
	testing.TB
	servers
	open      func(t testing.TB) servers // opens further servers
	rows      store.Store
	instances []*instance
}

type instance struct {
	*Flow
	name string
	gate *faultyGate
	stop func()
}

// config returns the configuration of an instance, unless a test changes it.
func (r *rig) config(name string) FlowConfig {
	return FlowConfig{
		Instance: name, Concurrency: 10, LockWait: 2 * time.Second, LockLease: 5 * time.Second, RefusalTTL: 30 * time.Second,
		FallbackAfter: time.Second, QueueTTL: time.Hour, Issue: true, Housekeeping: true, ReconcileEvery: time.Second,
	}
}

// each runs a test in every world.
func each(t *testing.T, test func(r *rig)) {
	t.Helper()
	for name, open := range worlds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			test(&rig{TB: t, servers: s, open: open, rows: s.rows(t)})
		})
	}
}

// start starts an instance.
func (r *rig) start(change ...func(*FlowConfig)) *instance {
	r.Helper()
	name := fmt.Sprintf("i%d", len(r.instances)+1)
	cfg := r.config(name)
	own := r.servers.gate(r)
	cfg.Store, cfg.Gate = r.servers.rows(r), own
	client, err := bus.Open(r.Context(), bus.Config{Brokers: r.brokers, TopicPrefix: r.prefix, ClientID: name, Partitions: 3})
	if err != nil {
		r.Fatal(err)
	}
	if err := client.EnsureTopics(r.Context()); err != nil {
		r.Fatal(err)
	}
	cfg.Bus = client
	for _, f := range change {
		f(&cfg)
	}
	flow, err := NewFlow(cfg)
	if err != nil {
		r.Fatal(err)
	}
	if err := flow.Start(r.Context()); err != nil {
		r.Fatal(err)
	}
	i := &instance{Flow: flow, name: name, gate: own, stop: sync.OnceFunc(func() {
		flow.Stop()
		client.Close()
	})}
	r.Cleanup(i.stop)
	r.instances = append(r.instances, i)
	return i
}

func (r *rig) startAll(n int) {
	r.Helper()
	for range n {
		r.start()
	}
}

// create creates a template.
func (r *rig) create(t reward.CouponTemplate) reward.TemplateID {
	r.Helper()
	t.Name = "drop"
	if t.PerUserLimit == 0 {
		t.PerUserLimit = 1
	}
	v, err := r.instances[0].Catalog.Create(r.Context(), t)
	if err != nil {
		r.Fatal(err)
	}
	return v.ID
}

// request requests a coupon until the result is not CodeUnavailable. It returns the
// status, or the code of the error.
func (r *rig) request(i *instance, id reward.TemplateID, user string) (Status, string) {
	for deadline := time.Now().Add(patience); ; {
		s, err := i.Intake.Request(r.Context(), IssueCommand{TemplateID: id, UserID: user})
		var e *reward.Error
		switch {
		case err == nil:
			return s, ""
		case !errors.As(err, &e):
			r.Errorf("request of %s: %v", user, err)
			return s, "?"
		case e.Code != reward.CodeUnavailable:
			return s, e.Code
		case time.Now().After(deadline):
			r.Errorf("request of %s: still %v", user, err)
			return s, e.Code
		}
		time.Sleep(20 * time.Millisecond) // the wait that Retry-After demands
	}
}

// rush requests coupons for users with a name, and returns those who were told that
// they wait or who have one. The others are refused as sold out.
func (r *rig) rush(i *instance, id reward.TemplateID, name string, users int) (told []string) {
	r.Helper()
	var mu sync.Mutex // protects told
	var requesting sync.WaitGroup
	const workers = 8
	for worker := range workers {
		requesting.Go(func() {
			for n := worker; n < users; n += workers {
				user := fmt.Sprint(name, n)
				switch _, code := r.request(i, id, user); code {
				case "":
					mu.Lock()
					told = append(told, user)
					mu.Unlock()
				case reward.CodeSoldOut:
				default:
					r.Errorf("%s: %s", user, code)
				}
			}
		})
	}
	requesting.Wait()
	return told
}

// outcome waits until a request is settled.
func (r *rig) outcome(i *instance, id reward.TemplateID, user string) Status {
	r.Helper()
	w, stop := i.Notifier.Watch(id, user, 0)
	defer stop()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case s := <-w.Updates():
			if s.Kind != StatusWaiting {
				return s
			}
		case <-timer.C:
			r.Fatalf("the request of %s is not settled", user)
		}
	}
}

// until polls until ok.
func (r *rig) until(what string, ok func() bool) {
	r.Helper()
	for deadline := time.Now().Add(patience); !ok(); {
		if time.Now().After(deadline) {
			r.Fatalf("not in time: %s", what)
		}
		time.Sleep(10 * time.Millisecond) // polls a condition
	}
}

// coupons reads all coupons of a template.
func (r *rig) coupons(id reward.TemplateID) []reward.Coupon {
	r.Helper()
	var out []reward.Coupon
	for after := int64(0); ; {
		page, err := r.rows.CouponList(r.Context(), store.CouponListParams{TemplateID: id, AfterTicket: after, Limit: store.BatchMax})
		if err != nil {
			r.Fatal(err)
		}
		if len(page) == 0 {
			return out
		}
		out = append(out, page...)
		after = page[len(page)-1].Ticket
	}
}

// served waits until each of the users has a coupon, and checks that none has two.
func (r *rig) served(id reward.TemplateID, users []string) {
	r.Helper()
	var none, many int
	r.until(fmt.Sprintf("each of %d users has a coupon", len(users)), func() bool {
		has := make(map[string]int)
		for _, c := range r.coupons(id) {
			has[c.UserID]++
		}
		none, many = 0, 0
		for _, user := range users {
			switch {
			case has[user] == 0:
				none++
			case has[user] > 1:
				many++
			}
		}
		return none == 0
	})
	if many > 0 {
		r.Errorf("%d of %d users have several coupons for one request", many, len(users))
	}
}

// balanced waits until all changes are applied, and checks that the rows agree with
// themselves and with the gate.
func (r *rig) balanced(id reward.TemplateID) {
	r.Helper()
	count, err := r.rows.CouponRecount(r.Context(), id)
	if err != nil {
		r.Fatal(err)
	}
	if count.Live != count.KeptLive || count.IssuedTotal != count.KeptIssuedTotal {
		r.Errorf("rows add up to %+v", count)
	}
	i := r.instances[len(r.instances)-1]
	r.until("the gate is at the version of the rows", func() bool {
		h, err := i.gate.Headers(r.Context(), []reward.TemplateID{id})
		if err != nil {
			return false
		}
		t, err := r.rows.TemplateGet(r.Context(), id)
		return err == nil && (!h[0].Exists || h[0].Version == t.Version && h[0].Waiting == 0 && h[0].Backlog == 0)
	})
	report, err := i.Reconciler.Run(r.Context(), ReconcileCommand{TemplateID: &id})
	if err != nil || len(report.Drifts) > 0 || len(report.Skipped) > 0 {
		r.Errorf("reconcile: %+v, %v", report, err)
	}
}
