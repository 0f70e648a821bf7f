package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

const activeWhere = `(m.status = 'RUNNING' OR (m.status = 'CANCELLED' AND m.finished_at IS NULL) OR NOT m.stream_gone)`

// standSQL identifies the present: the start of the server and the snapshot of
// the statement. A transaction ID means the same only on one server: one that a
// failover promotes may give the IDs of lost transactions again.
const standSQL = `SELECT (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8 AS server, pg_current_snapshot() AS snapshot`

const standColumns = `stand.server, stand.snapshot::text`

var (
	wholeSQL = `WITH stand AS MATERIALIZED (` + standSQL + `)
SELECT ` + rows.ViewColumns + `, ` + standColumns + `, true, m.id
FROM stand LEFT JOIN (promotions m JOIN summaries s ON s.promotion_id = m.id AND s.summary_id = 0) ON ` + activeWhere + `
ORDER BY m.id`

	// changesSQL reads the promotions that a transaction has changed which snapshot
	// $2 did not see: it began later, or was running then. Times and numbers of a
	// sequence cannot tell that. A transaction that got a lower number may commit
	// after a reader has seen a higher one, and the reader would never ask for it.
	//
	// A note with an ID that this server has not given yet was restored from another
	// one. OFFSET 0 keeps the planner from reading a whole table, which is good only while
	// the table is small. If $1 is not this server, or its transaction IDs have gone back, known is false
	// and there are no promotions.
	changesSQL = `WITH stand AS MATERIALIZED (
  SELECT server, snapshot, server = $1::int8 AND pg_snapshot_xmax(snapshot) >= pg_snapshot_xmax($2::pg_snapshot) AS known
  FROM (` + standSQL + `) present
), news AS MATERIALIZED (
  SELECT c.promotion_id FROM changes c
  WHERE c.changed >= pg_snapshot_xmax($2::pg_snapshot) AND c.changed < pg_snapshot_xmax(pg_current_snapshot())
  UNION
  SELECT c.promotion_id FROM pg_snapshot_xip($2::pg_snapshot) AS x(id),
    LATERAL (SELECT c.promotion_id FROM changes c WHERE c.changed = x.id OFFSET 0) c
)
SELECT v.*, ` + standColumns + `, stand.known, n.promotion_id
FROM stand LEFT JOIN (news n LEFT JOIN LATERAL (
  SELECT ` + rows.ViewColumns + `
  FROM promotions m JOIN summaries s ON s.promotion_id = n.promotion_id AND s.summary_id = 0
  WHERE m.id = n.promotion_id AND ` + activeWhere + ` OFFSET 0) v ON true) ON stand.known
ORDER BY n.promotion_id`
)

// PromotionChanges returns what has changed in the list of active promotions.
func (s *Store) PromotionChanges(ctx context.Context, since string) (store.PromotionChanges, error) {
	if since != "" {
		var server int64
		var snapshot string
		if _, err := fmt.Sscanf(since, markFormat, &server, &snapshot); err != nil {
			return store.PromotionChanges{}, fmt.Errorf("read changed promotions since %q: %w", since, err)
		}
		c, known, err := s.changes(ctx, "read changed promotions", changesSQL, server, snapshot)
		if err != nil || known {
			return c, err
		}
	}
	c, _, err := s.changes(ctx, "read active promotions", wholeSQL)
	c.Whole = true
	return c, err
}

// markFormat is the format of store.PromotionChanges.Mark.
const markFormat = "%d/%s"

// changes runs wholeSQL or changesSQL. known reports whether the database could
// continue from the mark.
func (s *Store) changes(ctx context.Context, what, sql string, args ...any) (c store.PromotionChanges, known bool, err error) {
	var server int64
	var snapshot string
	var id *int64
	err = s.send(ctx, what, func(b *pgx.Batch) {
		c = store.PromotionChanges{}
		b.Queue(sql, args...).Query(each(func(found pgx.Rows) error {
			if found.RawValues()[0] != nil {
				var v store.PromotionView
				err := rows.ScanView(found.Scan, &v, &server, &snapshot, &known, &id)
				c.Active = append(c.Active, v)
				return err
			}
			into := make([]any, len(found.FieldDescriptions())) // NULL but for the last ones
			copy(into[len(into)-4:], []any{&server, &snapshot, &known, &id})
			err := found.Scan(into...)
			if id != nil {
				c.Inactive = append(c.Inactive, reward.PromotionID(*id))
			}
			return err
		}))
	})
	c.Mark = fmt.Sprintf(markFormat, server, snapshot)
	return c, known, err
}
