package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const keySQL = `SELECT id, name, prefix, hash, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by
FROM api_keys `

func scanAPIKey(rows *sql.Rows) (store.APIKey, error) {
	var k store.APIKey
	var created int64
	var expires, used, revoked sql.NullInt64
	err := rows.Scan(&k.ID, &k.Name, &k.Prefix, &k.Hash, &k.Role, &created, &k.CreatedBy, &expires, &used, &revoked, &k.RevokedBy)
	k.CreatedAt, k.ExpiresAt, k.LastUsedAt, k.RevokedAt = timeOf(created), maybeTime(expires), maybeTime(used), maybeTime(revoked)
	return k, err
}

// APIKeyCreate inserts a key.
func (s *Store) APIKeyCreate(ctx context.Context, k store.APIKey) error {
	if err := k.Check(); err != nil {
		return err
	}
	return s.write(ctx, "create an API key", func(tx *tx) error {
		made, err := tx.exec(`INSERT INTO api_keys (id, name, prefix, hash, role, created_at, created_by, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			k.ID, k.Name, k.Prefix, k.Hash, k.Role, micros(k.CreatedAt), k.CreatedBy, maybe(k.ExpiresAt))
		if err == nil && !made {
			err = reward.NewError(reward.KindConflict, reward.CodeExists, "API key %d, or another one with its secret, exists", k.ID)
		}
		return err
	})
}

// APIKeyByHash returns the key with that hash.
func (s *Store) APIKeyByHash(ctx context.Context, hash []byte) (store.APIKey, error) {
	k, found, err := one(ctx, s.reader, scanAPIKey, keySQL+`WHERE hash = ?`, hash)
	switch {
	case err != nil:
		return store.APIKey{}, fmt.Errorf("find an API key: %w", err)
	case !found:
		return store.APIKey{}, reward.NewError(reward.KindNotFound, reward.CodeAPIKeyNotFound, "there is no such API key")
	}
	return k, nil
}

// APIKeyList pages by descending id.
func (s *Store) APIKeyList(ctx context.Context, before int64, limit int) ([]store.APIKey, error) {
	if before == 0 {
		before = 1<<63 - 1
	}
	list, err := collect(ctx, s.reader, scanAPIKey, keySQL+`WHERE id < ? ORDER BY id DESC LIMIT ?`, before, max(limit, 0))
	if err != nil {
		return nil, fmt.Errorf("list API keys: %w", err)
	}
	return list, nil
}

// APIKeyRevoke revokes a key for good.
func (s *Store) APIKeyRevoke(ctx context.Context, id int64, by string, now time.Time) (store.APIKey, error) {
	if err := store.CheckText("revoker of an API key", by); err != nil {
		return store.APIKey{}, err
	}
	var k store.APIKey
	err := s.write(ctx, "revoke an API key", func(tx *tx) error {
		if _, err := tx.exec(`UPDATE api_keys SET revoked_at = ?, revoked_by = ? WHERE id = ? AND revoked_at IS NULL`,
			micros(now), by, id); err != nil {
			return err
		}
		stands, found, err := one(tx.ctx, tx, scanAPIKey, keySQL+`WHERE id = ?`, id)
		if err == nil && !found {
			err = reward.NewError(reward.KindNotFound, reward.CodeAPIKeyNotFound, "there is no API key %d", id)
		}
		k = stands
		return err
	})
	if err != nil {
		return store.APIKey{}, err
	}
	return k, nil
}

// APIKeyUsed notes when keys were last used.
func (s *Store) APIKeyUsed(ctx context.Context, used map[int64]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	return s.write(ctx, "note the use of API keys", func(tx *tx) error {
		for id, at := range used {
			if _, err := tx.exec(`UPDATE api_keys SET last_used_at = ?1 WHERE id = ?2 AND (last_used_at IS NULL OR last_used_at < ?1)`,
				micros(at), id); err != nil {
				return err
			}
		}
		return nil
	})
}

// AuditBegin adds a line.
func (s *Store) AuditBegin(ctx context.Context, l store.AuditLine) error {
	if err := l.Check(); err != nil {
		return err
	}
	return s.write(ctx, "begin a line of the audit", func(tx *tx) error {
		added, err := tx.exec(`INSERT INTO audit (id, at, actor, role, action, subject, detail, request_id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
			l.ID, micros(l.At), l.Actor, l.Role, l.Action, l.Subject, l.Detail, l.RequestID)
		if err == nil && !added {
			err = reward.NewError(reward.KindConflict, reward.CodeExists, "line %d of the audit exists", l.ID)
		}
		return err
	})
}

// AuditEnd ends a line.
func (s *Store) AuditEnd(ctx context.Context, id int64, status int, code string, now time.Time) error {
	return s.write(ctx, "end a line of the audit", func(tx *tx) error {
		_, err := tx.exec(`UPDATE audit SET ended_at = ?, status = ?, code = ? WHERE id = ? AND ended_at IS NULL`,
			micros(now), status, store.Text(code), id)
		return err
	})
}

// auditSQL reads a page of the audit. Lines below a subject are not in an index
// in the order of the page: all of them are read before it is cut.
func auditSQL(p store.AuditListParams) (query string, args []any) {
	before := p.Before
	if before == 0 {
		before = 1<<63 - 1
	}
	where, args := `WHERE id < ?`, []any{before}
	if from, until, below := p.Below(); below {
		where, args = where+` AND subject >= ? AND subject < ?`, append(args, from, until)
	} else if p.Subject != "" {
		where, args = where+` AND subject = ?`, append(args, p.Subject)
	}
	if p.Actor != "" {
		where, args = where+` AND actor = ?`, append(args, p.Actor)
	}
	if p.Action != "" {
		where, args = where+` AND action = ?`, append(args, p.Action)
	}
	return `SELECT id, at, actor, role, action, subject, detail, request_id, ended_at, status, code FROM audit ` + where +
		` ORDER BY id DESC LIMIT ?`, append(args, max(p.Limit, 0))
}

// AuditList pages by descending id.
func (s *Store) AuditList(ctx context.Context, p store.AuditListParams) ([]store.AuditLine, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	query, args := auditSQL(p)
	list, err := collect(ctx, s.reader, func(rows *sql.Rows) (store.AuditLine, error) {
		var l store.AuditLine
		var at int64
		var ended sql.NullInt64
		err := rows.Scan(&l.ID, &at, &l.Actor, &l.Role, &l.Action, &l.Subject, &l.Detail, &l.RequestID, &ended, &l.Status, &l.Code)
		l.At, l.EndedAt = timeOf(at), maybeTime(ended)
		return l, err
	}, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list the audit: %w", err)
	}
	return list, nil
}

// forgetKeys removes keys begun before ?1 that are in nobody's hands: done, or
// begun again before ?2.
const forgetKeys = `DELETE FROM idempotency_keys WHERE rowid IN (SELECT rowid FROM idempotency_keys
WHERE first_at < ?1 AND (answer IS NOT NULL OR begun_at < ?2) ORDER BY first_at LIMIT ?3)`

// IdempotencyBegin claims a key.
func (s *Store) IdempotencyBegin(ctx context.Context, p store.IdempotencyBeginParams) (store.IdempotencyRecord, error) {
	now, lapsed, forgotten := instant(p.Now), micros(p.Now.Add(-p.Lease)), micros(p.Now.Add(-p.Kept))
	var r store.IdempotencyRecord
	err := s.write(ctx, "claim an idempotency key", func(tx *tx) error {
		// What is forgotten goes first, but may be too much for one call.
		if _, err := tx.exec(forgetKeys, forgotten, lapsed, store.IdempotencyForgets); err != nil {
			return err
		}
		stands, found, err := one(tx.ctx, tx, scanIdempotency,
			`SELECT id, fingerprint, first_at, begun_at, answer IS NOT NULL, answer FROM idempotency_keys WHERE key = ?`, p.Key)
		if err != nil {
			return err
		}
		free := micros(stands.BegunAt) < lapsed
		switch {
		case !found || (stands.Done || free) && micros(stands.FirstAt) < forgotten:
			r = store.IdempotencyRecord{Claimed: true, ID: p.ID, Fingerprint: bytes.Clone(p.Fingerprint), FirstAt: now, BegunAt: now}
			_, err = tx.exec(`INSERT OR REPLACE INTO idempotency_keys (key, fingerprint, id, first_at, begun_at) VALUES (?, ?, ?, ?4, ?4)`,
				p.Key, p.Fingerprint, p.ID, micros(now))
		case stands.Done || !free || !bytes.Equal(stands.Fingerprint, p.Fingerprint):
			r = stands
		default:
			r = stands
			r.Claimed, r.Again, r.BegunAt = true, true, now
			_, err = tx.exec(`UPDATE idempotency_keys SET begun_at = ? WHERE key = ?`, micros(now), p.Key)
		}
		return err
	})
	if err != nil {
		return store.IdempotencyRecord{}, err
	}
	return r, nil
}

func scanIdempotency(rows *sql.Rows) (store.IdempotencyRecord, error) {
	var r store.IdempotencyRecord
	var first, begun int64
	err := rows.Scan(&r.ID, &r.Fingerprint, &first, &begun, &r.Done, &r.Answer)
	r.FirstAt, r.BegunAt = timeOf(first), timeOf(begun)
	return r, err
}

// IdempotencyFinish keeps the answer.
func (s *Store) IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error) {
	if answer == nil {
		answer = []byte{} // NULL is no answer
	}
	var kept bool
	err := s.write(ctx, "finish an idempotency key", func(tx *tx) (err error) {
		kept, err = tx.exec(`UPDATE idempotency_keys SET answer = ?1 WHERE key = ?2 AND begun_at = ?3 AND (answer IS NULL OR answer = ?1)`,
			answer, key, micros(begunAt))
		return err
	})
	return kept && err == nil, err
}

// IdempotencyDrop lets a key go.
func (s *Store) IdempotencyDrop(ctx context.Context, key []byte, begunAt time.Time) error {
	return s.write(ctx, "let an idempotency key go", func(tx *tx) error {
		_, err := tx.exec(`DELETE FROM idempotency_keys WHERE key = ? AND begun_at = ? AND answer IS NULL`, key, micros(begunAt))
		return err
	})
}

// IdempotencyRelease takes a key out of its holder's hands.
func (s *Store) IdempotencyRelease(ctx context.Context, key []byte, begunAt time.Time) error {
	return s.write(ctx, "release an idempotency key", func(tx *tx) error {
		_, err := tx.exec(`UPDATE idempotency_keys SET begun_at = 0 WHERE key = ? AND begun_at = ? AND answer IS NULL`, key, micros(begunAt))
		return err
	})
}
