//go:build ci

package test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/doctor"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/gate/redisgate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

// promise is a row of the table of servers that answer, and refuse.
type promise struct {
	parts   []string // of degraded
	words   string   // of the server, in the reason of each
	doctor  string   // check of doctor that fails; empty: none
	refused string   // words of a 503; empty: there is none
}

// promises reads a table of docs/guarantees.md, by what is wrong.
func promises(t *testing.T, name string) map[string]promise {
	t.Helper()
	page := fixture.Must(os.ReadFile("docs/guarantees.md"))(t)
	_, table, found := strings.Cut(string(page), "<!-- begin "+name+" -->")
	table, _, ended := strings.Cut(table, "<!-- end "+name+" -->")
	if !found || !ended {
		t.Fatalf("docs/guarantees.md has no table %s", name)
	}
	rows := make(map[string]promise)
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) < 4 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") || strings.Contains(cells[1], "`degraded`") {
			continue
		}
		p := promise{words: strings.Trim(cells[2], " `"), doctor: strings.Trim(cells[3], " `–")}
		if len(cells) > 4 {
			p.refused = strings.Trim(cells[4], " `–")
		}
		for part := range strings.SplitSeq(cells[1], ",") {
			p.parts = append(p.parts, strings.Trim(part, " `"))
		}
		rows[strings.TrimSpace(cells[0])] = p
	}
	return rows
}

// says waits until an instance says in /readyz, or in its log if the database does not
// answer /readyz, which parts are in trouble, in the words of the server. Its log has one
// line for each, or another if the machine is so busy that a part is late again.
func (r *rig) says(name string, want promise, from int) {
	r.t.Helper()
	lines := func(part string) (n int) {
		for line := range strings.Lines(r.lines.String()[from:]) {
			if strings.Contains(line, `"instance degraded" `) && strings.Contains(line, "part="+part) {
				n++
			}
		}
		return n
	}
	fixture.Until(r.t, name+": the instance names "+strings.Join(want.parts, ", ")+" with "+want.words, func() bool {
		ready, err := r.api.Ready(r.t.Context())
		return !slices.ContainsFunc(want.parts, func(part string) bool {
			shown := slices.ContainsFunc(ready.Troubles, func(x client.Trouble) bool { return x.Part == part && strings.Contains(x.Reason, want.words) })
			return lines(part) == 0 || !shown && (err == nil || !strings.Contains(r.lines.String()[from:], want.words))
		})
	})
	for _, part := range want.parts {
		if n := lines(part); n > 3 {
			r.t.Errorf("%s: %d lines say that %s is degraded, want 1", name, n, part)
		}
	}
}

// refuses waits until a call gets the 503 of a row.
func (r *rig) refuses(name string, want promise, call func() error) {
	r.t.Helper()
	fixture.Until(r.t, name+": a call gets a 503 with "+want.refused, func() bool {
		problem, ok := errors.AsType[*client.Problem](call())
		return ok && problem.Status == http.StatusServiceUnavailable && strings.Contains(problem.Detail, want.refused)
	})
}

// standstill creates a promotion that is RUNNING and waits for its target.
func (r *rig) standstill() (id string) {
	r.t.Helper()
	kafka := fixture.Must(bus.Open(r.t.Context(), bus.Config{Brokers: r.engine.Brokers(), TopicPrefix: r.cfg.Kafka.TopicPrefix, ClientID: "largesse-test"}))(r.t)
	defer kafka.Close()
	started := bus.Record{Topic: bus.TopicStarted, Value: []byte(`{"promotionId":4711,"promotionType":"POINT","totalCount":1}`)}
	fixture.OK(r.t, kafka.Publish(r.t.Context(), []bus.Record{started}))
	return r.until("4711", "RUNNING", func(p client.Promotion) bool { return p.Status == "RUNNING" }).ID
}

// watch starts `promotion watch`, which ends with the test, and returns what it prints
// from its first line on.
func (r *rig) watch(promotion string) *fixture.Buffer {
	r.t.Helper()
	var said fixture.Buffer
	watch := exec.Command(fixture.Must(program())(r.t), "promotion", "watch", promotion, "--server", r.api.Server())
	watch.Stdout, watch.Stderr = &said, &said
	fixture.OK(r.t, watch.Start())
	r.t.Cleanup(func() { _ = watch.Process.Kill(); _ = watch.Wait() })
	fixture.Until(r.t, "promotion watch prints a line", func() bool { return said.String() != "" })
	return &said
}

