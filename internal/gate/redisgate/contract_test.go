package redisgate

import (
	"fmt"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// TestWhatOtherSystemsSee checks the promised keys and their contents.
func TestWhatOtherSystemsSee(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		stock := func(what string, stock, count, issued string) {
			t.Helper()
			for key, want := range map[string]string{StockKey(r.prefix, r.id): stock, CountKey(r.prefix, r.id): count, IssuedKey(r.prefix, r.id): issued} {
				r.equal(what+": "+key, r.do("GET", key), any(want))
			}
		}
		s := r.state(7)
		s.Live, s.IssuedTotal = 2, 4
		r.load(s)
		stock("loaded", "8", "2", "4")
		r.admit("a", "b:c")
		stock("admitted", "6", "2", "4")
		r.equal("line", r.do("ZRANGE", LineKey(r.prefix, r.id), "0", "-1"), []any{"42:a", "42:b:c"})
		r.equal("requests", r.do("XRANGE", RequestsKey(r.prefix, r.id), "-", "+"), []any{
			[]any{"1-7", []any{"requestId", "42:a", "templateId", "42", "userId", "a", "ticket", "1", "generation", "7"}},
			[]any{"2-7", []any{"requestId", "42:b:c", "templateId", "42", "userId", "b:c", "ticket", "2", "generation", "7"}},
		})
		if group := r.do("XINFO", "GROUPS", RequestsKey(r.prefix, r.id)).([]any); len(group) != 1 {
			t.Fatalf("groups %v", group)
		}
		fixture.Must(r.g.Read(t.Context(), r.id, "host-1-1", 1))(t)
		r.equal("pending", r.do("XPENDING", RequestsKey(r.prefix, r.id), "coupon-issue-group").([]any)[0], int64(1))

		s.Version, s.Settled, s.Live, s.IssuedTotal = 2, 2, 3, 5
		fixture.Must(r.g.Apply(t.Context(), gate.ApplyParams{
			TemplateID: r.id, From: 1, State: s, Holdings: []gate.Holding{{UserID: "a", Held: 1, CouponID: 1<<62 + 1}},
			Outcomes: []gate.Outcome{{UserID: "a", Ticket: 1, CouponID: 1<<62 + 1}, {UserID: "b:c", Ticket: 2, Reason: reward.ReasonUserLimit}},
		}))(t)
		stock("applied", "7", "3", "5")
		var outcomes []any
		for _, entry := range r.do("XRANGE", OutcomesKey(r.prefix, r.id), "-", "+").([]any) {
			outcomes = append(outcomes, entry.([]any)[1])
		}
		r.equal("outcomes", outcomes, []any{
			[]any{"requestId", "42:a", "templateId", "42", "userId", "a", "ticket", "1", "status", "SUCCESS", "couponId", fmt.Sprint(1<<62 + 1), "reason", ""},
			[]any{"requestId", "42:b:c", "templateId", "42", "userId", "b:c", "ticket", "2", "status", "FAILED", "couponId", "0", "reason", "USER_LIMIT"},
		})
		fixture.Must(r.g.Shrink(t.Context(), r.id))(t)
		stock("without places, which the counter ignores", "7", "3", "5")
		s.Version, s.Live, s.Total = 3, 9, 4 // more live coupons than the total
		fixture.Must(r.g.Apply(t.Context(), gate.ApplyParams{TemplateID: r.id, From: 2, State: s}))(t)
		stock("overdrawn", "0", "9", "5")
		for _, command := range [][]string{{"SET", StockKey(r.prefix, r.id), "77"}, {"SET", StockKey(r.prefix, r.id), "x"}, {"DEL", StockKey(r.prefix, r.id)}, {"RPUSH", StockKey(r.prefix, r.id), "x"}} {
			r.do(command...)
			kept := int64(-1)
			if command[len(command)-1] == "77" {
				kept = 77
			}
			r.equal(fmt.Sprint("published stock after ", command), r.header().PublishedStock, kept)
		}
		fixture.Must(r.g.Apply(t.Context(), gate.ApplyParams{TemplateID: r.id, From: 3, State: s, Repair: true}))(t)
		stock("repaired", "0", "9", "5")
		token, ok, err := r.g.Lock(t.Context(), r.id, gate.LockParams{Lease: time.Hour, Nonce: "n1"})
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		r.equal("lock", r.do("GET", LockKey(r.prefix, r.id)), any(fmt.Sprint(token)))
		fixture.OK(r, r.g.Unlock(t.Context(), r.id, token))

		fixture.Must(r.g.Ack(t.Context(), r.id, 7, []int64{1, 2}))(t)
		if gone, err := r.g.Retire(t.Context(), r.id, 0); err != nil || !gone {
			t.Fatal(gone, err)
		}
		r.equal("keys", r.keys(t.Context()), []string{r.prefix + "coupon:{42}:lock-token"})
	})
}

