package redisgate

import (
	"context"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// Lock implements gate.Gate.
func (g *Gate) Lock(ctx context.Context, id reward.TemplateID, p gate.LockParams) (int64, bool, error) {
	millis := max(p.Lease.Milliseconds(), 1)
	m, err := g.exec(ctx, lock, id, call{lockKeys(g.prefix, id), []string{number(millis), p.Nonce, number(p.Floor)}})
	if err != nil {
		return 0, false, err
	}
	r := newReply(m)
	if r.number() == 0 {
		r.text()
		return 0, false, r.done(lock, id)
	}
	token := r.number()
	return token, true, r.done(lock, id)
}

// Unlock implements gate.Gate.
func (g *Gate) Unlock(ctx context.Context, id reward.TemplateID, token int64) error {
	_, err := g.exec(ctx, unlock, id, call{lockKeys(g.prefix, id), []string{number(token)}})
	return err
}
