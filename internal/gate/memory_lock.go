package gate

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// memoryLock is the SYNC lock of a template.
type memoryLock struct {
	token int64  // of the latest holder; never decreases
	nonce string // of that holder
	until time.Time
}

// Lock implements Gate.
func (m *Memory) Lock(ctx context.Context, id reward.TemplateID, p LockParams) (int64, bool, error) {
	if err := m.lock(ctx); err != nil {
		return 0, false, err
	}
	defer m.mu.Unlock()
	now, l := time.Now(), &m.templateLocked(id).lock
	switch {
	case !now.Before(l.until):
		l.token, l.nonce = max(l.token+1, p.Floor+1, now.UnixMicro()), p.Nonce
	case l.nonce != p.Nonce:
		return 0, false, nil
	}
	l.until = now.Add(p.Lease)
	return l.token, true, nil
}

// Unlock implements Gate.
func (m *Memory) Unlock(ctx context.Context, id reward.TemplateID, token int64) error {
	if err := m.lock(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if t := m.templates[id]; t != nil && t.lock.token == token {
		t.lock.until = time.Time{}
	}
	return nil
}