// explains waits until a watch gives the reason of a row, while calls go on.
func (r *rig) explains(name string, said *fixture.Buffer, why string, call func() error) {
	r.t.Helper()
	fixture.Until(r.t, name+": promotion watch prints "+why, func() bool { _ = call(); return strings.Contains(said.String(), why) })
}

// doctorSays checks that doctor fails the check of a row, with an advice.
func doctorSays(t *testing.T, name string, want promise, flags map[string]string) {
	t.Helper()
	if want.doctor == "" {
		return
	}
	checks, err := doctor.Run(context.WithoutCancel(t.Context()), doctor.Params{Settings: config.LoadParams{Flags: flags}})
	if err != nil || !slices.ContainsFunc(checks, func(c doctor.Check) bool {
		return c.Name == want.doctor && c.Status == doctor.CheckFail && c.Advice != ""
	}) {
		t.Errorf("%s: doctor says %+v, %v; want %s to fail", name, checks, err, want.doctor)
	}
}

// TestAServerThatAnswersAndRefuses breaks Redis in each way of the table in
// docs/guarantees.md. The instance says what does not work in the server's own words, and
// doctor fails; coupons are issued through the database; and everything works again
// afterwards.
func TestAServerThatAnswersAndRefuses(t *testing.T) {
	t.Parallel()
	redis := fixture.Own(t, fleet.NewRedis)
	admin := fixture.RedisClient(t, redis.Address())
	defer admin.Close()
	do := func(words ...string) {
		t.Helper()
		if err := admin.Do(t.Context(), admin.B().Arbitrary(words...).Build()).Error(); err != nil {
			t.Fatalf("%v: %v", words, err)
		}
	}
	do("ACL", "SETUSER", "largesse", "on", ">secret", "~*", "&*", "+@all")
	url := strings.Replace(redis.Address(), "redis://", "redis://largesse:secret@", 1)
	r := newRig(t, servers, moneysim.Faults{}, func(cfg *config.Config) { cfg.Redis.URL = url }, patient)
	templateID := r.template(client.NewTemplate{})
	number := fixture.Must(strconv.ParseInt(templateID, 10, 64))(t)
	line := redisgate.LineKey(r.cfg.Redis.KeyPrefix, reward.TemplateID(number))
	waits := r.template(client.NewTemplate{WhenRedisAway: "WAIT"})
	r.issue(waits, 0, 1) // loads its gate
	number = fixture.Must(strconv.ParseInt(waits, 10, 64))(t)
	otherLine := redisgate.LineKey(r.cfg.Redis.KeyPrefix, reward.TemplateID(number))
	still := r.standstill()
	issued := 0
	issue := func(n int) { r.issue(templateID, issued, n); issued += n }
	issue(5)
	fixture.Until(t, "nobody waits", func() bool { return r.waiting(templateID) == 0 })

	asked := 0
	ask := func() error { // another user each time: one who has a coupon needs no write
		asked++
		_, err := r.api.IssueCoupon(t.Context(), waits, "w"+strconv.Itoa(asked), 0)
		return err
	}
	var external string // promotion whose stream is another program's
	faults := map[string]struct {
		broken, repaired func()
		call             func() error // gets a 503; nil: ask, and coupons take the path of the database
	}{
		"Redis lacks replicas (`min-replicas-to-write`)": {
			func() { do("CONFIG", "SET", "min-replicas-to-write", "1") },
			func() { do("CONFIG", "SET", "min-replicas-to-write", "0") }, nil,
		},
		"the Redis user may not run scripts": {
			func() { do("ACL", "SETUSER", "largesse", "-@scripting") },
			func() { do("ACL", "SETUSER", "largesse", "+@scripting") }, nil,
		},
		"Redis has become a replica": {
			func() { do("REPLICAOF", "127.0.0.1", "1") },
			func() { do("REPLICAOF", "NO", "ONE") }, nil,
		},
		"the Redis user may not run one command, `TIME`": {
			func() { do("ACL", "SETUSER", "largesse", "-time") },
			func() { do("ACL", "SETUSER", "largesse", "+time") }, nil,
		},
		"Redis hangs": {
			func() { fixture.OK(t, redis.Hang()) },
			func() { fixture.OK(t, redis.Resume()) }, nil,
		},
		"another program has stored something under a key of a gate": {
			func() {
				do("DEL", line, otherLine)
				do("MSET", line, "mine", otherLine, "mine")
			},
			func() { do("DEL", line, otherLine) }, nil,
		},
		"another program has stored something under the key of a work stream": {
			func() {
				made := fixture.Must(r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "external", Type: "POINT"}))(t)
				external = made.ID
				id := fixture.Must(reward.ParsePromotionID(made.ID))(t)
				key := redisstream.StreamKey(r.cfg.Redis.KeyPrefix, queue.Stream{Type: reward.Point, PromotionID: id})
				do("SET", key, "mine")
				file := strings.NewReader("targetId,userId,amount\n1,ann,100\n")
				fixture.Must(r.api.UploadTargets(t.Context(), made.ID, file, client.UploadOptions{}))(t)
				fixture.Must(r.api.StartPromotion(t.Context(), made.ID))(t)
			},
			func() {
				keys := fixture.Must(admin.Do(t.Context(), admin.B().Keys().Pattern(r.cfg.Redis.KeyPrefix+"campaign-promotion-stream:*").Build()).AsStrSlice())(t)
				for _, key := range keys {
					do("DEL", key)
				}
			},
			func() error { _, err := r.api.PromotionStream(t.Context(), external); return err },
		},
	}
	table := promises(t, "refusals of Redis")
	for name := range table {
		if _, tested := faults[name]; !tested {
			t.Errorf("the table promises something of %q, which nobody tests", name)
		}
	}
	for name, fault := range faults {
		want, promised := table[name]
		if !promised {
			t.Errorf("the table says nothing of %q", name)
			continue
		}
		said, watched := len(r.lines.String()), r.watch(still)
		fault.broken()
		r.says(name, want, said)
		doctorSays(t, name, want, map[string]string{
			"redis.url": url, "redis.key-prefix": r.cfg.Redis.KeyPrefix, "data.dir": t.TempDir(), "money.url": r.simURL,
		})
		call := fault.call
		if call == nil {
			call = ask
		}
		r.refuses(name, want, call)
		r.explains(name, watched, want.words, call)
		if fault.call == nil {
			issue(3)
			if got, err := r.api.Template(t.Context(), templateID); err != nil || got.Path != "DATABASE" {
				t.Errorf("%s: path %s, %v, want DATABASE", name, got.Path, err)
			}
		}
		fault.repaired()
		fixture.Until(t, name+": everything works again", func() bool {
			got, err := r.api.Template(t.Context(), templateID)
			return err == nil && got.Path == "GATE" && len(r.degraded()) == 0
		})
		issue(2)
	}
	r.onePerUser(templateID, issued)
}

