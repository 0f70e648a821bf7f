package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// payoutColumns are read by scanPayout.
const payoutColumns = rows.PayoutColumns

// payoutReturning is payoutColumns for RETURNING, which allows no alias.
var payoutReturning = strings.ReplaceAll(payoutColumns, "p.", "")

// rowColumns are read by scanRow.
const rowColumns = payoutColumns + `, p.again, p.looked_at`

func scanPayout(rows *sql.Rows) (p reward.Payout, err error) {
	err = payoutInto(rows, &p)
	return p, err
}

func scanRow(rows *sql.Rows) (r rules.Row, err error) {
	var looked sql.NullInt64
	err = payoutInto(rows, &r.Payout, &r.Again, &looked)
	r.LookedAt = maybeTime(looked)
	return r, err
}

// payoutInto scans payoutColumns into p, and the columns after them into more.
func payoutInto(rows *sql.Rows, p *reward.Payout, more ...any) error {
	var due, updated int64
	var first, settle sql.NullInt64
	var trace sql.NullString
	// Basic types avoid a slower conversion in database/sql for each value.
	err := rows.Scan(append([]any{
		(*int64)(&p.PromotionID), (*int64)(&p.TargetID), (*int64)(&p.SummaryID), &p.UserID, (*int64)(&p.Amount),
		&p.VoucherCode, (*int16)(&p.State), &p.Dispatch, &p.Attempts, &p.MaybeCalled, &p.FailedDeliveries, &due, &first, &settle,
		&p.TransactionKey, &p.ErrorCode, &p.ErrorMessage, &updated, &trace,
	}, more...)...)
	p.DueAt, p.UpdatedAt = timeOf(due), timeOf(updated)
	p.FirstDispatchedAt, p.SettleFrom, p.Trace = maybeTime(first), maybeTime(settle), trace.String
	return err
}

// payoutsOf returns the payouts among ids that exist. It runs one statement per
// promotion.
func payoutsOf(ctx context.Context, q querier, ids []store.PayoutID) ([]reward.Payout, error) {
	return byTargets(ctx, q, scanPayout, payoutColumns, ids)
}

// byTargets reads columns of the payouts among ids that exist. It runs one
// statement per promotion.
func byTargets[T any](ctx context.Context, q querier, scan func(*sql.Rows) (T, error), columns string, ids []store.PayoutID) ([]T, error) {
	byPromotion := make(map[reward.PromotionID][]reward.TargetID)
	for _, id := range ids {
		byPromotion[id.PromotionID] = append(byPromotion[id.PromotionID], id.TargetID)
	}
	list := make([]T, 0, len(ids))
	for promotion, targets := range byPromotion {
		array, err := json.Marshal(targets)
		if err != nil {
			return nil, err
		}
		found, err := collect(ctx, q, scan, `SELECT `+columns+` FROM payouts p
WHERE p.promotion_id = ? AND p.target_id IN (SELECT value FROM json_each(?))`, int64(promotion), string(array))
		if err != nil {
			return nil, err
		}
		list = append(list, found...)
	}
	return list, nil
}

// PayoutGetMany returns the payouts among ids that exist.
func (s *Store) PayoutGetMany(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error) {
	list, err := payoutsOf(ctx, s.reader.as("read payouts"), ids)
	if err != nil {
		return nil, fmt.Errorf("read payouts: %w", err)
	}
	return list, nil
}

// PayoutGet returns a payout with its attempts, oldest first. It reads the
// attempts second, so they may be newer than the row.
func (s *Store) PayoutGet(ctx context.Context, id store.PayoutID) (reward.Payout, []reward.Attempt, error) {
	p, found, err := one(ctx, s.reader.as("read a payout"), scanPayout, `SELECT `+payoutColumns+` FROM payouts p
WHERE p.promotion_id = ? AND p.target_id = ?`, int64(id.PromotionID), int64(id.TargetID))
	if err != nil {
		return reward.Payout{}, nil, fmt.Errorf("read a payout: %w", err)
	}
	if !found {
		return reward.Payout{}, nil, store.NoPayout(id)
	}
	attempts, err := collect(ctx, s.reader.as("read the attempts of a payout"), func(rows *sql.Rows) (reward.Attempt, error) {
		var a reward.Attempt
		var at int64
		err := rows.Scan(&a.Dispatch, &at, &a.Class, &a.Code, &a.Message)
		a.At = timeOf(at)
		return a, err
	}, `SELECT dispatch, at, class, code, message FROM attempts WHERE promotion_id = ? AND target_id = ?
ORDER BY at, dispatch, number`, int64(id.PromotionID), int64(id.TargetID))
	if err != nil {
		return reward.Payout{}, nil, fmt.Errorf("read the attempts of a payout: %w", err)
	}
	return p, attempts, nil
}

// listSQL lists the payouts that callers see.
func listSQL(state *reward.State, code string) string { return pageSQL(payoutColumns, state, code) }

