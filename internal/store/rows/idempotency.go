package rows

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/store"
)

// These are the statements of IdempotencyBegin. The lease of a claim that began
// before $5 has ended. A key that was first begun before $6 is old enough to
// expire. claimKey locks the row of the key even if it changes nothing, so that
// readKey reads what claimKey decided on. Other callers with the same key wait
// meanwhile. deleteExpiredKeys waits for no lock.
const (
	claimKey = `INSERT INTO idempotency_keys AS k (key, fingerprint, id, first_at, begun_at) VALUES ($1, $2, $3, $4, $4)
ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, begun_at = excluded.begun_at, answer = NULL,
  id = CASE WHEN k.first_at < $6 THEN excluded.id ELSE k.id END,
  first_at = CASE WHEN k.first_at < $6 THEN excluded.first_at ELSE k.first_at END
WHERE (k.answer IS NOT NULL OR k.begun_at < $5) AND k.first_at < $6
  OR k.answer IS NULL AND k.begun_at < $5 AND k.fingerprint = excluded.fingerprint
RETURNING key`
	readKey           = `SELECT id, fingerprint, first_at, begun_at, answer IS NOT NULL, answer FROM idempotency_keys WHERE key = $1`
	deleteExpiredKeys = `WITH old AS MATERIALIZED (
  SELECT key FROM idempotency_keys WHERE first_at < $1 AND (answer IS NOT NULL OR begun_at < $2)
  ORDER BY first_at LIMIT $3 :skip_locked
)
DELETE FROM idempotency_keys WHERE key IN (SELECT key FROM old)`
)

// IdempotencyBegin claims a key for the caller.
func (t *Tables) IdempotencyBegin(ctx context.Context, p store.IdempotencyBeginParams) (store.IdempotencyRecord, error) {
	leaseEnded, expired := p.Now.Add(-p.Lease), p.Now.Add(-p.Kept)
	var r store.IdempotencyRecord
	err := t.db.Write(ctx, "claim an idempotency key", func() []Statement {
		r = store.IdempotencyRecord{}
		return []Statement{
			{SQL: claimKey, Args: []any{p.Key, p.Fingerprint, p.ID, p.Now, leaseEnded, expired}, Row: seen(&r.Claimed)},
			{SQL: readKey, Args: []any{p.Key}, Row: func(scan Scan) error {
				return scan(&r.ID, &r.Fingerprint, (*at)(&r.FirstAt), (*at)(&r.BegunAt), &r.Done, &r.Answer)
			}},
			{SQL: t.deleteExpiredKeys, Args: []any{expired, leaseEnded, store.IdempotencyForgets}},
		}
	})
	if err != nil {
		return store.IdempotencyRecord{}, err
	}
	// Compare IDs too: the clock of this caller may be behind that of the last one.
	r.Again = r.Claimed && (r.ID != p.ID || !r.FirstAt.Equal(instant(p.Now)))
	return r, nil
}

const (
	finishKey = `UPDATE idempotency_keys SET answer = $3
WHERE key = $1 AND begun_at = $2 AND (answer IS NULL OR answer = $3) RETURNING key`
	dropKey    = `DELETE FROM idempotency_keys WHERE key = $1 AND begun_at = $2 AND answer IS NULL`
	releaseKey = `UPDATE idempotency_keys SET begun_at = $3 WHERE key = $1 AND begun_at = $2 AND answer IS NULL`
)

// IdempotencyFinish stores the answer.
func (t *Tables) IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error) {
	if answer == nil {
		answer = []byte{} // NULL means that there is no answer
	}
	return t.change(ctx, "finish an idempotency key", finishKey, key, begunAt, answer)
}

// IdempotencyDrop removes a key.
func (t *Tables) IdempotencyDrop(ctx context.Context, key []byte, begunAt time.Time) error {
	return t.exec(ctx, "drop an idempotency key", dropKey, key, begunAt)
}

// IdempotencyRelease lets the next caller claim a key at once.
func (t *Tables) IdempotencyRelease(ctx context.Context, key []byte, begunAt time.Time) error {
	return t.exec(ctx, "release an idempotency key", releaseKey, key, begunAt, time.Unix(0, 0))
}
