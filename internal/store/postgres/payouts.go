package postgres

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// payoutColumns are read by scanPayout, and the columns after them into more.
const payoutColumns = rows.PayoutColumns

func scanPayout(rows pgx.Rows, more ...any) (reward.Payout, error) {
	var p reward.Payout
	var first, settle *time.Time
	var trace *string
	// Basic types avoid a slower conversion in pgx for each value.
	err := rows.Scan(append([]any{
		(*int64)(&p.PromotionID), (*int64)(&p.TargetID), (*int64)(&p.SummaryID), &p.UserID, (*int64)(&p.Amount),
		&p.VoucherCode, (*int16)(&p.State), &p.Dispatch, &p.Attempts, &p.MaybeCalled, &p.FailedDeliveries, &p.DueAt, &first, &settle,
		&p.TransactionKey, &p.ErrorCode, &p.ErrorMessage, &p.UpdatedAt, &trace,
	}, more...)...)
	p.DueAt, p.UpdatedAt = p.DueAt.UTC(), p.UpdatedAt.UTC()
	p.FirstDispatchedAt, p.SettleFrom = timeOf(first), timeOf(settle)
	if trace != nil {
		p.Trace = *trace
	}
	return p, err
}

func payoutsInto(list *[]reward.Payout) func(pgx.Rows) error {
	return each(func(rows pgx.Rows) error {
		p, err := scanPayout(rows)
		*list = append(*list, p)
		return err
	})
}

// idColumns returns the IDs of payouts as columns.
func idColumns(ids []store.PayoutID) (promotions, targets []int64) {
	promotions, targets = make([]int64, len(ids)), make([]int64, len(ids))
	for i, id := range ids {
		promotions[i], targets[i] = int64(id.PromotionID), int64(id.TargetID)
	}
	return promotions, targets
}

const headsSQL = `SELECT ` + payoutColumns + ` FROM unnest($1::int8[], $2::int8[]) AS i(promotion_id, target_id)
JOIN payouts p ON p.promotion_id = i.promotion_id AND p.target_id = i.target_id`

