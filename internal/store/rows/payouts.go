package rows

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	// unknownPage ends the statements that read a page of UNKNOWN payouts, oldest
	// first.
	unknownPage = ` AND (p.updated_at, p.promotion_id, p.target_id) > ($1, $2, $3)
AND p.updated_at <= (SELECT :clock - CAST($4 AS interval)) ORDER BY p.updated_at, p.promotion_id, p.target_id LIMIT $5`

	// listUnknown walks the index of UNKNOWN payouts.
	listUnknown = `SELECT ` + PayoutColumns + ` FROM payouts p WHERE p.state = 3` + unknownPage

	// listUnknownOf reads the latest payouts of user $6. The sum keeps the planner
	// from that index, which has those of all users.
	listUnknownOf = `SELECT ` + PayoutColumns + ` FROM :payouts_of_user WHERE p.state + 0 = 3` + unknownPage

	// oldestPayouts reads since when the oldest READY payout of the first $1 RUNNING
	// promotions with any waits, since when the oldest UNKNOWN one since $2 does, and since when one
	// of these promotions has dispatched nothing. It leaves out those that may wait for the
	// outcomes of a canary, of what is within the budget, or of what is approved. Each payout
	// is the first entry of an index. The comparison p.state < 4 lets SQLite use the first.
	oldestPayouts = `SELECT min(r.due_at), (SELECT p.updated_at FROM payouts p WHERE p.state = 3 AND p.updated_at >= $2 ORDER BY p.updated_at LIMIT 1),
  min(CASE WHEN r.holds THEN NULL WHEN r.last_dispatched_at > r.due_at THEN r.last_dispatched_at ELSE r.due_at END)
FROM (
  SELECT m.last_dispatched_at, m.canary_targets > 0 AND NOT m.canary_judged AND m.canary_dispatched >= m.canary_targets
      OR m.max_amount > 0 AND m.max_amount - s.succeeded_amount - s.queued_amount - s.retrying_amount - s.unknown_amount < s.ready_amount
        AND s.queued + s.retrying + s.unknown > 0
      OR m.approved_rounds > 0 AND m.approved_count < s.ready + s.queued + s.retrying + s.unknown + s.succeeded + s.failed + s.cancelled
        AND s.queued + s.retrying > 0 AS holds,
    (SELECT p.due_at FROM payouts p WHERE p.promotion_id = m.id AND p.state = 0 AND p.state < 4 ORDER BY p.due_at LIMIT 1) AS due_at
  FROM promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0
  WHERE m.status = 'RUNNING' AND s.ready > 0 ORDER BY m.id LIMIT $1
) r`

	// errorsSQL walks from one error code of promotion $1 to the next, at most $2,
	// and counts the payouts of each in three states, each up to $3. So it reads no
	// entry of the index for another state.
	errorsSQL = `WITH RECURSIVE codes (code, n) AS (
  SELECT (SELECT p.error_code FROM payouts p :by_code WHERE p.promotion_id = $1 AND p.error_code <> '' ORDER BY p.error_code LIMIT 1), 1
  UNION ALL
  SELECT (SELECT p.error_code FROM payouts p :by_code WHERE p.promotion_id = $1 AND p.error_code <> '' AND p.error_code > c.code
    ORDER BY p.error_code LIMIT 1), c.n + 1
  FROM codes c WHERE c.code IS NOT NULL AND c.n < $2
)
SELECT c.code, (:count5), (:count2), (:count3), coalesce((:first5), (:first3), (:first2))
FROM codes c WHERE c.code IS NOT NULL`

	countOfCode = `SELECT count(*) FROM (SELECT 1 FROM payouts p :by_code
    WHERE p.promotion_id = $1 AND p.error_code = c.code AND p.error_code <> '' AND p.state = :state LIMIT $3) counted`
	firstOfCode = `SELECT p.target_id FROM payouts p :by_code
    WHERE p.promotion_id = $1 AND p.error_code = c.code AND p.error_code <> '' AND p.state = :state ORDER BY p.target_id LIMIT 1`

	// exampleOfCode reads the message of a payout, and the class of its latest attempt
	// with its code.
	exampleOfCode = `SELECT p.error_message, coalesce((SELECT a.class FROM attempts a WHERE a.promotion_id = p.promotion_id
  AND a.target_id = p.target_id AND a.code = p.error_code ORDER BY a.at DESC, a.dispatch DESC, a.number DESC LIMIT 1), '')
FROM payouts p WHERE p.promotion_id = $1 AND p.target_id = $2`

	// amountOfCode adds up the amounts of the FAILED, RETRYING and UNKNOWN payouts of promotion
	// $1 with code $2, at most $3.
	amountOfCode = `SELECT CAST(coalesce(sum(a.amount), 0) AS bigint) FROM (
  SELECT p.amount FROM payouts p :by_code WHERE p.promotion_id = $1 AND p.error_code = $2 AND p.error_code <> '' AND p.state IN (2, 3, 5) LIMIT $3
) a`
)

