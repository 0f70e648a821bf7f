package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

func scanView(found *sql.Rows) (v store.PromotionView, err error) {
	err = rows.ScanView(found.Scan, &v)
	return v, err
}

// view reads one promotion inside the transaction.
func (t *tx) view(id reward.PromotionID) (store.PromotionView, error) { return viewOf(t.ctx, t, id) }

// viewOf returns a promotion with its counts, or CodeNotFound.
func viewOf(ctx context.Context, q querier, id reward.PromotionID) (store.PromotionView, error) {
	v, found, err := one(ctx, q, scanView, rows.ViewSQL+`WHERE m.id = ?`, int64(id))
	if err == nil && !found {
		err = store.NoPromotion(id)
	}
	return v, err
}

const activeWhere = `(m.status = 'RUNNING' OR (m.status = 'CANCELLED' AND m.finished_at IS NULL) OR m.stream_gone = 0)`

var (
	activeSQL, viewsOf = dialect.Text(rows.ActiveSQL), dialect.Text(rows.ViewsOf)

	// changesSQL reads the promotions whose latest change has a number above $1. One
	// transaction writes at a time, so changes become visible in the order of their
	// numbers.
	changesSQL = `SELECT c.number, m.id, ` + activeWhere + ` FROM changes c JOIN promotions m ON m.id = c.promotion_id
WHERE c.number > ? ORDER BY c.number`
)

// PromotionChanges returns what has changed in the list of active promotions. Its
// mark is the number of the latest change.
func (s *Store) PromotionChanges(ctx context.Context, since string) (store.PromotionChanges, error) {
	var c store.PromotionChanges
	err := s.snapshot(ctx, "read changed promotions", func(ctx context.Context, q querier) (err error) {
		if since == "" {
			c, err = wholeList(ctx, q)
		} else {
			c, err = changesSince(ctx, q, since)
		}
		return err
	})
	if err != nil {
		return store.PromotionChanges{}, err
	}
	return c, nil
}

func wholeList(ctx context.Context, q querier) (store.PromotionChanges, error) {
	mark, _, err := one(ctx, q, scanInt, `SELECT coalesce(max(number), 0) FROM changes`)
	if err != nil {
		return store.PromotionChanges{}, err
	}
	list, err := collect(ctx, q, scanView, activeSQL)
	return store.PromotionChanges{Whole: true, Active: list, Mark: strconv.FormatInt(mark, 10)}, err
}

func changesSince(ctx context.Context, q querier, since string) (store.PromotionChanges, error) {
	c := store.PromotionChanges{Mark: since}
	mark, err := strconv.ParseInt(since, 10, 64)
	if err != nil {
		return c, fmt.Errorf("the mark is not of this database: %w", err)
	}
	active := []reward.PromotionID{}
	if _, err := collect(ctx, q, func(rows *sql.Rows) (struct{}, error) {
		var id reward.PromotionID
		var isActive bool
		err := rows.Scan(&mark, (*int64)(&id), &isActive)
		if isActive {
			active = append(active, id)
		} else {
			c.Inactive = append(c.Inactive, id)
		}
		return struct{}{}, err
	}, changesSQL, mark); err != nil || len(active)+len(c.Inactive) == 0 {
		return c, err
	}
	c.Mark = strconv.FormatInt(mark, 10)
	c.Active, err = collect(ctx, q, scanView, viewsOf, bind([]any{active})...)
	return c, err
}
