package coupon

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// publish writes records to the coupon-issue topic as another system would.
func (r *rig) publish(values ...string) {
	r.Helper()
	c := r.connect("another system")
	defer c.Close()
	records := make([]bus.Record, len(values))
	for i, v := range values {
		records[i] = bus.Record{Topic: bus.TopicCouponIssue, Key: []byte("k"), Value: []byte(v)}
	}
	fixture.OK(r, c.Publish(r.Context(), records))
}

// TestExternalRecords checks that external records request coupons, also with the
// original system's field names, that malformed records become dead letters and block
// nothing, and that a repeated record is settled once.
func TestExternalRecords(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		id := r.create(reward.CouponTemplate{TotalQuantity: 4, Mode: reward.ModeKafka})
		r.publish(
			fmt.Sprintf(`{"couponId":%s,"username":"ann"}`, id),
			fmt.Sprintf(`{"templateId":"%s","userId":"bob"}`, id),
			`{"templateId":`, `{"userId":"nobody"}`, fmt.Sprintf(`{"templateId":%s,"userId":""}`, id),
			fmt.Sprintf(`{"templateId":%s,"userId":"x","ticket":7}`, id), // external without a generation, so x requests
			`{"templateId":999,"userId":"ann"}`,
			fmt.Sprintf(`{"templateId":%s,"userId":"ann"}`, id), // once more
		)
		r.issued(id, 3)
		c := r.take(i, id, "cid")
		// The same record of a ticket, twice.
		again := reward.CouponIssueEvent{TemplateID: id, UserID: "cid", Ticket: c.Ticket, Generation: c.Generation}
		r.publish(string(again.JSON()), string(again.JSON()), fmt.Sprintf(`{"templateId":%s,"userId":"dora"}`, id))
		r.until("all are read", func() bool {
			letters := fixture.Must(r.rows.DeadLetterList(r.Context(), store.DeadLetterListParams{Limit: 100}))(r)
			return len(letters) == 4
		})
		if list := r.coupons(id); len(list) != 4 {
			r.Errorf("%+v", list)
		}
		r.want(i, id, "dora", reward.CodeSoldOut)
		r.balanced(id)
	})
}

// countedRows take a while to settle records, and count the transactions in progress.
type countedRows struct {
	Store
	mu         sync.Mutex
	open, most int
}

func (r *countedRows) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.open += n
	r.most = max(r.most, r.open)
}

func (r *countedRows) CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error) {
	if p.Kind == rules.SettleListed {
		r.add(1)
		defer r.add(-1)
		service.Sleep(ctx, time.Second)
	}
	return r.Store.CouponSettle(ctx, p)
}

// TestAnInstanceLimitsItsTransactions checks that records of many templates are settled
// in as many concurrent transactions as coupon.consumer-concurrency allows.
func TestAnInstanceLimitsItsTransactions(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		const limit = 3
		rows := &countedRows{}
		i := r.start(func(c *FlowConfig) {
			c.Concurrency = limit
			rows.Store, c.Store = c.Store, rows
		})
		var ids []reward.TemplateID
		for range 4 * limit {
			ids = append(ids, r.create(reward.CouponTemplate{TotalQuantity: 2, Mode: reward.ModeKafka}))
		}
		for n, user := range []string{"ann", "bob"} { // for ann, each gate is loaded, one after the other
			for _, id := range ids {
				r.request(i, id, user)
			}
			for _, id := range ids {
				r.issued(id, n+1)
			}
		}
		if rows.most != limit {
			r.Errorf("%d transactions at a time, want %d", rows.most, limit)
		}
	})
}
