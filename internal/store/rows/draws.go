package rows

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

const (
	// drawNow reads template $1 and the time.
	drawNow = `SELECT ` + TemplateColumns + `, :clock FROM coupon_templates t WHERE t.id = $1`

	// saveEntrants records users $5 at template $1, if its draw is still as it was read.
	saveEntrants = `INSERT INTO coupon_entrants (template_id, user_id) SELECT t.id, u.value FROM coupon_templates t CROSS JOIN :list5 u
WHERE t.id = $1 AND t.draw_state = $2 AND t.draw_from IS NOT DISTINCT FROM $3 AND t.opens_at = $4 ON CONFLICT DO NOTHING RETURNING user_id`

	// hasEntrants reads which of the users $2 are recorded at template $1. The LIMIT keeps the
	// planner from reading all entrants of the template.
	hasEntrants = `SELECT u.value FROM :list2 u
WHERE (SELECT 1 FROM coupon_entrants e WHERE e.template_id = $1 AND e.user_id = u.value LIMIT 1) IS NOT NULL`
)

// EntrantSave records users as entrants of a draw. takes reports whether it did, added has the
// users who were not recorded before. It records no user unless the draw is OPEN and the clock
// of the database is between Draw.From (included) and OpensAt (excluded).
//
// A transaction that closes the draw misses none of them: both lock the template.
func (t *Tables) EntrantSave(ctx context.Context, id reward.TemplateID, users []string) (added map[string]bool, takes bool, err error) {
	for _, u := range users {
		if err := store.CheckText("user id", u); err != nil {
			return nil, false, err
		}
	}
	const what = "save entrants"
	err = reread(what, func() (bool, error) {
		var now time.Time
		was, err := t.templateWith(ctx, what, id, drawNow, []any{int64(id)}, (*at)(&now))
		if err != nil {
			return false, err
		}
		if takes = rules.TakesEntrants(&was, now); !takes {
			return true, nil
		}
		stands, err := t.inTemplate(ctx, what, id, func() []Statement {
			added = make(map[string]bool, len(users))
			return []Statement{{SQL: saveEntrants, Args: []any{int64(id), string(was.Draw.State), orNull(was.Draw.From), was.OpensAt, jsonList(users)}, Row: marked(added)}}
		})
		return stands.Draw.State == was.Draw.State && stands.Draw.From.Equal(was.Draw.From) && stands.OpensAt.Equal(was.OpensAt), err
	})
	if err != nil {
		return nil, false, err
	}
	return added, takes, nil
}

// EntrantHas reports which of the users are recorded.
func (t *Tables) EntrantHas(ctx context.Context, id reward.TemplateID, users []string) (has map[string]bool, err error) {
	err = t.db.Read(ctx, "read entrants", func() Statement {
		has = make(map[string]bool, len(users))
		return Statement{SQL: hasEntrants, Args: []any{int64(id), jsonList(store.StorableUsers(users))}, Row: marked(has)}
	})
	if err != nil {
		return nil, err
	}
	return has, nil
}

// marked returns a row reader that sets the text of each row.
func marked(set map[string]bool) func(Scan) error {
	return func(scan Scan) error {
		var text string
		err := scan(&text)
		set[text] = true
		return err
	}
}

const listEntrants = `SELECT user_id FROM coupon_entrants WHERE template_id = $1 AND user_id > $2 ORDER BY user_id LIMIT $3`

// EntrantList returns at most limit entrants with a user ID above after, ordered by the bytes
// of the user ID.
func (t *Tables) EntrantList(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error) {
	if err := store.CheckText("user id", after); err != nil {
		return nil, err
	}
	return list(ctx, t.db.Read, "list entrants", scanOne[string], listEntrants, int64(id), after, max(limit, 0))
}

const drawsEntered = `SELECT t.id, t.opens_at FROM coupon_entrants e JOIN coupon_templates t ON t.id = e.template_id
WHERE e.user_id = $1 AND t.draw_state = 'DONE' ORDER BY t.opens_at DESC, t.id DESC LIMIT $2`

// DrawsEntered returns at most limit draws that are DONE and that the user entered, the latest
// opening first.
func (t *Tables) DrawsEntered(ctx context.Context, user string, limit int) ([]store.DrawEntered, error) {
	return list(ctx, t.db.Read, "list the draws of a user", func(scan Scan, d *store.DrawEntered) error {
		return scan((*int64)(&d.TemplateID), (*at)(&d.OpensAt))
	}, drawsEntered, reward.SanitizeText(user), max(limit, 0))
}
