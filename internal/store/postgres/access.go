package postgres

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const keySQL = `SELECT id, name, prefix, hash, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by
FROM api_keys `

func apiKeysInto(list *[]store.APIKey) func(pgx.Rows) error {
	return each(func(rows pgx.Rows) error {
		var k store.APIKey
		var expires, used, revoked *time.Time
		err := rows.Scan(&k.ID, &k.Name, &k.Prefix, &k.Hash, &k.Role, &k.CreatedAt, &k.CreatedBy, &expires, &used, &revoked, &k.RevokedBy)
		k.CreatedAt, k.ExpiresAt, k.LastUsedAt, k.RevokedAt = k.CreatedAt.UTC(), timeOf(expires), timeOf(used), timeOf(revoked)
		*list = append(*list, k)
		return err
	})
}

// onlyAPIKey is the key that a statement has found.
func onlyAPIKey(found []store.APIKey, err error, missing string, args ...any) (store.APIKey, error) {
	switch {
	case err != nil:
		return store.APIKey{}, err
	case len(found) == 0:
		return store.APIKey{}, reward.NewError(reward.KindNotFound, reward.CodeAPIKeyNotFound, missing, args...)
	}
	return found[0], nil
}

// APIKeyCreate inserts a key.
func (s *Store) APIKeyCreate(ctx context.Context, k store.APIKey) error {
	if err := k.Check(); err != nil {
		return err
	}
	var made bool
	err := s.send(ctx, "create an API key", func(b *pgx.Batch) {
		made = false
		b.Queue(`INSERT INTO api_keys (id, name, prefix, hash, role, created_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING id`,
			k.ID, k.Name, k.Prefix, k.Hash, k.Role, instant(k.CreatedAt), k.CreatedBy, maybe(instant(k.ExpiresAt))).
			Query(each(func(pgx.Rows) error {
				made = true
				return nil
			}))
	})
	if err == nil && !made {
		err = reward.NewError(reward.KindConflict, reward.CodeExists, "API key %d, or another one with its secret, exists", k.ID)
	}
	return err
}

const apiKeyByHash = keySQL + `WHERE hash = $1`

// APIKeyByHash returns the key with that hash.
func (s *Store) APIKeyByHash(ctx context.Context, hash []byte) (store.APIKey, error) {
	var found []store.APIKey
	err := s.send(ctx, "find an API key", func(b *pgx.Batch) {
		found = nil
		b.Queue(apiKeyByHash, hash).Query(apiKeysInto(&found))
	})
	return onlyAPIKey(found, err, "there is no such API key")
}

const listAPIKeys = keySQL + `WHERE id < $1 ORDER BY id DESC LIMIT $2`

