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

// IdempotencyBegin claims a key for the caller. If many callers try at once,
// one of them succeeds. The claim succeeds in two cases:
//
//   - The key is unknown or expired.
//   - The key has the same fingerprint and no answer, and its last owner
//     released it or let its Lease pass. Again is then set, and ID is the one
//     that was reserved first.
//
// Otherwise nothing changes, Claimed is false, and the record is returned as it
// is: finished, owned by another caller, or with another fingerprint.
//
// Each call also removes some expired keys, at most store.IdempotencyForgets.
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
			{SQL: deleteExpiredKeys, Args: []any{expired, leaseEnded, store.IdempotencyForgets}},
		}
	})
	if err != nil {
		return store.IdempotencyRecord{}, err
	}
	// Compare IDs too: the clock of this caller may be behind that of the last one.
	r.Again = r.Claimed && (r.ID != p.ID || !r.FirstAt.Equal(instant(p.Now)))
	return r, nil
}

// IdempotencyKnown reports whether a caller has claimed a key, and it was not dropped.
func (t *Tables) IdempotencyKnown(ctx context.Context, key []byte) (known bool, err error) {
	err = t.db.Read(ctx, "read an idempotency key", func() Statement {
		known = false
		return Statement{SQL: readKey, Args: []any{key}, Row: seen(&known)}
	})
	return known, err
}

const (
	finishKey = `UPDATE idempotency_keys SET answer = $3
WHERE key = $1 AND begun_at = $2 AND (answer IS NULL OR answer = $3) RETURNING key`
	dropKey    = `DELETE FROM idempotency_keys WHERE key = $1 AND begun_at = $2 AND answer IS NULL`
	releaseKey = `UPDATE idempotency_keys SET begun_at = $3 WHERE key = $1 AND begun_at = $2 AND answer IS NULL`
)

// IdempotencyFinish stores the answer and reports whether it did. It expects
// that the caller still owns the key, which it began at begunAt. It changes
// nothing if the key has another answer; a repeat with the same one succeeds.
func (t *Tables) IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error) {
	if answer == nil {
		answer = []byte{} // NULL means that there is no answer
	}
	return t.change(ctx, "finish an idempotency key", finishKey, key, begunAt, answer)
}

// IdempotencyDrop removes a key whose request had no effect. It changes nothing
// if the key has an answer, or if the caller no longer owns it.
func (t *Tables) IdempotencyDrop(ctx context.Context, key []byte, begunAt time.Time) error {
	return t.exec(ctx, "drop an idempotency key", dropKey, key, begunAt)
}

// IdempotencyRelease ends the ownership of a key whose request has an unknown
// result. The next caller with the same fingerprint claims it at once, with
// Again set. It changes nothing where IdempotencyDrop changes nothing.
func (t *Tables) IdempotencyRelease(ctx context.Context, key []byte, begunAt time.Time) error {
	return t.exec(ctx, "release an idempotency key", releaseKey, key, begunAt, time.Unix(0, 0))
}