// pageSQL lists columns of the payouts of promotion ?1 with a target above ?2,
// at most ?5. If they are given, it filters by state ?3 and error code ?4. It
// names the index, because the planner may otherwise read all payouts of the
// promotion.
func pageSQL(columns string, state *reward.State, code string) string {
	switch {
	case state == nil && code == "":
		return `SELECT ` + columns + ` FROM payouts p WHERE p.promotion_id = ?1 AND p.target_id > ?2 ORDER BY p.target_id LIMIT ?5`
	case state == nil:
		var states []string
		for s := range reward.StateCount {
			states = append(states, `SELECT * FROM (`+pageOf(`p.target_id AS target`, strconv.Itoa(int(s)), `payouts_code`, withCode)+`)`)
		}
		return pageOn(columns, `SELECT target FROM (`+strings.Join(states, " UNION ALL\n")+`) ORDER BY target LIMIT ?5`)
	case code != "":
		return pageOf(columns, "?3", `payouts_code`, withCode)
	case *state == reward.Queued:
		return pageOn(columns, pageOf(`p.target_id AS target`, "?3", `payouts_open`, ` AND p.state < 4`))
	case *state == reward.Retrying || *state == reward.Unknown || *state == reward.Failed:
		return pageOf(columns, "?3", `payouts_rare`, ` AND `+rare)
	}
	return pageOf(columns, "?3", `payouts_settled`, ` AND (state = 0 OR state = 4 OR state = 6)`)
}

// withCode filters by error code ?4. It repeats the condition of payouts_code.
const withCode = ` AND p.error_code = ?4 AND p.error_code <> ''`

// pageOf is pageSQL for one state, with an index and what the index needs.
func pageOf(columns, state, index, where string) string {
	return `SELECT ` + columns + ` FROM payouts p INDEXED BY ` + index + `
WHERE p.promotion_id = ?1 AND p.state = ` + state + ` AND p.target_id > ?2` + where + ` ORDER BY p.target_id LIMIT ?5`
}

// pageOn reads columns of the payouts that targets selects, by target.
func pageOn(columns, targets string) string {
	return `SELECT ` + columns + ` FROM (` + targets + `) i
CROSS JOIN payouts p ON p.promotion_id = ?1 AND p.target_id = i.target ORDER BY p.target_id`
}

// PayoutList returns a page of payouts by target ID.
func (s *Store) PayoutList(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error) {
	after := int64(-1)
	if p.After != nil {
		after = int64(*p.After)
	}
	list, err := collect(ctx, s.reader.as("list payouts"), scanPayout, listSQL(p.State, p.Code),
		int64(p.PromotionID), after, p.State, p.Code, max(p.Limit, 0))
	if err != nil {
		return nil, fmt.Errorf("list payouts: %w", err)
	}
	return list, nil
}

const (
	// payoutsOfUser reads the payouts of user ?1, at most ?2.
	payoutsOfUser = ` FROM payouts p WHERE p.user_id = ?1 AND p.user_id <> '' ORDER BY p.promotion_id DESC, p.target_id LIMIT ?2`

	historyPayouts = `SELECT ` + payoutColumns + payoutsOfUser

	// historyAnswers reads the latest attempts of each of them, at most ?3.
	historyAnswers = `SELECT promotion_id, target_id, dispatch, at, class, code, message FROM (
  SELECT a.*, row_number() OVER (PARTITION BY a.promotion_id, a.target_id ORDER BY a.at DESC, a.dispatch DESC, a.number DESC) AS place
  FROM (SELECT p.promotion_id, p.target_id` + payoutsOfUser + `) p CROSS JOIN attempts a ON a.promotion_id = p.promotion_id AND a.target_id = p.target_id
) WHERE place <= ?3 ORDER BY at, dispatch, number`
)

// PayoutHistory returns the payouts of a user in all promotions.
func (s *Store) PayoutHistory(ctx context.Context, user string, limit int) ([]store.UserPayout, error) {
	if len(store.StorableUsers([]string{user})) == 0 {
		return nil, nil // no payout can have this user ID
	}
	most := max(limit, 0)
	var found []reward.Payout
	answers := make(map[store.PayoutID][]reward.Attempt)
	err := s.snapshot(ctx, "read the payouts of a user", func(ctx context.Context, q querier) (err error) {
		if found, err = collect(ctx, q, scanPayout, historyPayouts, user, most); err != nil {
			return err
		}
		_, err = collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
			var id store.PayoutID
			var a reward.Attempt
			var at int64
			err := rows.Scan(&id.PromotionID, &id.TargetID, &a.Dispatch, &at, &a.Class, &a.Code, &a.Message)
			a.At = timeOf(at)
			answers[id] = append(answers[id], a)
			return struct{}{}, err
		}, historyAnswers, user, most, store.UserAnswersMax)
		return err
	})
	if err != nil {
		return nil, err
	}
	return store.WithAnswers(found, answers), nil
}