// PayoutGetMany returns the payouts among ids that exist.
func (s *Store) PayoutGetMany(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	promotions, targets := idColumns(ids)
	var list []reward.Payout
	err := s.read(ctx, "read payouts", func(b *pgx.Batch) {
		list = make([]reward.Payout, 0, len(ids))
		b.Queue(headsSQL, promotions, targets).Query(payoutsInto(&list))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// PayoutGet returns a payout with its attempts, oldest first.
func (s *Store) PayoutGet(ctx context.Context, id store.PayoutID) (reward.Payout, []reward.Attempt, error) {
	var found []reward.Payout
	var attempts []reward.Attempt
	err := s.read(ctx, "read a payout", func(b *pgx.Batch) {
		found, attempts = nil, nil
		b.Queue(`SELECT `+payoutColumns+` FROM payouts p WHERE p.promotion_id = $1 AND p.target_id = $2`,
			int64(id.PromotionID), int64(id.TargetID)).Query(payoutsInto(&found))
		b.Queue(`SELECT dispatch, at, class, code, message FROM attempts WHERE promotion_id = $1 AND target_id = $2
ORDER BY at, dispatch, number`, int64(id.PromotionID), int64(id.TargetID)).Query(each(func(rows pgx.Rows) error {
			var a reward.Attempt
			err := rows.Scan(&a.Dispatch, &a.At, &a.Class, &a.Code, &a.Message)
			a.At = a.At.UTC()
			attempts = append(attempts, a)
			return err
		}))
	})
	if err != nil {
		return reward.Payout{}, nil, err
	}
	if len(found) == 0 {
		return reward.Payout{}, nil, store.NoPayout(id)
	}
	return found[0], attempts, nil
}

// listSQL returns the statement that lists payouts of promotion $1 with a
// target above $2, at most $3. If they are given, it filters by state and error
// code $4.
//
// The states are literals, because the planner uses a partial index only then.
// The statements that filter compare and order by the state too. Otherwise the
// planner may read all payouts of the promotion by target, and expect to find a
// page among the first ones.
func listSQL(state *reward.State, code string) string {
	switch {
	case state == nil && code == "":
		return `SELECT ` + payoutColumns + ` FROM payouts p
WHERE p.promotion_id = $1 AND p.target_id > $2 ORDER BY p.target_id LIMIT $3`
	case state == nil:
		var states []string
		for s := range reward.StateCount {
			states = append(states, `SELECT * FROM (`+listIn(s, code)+`) s`)
		}
		return `SELECT * FROM (` + strings.Join(states, " UNION ALL\n") + `) p ORDER BY p.target_id LIMIT $3`
	case *state == reward.Queued && code == "":
		// The sum keeps the planner from the order of the primary key.
		return named(`SELECT ` + payoutColumns + ` FROM (
  SELECT o.promotion_id, o.target_id FROM payouts o WHERE o.promotion_id = $1 AND o.state = :QUEUED AND o.state < :SUCCEEDED AND o.target_id > $2
  ORDER BY o.target_id + 0 LIMIT $3
) i JOIN payouts p ON p.promotion_id = i.promotion_id AND p.target_id = i.target_id ORDER BY p.target_id`)
	}
	return listIn(*state, code)
}

// listed is the condition of payouts_listed.
var listed = named(` AND p.state - :QUEUED <> 0`)

// listIn is listSQL for one state. It compares rows on both ends, so that the
// planner cannot use payouts_open, which has another order.
func listIn(state reward.State, code string) string {
	where := listed
	if code != "" {
		where = ` AND p.error_code = $4 AND p.error_code <> ''`
	}
	n := strconv.Itoa(int(state))
	return `SELECT ` + payoutColumns + ` FROM payouts p
WHERE p.promotion_id = $1` + where + ` AND (p.state, p.target_id) > (` + n + `, $2) AND (p.state, p.target_id) <= (` + n + `, ` + strconv.FormatInt(math.MaxInt64, 10) + `)
ORDER BY p.state, p.target_id LIMIT $3`
}

// PayoutList returns a page of payouts by target ID.
func (s *Store) PayoutList(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error) {
	after := int64(-1)
	if p.After != nil {
		after = int64(*p.After)
	}
	args := []any{int64(p.PromotionID), after, max(p.Limit, 0)}
	if p.Code != "" {
		args = append(args, reward.SanitizeText(p.Code))
	}
	var list []reward.Payout
	err := s.readLong(ctx, "list payouts", func(b *pgx.Batch) {
		list = nil
		b.Queue(listSQL(p.State, p.Code), args...).Query(payoutsInto(&list))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

const (
	// payoutsOfUser reads the payouts of user $1, at most $2. The table of
	// users may have a row twice, or the row of a deleted payout.
	payoutsOfUser = `(
  SELECT DISTINCT u.promotion_id, u.target_id FROM payout_users u WHERE u.user_id = $1
  ORDER BY u.promotion_id DESC, u.target_id LIMIT $2
) u
JOIN payouts p ON p.promotion_id = u.promotion_id AND p.target_id = u.target_id AND p.user_id = $1`

	historyPayouts = `SELECT ` + payoutColumns + ` FROM ` + payoutsOfUser + ` ORDER BY u.promotion_id DESC, u.target_id`

	// historyAnswers reads the latest attempts of each of them, at most $3.
	historyAnswers = `SELECT p.promotion_id, p.target_id, a.dispatch, a.at, a.class, a.code, a.message FROM ` + payoutsOfUser + `
CROSS JOIN LATERAL (
  SELECT * FROM attempts a WHERE a.promotion_id = p.promotion_id AND a.target_id = p.target_id
  ORDER BY a.at DESC, a.dispatch DESC, a.number DESC LIMIT $3
) a
ORDER BY a.at, a.dispatch, a.number`
)

// PayoutHistory returns the payouts of a user in all promotions.
func (s *Store) PayoutHistory(ctx context.Context, user string, limit int) ([]store.UserPayout, error) {
	if len(store.StorableUsers([]string{user})) == 0 {
		return nil, nil // no payout can have this user ID
	}
	most := int64(max(limit, 0))
	var found []reward.Payout
	var answers map[store.PayoutID][]reward.Attempt
	err := s.read(ctx, "read the payouts of a user", func(b *pgx.Batch) {
		found, answers = nil, make(map[store.PayoutID][]reward.Attempt)
		b.Queue(oneSnapshot)
		b.Queue(historyPayouts, user, most).Query(payoutsInto(&found))
		b.Queue(historyAnswers, user, most, int64(store.UserAnswersMax)).Query(each(func(rows pgx.Rows) error {
			var id store.PayoutID
			var a reward.Attempt
			err := rows.Scan((*int64)(&id.PromotionID), (*int64)(&id.TargetID), &a.Dispatch, &a.At, &a.Class, &a.Code, &a.Message)
			a.At = a.At.UTC()
			answers[id] = append(answers[id], a)
			return err
		}))
		b.Queue(`COMMIT`)
	})
	if err != nil {
		return nil, err
	}
	return store.WithAnswers(found, answers), nil
}