// payoutErrors is errorsSQL with the counts and the first payout of each state.
var payoutErrors = func() string {
	text := errorsSQL
	for _, state := range []string{"2", "3", "5"} {
		text = strings.NewReplacer(
			":count"+state, strings.ReplaceAll(countOfCode, ":state", state),
			":first"+state, strings.ReplaceAll(firstOfCode, ":state", state)).Replace(text)
	}
	return text
}()

// PayoutScanner returns a function that reads PayoutColumns of a row into p, and the columns
// after them into more. Each call replaces all of p.
func PayoutScanner(scan Scan, p *reward.Payout, more ...any) func() error {
	var trace *string
	// Basic types avoid a slower conversion for each value.
	into := append([]any{
		(*int64)(&p.PromotionID), (*int64)(&p.TargetID), (*int64)(&p.SummaryID), &p.UserID, (*int64)(&p.Amount),
		&p.VoucherCode, (*int16)(&p.State), &p.Dispatch, &p.Attempts, &p.MaybeCalled, &p.FailedDeliveries, (*at)(&p.DueAt),
		(*at)(&p.FirstDispatchedAt), (*at)(&p.SettleFrom), &p.TransactionKey, &p.ErrorCode, &p.ErrorMessage, (*at)(&p.UpdatedAt), &trace,
	}, more...)
	return func() error {
		err := scan(into...)
		if p.Trace = ""; trace != nil {
			p.Trace = *trace
		}
		return err
	}
}

// ScanPayout reads PayoutColumns into p, and the columns after them into more.
func ScanPayout(scan Scan, p *reward.Payout, more ...any) error {
	return PayoutScanner(scan, p, more...)()
}

// RowColumns are the columns that ScanRow reads.
const RowColumns = PayoutColumns + `, p.again, p.looked_at, p.approval_round`

// ScanRow reads RowColumns.
func ScanRow(scan Scan, r *rules.Row) error {
	return ScanPayout(scan, &r.Payout, &r.Again, (*at)(&r.LookedAt), &r.ApprovalRound)
}

func scanPayout(scan Scan, p *reward.Payout) error { return ScanPayout(scan, p) }

const (
	onePayout  = `SELECT ` + PayoutColumns + ` FROM payouts p WHERE p.promotion_id = $1 AND p.target_id = $2`
	attemptsOf = `SELECT dispatch, at, class, code, message FROM attempts WHERE promotion_id = $1 AND target_id = $2 ORDER BY at, dispatch, number`

	// userPayouts reads the payouts of user $1, at most $2.
	userPayouts = `SELECT ` + RowColumns + ` FROM :first_of_user ORDER BY p.promotion_id DESC, p.target_id`

	// promotionsPaid reads which promotions have paid each of the users $1, by the latest $2
	// payouts of each, with commas between.
	promotionsPaid = `SELECT coalesce((
  SELECT string_agg(CAST(promotion_id AS text), ',') FROM (SELECT DISTINCT p.promotion_id FROM :first_of_each WHERE p.state + 0 = 4) paid
), '') FROM :list1 l`

	// userAttempts reads the latest attempts of each of them, at most $3.
	userAttempts = `SELECT promotion_id, target_id, dispatch, at, class, code, message FROM (
  SELECT a.*, row_number() OVER (PARTITION BY a.promotion_id, a.target_id ORDER BY a.at DESC, a.dispatch DESC, a.number DESC) AS place
  FROM :first_of_user JOIN attempts a ON a.promotion_id = p.promotion_id AND a.target_id = p.target_id
) r WHERE place <= $3 ORDER BY at, dispatch, number`
)

