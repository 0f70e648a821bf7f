package coupon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/redisgate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

// testRows is what tests need of the database in addition to what coupons need.
type testRows interface {
	Store
	DeadLetterList(ctx context.Context, p store.DeadLetterListParams) ([]reward.DeadLetter, error)
	TemplateArchive(ctx context.Context, id reward.TemplateID, before, now time.Time) (bool, error)
	TemplateForget(ctx context.Context, p store.TemplateForgetParams) (store.TemplateForgotten, error)
}

// servers are the servers that the instances of one test share.
type servers struct {
	// rows and gate return a new connection.
	rows    func(t testing.TB) testRows
	gate    func(t testing.TB) *faultyGate
	brokers []string
	dial    func(ctx context.Context, network, address string) (net.Conn, error) // to brokers; nil = TCP
	prefix  string                                                               // of topics
	// database is the URL of the rows' database. It is empty for SQLite.
	database string
	// flush deletes all data of the gate's server.
	flush func(t testing.TB)
	keys  string // prefix of the keys
	// do sends the gate's server a command for a key, given without its prefix. It is
	// nil for an in-process gate.
	do func(t testing.TB, command, key string, args ...string)
	// memory is the in-process gate. It is nil for a real server.
	memory *losableGate
}

// openSQLite opens a new SQLite database.
func openSQLite(t testing.TB) testRows {
	t.Helper()
	return openSQLiteAt(t, filepath.Join(t.TempDir(), "rows.db"))
}

// openSQLiteAt opens a new SQLite database at path.
func openSQLiteAt(t testing.TB, path string) testRows {
	t.Helper()
	rows := storetest.OpenFile(t, path, sqlite.Open)
	t.Cleanup(rows.Close)
	return rows
}

// openEmbedded returns embedded servers, whose clock is that of a synctest bubble.
func openEmbedded(t testing.TB) servers {
	t.Helper()
	rows := openSQLite(t)
	network := &kfake.VirtualNetwork{}
	broker := fixture.Must(bus.StartBroker(t.Context(), bus.BrokerConfig{
		Dir: t.TempDir(), Listen: "127.0.0.1:9092", ListenOn: network.Listen, Dial: network.DialContext,
	}))(t)
	t.Cleanup(broker.Close)
	g := newLosableGate()
	t.Cleanup(g.close)
	return servers{
		rows:    func(testing.TB) testRows { return rows },
		gate:    g.gate,
		brokers: []string{broker.Addr()}, dial: network.DialContext,
		flush:  func(testing.TB) { g.lose() },
		memory: g,
	}
}

// openServers returns the real servers, with the test's own schema, keys and topics.
func openServers(t testing.TB) servers {
	t.Helper()
	return openServersAt(t, fixture.Address(t, fleet.VariableRedis))
}

// openServersAt is openServers with the Redis at an address.
func openServersAt(t testing.TB, redisURL string) servers {
	t.Helper()
	open := func(ctx context.Context, url string) (*rows.Tables, error) {
		return postgres.Open(ctx, postgres.Config{URL: url, MaxConnections: 12})
	}
	database := fixture.Schema(t, func(ctx context.Context, url string) error {
		rows, err := open(ctx, url)
		if err != nil {
			return err
		}
		defer rows.Close()
		return rows.Migrate(ctx)
	})
	keys := fixture.Keys(t, redisURL)
	brokers, prefix := fixture.Topics(t)
	return servers{
		rows: func(t testing.TB) testRows {
			t.Helper()
			rows := fixture.Must(open(t.Context(), database))(t)
			t.Cleanup(rows.Close)
			return rows
		},
		gate: func(t testing.TB) *faultyGate {
			t.Helper()
			g := openRedis(t, redisURL, keys)
			return &faultyGate{now: func() gate.Gate { return g }, hints: g.Hints()}
		},
		brokers: brokers, prefix: prefix, database: database, keys: keys,
		flush: func(t testing.TB) { fixture.DeleteKeys(t, redisURL, keys) },
		do: func(t testing.TB, command, key string, args ...string) {
			t.Helper()
			c := fixture.RedisClient(t, redisURL)
			defer c.Close()
			fixture.OK(t, c.Do(t.Context(), c.B().Arbitrary(strings.Fields(command)...).Keys(keys+key).Args(args...).Build()).Error())
		},
	}
}

func openRedis(t testing.TB, url, keys string) gate.Gate {
	t.Helper()
	g := fixture.Must(redisgate.Open(t.Context(), redisgate.Config{URL: url, KeyPrefix: keys}))(t)
	t.Cleanup(g.Close)
	return g
}

// rig holds the instances of one test.
type rig struct {
	testing.TB
	servers
	rows      testRows
	instances []*instance
	ends      *atomic.Int64 // how often the instances read the ends of a topic
}

func newRig(t testing.TB, s servers) *rig {
	t.Helper()
	return &rig{TB: t, servers: s, rows: s.rows(t), ends: new(atomic.Int64)}
}

type instance struct {
	*Flow
	name string
	gate *faultyGate
	stop func()
}

// config returns the configuration of an instance, unless a test changes it.
func (r *rig) config(name string) FlowConfig {
	fallbackAfter := time.Second
	if r.memory == nil {
		fallbackAfter = fixture.Patience // real servers may be slow for a while
	}
	return FlowConfig{
		Instance: name, Concurrency: 10, LockWait: 2 * time.Second, LockLease: 5 * time.Second, RefusalTTL: 30 * time.Second,
		FallbackAfter: fallbackAfter, QueueTTL: time.Hour, Issue: true, Housekeeping: true, ReconcileEvery: time.Second,
	}
}

