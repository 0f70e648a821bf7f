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
const rowColumns = payoutColumns + `, p.again, p.looked_at, p.approval_round`

func scanPayout(found *sql.Rows) (p reward.Payout, err error) {
	err = rows.ScanPayout(found.Scan, &p)
	return p, err
}

func scanRow(found *sql.Rows) (r rules.Row, err error) {
	err = rows.ScanRow(found.Scan, &r)
	return r, err
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

// listSQL names the index of each list, because the planner may otherwise read all payouts
// of the promotion.
func listSQL(state *reward.State, code string) string {
	switch {
	case state == nil && code == "":
		return `SELECT ` + payoutColumns + ` FROM payouts p WHERE p.promotion_id = $1 AND p.target_id > $2 ORDER BY p.target_id LIMIT $3`
	case state == nil:
		var states []string
		for s := range reward.StateCount {
			states = append(states, `SELECT * FROM (`+pageOf(`p.target_id AS target`, s, `payouts_code`, withCode)+`)`)
		}
		return pageOn(`SELECT target FROM (` + strings.Join(states, " UNION ALL\n") + `) ORDER BY target LIMIT $3`)
	case code != "":
		return pageOf(payoutColumns, *state, `payouts_code`, withCode)
	case *state == reward.Queued:
		return pageOn(pageOf(`p.target_id AS target`, *state, `payouts_open`, ` AND p.state < 4`))
	case *state == reward.Retrying || *state == reward.Unknown || *state == reward.Failed:
		return pageOf(payoutColumns, *state, `payouts_rare`, ` AND `+rare)
	}
	return pageOf(payoutColumns, *state, `payouts_settled`, ` AND (state = 0 OR state = 4 OR state = 6)`)
}

// withCode filters by error code $4. It repeats the condition of payouts_code.
const withCode = ` AND p.error_code = $4 AND p.error_code <> ''`

// pageOf is listSQL for one state, with an index and what the index needs.
func pageOf(columns string, state reward.State, index, where string) string {
	return `SELECT ` + columns + ` FROM payouts p INDEXED BY ` + index + `
WHERE p.promotion_id = $1 AND p.state = ` + strconv.Itoa(int(state)) + ` AND p.target_id > $2` + where + ` ORDER BY p.target_id LIMIT $3`
}

// pageOn reads the payouts that targets selects, by target.
func pageOn(targets string) string {
	return `SELECT ` + payoutColumns + ` FROM (` + targets + `) i
CROSS JOIN payouts p ON p.promotion_id = $1 AND p.target_id = i.target ORDER BY p.target_id`
}
