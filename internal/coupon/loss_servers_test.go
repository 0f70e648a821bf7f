package coupon

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/redisgate"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
)

// lossy is a Redis that loses what happened after keep.
type lossy struct {
	servers
	keep, lose func()
}

// ownServer starts a Redis for a test that breaks it.
func ownServer(t *testing.T) *fleet.Server {
	t.Helper()
	in, err := fleet.Look()
	if err != nil {
		t.Fatal(err)
	}
	server, err := fleet.NewRedis(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return server
}

// command sends a command to a Redis.
func command(t *testing.T, address string, words ...string) string {
	t.Helper()
	c := plainClient(t, address)
	defer c.Close()
	out, err := c.Do(t.Context(), c.B().Arbitrary(words...).Build()).ToString()
	if err != nil {
		t.Fatal(words, err)
	}
	return out
}

// info returns a section of what a Redis says about itself.
func info(t *testing.T, address, section string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for line := range strings.Lines(command(t, address, "INFO", section)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		out[name] = value
	}
	return out
}

// flushed loses everything.
func flushed(t *testing.T) lossy {
	t.Helper()
	server := ownServer(t)
	return lossy{
		servers: openServersAt(t, server.Address()),
		keep:    func() {},
		lose:    func() { command(t, server.Address(), "FLUSHALL") },
	}
}

// rolledBack restarts from an older snapshot.
func rolledBack(t *testing.T) lossy {
	t.Helper()
	server := ownServer(t)
	return lossy{
		servers: openServersAt(t, server.Address()),
		keep:    func() { command(t, server.Address(), "SAVE") },
		lose: func() {
			if err := server.Kill(); err != nil {
				t.Error(err)
			}
			if err := server.Start(t.Context()); err != nil {
				t.Error(err)
			}
		},
	}
}

// failedOver continues with a replica that has not received the last changes.
func failedOver(t *testing.T) lossy {
	t.Helper()
	master, replica := ownServer(t), ownServer(t)
	s := openServersAt(t, master.Address())
	t.Cleanup(func() { // for the cleanup of the servers
		if err := master.Start(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	var over atomic.Bool
	open := s.gate
	s.gate = func(t testing.TB) *faultyGate {
		t.Helper()
		second, err := redisgate.Open(t.Context(), redisgate.Config{URL: replica.Address(), KeyPrefix: strings.TrimSuffix(s.prefix, "-") + ":"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(second.Close)
		if over.Load() {
			return &faultyGate{now: func() gate.Gate { return second }, hints: second.Hints()}
		}
		first := open(t)
		before := first.now
		first.now = func() gate.Gate {
			if over.Load() {
				return second
			}
			return before()
		}
		return first
	}
	return lossy{
		servers: s,
		keep: func() {
			at, err := url.Parse(master.Address())
			if err != nil {
				t.Fatal(err)
			}
			command(t, replica.Address(), "REPLICAOF", at.Hostname(), at.Port())
			(&rig{TB: t}).until("the replica has everything", func() bool {
				of := info(t, replica.Address(), "replication")
				return of["master_link_status"] == "up" && of["slave_repl_offset"] == info(t, master.Address(), "replication")["master_repl_offset"]
			})
			command(t, replica.Address(), "REPLICAOF", "NO", "ONE")
		},
		lose: func() {
			over.Store(true)
			if err := master.Kill(); err != nil {
				t.Error(err)
			}
		},
	}
}

// lossyServers are the ways in which a Redis loses what happened last.
var lossyServers = map[string]func(*testing.T) lossy{"Flush": flushed, "Rollback": rolledBack, "Failover": failedOver}

// TestPromisesThroughLosses checks that users who were told that they wait get their
// coupons when Redis loses what happened last. Users that Redis itself lost get an
// answer that says so, and may request again.
func TestPromisesThroughLosses(t *testing.T) {
	t.Parallel()
	for name, open := range lossyServers {
		for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
			t.Run(name+string(mode), func(t *testing.T) {
				t.Parallel()
				exerciseLoss(t, mode, name == "Flush", open(t))
			})
		}
	}
}

func exerciseLoss(t *testing.T, mode reward.IssueMode, all bool, redis lossy) {
	t.Helper()
	r := &rig{TB: t, servers: redis.servers, rows: redis.rows(t)}
	const quantity, part = 300, 100
	// In STREAM mode nobody issues before the loss, so everybody is in line. In KAFKA
	// mode the instance must publish the records.
	requester := r.start(func(c *FlowConfig) {
		c.Issue, c.FallbackAfter = mode == reward.ModeKafka, patience
	})
	id := r.create(reward.CouponTemplate{TotalQuantity: quantity, Mode: mode})
	kept := r.rush(requester, id, "kept", part)
	redis.keep()
	late := r.rush(requester, id, "late", part)
	if len(kept) != part || len(late) != part {
		t.Fatalf("%d and %d users of %d were admitted", len(kept), len(late), part)
	}
	redis.lose()
	issuer := r.start(func(c *FlowConfig) { c.FallbackAfter = patience })
	var lost []string
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
			lost = append(lost, user)
		}
	}
	for _, user := range lost {
		r.want(issuer, id, user, "")
	}
	if got := r.rush(issuer, id, "new", part+20); len(got) != part {
		t.Errorf("%d newcomers were admitted, want %d", len(got), part)
	}
	r.until("all are issued", func() bool { return len(r.coupons(id)) == quantity })
	users := make(map[string]bool)
	for _, c := range r.coupons(id) {
		users[c.UserID] = true
	}
	if len(users) != quantity || slices.ContainsFunc(slices.Concat(kept, late), func(u string) bool { return !users[u] }) {
		t.Errorf("%d coupons of %d users, and not everyone who was told to wait has one", quantity, len(users))
	}
	r.balanced(id)
	t.Logf("Redis lost %d users of %d, who requested again", len(lost), 2*part)
}

// TestLeavesThroughLosses checks that users who left the line stay out of it when Redis
// loses what happened last, and that their places are there for others, once.
func TestLeavesThroughLosses(t *testing.T) {
	t.Parallel()
	for name, open := range lossyServers {
		for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka} {
			t.Run(name+string(mode), func(t *testing.T) {
				t.Parallel()
				exerciseLeavesAndLoss(t, mode, open(t))
			})
		}
	}
}

func exerciseLeavesAndLoss(t *testing.T, mode reward.IssueMode, redis lossy) {
	t.Helper()
	r := &rig{TB: t, servers: redis.servers, rows: redis.rows(t)}
	const quantity, part = 100, 20
	redis.keep()           // a master that gets its first replica counts as another run
	var settle atomic.Bool // in KAFKA mode the records are published, and not read before the loss
	requester := r.start(func(c *FlowConfig) {
		c.Issue, c.FallbackAfter, c.Connected = mode == reward.ModeKafka, patience, settle.Load
	})
	id := r.create(reward.CouponTemplate{TotalQuantity: quantity, Mode: mode})
	leave := func(users []string) {
		for _, user := range users {
			r.leaves(requester, id, user, "")
		}
	}
	stay, gone := r.rush(requester, id, "stay", part), r.rush(requester, id, "gone", 2*part)
	leave(gone[:part])
	redis.keep()
	leave(gone[part:]) // Redis loses this, the rows do not
	late := r.rush(requester, id, "late", part)
	leave(late[:part/2])
	gone, stay = append(gone, late[:part/2]...), append(stay, late[part/2:]...)
	redis.lose()
	settle.Store(true)
	issuer := r.start(func(c *FlowConfig) { c.FallbackAfter = patience })
	status := func(user string) (got Status, err error) {
		t.Helper()
		r.until("the outcome of "+user, func() bool {
			got, err = issuer.Intake.Status(t.Context(), id, user)
			return err == nil && got.Kind != StatusWaiting || reward.HasCode(err, reward.CodeRequestUnknown)
		})
		return got, err
	}
	for _, user := range gone {
		if got, err := status(user); err != nil || got.Kind != StatusLeft {
			t.Errorf("%s left, and then %+v, %v", user, got, err)
		}
		r.leaves(issuer, id, user, "")
	}
	for _, user := range stay {
		if got, err := status(user); err != nil {
			r.want(issuer, id, user, "") // Redis lost the request
		} else if got.Kind != StatusIssued {
			t.Errorf("%s waited, and then %+v", user, got)
		}
	}
	again := gone[:5] // users who left may request again
	for _, user := range again {
		r.want(issuer, id, user, "")
	}
	if got, want := r.rush(issuer, id, "new", quantity), quantity-len(stay)-len(again); len(got) != want {
		t.Errorf("%d newcomers were admitted, want %d", len(got), want)
	}
	r.until("all are issued", func() bool { return len(r.coupons(id)) == quantity })
	for _, c := range r.coupons(id) {
		if slices.Contains(gone, c.UserID) && !slices.Contains(again, c.UserID) {
			t.Errorf("%s left and has a coupon", c.UserID)
		}
	}
	for _, user := range again {
		if got, err := status(user); err != nil || got.Kind != StatusIssued {
			t.Errorf("%s requested again, and then %+v, %v", user, got, err)
		}
	}
	r.balanced(id)
}
