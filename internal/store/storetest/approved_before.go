package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// ApprovedBefore is the version of the schema before approvals were bound to targets.
const ApprovedBefore = 14

// ExerciseApprovedBefore fills a schema of version ApprovedBefore, migrates it, and
// checks that an approval of that time covers the targets of that time, and no others.
// second returns a time in seconds since 1970 as the driver stores it.
func ExerciseApprovedBefore(t *testing.T, s *rows.Tables, second func(int) string, exec func(sql string) error) {
	t.Helper()
	b := &bundle{TB: t, Tables: s, ctx: t.Context()}
	for id, p := range map[int]struct{ kind, status, creator, approver string }{
		1: {"POINT", "RUNNING", "ann", "bob"}, 2: {"POINT", "RUNNING", "ann", ""}, 3: {"VOUCHER", "RUNNING", "ann", "bob"},
		4: {"VOUCHER", "RUNNING", "ann", ""}, 5: {"POINT", "DRAFT", "", "bob"},
	} {
		b.must(exec(fmt.Sprintf(`INSERT INTO promotions (id, name, type, status, amount, voucher_code, currency, max_retries, registered, created_at,
  stream_gone, created_by, approved_by) VALUES (%d, 'old', '%s', '%s', 0, '', 'KRW', 3, false, %s, true, '%s', '%s')`,
			id, p.kind, p.status, second(1), p.creator, p.approver)))
		amounts := []int{50, 70}
		if p.kind == "VOUCHER" {
			amounts = []int{0, 10}
		}
		if p.status == "DRAFT" {
			amounts = nil // an approval of nothing
		}
		total := 0
		for target, amount := range amounts {
			total += amount
			b.must(exec(fmt.Sprintf(`INSERT INTO payouts (promotion_id, target_id, summary_id, user_id, amount, voucher_code, state, dispatch, attempts,
  maybe_called, due_at, transaction_key, error_code, error_message, updated_at)
VALUES (%d, %d, 0, 'u', %d, '', 0, 0, 0, false, %s, '', '', '', %[4]s)`, id, target+5, amount, second(10+target))))
		}
		b.must(exec(fmt.Sprintf(`INSERT INTO summaries (promotion_id, summary_id, ready, ready_amount) VALUES (%d, 0, %d, %d)`, id, len(amounts), total)))
	}
	for n, line := range []struct{ actor, action, subject string }{
		{"cid", "upload-targets", "/v1/promotions/1/targets"},
		{"cid", "upload-targets", "/v1/promotions/1/targets"},
		{"dee", "upload-targets", "/v1/promotions/2/targets"},
		{"eve", "pause-promotion", "/v1/promotions/1/pause"},
		{"eve", "upload-targets", "/v1/promotions/x/targets"},
		{"eve", "upload-targets", "/v1/promotions/9999999999999999999/targets"},
	} {
		b.must(exec(fmt.Sprintf(`INSERT INTO audit (id, at, actor, role, action, subject, request_id, detail) VALUES (%d, %s, '%s', 'operator', '%s', '%s', '', '')`,
			n+1, second(2), line.actor, line.action, line.subject)))
	}

	b.must(b.Migrate(b.ctx))
	for id, want := range map[reward.PromotionID]struct {
		approval reward.Approval
		authors  string
	}{
		1: {reward.Approval{Round: 1, Rounds: 1, Amount: 120, Count: 2}, "ann cid"},
		2: {reward.Approval{}, "ann dee"},
		3: {reward.Approval{Round: 1, Rounds: 1, Unvalued: 1, Amount: 10, Count: 2}, "ann"},
		4: {reward.Approval{Unvalued: 1}, "ann"},
		5: {reward.Approval{Round: 1, Rounds: 1}, ""},
	} {
		v := b.view(id)
		same(b, fmt.Sprintf("approval of promotion %d", id), want.approval, v.Approval)
		authors := must(b.PromotionAuthors(b.ctx, id))(b)
		slices.Sort(authors)
		same(b, fmt.Sprintf("authors of promotion %d", id), want.authors, strings.Join(authors, " "))
	}
	b.move(5, reward.Running)
	above := worthLimit(60)
	for id := reward.PromotionID(1); id <= 5; id++ {
		amount := reward.Amount(100)
		if id == 3 || id == 4 {
			amount = 0
		}
		// Its ID is before those of the approved targets.
		must(b.PayoutSave(b.ctx, store.PayoutSaveParams{
			Rows: []store.NewPayout{{PromotionID: id, TargetID: 1, Amount: amount}}, MaxLen: plenty, ApprovalAbove: above, Now: at(1),
		}))(b)
		list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: id, From: reward.Ready, Limit: 10, MaxLen: plenty, ApprovalAbove: above, Now: at(2)})
		b.must(err)
		var targets []reward.TargetID
		for _, p := range list {
			targets = append(targets, p.TargetID)
		}
		want := []reward.TargetID{5, 6}
		if id == 2 || id == 4 || id == 5 {
			want = nil
		}
		same(b, fmt.Sprintf("dispatched of promotion %d", id), want, targets)
	}
}
