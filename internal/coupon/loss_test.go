package coupon

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
)

// loss is a loss of what happened last in Redis.
type loss struct {
	mode reward.IssueMode
	// serving is true when the records of KAFKA mode are read before the loss.
	serving bool
	all     bool // everything is lost, and not only what happened after keep
	part    int  // the size of the line
	keep    func()
	lose    func()
}

// lossy is a Redis that loses what happened after keep.
type lossy struct {
	servers
	keep, lose func()
}

// command sends a command to a Redis.
func command(t *testing.T, address string, words ...string) string {
	t.Helper()
	c := fixture.RedisClient(t, address)
	defer c.Close()
	out, err := c.Do(t.Context(), c.B().Arbitrary(words...).Build()).ToString()
	if err != nil {
		t.Fatal(words, err)
	}
	return out
}

// replication returns what a Redis says about its replication.
func replication(t *testing.T, address string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for line := range strings.Lines(command(t, address, "INFO", "replication")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		out[name] = value
	}
	return out
}

// failedOver continues with a replica that has not received the last changes.
func failedOver(t *testing.T) lossy {
	t.Helper()
	master, replica := fixture.Own(t, fleet.NewRedis), fixture.Own(t, fleet.NewRedis)
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
		second := openRedis(t, replica.Address(), s.keys)
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
			at := fixture.Must(url.Parse(master.Address()))(t)
			command(t, replica.Address(), "REPLICAOF", at.Hostname(), at.Port())
			fixture.Until(t, "the replica has everything", func() bool {
				of := replication(t, replica.Address())
				return of["master_link_status"] == "up" && of["slave_repl_offset"] == replication(t, master.Address())["master_repl_offset"]
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

// eachLoss runs a test with a gate that loses everything, and with a real failover.
func eachLoss(t *testing.T, losses []loss, test func(r *rig, l loss)) {
	t.Helper()
	for _, l := range losses {
		t.Run(fmt.Sprint("Flush", l.mode, l.serving), func(t *testing.T) {
			t.Parallel()
			each(t, func(r *rig) {
				l.all, l.part, l.keep, l.lose = true, 400, func() {}, r.memory.lose
				test(r, l)
			})
		})
	}
	t.Run("Failover", func(t *testing.T) {
		t.Parallel()
		redis := failedOver(t)
		test(newRig(t, redis.servers), loss{mode: reward.ModeStream, part: 100, keep: redis.keep, lose: redis.lose})
	})
}

// TestPromisesThroughLosses checks that users who were told that they wait get their
// coupons when Redis loses what happened last. Users that Redis itself lost get an
// answer that says so, and may request again. In STREAM mode those whose requests Redis
// still has are served in their order.
func TestPromisesThroughLosses(t *testing.T) {
	t.Parallel()
	eachLoss(t, []loss{{mode: reward.ModeStream}, {mode: reward.ModeKafka}, {mode: reward.ModeKafka, serving: true}}, exerciseLoss)
}

func exerciseLoss(r *rig, l loss) {
	r.Helper()
	early, recent, spare := 2*l.part, l.part, l.part/2
	quantity := early + recent + spare
	l.keep()               // a master that gets its first replica counts as another run
	var settle atomic.Bool // in KAFKA mode the records are published, and not read before the loss
	settle.Store(l.serving)
	requester := r.start(func(c *FlowConfig) {
		c.Issue, c.FallbackAfter, c.Connected = l.mode == reward.ModeKafka, fixture.Patience, settle.Load
	})
	id := r.create(reward.CouponTemplate{TotalQuantity: int64(quantity), Mode: l.mode})
	kept := r.rush(requester, id, "kept", early)
	tickets := r.inLine(requester, id)
	l.keep()
	late := r.rush(requester, id, "late", recent)
	if len(kept) != early || len(late) != recent || !l.serving && len(r.inLine(requester, id)) != early+recent {
		r.Fatalf("%d and %d users were admitted, %d are in line", len(kept), len(late), len(r.inLine(requester, id)))
	}
	l.lose()
	settle.Store(true)
	issuer := r.start(func(c *FlowConfig) { c.FallbackAfter = fixture.Patience })
	lost := make(map[string]bool)
	for _, user := range slices.Concat(kept, late) {
		got, err := r.end(issuer, id, user)
		switch {
		case err == nil && got.Kind != StatusIssued:
			r.Errorf("%s was told to wait, and then %+v", user, got)
		case err != nil && (l.mode == reward.ModeKafka || !l.all && strings.HasPrefix(user, "kept")):
			r.Errorf("%s was told to wait, and nothing that was lost was about this request: %v", user, err)
		case err != nil:
			lost[user] = true
		}
	}
	if want := map[bool]int{true: early + recent, false: recent}[l.all]; l.mode == reward.ModeStream && len(lost) != want {
		r.Errorf("Redis lost the requests of %d users, want %d", len(lost), want)
	}
	for name, users := range map[string]int{"kept": early, "late": recent} { // a repeat of those who have a coupon
		if got := r.rush(issuer, id, name, users); len(got) != users {
			r.Errorf("%d of %d users %s who requested again were admitted", len(got), users, name)
		}
	}
	if got := r.rush(issuer, id, "new", 2*spare); len(got) != spare {
		r.Errorf("%d newcomers were admitted, want %d", len(got), spare)
	}
	r.issued(id, quantity)
	users, last := make(map[string]bool), int64(0)
	for _, c := range r.coupons(id) {
		users[c.UserID] = true
		if was, known := tickets[c.UserID]; known && l.mode == reward.ModeStream && !lost[c.UserID] {
			if was < last {
				r.Errorf("%s had ticket %d, and was served after ticket %d", c.UserID, was, last)
			}
			last = was
		}
	}
	if len(users) != quantity || slices.ContainsFunc(slices.Concat(kept, late), func(u string) bool { return !users[u] }) {
		r.Errorf("%d coupons of %d users, and not everyone who was told to wait has one", quantity, len(users))
	}
	r.balanced(id)
}

// end waits for the outcome of a request, or until nothing is known of it.
func (r *rig) end(i *instance, id reward.TemplateID, user string) (got Status, err error) {
	r.Helper()
	r.until("the outcome of "+user, func() bool {
		got, err = i.Intake.Status(r.Context(), id, user)
		return err == nil && got.Kind != StatusWaiting || reward.HasCode(err, reward.CodeRequestUnknown)
	})
	return got, err
}

// TestLeavesThroughLosses checks that users who left the line stay out of it when Redis
// loses what happened last, and that their places are there for others, once.
func TestLeavesThroughLosses(t *testing.T) {
	t.Parallel()
	eachLoss(t, []loss{{mode: reward.ModeStream}, {mode: reward.ModeKafka}}, exerciseLeavesAndLoss)
}

func exerciseLeavesAndLoss(r *rig, l loss) {
	r.Helper()
	const quantity, part = 100, 20
	l.keep()               // a master that gets its first replica counts as another run
	var settle atomic.Bool // in KAFKA mode the records are published, and not read before the loss
	requester := r.start(func(c *FlowConfig) {
		c.Issue, c.FallbackAfter, c.Connected = l.mode == reward.ModeKafka, fixture.Patience, settle.Load
	})
	id := r.create(reward.CouponTemplate{TotalQuantity: quantity, Mode: l.mode})
	leave := func(users []string) {
		for _, user := range users {
			r.leaves(requester, id, user, "")
		}
	}
	stay, gone := r.rush(requester, id, "stay", part), r.rush(requester, id, "gone", 2*part)
	leave(gone[:part])
	l.keep()
	leave(gone[part:]) // Redis loses this, the rows do not
	late := r.rush(requester, id, "late", part)
	leave(late[:part/2])
	gone, stay = append(gone, late[:part/2]...), append(stay, late[part/2:]...)
	l.lose()
	settle.Store(true)
	issuer := r.start(func(c *FlowConfig) { c.FallbackAfter = fixture.Patience })
	for _, user := range gone {
		if got, err := r.end(issuer, id, user); err != nil || got.Kind != StatusLeft {
			r.Errorf("%s left, and then %+v, %v", user, got, err)
		}
		r.leaves(issuer, id, user, "")
	}
	for _, user := range stay {
		if got, err := r.end(issuer, id, user); err != nil {
			r.want(issuer, id, user, "") // Redis lost the request
		} else if got.Kind != StatusIssued {
			r.Errorf("%s waited, and then %+v", user, got)
		}
	}
	again := gone[:5] // users who left may request again
	for _, user := range again {
		r.want(issuer, id, user, "")
	}
	if got, want := r.rush(issuer, id, "new", quantity), quantity-len(stay)-len(again); len(got) != want {
		r.Errorf("%d newcomers were admitted, want %d", len(got), want)
	}
	r.issued(id, quantity)
	for _, c := range r.coupons(id) {
		if slices.Contains(gone, c.UserID) && !slices.Contains(again, c.UserID) {
			r.Errorf("%s left and has a coupon", c.UserID)
		}
	}
	for _, user := range again {
		if got, err := r.end(issuer, id, user); err != nil || got.Kind != StatusIssued {
			r.Errorf("%s requested again, and then %+v, %v", user, got, err)
		}
	}
	r.balanced(id)
}
