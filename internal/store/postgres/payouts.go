package postgres

import (
	"context"
	"math"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// payoutColumns are read by scanPayout, and the columns after them into more.
const payoutColumns = rows.PayoutColumns

func scanPayout(found pgx.Rows, more ...any) (p reward.Payout, err error) {
	err = rows.ScanPayout(found.Scan, &p, more...)
	return p, err
}

func payoutsInto(list *[]reward.Payout) func(pgx.Rows) error {
	return func(found pgx.Rows) error {
		var p reward.Payout
		scan := rows.PayoutScanner(found.Scan, &p)
		return each(func(pgx.Rows) error {
			err := scan()
			*list = append(*list, p)
			return err
		})(found)
	}
}

// idColumns returns the IDs of payouts as columns.
func idColumns(ids []store.PayoutID) (promotions, targets []int64) {
	promotions, targets = make([]int64, len(ids)), make([]int64, len(ids))
	for i, id := range ids {
		promotions[i], targets[i] = int64(id.PromotionID), int64(id.TargetID)
	}
	return promotions, targets
}

// byKeys is a FROM clause with the payouts p of the IDs $1 and $2. The subquery looks each up
// by its key, also if the table was analyzed while it was empty: otherwise all are read.
const byKeys = `unnest($1::int8[], $2::int8[]) AS i(promotion_id, target_id)
CROSS JOIN LATERAL (SELECT * FROM payouts p WHERE p.promotion_id = i.promotion_id AND p.target_id = i.target_id OFFSET 0) p`

const headsSQL = `SELECT ` + payoutColumns + ` FROM ` + byKeys

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
