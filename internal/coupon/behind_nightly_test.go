//go:build nightly

package coupon

import (
	"fmt"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// TestNightlyAGateIsAMillionSettlementsBehind checks that a gate is loaded, and its line served,
// after 1,100,000 coupons were issued past it: more than 2^20, in one outage. In KAFKA
// mode, which loads in the same way, 100,000 are enough.
func TestNightlyAGateIsAMillionSettlementsBehind(t *testing.T) {
	t.Parallel()
	for mode, past := range map[reward.IssueMode]int64{reward.ModeStream: 1_100_000, reward.ModeKafka: 100_000} {
		t.Run(string(mode), func(t *testing.T) { //nolint:paralleltest // each takes a CPU
			const line = 100
			r := newRig(t, openServers(t))
			early := r.start(func(c *FlowConfig) {
				c.Connected = func() bool { return false } // in KAFKA mode the records are published, and not read
				c.Issue = mode == reward.ModeKafka
			})
			id := r.create(reward.CouponTemplate{TotalQuantity: 2 * past, Mode: mode})
			told := r.rush(early, id, "line", line)
			early.stop()
			row, moved, err := r.rows.TemplateNewGeneration(t.Context(), store.TemplateNewGenerationParams{ID: id, From: -1, Path: reward.PathDatabase})
			if err != nil || !moved {
				t.Fatal(moved, err)
			}
			began := time.Now()
			for from := int64(0); from < past; from += store.BatchMax {
				p := store.CouponSettleParams{TemplateID: id, Kind: rules.SettleDirect, Generation: row.Generation, Path: reward.PathDatabase, Now: time.Now()}
				for n := from; n < min(from+store.BatchMax, past); n++ {
					p.Requests = append(p.Requests, rules.CouponRequest{
						UserID: fmt.Sprint("past-", n), CouponID: reward.CouponID(early.Catalog.ids.Next()), Code: reward.NewCouponCode(),
					})
				}
				if result, err := r.rows.CouponSettle(t.Context(), p); err != nil || result.Refused != rules.NotRefused {
					t.Fatal(result.Refused, err)
				}
			}
			t.Logf("issued past the gate in %v", time.Since(began))
			began = time.Now()
			i := r.start()
			for n, user := range append(told, "new") {
				if n == line {
					r.take(i, id, user)
				} else if got := r.outcome(i, id, user); got.Kind != StatusIssued {
					t.Errorf("%s was told to wait, and then: %+v", user, got)
				}
			}
			if row, err := r.rows.TemplateGet(t.Context(), id); err != nil || row.Live != past+line+1 || row.Path != reward.PathGate {
				t.Errorf("%+v, %v", row, err)
			}
			t.Logf("served in %v", time.Since(began))
			r.balanced(id)
		})
	}
}
