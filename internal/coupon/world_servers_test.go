package coupon

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/redisgate"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
)

func init() {
	for name, variable := range map[string]string{
		"Redis": "LARGESSE_TEST_REDIS", "Valkey": "LARGESSE_TEST_VALKEY", "Cluster": "LARGESSE_TEST_REDIS_CLUSTER",
	} {
		worlds[name] = func(t testing.TB) servers { return openServers(t, variable) }
	}
}

func serverOf(t testing.TB, variable string) string {
	t.Helper()
	address := os.Getenv(variable)
	if address == "" {
		t.Fatalf("%s names no server: run it by make test", variable)
	}
	return address
}

// openServers returns servers with the test's own schema, keys and topics.
func openServers(t testing.TB, redisVariable string) servers {
	t.Helper()
	return openServersAt(t, serverOf(t, redisVariable))
}

// openServersAt is openServers with the Redis at an address.
func openServersAt(t testing.TB, redisURL string) servers {
	t.Helper()
	name := "coupon_" + strings.ToLower(rand.Text()[:10])
	database := ownSchema(t, serverOf(t, "LARGESSE_TEST_POSTGRES"), name)
	prefix := name + ":"
	rows := func(t testing.TB) store.Store {
		t.Helper()
		s, err := postgres.Open(t.Context(), postgres.Config{URL: database, MaxConnections: 12})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	if err := rows(t).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteKeys(t, redisURL, prefix) })
	brokers := strings.Split(serverOf(t, "LARGESSE_TEST_KAFKA"), ",")
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := fleet.DeleteTopics(ctx, brokers, name+"-"); err != nil {
			t.Log(err)
		}
	})
	return servers{
		rows: rows,
		gate: func(t testing.TB) *faultyGate {
			t.Helper()
			g, err := redisgate.Open(t.Context(), redisgate.Config{URL: redisURL, KeyPrefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(g.Close)
			return &faultyGate{now: func() gate.Gate { return g }, hints: g.Hints()}
		},
		brokers: brokers, prefix: name + "-", database: database,
		flush: func(t testing.TB) { deleteKeys(t, redisURL, prefix) },
		do: func(t testing.TB, command, key string, args ...string) {
			t.Helper()
			c := plainClient(t, redisURL)
			defer c.Close()
			if err := c.Do(t.Context(), c.B().Arbitrary(strings.Fields(command)...).Keys(prefix+key).Args(args...).Build()).Error(); err != nil {
				t.Fatal(err)
			}
		},
	}
}

func ownSchema(t testing.TB, base, name string) string {
	t.Helper()
	exec := func(sql string) {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		db, err := pgx.Connect(ctx, base)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close(ctx) }()
		if _, err := db.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("CREATE SCHEMA " + name)
	t.Cleanup(func() { exec("DROP SCHEMA " + name + " CASCADE") })
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", name)
	u.RawQuery = q.Encode()
	return u.String()
}

// deleteKeys deletes every key with a prefix: the effect of a FLUSHALL on a test.
func deleteKeys(t testing.TB, urls, prefix string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c := plainClient(t, urls)
	defer c.Close()
	for _, node := range c.Nodes() {
		for cursor := uint64(0); ; {
			page, err := node.Do(ctx, node.B().Scan().Cursor(cursor).Match(prefix+"*").Count(1000).Build()).AsScanEntry()
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range page.Elements {
				if err := c.Do(ctx, c.B().Del().Key(key).Build()).Error(); err != nil {
					t.Fatal(err)
				}
			}
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
	}
}

func plainClient(t testing.TB, urls string) rueidis.Client {
	t.Helper()
	var option rueidis.ClientOption
	for i, text := range strings.Split(urls, ",") {
		node, err := rueidis.ParseURL(text)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			option = node
		} else {
			option.InitAddress = append(option.InitAddress, node.InitAddress...)
		}
	}
	option.DisableCache = true
	c, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestRequestsAreDeletedByHand checks that users in line are served even if someone
// deletes their requests manually.
func TestRequestsAreDeletedByHand(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		if r.do == nil {
			return // an in-process gate has no keys to delete
		}
		requester := r.start(func(c *FlowConfig) { c.Issue = false })
		gap := r.create(reward.CouponTemplate{TotalQuantity: 10})
		all := r.create(reward.CouponTemplate{TotalQuantity: 10})
		for n := range 10 {
			r.want(requester, gap, fmt.Sprint("u", n), "")
			r.want(requester, all, fmt.Sprint("u", n), "")
		}
		r.do(r, "XTRIM", "coupon:request-stream:{"+all.String()+"}", "MAXLEN", "0")
		r.do(r, "XDEL", "coupon:request-stream:{"+gap.String()+"}", "4-1")
		r.start()
		for _, id := range []reward.TemplateID{gap, all} {
			r.until("all are served", func() bool { return len(r.coupons(id)) == 10 })
			for n, c := range r.coupons(id) {
				if c.Ticket != int64(n+1) || c.UserID != fmt.Sprint("u", n) {
					r.Errorf("ticket %d belongs to %s", c.Ticket, c.UserID)
				}
			}
			r.balanced(id)
		}
	})
}