// ownPostgres starts a PostgreSQL with a database of an ordinary user, and returns the
// user's URL, and a function by which the superuser runs statements.
func ownPostgres(t *testing.T) (user string, do func(sql string)) {
	t.Helper()
	server := fixture.Own(t, fleet.NewPostgres)
	do = func(sql string) {
		t.Helper()
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, server.Address())
		if err == nil {
			_, err = conn.Exec(ctx, sql)
			_ = conn.Close(ctx)
		}
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	do("CREATE ROLE largesse LOGIN")
	do("CREATE DATABASE largesse OWNER largesse")
	return strings.Replace(server.Address(), "postgres@", "largesse@", 1), do
}

// TestADatabaseThatAnswersAndRefuses breaks PostgreSQL in each way of the table in
// docs/guarantees.md. The instance says what does not work in the server's own words, so
// does a 503, and doctor fails. Everything works again afterwards.
func TestADatabaseThatAnswersAndRefuses(t *testing.T) {
	t.Parallel()
	at, do := ownPostgres(t)
	line, at := relayTo(t, strings.Replace(at, "/postgres?", "/largesse?", 1))
	r := newRig(t, servers, moneysim.Faults{}, func(cfg *config.Config) { cfg.Database.URL = at }, patient)
	id, workload := r.create(50, false, client.NewPromotion{})
	r.balance(id, workload)
	create := func() error {
		_, err := r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "a write", Type: "POINT"})
		return err
	}
	manyReads := func() error {
		answers := make(chan error)
		for range 8 {
			go func() { _, err := r.api.Promotion(t.Context(), id); answers <- err }()
		}
		var errs []error
		for range 8 {
			errs = append(errs, <-answers)
		}
		return errors.Join(errs...)
	}
	faults := map[string]struct {
		broken, repaired func()
		call             func() error // while it is broken; it gets the 503, or succeeds
	}{
		"PostgreSQL is read-only": {
			func() { do("ALTER SYSTEM SET default_transaction_read_only = on"); do("SELECT pg_reload_conf()") },
			func() { do("ALTER SYSTEM RESET default_transaction_read_only"); do("SELECT pg_reload_conf()") },
			create,
		},
		"PostgreSQL allows no further connection": {
			func() { do("ALTER ROLE largesse CONNECTION LIMIT 1") },
			func() { do("ALTER ROLE largesse CONNECTION LIMIT -1") },
			manyReads,
		},
		"PostgreSQL hangs": {
			line.Hang,
			line.Resume,
			func() error { _, err := r.api.Ready(t.Context()); return err },
		},
	}
	still := r.standstill()
	table := promises(t, "refusals of PostgreSQL")
	if len(table) != len(faults) {
		t.Errorf("the table has %d rows, the test %d", len(table), len(faults))
	}
	for name, fault := range faults {
		said, watched, want := len(r.lines.String()), r.watch(still), table[name]
		fault.broken()
		if want.refused == "" {
			fixture.Until(t, name+": reads continue", func() bool { return fault.call() == nil && len(r.degraded()) > 0 })
		} else {
			r.refuses(name, want, fault.call)
		}
		r.says(name, want, said)
		why := want.words
		if name == "PostgreSQL hangs" { // so /readyz is a 503
			why = want.refused
		}
		r.explains(name, watched, why, fault.call)
		doctorSays(t, name, want, map[string]string{"database.url": at, "data.dir": t.TempDir(), "money.url": r.simURL})
		fault.repaired()
		fixture.Until(t, name+": everything works again", func() bool { return len(r.degraded()) == 0 && create() == nil })
	}
	id, workload = r.create(50, false, client.NewPromotion{})
	r.balance(id, workload)
}

