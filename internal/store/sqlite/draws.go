package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// EntrantSave records entrants of a draw.
func (s *Store) EntrantSave(ctx context.Context, id reward.TemplateID, users []string) (added map[string]bool, takes bool, err error) {
	for _, u := range users {
		if err := store.CheckText("user id", u); err != nil {
			return nil, false, err
		}
	}
	err = s.write(ctx, "save entrants", func(tx *tx) error {
		added = make(map[string]bool, len(users))
		t, err := templateOf(tx.ctx, tx, id)
		if err != nil {
			return err
		}
		now, err := tx.now()
		if err != nil {
			return err
		}
		takes = t.Draw.State == reward.DrawOpen && !now.Before(t.Draw.From) && now.Before(t.OpensAt)
		if !takes {
			return nil
		}
		for _, u := range users {
			_, fresh, err := one(tx.ctx, tx, scanInt, `INSERT INTO coupon_entrants (template_id, user_id) VALUES (?, ?)
ON CONFLICT DO NOTHING RETURNING 1`, int64(id), u)
			if err != nil {
				return err
			}
			added[u] = added[u] || fresh
		}
		return nil
	})
	if err != nil {
		return nil, false, err
	}
	return added, takes, nil
}

// now returns the time of the database.
func (t *tx) now() (time.Time, error) {
	n, _, err := one(t.ctx, t, scanInt, `SELECT `+clock)
	return timeOf(n), err
}

// EntrantHas reports which of the users are recorded.
func (s *Store) EntrantHas(ctx context.Context, id reward.TemplateID, users []string) (map[string]bool, error) {
	array, err := json.Marshal(store.StorableUsers(users))
	if err != nil {
		return nil, err
	}
	list, err := collect(ctx, s.reader.as("read entrants"), scanText, `SELECT user_id FROM coupon_entrants
WHERE template_id = ? AND user_id IN (SELECT value FROM json_each(?))`, int64(id), string(array))
	if err != nil {
		return nil, fmt.Errorf("read entrants: %w", err)
	}
	has := make(map[string]bool, len(list))
	for _, u := range list {
		has[u] = true
	}
	return has, nil
}

// numbered is a refusal interval with its number.
type numbered struct {
	store.Refusal
	number int64
}

func scanRefusal(rows *sql.Rows) (n numbered, err error) {
	var since int64
	var until sql.NullInt64
	err = rows.Scan(&n.number, &n.Reason, &since, &until)
	n.Since, n.Until = timeOf(since), maybeTime(until)
	return n, err
}

const refusalSQL = `SELECT number, reason, since, until FROM coupon_refusals WHERE template_id = ? ORDER BY number DESC LIMIT ?`

// RefusalRecord begins, changes or ends the interval in which a template
// refuses every request.
func (s *Store) RefusalRecord(ctx context.Context, id reward.TemplateID, reason string, at time.Time) error {
	at, reason = instant(at), reward.SanitizeText(reason)
	return s.write(ctx, "record a refusal", func(tx *tx) error {
		if _, err := tx.openTemplate(id); err != nil {
			return err
		}
		latest, found, err := one(tx.ctx, tx, scanRefusal, refusalSQL, int64(id), 1)
		if err != nil {
			return err
		}
		lasts := found && latest.Until.IsZero()
		if lasts && latest.Reason == reason {
			return nil
		}
		for _, bound := range []time.Time{latest.Since, latest.Until} {
			if bound.After(at) {
				at = bound
			}
		}
		if lasts {
			if err := tx.exec(`UPDATE coupon_refusals SET until = ? WHERE template_id = ? AND number = ?`,
				micros(at), int64(id), latest.number); err != nil {
				return err
			}
		}
		if reason == "" {
			return nil
		}
		err = tx.exec(`INSERT INTO coupon_refusals (template_id, number, reason, since) VALUES (?, ?, ?, ?)`,
			int64(id), latest.number+1, reason, micros(at))
		return err
	})
}
