package rows

import (
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/reward"
)

// These columns are read by scanners of the drivers, because many rows of them
// are read at once.
const (
	PayoutColumns = `p.promotion_id, p.target_id, p.summary_id, p.user_id, p.amount, p.voucher_code, p.state, p.dispatch,
p.attempts, p.maybe_called, p.handovers, p.due_at, p.first_dispatched_at, p.settle_from, p.transaction_key, p.error_code,
p.error_message, p.updated_at, p.trace`

	PromotionColumns = `m.id, m.name, m.type, m.status, m.amount, m.voucher_code, m.currency, m.max_retries,
m.consumers_per_instance, m.rate_per_second, m.weight, m.max_amount, m.canary_targets, m.canary_max_failure_rate,
m.canary_dispatched, m.canary_judged, m.starts_at, m.webhook_url, m.created_by, m.approved_by, m.approval_round, m.approved_rounds,
m.unvalued_rounds, m.approved_amount, m.approved_count, m.day_granted, m.rejected_by, m.reject_reason, m.revision, m.asked_revision, m.registered, m.expected_count,
m.closed, m.paused_by, m.pause_reason, m.created_at, m.started_at, m.finished_at, m.last_dispatched_at, m.stream_gone, m.version, m.archived_at,
 m.ends_at, m.paused_at, m.cancelled_by, m.cancelled_at`

	TemplateColumns = `t.id, t.name, t.total_quantity, t.per_user_limit, t.opens_at, t.closes_at, t.valid_for, t.mode, t.reissue,
t.when_redis_away, t.draw_state, t.draw_from, t.draw_seed, t.draw_list, t.created_at, t.generation, t.settled, t.version, t.live,
t.issued_total, t.path, t.epoch, t.owner, t.fence, t.base, t.floor, t.granted,
t.used, t.grants, t.hold_seconds, t.code_prefix, t.code_length, t.code_alphabet,
t.codes_imported, t.codes_returned, t.metadata, t.archived_at, t.awaiting_quantity, t.authors, t.notes`

	// Nobody sees the code of a coupon before it is confirmed.
	couponColumns = `c.id, CASE WHEN c.held_until IS NULL THEN c.code ELSE '' END, c.template_id, c.user_id, c.generation, c.ticket, c.status, c.issued_at, c.used_at,
c.cancelled_at, c.expires_at, c.held_until, c.cancel_reason, coalesce(c.cancelled_by, '')`
)

// CountColumns are the columns of summaries with counts, in the order of
// reward.State. Each has another column for its amount, named with the suffix
// _amount.
var CountColumns = [reward.StateCount]string{
	"ready", "queued", "retrying", "unknown", "succeeded", "failed", "cancelled",
}

var (
	amountColumns = strings.Fields(strings.Join(CountColumns[:], "_amount ") + "_amount")

	// summaryColumns are the columns of summaries with counts and amounts, and the attempts.
	// countsSQL lists them of a summary row s, as countsInto reads them.
	summaryColumns = slices.Concat(CountColumns[:], amountColumns, []string{"attempts"})
	countsSQL      = "s." + strings.Join(summaryColumns, ", s.")

	// Worth is the amount of all payouts that the summary row s counts.
	Worth = "(s." + strings.Join(amountColumns, " + s.") + ")"
)

// countsInto returns pointers to the fields of c, in the order of countsSQL.
func countsInto(c *reward.Counts) []any {
	into := make([]any, 0, 2*reward.StateCount+1)
	for i := range c.Payouts {
		into = append(into, &c.Payouts[i])
	}
	for i := range c.Amounts {
		into = append(into, (*int64)(&c.Amounts[i]))
	}
	return append(into, &c.Attempts)
}
