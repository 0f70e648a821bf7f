package engine

import (
	"context"
	"errors"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// noGate is the gate of instances that share a database without Redis. Gates in
// their processes would not know of each other. noGate is always unavailable, so
// coupons are issued through the database.
type noGate struct{ gate.Gate }

func newNoGate() noGate {
	return noGate{gate.NewUnavailable(errors.New("redis.url is empty, so the instances have no shared gate: coupons are issued through the database"))}
}

// Remove does nothing: there is no gate.
func (noGate) Remove(context.Context, reward.TemplateID) error { return nil }
