package postgres

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	// saveEntrants records users $2 at template $1. The caller holds the lock
	// of the template, so a transaction that closes the draw cannot miss an
	// entrant.
	saveEntrants = `WITH gate AS MATERIALIZED (
  SELECT t.id, t.draw_state = 'OPEN' AND n.at >= t.draw_from AND n.at < t.opens_at AS takes
  FROM coupon_templates t, (SELECT clock_timestamp() AS at) n WHERE t.id = $1
), noted AS (
  INSERT INTO coupon_entrants (template_id, user_id)
  SELECT g.id, u.user_id FROM gate g, unnest($2::text[]) AS u(user_id) WHERE g.takes ORDER BY u.user_id COLLATE "C"
  ON CONFLICT DO NOTHING RETURNING user_id
)
SELECT g.takes, ARRAY(SELECT n.user_id FROM noted n) FROM gate g`

	hasEntrants = `SELECT e.user_id FROM (SELECT $1::int8 AS template_id, n.user_id FROM unnest($2::text[]) AS n(user_id) OFFSET 0) u
JOIN coupon_entrants e ON e.template_id = u.template_id AND e.user_id = u.user_id COLLATE "C"`
)

// EntrantSave records entrants of a draw.
func (s *Store) EntrantSave(ctx context.Context, id reward.TemplateID, users []string) (added map[string]bool, takes bool, err error) {
	for _, u := range users {
		if err := store.CheckText("user id", u); err != nil {
			return nil, false, err
		}
	}
	exists := false
	err = s.send(ctx, "save entrants", func(b *pgx.Batch) {
		exists, takes, added = false, false, make(map[string]bool, len(users))
		b.Queue(lockTemplate, int64(id))
		b.Queue(saveEntrants, int64(id), users).Query(each(func(rows pgx.Rows) error {
			exists = true
			var list []string
			err := rows.Scan(&takes, &list)
			for _, u := range list {
				added[u] = true
			}
			return err
		}))
	})
	switch {
	case err != nil:
		return nil, false, err
	case !exists:
		return nil, false, store.NoTemplate(id)
	}
	return added, takes, nil
}

// EntrantHas reports which of the users are recorded.
func (s *Store) EntrantHas(ctx context.Context, id reward.TemplateID, users []string) (map[string]bool, error) {
	var has map[string]bool
	err := s.read(ctx, "read entrants", func(b *pgx.Batch) {
		has = make(map[string]bool, len(users))
		b.Queue(hasEntrants, int64(id), store.StorableUsers(users)).Query(each(func(rows pgx.Rows) error {
			var user string
			err := rows.Scan(&user)
			has[user] = true
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	return has, nil
}

// recordRefusal begins, changes or ends the refusal interval of template $1.
// The caller holds the lock of the template.
const recordRefusal = `WITH latest AS MATERIALIZED (
  SELECT r.number, r.reason, r.since, r.until FROM coupon_refusals r WHERE r.template_id = $1 ORDER BY r.number DESC LIMIT 1
), ended AS (
  UPDATE coupon_refusals r SET until = greatest(l.since, $3::timestamptz) FROM latest l, coupon_templates t
  WHERE t.id = $1 AND t.archived_at IS NULL AND r.template_id = $1 AND r.number = l.number AND l.until IS NULL AND l.reason <> $2::text
)
INSERT INTO coupon_refusals (template_id, number, since, reason)
SELECT t.id, coalesce(l.number, 0) + 1, greatest(l.since, l.until, $3::timestamptz), $2::text
FROM coupon_templates t LEFT JOIN latest l ON true
WHERE t.id = $1 AND t.archived_at IS NULL AND $2::text <> '' AND NOT coalesce(l.until IS NULL AND l.reason = $2::text, false)`

// RefusalRecord begins, changes or ends the interval in which a template
// refuses every request.
func (s *Store) RefusalRecord(ctx context.Context, id reward.TemplateID, reason string, at time.Time) error {
	var exists, archived bool
	err := s.send(ctx, "record a refusal", func(b *pgx.Batch) {
		exists, archived = false, false
		b.Queue(lockTemplate, int64(id)).Query(each(func(rows pgx.Rows) error {
			exists = true
			return rows.Scan(&archived)
		}))
		b.Queue(recordRefusal, int64(id), reward.SanitizeText(reason), instant(at))
	})
	if err == nil && !exists {
		err = store.NoTemplate(id)
	}
	return cmp.Or(err, rules.CheckTemplateArchived(id, archived))
}