// PayoutGet returns a payout and its attempts, oldest first, or
// CodePayoutNotFound.
func (t *Tables) PayoutGet(ctx context.Context, id store.PayoutID) (reward.Payout, []reward.Attempt, error) {
	var found []reward.Payout
	var attempts []reward.Attempt
	args := []any{int64(id.PromotionID), int64(id.TargetID)}
	err := t.db.Snapshot(ctx, "read a payout", func() []Statement {
		found, attempts = nil, nil
		return []Statement{
			{SQL: onePayout, Args: args, Row: into(&found, scanPayout)},
			{SQL: attemptsOf, Args: args, Row: into(&attempts, func(scan Scan, a *reward.Attempt) error {
				return scan(&a.Dispatch, (*at)(&a.At), &a.Class, &a.Code, &a.Message)
			})},
		}
	})
	p, err := first(found, err, store.NoPayout(id))
	if err != nil {
		return reward.Payout{}, nil, err
	}
	return p, attempts, nil
}

// PayoutList returns a page of payouts by ascending target ID.
func (t *Tables) PayoutList(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error) {
	args := []any{int64(p.PromotionID), int64(-1), max(p.Limit, 0)}
	if p.After != nil {
		args[1] = int64(*p.After)
	}
	if p.Code != "" {
		args = append(args, reward.SanitizeText(p.Code)) // the stored codes are sanitized too
	}
	return list(ctx, t.db.ReadLong, "list payouts", scanPayout, t.dialect.PayoutPage(p.State, p.Code), args...)
}

// PayoutHistory returns at most limit payouts of a user in all promotions, by
// descending promotion ID, then target ID. All are read in one snapshot.
// Payouts without a user ID belong to no user.
func (t *Tables) PayoutHistory(ctx context.Context, user string, limit int) ([]store.UserPayout, error) {
	if len(store.StorableUsers([]string{user})) == 0 {
		return nil, nil // no payout can have this user ID
	}
	var found []rules.Row
	var answers map[store.PayoutID][]reward.Attempt
	err := t.db.Snapshot(ctx, "read the payouts of a user", func() []Statement {
		found, answers = nil, make(map[store.PayoutID][]reward.Attempt)
		return []Statement{
			{SQL: userPayouts, Args: []any{user, max(limit, 0)}, Row: into(&found, ScanRow)},
			{SQL: userAttempts, Args: []any{user, max(limit, 0), store.UserAnswersMax}, Row: func(scan Scan) error {
				var id store.PayoutID
				var a reward.Attempt
				err := scan((*int64)(&id.PromotionID), (*int64)(&id.TargetID), &a.Dispatch, (*at)(&a.At), &a.Class, &a.Code, &a.Message)
				answers[id] = append(answers[id], a)
				return err
			}},
		}
	})
	if err != nil {
		return nil, err
	}
	return store.WithAnswers(found, answers), nil
}

// paidPayoutsMax limits the payouts of a user that PromotionsPaid reads.
const paidPayoutsMax = 100

// PromotionsPaid returns how many of the users each promotion has paid. Of a user, the
// latest paidPayoutsMax payouts count. A user who is named twice counts twice.
func (t *Tables) PromotionsPaid(ctx context.Context, users []string) (map[reward.PromotionID]int64, error) {
	users = store.StorableUsers(users)
	if len(users) == 0 {
		return nil, nil
	}
	each, err := texts(ctx, t.db.Read, "find the promotions that paid users", promotionsPaid, cellsOf(users), paidPayoutsMax)
	paid := make(map[reward.PromotionID]int64)
	for _, ids := range each {
		for id := range strings.SplitSeq(ids, ",") {
			if id, err := strconv.ParseInt(id, 10, 64); err == nil { // not of a user that none has paid
				paid[reward.PromotionID(id)]++
			}
		}
	}
	return paid, err
}

// PayoutClaimLookups returns at most Limit payouts of any promotion whose
// lookup is due at Now. These are UNKNOWN payouts, and those that a lookup has
// decided and another one must confirm (PayoutSettleParams.AgainAfter). It
// sets their DueAt to Until, so that no other caller claims them before then.
func (t *Tables) PayoutClaimLookups(ctx context.Context, p store.PayoutClaimLookupsParams) ([]reward.Payout, error) {
	return list(ctx, t.write, "claim lookups", scanPayout, t.dialect.ClaimLookups, p.Now, min(max(p.Limit, 0), math.MaxInt32), p.Until)
}

