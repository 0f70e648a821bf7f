package coupon

import (
	"fmt"
	"testing"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/reward"
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
	if err := bus.NewPublisher(c).Publish(r.Context(), records); err != nil {
		r.Fatal(err)
	}
}

// TestForeignRecords checks that external records request coupons, also with the
// original system's field names, that malformed records become dead letters and block
// nothing, and that a repeated record is settled once.
func TestForeignRecords(t *testing.T) {
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
			letters, err := r.rows.DeadLetterList(r.Context(), store.DeadLetterListParams{Limit: 100})
			if err != nil {
				r.Fatal(err)
			}
			return len(letters) == 4
		})
		if list := r.coupons(id); len(list) != 4 {
			r.Errorf("%+v", list)
		}
		r.want(i, id, "dora", reward.CodeSoldOut)
		r.balanced(id)
	})
}