// TestAServerThatCannotBeUsed checks that doctor and serve refuse each server of the table
// in docs/guarantees.md, and that both say the same.
func TestAServerThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	at, do := ownPostgres(t)
	do("CREATE DATABASE latin OWNER largesse ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
	do("CREATE ROLE alone LOGIN CONNECTION LIMIT 1")
	redis := fixture.Own(t, fleet.NewRedis)
	admin := fixture.RedisClient(t, redis.Address())
	defer admin.Close()
	fixture.OK(t, admin.Do(t.Context(), admin.B().Arbitrary("ACL", "SETUSER", "few", "on", ">secret", "~*", "&*", "+@all", "-info").Build()).Error())
	database := func(from, to string) map[string]string {
		return map[string]string{"database.url": strings.Replace(at, from, to, 1)}
	}
	servers := map[string]map[string]string{
		"the encoding of the database is not UTF8":     database("/postgres?", "/latin?"),
		"a pooler drops the settings of sessions":      {"database.url": fixture.Pooler(t, at, false)},
		"a pooler refuses the settings of sessions":    {"database.url": fixture.Pooler(t, at, true)},
		"PostgreSQL allows fewer than two connections": database("largesse@", "alone@"),
		"the Redis user may not run `INFO`":            {"redis.url": strings.Replace(redis.Address(), "redis://", "redis://few:secret@", 1)},
	}
	table := promises(t, "refused servers")
	if len(table) != len(servers) {
		t.Errorf("the table has %d rows, the test %d", len(table), len(servers))
	}
	for name, flags := range servers {
		flags["data.dir"], flags["money.url"], flags["http.listen"] = t.TempDir(), "http://127.0.0.1:1", "127.0.0.1:0"
		doctorSays(t, name, table[name], flags)
		cfg, _, err := config.Load(config.LoadParams{Flags: flags})
		if err != nil {
			t.Fatal(err)
		}
		e := fixture.Must(engine.New(cfg, obs.Log{}))(t)
		if err = e.Start(t.Context()); err == nil {
			e.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), table[name].words) {
			t.Errorf("%s: serve says %v, want %s", name, err, table[name].words)
		}
	}
}
