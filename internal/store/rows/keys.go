package rows

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	keySQL = `SELECT id, name, prefix, hash, role, created_at, created_by, expires_at, last_used_at, revoked_at, revoked_by
FROM api_keys `

	keyByHash = keySQL + `WHERE hash = $1`
	listKeys  = keySQL + `WHERE id < $1 ORDER BY id DESC LIMIT $2`
	useKey    = `UPDATE api_keys SET last_used_at = $2 WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < $2)`
)

func scanKey(scan Scan, k *store.APIKey) error {
	return scan(&k.ID, &k.Name, &k.Prefix, &k.Hash, &k.Role, (*at)(&k.CreatedAt), &k.CreatedBy, (*at)(&k.ExpiresAt),
		(*at)(&k.LastUsedAt), (*at)(&k.RevokedAt), &k.RevokedBy)
}

// APIKeyCreate inserts a key. A known ID or Hash is CodeExists. An ID below 1, a
// Hash of the wrong length and a text that the database cannot store are
// CodeInvalid. LastUsedAt, RevokedAt and RevokedBy are ignored.
func (t *Tables) APIKeyCreate(ctx context.Context, k store.APIKey) error {
	if err := k.Check(); err != nil {
		return err
	}
	made, err := t.change(ctx, "create an API key", `INSERT INTO api_keys (id, name, prefix, hash, role, created_at, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING RETURNING id`,
		k.ID, k.Name, k.Prefix, k.Hash, k.Role, k.CreatedAt, k.CreatedBy, orNull(k.ExpiresAt))
	if err == nil && !made {
		err = reward.NewError(reward.KindConflict, reward.CodeExists, "API key %d, or another key with the same secret, exists", k.ID)
	}
	return err
}

// APIKeyByHash returns the key with a hash, even if it is revoked or expired,
// or CodeAPIKeyNotFound.
func (t *Tables) APIKeyByHash(ctx context.Context, hash []byte) (store.APIKey, error) {
	missing := reward.NewError(reward.KindNotFound, reward.CodeAPIKeyNotFound, "there is no such API key")
	return one(ctx, t.db.Read, "find an API key", missing, scanKey, keyByHash, hash)
}

// APIKeyList returns at most limit keys by descending ID. Only IDs below before
// count; 0 starts at the newest.
func (t *Tables) APIKeyList(ctx context.Context, before int64, limit int) ([]store.APIKey, error) {
	return list(ctx, t.db.Read, "list API keys", scanKey, listKeys, below(before), max(limit, 0))
}

// APIKeyRevoke revokes a key permanently and returns it. A repeat changes
// nothing. A missing key is CodeAPIKeyNotFound. A by that the database cannot
// store is CodeInvalid.
func (t *Tables) APIKeyRevoke(ctx context.Context, id int64, by string, now time.Time) (store.APIKey, error) {
	if err := store.CheckText("revoker of an API key", by); err != nil {
		return store.APIKey{}, err
	}
	var found []store.APIKey
	err := t.db.Write(ctx, "revoke an API key", func() []Statement {
		found = nil
		return []Statement{
			{SQL: `UPDATE api_keys SET revoked_at = $2, revoked_by = $3 WHERE id = $1 AND revoked_at IS NULL`, Args: []any{id, now, by}},
			{SQL: keySQL + `WHERE id = $1`, Args: []any{id}, Row: into(&found, scanKey)},
		}
	})
	return first(found, err, reward.NewError(reward.KindNotFound, reward.CodeAPIKeyNotFound, "there is no API key %d", id))
}

// APIKeyMakers returns who made each key, including revoked ones, ordered by ID.
func (t *Tables) APIKeyMakers(ctx context.Context) ([]store.APIKeyMaker, error) {
	return list(ctx, t.db.ReadLong, "list the makers of API keys", func(scan Scan, k *store.APIKeyMaker) error {
		return scan(&k.ID, &k.Name, &k.CreatedBy, (*at)(&k.ExpiresAt), (*at)(&k.RevokedAt))
	}, `SELECT id, name, created_by, expires_at, revoked_at FROM api_keys ORDER BY id`)
}

// APIKeyUsed records when keys were last used, by ID, for at most store.BatchMax keys.
// A time before the recorded one changes nothing, and neither does an unknown
// ID.
//
// It locks them in the order of their IDs.
func (t *Tables) APIKeyUsed(ctx context.Context, used map[int64]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	ids := slices.Sorted(maps.Keys(used))
	return t.db.Write(ctx, "record the use of API keys", func() []Statement {
		statements := make([]Statement, len(ids))
		for i, id := range ids {
			statements[i] = Statement{SQL: useKey, Args: []any{id, used[id]}}
		}
		return statements
	})
}