// PayoutUnknown returns a page of the UNKNOWN payouts of all promotions, ordered by
// the time at which they became UNKNOWN, then by promotion and target.
func (t *Tables) PayoutUnknown(ctx context.Context, p store.PayoutUnknownParams) ([]reward.Payout, error) {
	after := p.After
	if after.Since.IsZero() {
		after.Since = time.Unix(0, 0)
	}
	args := []any{after.Since, int64(after.PromotionID), int64(after.TargetID), p.OlderThan, max(p.Limit, 0)}
	if p.UserID == "" {
		return list(ctx, t.db.ReadLong, "list UNKNOWN payouts", scanPayout, listUnknown, args...)
	}
	if len(store.StorableUsers([]string{p.UserID})) == 0 {
		return nil, nil // no payout can have this user ID
	}
	return list(ctx, t.db.ReadLong, "list UNKNOWN payouts of a user", scanPayout, listUnknownOf, append(args, p.UserID)...)
}

// PayoutOldest returns since when the oldest READY and UNKNOWN payouts wait, and since
// when READY ones wait without any dispatch. It looks for READY ones in the first
// store.OldestPromotionsMax RUNNING promotions that have any.
func (t *Tables) PayoutOldest(ctx context.Context) (store.OldestPayouts, error) {
	return one(ctx, t.db.ReadLong, "find the oldest payouts", nil, func(scan Scan, o *store.OldestPayouts) error {
		return scan((*at)(&o.ReadySince), (*at)(&o.UnknownSince), (*at)(&o.StalledSince))
	}, oldestPayouts, store.OldestPromotionsMax, time.Unix(0, 0))
}

// PayoutErrors counts the FAILED, RETRYING and UNKNOWN payouts of a promotion by
// their error code, most payouts first. It counts the first store.PayoutErrorsMax codes
// in alphabetical order.
func (t *Tables) PayoutErrors(ctx context.Context, id reward.PromotionID) ([]store.PayoutError, error) {
	found, err := list(ctx, t.db.ReadLong, "count error codes", func(scan Scan, e *store.PayoutError) error {
		var target *int64
		if err := scan(&e.Code, &e.Failed, &e.Retrying, &e.Unknown, &target); err != nil || target == nil {
			return err
		}
		e.TargetID = reward.TargetID(*target)
		return nil
	}, payoutErrors, int64(id), store.PayoutErrorsMax, store.PayoutErrorCountMax)
	if err != nil {
		return nil, err
	}
	// A code that only payouts in other states have is no error any more.
	found = slices.DeleteFunc(found, func(e store.PayoutError) bool { return e.Payouts() == 0 })
	slices.SortStableFunc(found, func(a, b store.PayoutError) int { return cmp.Compare(b.Payouts(), a.Payouts()) })
	for i := range found[:min(len(found), store.PayoutErrorExamples)] {
		e := &found[i]
		if err := t.db.Read(ctx, "read an example of an error", func() Statement {
			return Statement{SQL: exampleOfCode, Args: []any{int64(id), int64(e.TargetID)}, Row: func(scan Scan) error { return scan(&e.Message, &e.Class) }}
		}); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// PayoutErrorAmounts returns the amounts of the payouts that errors count, by code. The
// amounts have no index, so it reads the payouts: it leaves out codes whose payouts are, with
// those of the codes before, more than store.PayoutErrorSumMax.
func (t *Tables) PayoutErrorAmounts(ctx context.Context, id reward.PromotionID, errs []store.PayoutError) (map[string]reward.Amount, error) {
	left := int64(store.PayoutErrorSumMax)
	var codes []string
	for _, e := range errs {
		if e.Payouts() <= left && len(codes) < store.PayoutErrorExamples {
			left -= e.Payouts()
			codes = append(codes, e.Code)
		}
	}
	if len(codes) == 0 {
		return nil, nil
	}
	var amounts map[string]reward.Amount
	err := t.db.SnapshotLong(ctx, "add up the amounts of errors", func() []Statement {
		amounts = make(map[string]reward.Amount)
		statements := make([]Statement, len(codes))
		for i, code := range codes {
			statements[i] = Statement{SQL: amountOfCode, Args: []any{int64(id), code, store.PayoutErrorSumMax}, Row: func(scan Scan) error {
				var amount int64
				err := scan(&amount)
				amounts[code] = reward.Amount(amount)
				return err
			}}
		}
		return statements
	})
	return amounts, err
}
