package api

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// fakeRows stores API keys, the audit and idempotency keys in memory, with the
// behavior of the store.
type fakeRows struct {
	mu       sync.Mutex // protects what follows
	away     error      // answer of every call while set
	keys     []store.APIKey
	keyReads int
	audit    []store.AuditLine
	records  map[string]store.IdempotencyRecord
	// dies makes the next IdempotencyFinish fail, as if the instance had crashed.
	dies error
}

func (f *fakeRows) lock() func() {
	f.mu.Lock()
	return f.mu.Unlock
}

func (f *fakeRows) APIKeyCreate(_ context.Context, k store.APIKey) error {
	defer f.lock()()
	f.keys = append(f.keys, k)
	return f.away
}

func (f *fakeRows) APIKeyByHash(_ context.Context, hash []byte) (store.APIKey, error) {
	defer f.lock()()
	f.keyReads++
	if f.away != nil {
		return store.APIKey{}, f.away
	}
	for _, k := range f.keys {
		if bytes.Equal(k.Hash, hash) {
			return k, nil
		}
	}
	return store.APIKey{}, noAPIKey()
}

func noAPIKey() error {
	return reward.NewError(reward.KindNotFound, reward.CodeAPIKeyNotFound, "there is no such API key")
}

func (f *fakeRows) APIKeyList(_ context.Context, before int64, limit int) ([]store.APIKey, error) {
	defer f.lock()()
	var out []store.APIKey
	for _, k := range slices.Backward(f.keys) {
		if (before == 0 || k.ID < before) && len(out) < limit {
			out = append(out, k)
		}
	}
	return out, f.away
}

func (f *fakeRows) APIKeyRevoke(_ context.Context, id int64, by string, now time.Time) (store.APIKey, error) {
	defer f.lock()()
	for i := range f.keys {
		if k := &f.keys[i]; k.ID == id {
			if k.RevokedAt.IsZero() {
				k.RevokedAt, k.RevokedBy = now, by
			}
			return *k, nil
		}
	}
	return store.APIKey{}, noAPIKey()
}

func (f *fakeRows) APIKeyMakers(context.Context) ([]store.APIKeyMaker, error) {
	defer f.lock()()
	var out []store.APIKeyMaker
	for _, k := range f.keys {
		out = append(out, store.APIKeyMaker{ID: k.ID, Name: k.Name, CreatedBy: k.CreatedBy, ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt})
	}
	return out, f.away
}

func (f *fakeRows) APIKeyUsed(context.Context, map[int64]time.Time) error { return nil }

func (f *fakeRows) AuditBegin(_ context.Context, l store.AuditLine) error {
	defer f.lock()()
	if f.away == nil {
		f.audit = append(f.audit, l)
	}
	return f.away
}

func (f *fakeRows) AuditEnd(_ context.Context, id int64, status int, code string, now time.Time) error {
	defer f.lock()()
	for i := range f.audit {
		if l := &f.audit[i]; l.ID == id && l.EndedAt.IsZero() {
			l.EndedAt, l.Status, l.Code = now, status, code
		}
	}
	return f.away
}

func (f *fakeRows) AuditDrop(_ context.Context, id int64) error {
	defer f.lock()()
	if f.away == nil {
		f.audit = slices.DeleteFunc(f.audit, func(l store.AuditLine) bool { return l.ID == id && l.EndedAt.IsZero() })
	}
	return f.away
}

func (f *fakeRows) AuditList(_ context.Context, p store.AuditListParams) ([]store.AuditLine, error) {
	defer f.lock()()
	var out []store.AuditLine
	for _, l := range slices.Backward(f.audit) {
		below := l.Subject == p.Subject || strings.HasSuffix(p.Subject, "/") && strings.HasPrefix(l.Subject, p.Subject)
		if (p.Before == 0 || l.ID < p.Before) && (p.Actor == "" || l.Actor == p.Actor) && (p.Action == "" || l.Action == p.Action) &&
			(p.Subject == "" || below) && len(out) < p.Limit {
			out = append(out, l)
		}
	}
	return out, f.away
}

func (f *fakeRows) IdempotencyBegin(_ context.Context, p store.IdempotencyBeginParams) (store.IdempotencyRecord, error) {
	defer f.lock()()
	if f.away != nil {
		return store.IdempotencyRecord{}, f.away
	}
	if f.records == nil {
		f.records = make(map[string]store.IdempotencyRecord)
	}
	r, known := f.records[string(p.Key)]
	switch {
	case !known || p.Now.Sub(r.FirstAt) > p.Kept:
		r = store.IdempotencyRecord{ID: p.ID, Fingerprint: p.Fingerprint, FirstAt: p.Now, BegunAt: p.Now}
	case r.Done || !bytes.Equal(r.Fingerprint, p.Fingerprint) || p.Now.Sub(r.BegunAt) < p.Lease:
		return r, nil
	default:
		r.BegunAt, r.Again = p.Now, true
	}
	f.records[string(p.Key)] = r
	r.Claimed = true
	return r, nil
}

func (f *fakeRows) IdempotencyFinish(_ context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error) {
	defer f.lock()()
	if err := f.dies; err != nil {
		f.dies = nil
		return false, err
	}
	r, known := f.records[string(key)]
	if !known || r.Done || !r.BegunAt.Equal(begunAt) {
		return false, nil
	}
	r.Done, r.Answer = true, answer
	f.records[string(key)] = r
	return true, nil
}

func (f *fakeRows) IdempotencyDrop(_ context.Context, key []byte, begunAt time.Time) error {
	defer f.lock()()
	if r, known := f.records[string(key)]; known && !r.Done && r.BegunAt.Equal(begunAt) {
		delete(f.records, string(key))
	}
	return nil
}

func (f *fakeRows) IdempotencyRelease(_ context.Context, key []byte, begunAt time.Time) error {
	defer f.lock()()
	if r, known := f.records[string(key)]; known && !r.Done && r.BegunAt.Equal(begunAt) {
		r.BegunAt = time.Time{}
		f.records[string(key)] = r
	}
	return nil
}