// APIKeyList pages by descending id.
func (s *Store) APIKeyList(ctx context.Context, before int64, limit int) ([]store.APIKey, error) {
	if before == 0 {
		before = 1<<63 - 1
	}
	var list []store.APIKey
	err := s.send(ctx, "list API keys", func(b *pgx.Batch) {
		list = nil
		b.Queue(listAPIKeys, before, max(limit, 0)).Query(apiKeysInto(&list))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// APIKeyRevoke revokes a key for good.
func (s *Store) APIKeyRevoke(ctx context.Context, id int64, by string, now time.Time) (store.APIKey, error) {
	if err := store.CheckText("revoker of an API key", by); err != nil {
		return store.APIKey{}, err
	}
	var found []store.APIKey
	err := s.send(ctx, "revoke an API key", func(b *pgx.Batch) {
		found = nil
		b.Queue(`UPDATE api_keys SET revoked_at = $2, revoked_by = $3 WHERE id = $1 AND revoked_at IS NULL`, id, instant(now), by)
		b.Queue(keySQL+`WHERE id = $1`, id).Query(apiKeysInto(&found))
	})
	return onlyAPIKey(found, err, "there is no API key %d", id)
}

// useKeys locks keys in the order of their ids.
const useKeys = `WITH used AS MATERIALIZED (
  SELECT k.id, i.at FROM unnest($1::int8[], $2::timestamptz[]) AS i(id, at)
  JOIN api_keys k ON k.id = i.id AND (k.last_used_at IS NULL OR k.last_used_at < i.at)
  ORDER BY k.id FOR NO KEY UPDATE OF k
)
UPDATE api_keys k SET last_used_at = u.at FROM used u WHERE k.id = u.id`

// APIKeyUsed notes when keys were last used.
func (s *Store) APIKeyUsed(ctx context.Context, used map[int64]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(used))
	ats := make([]time.Time, len(ids))
	for i, id := range ids {
		ats[i] = instant(used[id])
	}
	return s.send(ctx, "note the use of API keys", func(b *pgx.Batch) { b.Queue(useKeys, ids, ats) })
}

// AuditBegin adds a line.
func (s *Store) AuditBegin(ctx context.Context, l store.AuditLine) error {
	if err := l.Check(); err != nil {
		return err
	}
	var added bool
	err := s.send(ctx, "begin a line of the audit", func(b *pgx.Batch) {
		added = false
		b.Queue(`INSERT INTO audit (id, at, actor, role, action, subject, detail, request_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING id`,
			l.ID, instant(l.At), l.Actor, l.Role, l.Action, l.Subject, l.Detail, l.RequestID).Query(each(func(pgx.Rows) error {
			added = true
			return nil
		}))
	})
	if err == nil && !added {
		err = reward.NewError(reward.KindConflict, reward.CodeExists, "line %d of the audit exists", l.ID)
	}
	return err
}

const endAudit = `UPDATE audit SET ended_at = $2, status = $3, code = $4 WHERE id = $1 AND ended_at IS NULL`

// AuditEnd ends a line.
func (s *Store) AuditEnd(ctx context.Context, id int64, status int, code string, now time.Time) error {
	return s.send(ctx, "end a line of the audit", func(b *pgx.Batch) {
		b.Queue(endAudit, id, instant(now), status, store.Text(code))
	})
}

// auditSQL reads a page of the audit. Lines of one subject, actor or action are
// in an index in the order of the page. Those below a subject are not: all of
// them are read, from the index alone where nothing else is asked, before the
// page is cut.
func auditSQL(p store.AuditListParams) (sql string, args []any) {
	before := p.Before
	if before == 0 {
		before = 1<<63 - 1
	}
	args = []any{before, max(p.Limit, 0)}
	param := func(v string) string {
		args = append(args, v)
		return "$" + strconv.Itoa(len(args))
	}
	where := `WHERE a.id < $1`
	from, until, below := p.Below()
	if below {
		where += ` AND a.subject >= ` + param(from) + ` AND a.subject < ` + param(until)
	} else if p.Subject != "" {
		where += ` AND a.subject = ` + param(p.Subject)
	}
	if p.Actor != "" {
		where += ` AND a.actor = ` + param(p.Actor)
	}
	if p.Action != "" {
		where += ` AND a.action = ` + param(p.Action)
	}
	const columns = `a.id, a.at, a.actor, a.role, a.action, a.subject, a.detail, a.request_id, a.ended_at, a.status, a.code`
	if !below {
		return `SELECT ` + columns + ` FROM audit a ` + where + ` ORDER BY a.id DESC LIMIT $2`, args
	}
	return `WITH below AS MATERIALIZED (
  SELECT a.id FROM audit a ` + where + `
), page AS MATERIALIZED (
  SELECT id FROM below ORDER BY id DESC LIMIT $2
)
SELECT ` + columns + ` FROM page p JOIN audit a ON a.id = p.id ORDER BY a.id DESC`, args
}

// AuditList pages by descending id.
func (s *Store) AuditList(ctx context.Context, p store.AuditListParams) ([]store.AuditLine, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	sql, args := auditSQL(p)
	var list []store.AuditLine
	err := s.sendLong(ctx, "list the audit", func(b *pgx.Batch) {
		list = nil
		b.Queue(sql, args...).Query(each(func(rows pgx.Rows) error {
			var l store.AuditLine
			var ended *time.Time
			err := rows.Scan(&l.ID, &l.At, &l.Actor, &l.Role, &l.Action, &l.Subject, &l.Detail, &l.RequestID, &ended, &l.Status, &l.Code)
			l.At, l.EndedAt = l.At.UTC(), timeOf(ended)
			list = append(list, l)
			return err
		}))
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// The statements of IdempotencyBegin. $5 is before when a claim has lapsed, $6
// before when a key is forgotten. The first one holds the key's row even when it
// changes nothing, so the second reads what the first has judged; who asks for
// the same key waits meanwhile. The third waits for nobody.
const (
	claimKey = `INSERT INTO idempotency_keys AS k (key, fingerprint, id, first_at, begun_at) VALUES ($1, $2, $3, $4, $4)
ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, begun_at = excluded.begun_at, answer = NULL,
  id = CASE WHEN k.first_at < $6 THEN excluded.id ELSE k.id END,
  first_at = CASE WHEN k.first_at < $6 THEN excluded.first_at ELSE k.first_at END
WHERE (k.answer IS NOT NULL OR k.begun_at < $5) AND k.first_at < $6
  OR k.answer IS NULL AND k.begun_at < $5 AND k.fingerprint = excluded.fingerprint
RETURNING k.key`
	readKey    = `SELECT id, fingerprint, first_at, begun_at, answer IS NOT NULL, answer FROM idempotency_keys WHERE key = $1`
	forgetKeys = `WITH old AS MATERIALIZED (
  SELECT k.key FROM idempotency_keys k WHERE k.first_at < $1 AND (k.answer IS NOT NULL OR k.begun_at < $2)
  ORDER BY k.first_at LIMIT $3 FOR UPDATE SKIP LOCKED
)
DELETE FROM idempotency_keys k USING old o WHERE k.key = o.key`
)

// IdempotencyBegin claims a key.
func (s *Store) IdempotencyBegin(ctx context.Context, p store.IdempotencyBeginParams) (store.IdempotencyRecord, error) {
	lapsed, forgotten := instant(p.Now.Add(-p.Lease)), instant(p.Now.Add(-p.Kept))
	var r store.IdempotencyRecord
	err := s.send(ctx, "claim an idempotency key", func(b *pgx.Batch) {
		r = store.IdempotencyRecord{}
		b.Queue(claimKey, p.Key, p.Fingerprint, p.ID, instant(p.Now), lapsed, forgotten).Query(each(func(pgx.Rows) error {
			r.Claimed = true
			return nil
		}))
		b.Queue(readKey, p.Key).Query(each(func(rows pgx.Rows) error {
			err := rows.Scan(&r.ID, &r.Fingerprint, &r.FirstAt, &r.BegunAt, &r.Done, &r.Answer)
			r.FirstAt, r.BegunAt = r.FirstAt.UTC(), r.BegunAt.UTC()
			return err
		}))
		b.Queue(forgetKeys, forgotten, lapsed, store.IdempotencyForgets)
	})
	if err != nil {
		return store.IdempotencyRecord{}, err
	}
	// The clock of who claims may be behind that of who had it.
	r.Again = r.Claimed && (r.ID != p.ID || !r.FirstAt.Equal(instant(p.Now)))
	return r, nil
}

const finishKey = `UPDATE idempotency_keys SET answer = $3
WHERE key = $1 AND begun_at = $2 AND (answer IS NULL OR answer = $3) RETURNING key`

// IdempotencyFinish keeps the answer.
func (s *Store) IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error) {
	if answer == nil {
		answer = []byte{} // NULL is no answer
	}
	var kept bool
	err := s.send(ctx, "finish an idempotency key", func(b *pgx.Batch) {
		kept = false
		b.Queue(finishKey, key, instant(begunAt), answer).Query(each(func(pgx.Rows) error {
			kept = true
			return nil
		}))
	})
	return kept && err == nil, err
}

const dropKey = `DELETE FROM idempotency_keys WHERE key = $1 AND begun_at = $2 AND answer IS NULL`

// IdempotencyDrop lets a key go.
func (s *Store) IdempotencyDrop(ctx context.Context, key []byte, begunAt time.Time) error {
	return s.send(ctx, "let an idempotency key go", func(b *pgx.Batch) { b.Queue(dropKey, key, instant(begunAt)) })
}

const releaseKey = `UPDATE idempotency_keys SET begun_at = 'epoch' WHERE key = $1 AND begun_at = $2 AND answer IS NULL`

// IdempotencyRelease takes a key out of its holder's hands.
func (s *Store) IdempotencyRelease(ctx context.Context, key []byte, begunAt time.Time) error {
	return s.send(ctx, "release an idempotency key", func(b *pgx.Batch) { b.Queue(releaseKey, key, instant(begunAt)) })
}