// each runs a test on embedded servers and fake time.
func each(t *testing.T, test func(r *rig)) {
	t.Helper()
	fixture.FakesKafka(t)
	synctest.Test(t, func(t *testing.T) { test(newRig(t, openEmbedded(t))) })
}

// onServers runs a test on real servers.
func onServers(t *testing.T, test func(r *rig)) {
	t.Helper()
	t.Run("Servers", func(t *testing.T) {
		t.Parallel()
		test(newRig(t, openServers(t)))
	})
}

// eachServer runs a test on embedded servers and fake time, and on real servers. It is
// for what a real server may do in another way.
func eachServer(t *testing.T, test func(r *rig)) {
	t.Helper()
	t.Run("Embedded", func(t *testing.T) {
		t.Parallel()
		each(t, test)
	})
	onServers(t, test)
}

var (
	allModes  = []reward.IssueMode{reward.ModeStream, reward.ModeKafka, reward.ModeSync}
	lineModes = []reward.IssueMode{reward.ModeStream, reward.ModeKafka} // in which users wait
)

// eachMode runs a test like each in several modes.
func eachMode(t *testing.T, modes []reward.IssueMode, test func(r *rig, mode reward.IssueMode)) {
	t.Helper()
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			each(t, func(r *rig) { test(r, mode) })
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
	client := r.connect(name)
	fixture.OK(r, client.EnsureTopics(r.Context()))
	cfg.Bus = client
	for _, f := range change {
		f(&cfg)
	}
	flow := fixture.Must(NewFlow(cfg))(r)
	flow.topic.Inspector = countedTopic{flow.topic.Inspector, r.ends}
	fixture.OK(r, flow.Start(r.Context()))
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

// connect returns a new connection to the brokers.
func (r *rig) connect(name string) *bus.Client {
	r.Helper()
	return fixture.Must(bus.Open(r.Context(), bus.Config{Brokers: r.brokers, Dial: r.dial, TopicPrefix: r.prefix, ClientID: name, Partitions: 3}))(r)
}

// create creates a template.
func (r *rig) create(t reward.CouponTemplate) reward.TemplateID {
	r.Helper()
	t.Name = "drop"
	if t.PerUserLimit == 0 {
		t.PerUserLimit = 1
	}
	return fixture.Must(r.instances[0].Catalog.Create(r.Context(), t))(r).ID
}

// request requests a coupon until the result is not CodeUnavailable. It returns the
// status, or the code of the error.
func (r *rig) request(i *instance, id reward.TemplateID, user string) (Status, string) {
	for deadline := time.Now().Add(fixture.Patience); ; {
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
		if r.memory != nil {
			time.Sleep(80 * time.Millisecond) // fewer repeats in seconds that pass at once
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
	w, stop := i.Notifier.Watch(id, user, Status{})
	defer stop()
	timer := time.NewTimer(fixture.Patience)
	defer timer.Stop()
	for {
		select {
		case s := <-w.Updates():
			if s.Kind != StatusWaiting {
				return s
			}
		case <-timer.C:
			r.Fatalf("nobody hears the outcome of %s", user)
		}
	}
}

// until polls until ok. On fake time it polls less often, because a poll is all that the
// processor does between two events.
func (r *rig) until(what string, ok func() bool) {
	r.Helper()
	fixture.Until(r, what, func() bool {
		done := ok()
		if !done && r.memory != nil {
			time.Sleep(20 * time.Millisecond)
		}
		return done
	})
}

// sleep spreads what a test does over time.
func (r *rig) sleep(d time.Duration) { time.Sleep(d) }

// since returns how much fake time has passed. On real servers it returns 0, because
// their time says how busy the machine is.
func (r *rig) since(began time.Time) time.Duration {
	if r.memory == nil {
		return 0
	}
	return time.Since(began)
}

func (r *rig) issuedAtLeast(id reward.TemplateID, coupons int) {
	r.Helper()
	r.until(fmt.Sprintf("%d coupons are issued", coupons), func() bool {
		row, err := r.rows.TemplateGet(r.Context(), id)
		return err == nil && row.IssuedTotal >= int64(coupons)
	})
}

// issued waits until a number of coupons were issued.
func (r *rig) issued(id reward.TemplateID, coupons int) {
	r.Helper()
	r.issuedAtLeast(id, coupons)
	if n := len(r.coupons(id)); n != coupons {
		r.Errorf("%d coupons, want %d", n, coupons)
	}
}

// coupons reads all coupons of a template.
func (r *rig) coupons(id reward.TemplateID) []reward.Coupon {
	r.Helper()
	var out []reward.Coupon
	for after := (store.CouponPlace{}); ; {
		page := fixture.Must(r.rows.CouponList(r.Context(), store.CouponListParams{TemplateID: id, After: after, Limit: store.BatchMax}))(r)
		if len(page) == 0 {
			return out
		}
		out = append(out, page...)
		last := page[len(page)-1]
		after = store.CouponPlace{Ticket: last.Ticket, Generation: last.Generation}
	}
}

// served waits until each of the users has a coupon, and checks that none has two.
func (r *rig) served(id reward.TemplateID, users []string) {
	r.Helper()
	r.issuedAtLeast(id, len(users))
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
	count := fixture.Must(r.rows.CouponRecount(r.Context(), id))(r)
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
	report, err := i.Reconciler.Run(r.Context(), gatekeeper.ReconcileCommand{TemplateID: &id})
	if err != nil || len(report.Drifts) > 0 || len(report.Skipped) > 0 {
		r.Errorf("reconcile: %+v, %v", report, err)
	}
}