// TestOutcomesAreCapped checks that the stream retains about the latest 100,000
// outcomes.
func TestOutcomesAreCapped(t *testing.T) {
	t.Parallel()
	r := onRedis(t)
	r.load(r.state(1))
	const batch, batches = 5000, 22
	outcomes := make([]gate.Outcome, batch)
	s := r.state(1)
	for range batches {
		s.Version++
		for i := range outcomes {
			outcomes[i] = gate.Outcome{UserID: "u", Ticket: s.Version*batch + int64(i), Reason: reward.ReasonSoldOut}
		}
		fixture.Must(r.g.Apply(t.Context(), gate.ApplyParams{TemplateID: r.id, From: s.Version - 1, State: s, Outcomes: outcomes}))(t)
	}
	if n := r.do("XLEN", OutcomesKey(r.prefix, r.id)).(int64); n < 100_000 || n > 101_000 {
		t.Fatalf("%d outcomes are retained", n)
	}
}

// TestAckLeavesOtherRequests checks which requests an acknowledgement leaves in the stream: those
// that consumers still have, those behind it, and in KAFKA mode one that lost its consumer.
func TestAckLeavesOtherRequests(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		mode    reward.IssueMode
		deleted string // a consumer
		acked   []int64
		left    []string
	}{
		"AllUpToTheLast":       {reward.ModeStream, "", []int64{1, 2, 3}, []string{"4-1", "5-1"}},
		"InAnyOrder":           {reward.ModeStream, "", []int64{3, 1, 2}, []string{"4-1", "5-1"}},
		"AnOlderOneIsPending":  {reward.ModeStream, "", []int64{2, 3}, []string{"1-1", "4-1", "5-1"}},
		"OneIsNotDelivered":    {reward.ModeStream, "", []int64{1, 2, 5}, []string{"3-1", "4-1"}},
		"AllInModeKafka":       {reward.ModeKafka, "", []int64{1, 2, 3}, []string{"4-1", "5-1"}},
		"OneLostItsConsumer":   {reward.ModeKafka, "first", []int64{2, 3}, []string{"1-1", "4-1", "5-1"}},
		"OneOfAnotherConsumer": {reward.ModeKafka, "", []int64{2, 3}, []string{"1-1", "4-1", "5-1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := onRedis(t)
			s := r.state(1)
			s.Mode = tc.mode
			r.load(s)
			fixture.Must(r.g.Admit(t.Context(), r.id, []string{"a", "b", "c", "d", "e"}, true))(t)
			fixture.Must(r.g.Read(t.Context(), r.id, "first", 1))(t)
			fixture.Must(r.g.Read(t.Context(), r.id, "second", 3))(t)
			if tc.deleted != "" {
				r.do("XGROUP", "DELCONSUMER", RequestsKey(r.prefix, r.id), group, tc.deleted)
			}
			acked := fixture.Must(r.g.Ack(t.Context(), r.id, 1, tc.acked))(t)
			var left []string
			for _, entry := range r.do("XRANGE", RequestsKey(r.prefix, r.id), "-", "+").([]any) {
				left = append(left, entry.([]any)[0].(string))
			}
			r.equal("left in the stream", left, tc.left)
			r.equal("acknowledged", acked, 5-len(tc.left))
		})
	}
}
