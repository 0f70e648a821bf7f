package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// noGate is the gate of instances that share a database without Redis. Gates in
// their processes would not know of each other. noGate is always unavailable, so
// coupons are issued through the database.
type noGate struct {
	hints chan gate.Hint
	close sync.Once
}

var _ gate.Gate = (*noGate)(nil)

var errNoGate = errors.New("redis.url is empty, so the instances have no shared gate: coupons are issued through the database")

func newNoGate() *noGate { return &noGate{hints: make(chan gate.Hint)} }

func (*noGate) Admit(context.Context, reward.TemplateID, []string, bool) (gate.AdmitResult, error) {
	return gate.AdmitResult{}, errNoGate
}

func (*noGate) Place(context.Context, reward.TemplateID, string) (gate.PlaceResult, error) {
	return gate.PlaceResult{}, errNoGate
}

func (*noGate) Positions(context.Context, reward.TemplateID, []string) (gate.PositionsResult, error) {
	return gate.PositionsResult{}, errNoGate
}

func (*noGate) Headers(context.Context, []reward.TemplateID) ([]gate.Header, error) {
	return nil, errNoGate
}

func (*noGate) Read(context.Context, reward.TemplateID, string, int) (gate.Delivery, error) {
	return gate.Delivery{}, errNoGate
}

func (*noGate) Claim(context.Context, reward.TemplateID, string, int64, int) (gate.Delivery, error) {
	return gate.Delivery{}, errNoGate
}

func (*noGate) Ack(context.Context, reward.TemplateID, int64, []int64) (int, error) {
	return 0, errNoGate
}

func (*noGate) Unacked(context.Context, reward.TemplateID, int64, []int64) ([]bool, error) {
	return nil, errNoGate
}

func (*noGate) Apply(context.Context, gate.ApplyParams) (gate.ApplyResult, error) {
	return gate.ApplyResult{}, errNoGate
}

func (*noGate) LoadBegin(context.Context, reward.TemplateID, string) (gate.LoadBeginResult, error) {
	return gate.LoadBeginResult{}, errNoGate
}

func (*noGate) LoadClose(context.Context, gate.Load) error { return errNoGate }

func (*noGate) LoadHoldings(context.Context, gate.Load, []gate.Holding) error { return errNoGate }

func (*noGate) LoadTrim(context.Context, gate.Load, int64) (int64, error) { return 0, errNoGate }

func (*noGate) LoadLeft(context.Context, gate.Load, []gate.Request) error { return errNoGate }

func (*noGate) LoadMissing(context.Context, gate.Load, int64) ([]gate.Request, int64, error) {
	return nil, 0, errNoGate
}

func (*noGate) LoadBack(context.Context, gate.Load, []gate.Request) error { return errNoGate }

func (*noGate) LoadPage(context.Context, gate.Load, int64) ([]gate.Request, error) {
	return nil, errNoGate
}

func (*noGate) LoadCopy(context.Context, gate.Load, int64, int64, []string) error { return errNoGate }

func (*noGate) LoadSwap(context.Context, gate.SwapParams) (gate.SwapResult, error) {
	return gate.SwapResult{}, errNoGate
}

func (*noGate) Shrink(context.Context, reward.TemplateID) (gate.ShrinkResult, error) {
	return gate.ShrinkResult{}, errNoGate
}

func (*noGate) PauseGrants(context.Context, reward.TemplateID, time.Duration) error { return errNoGate }

func (*noGate) Retire(context.Context, reward.TemplateID, time.Duration) (bool, error) {
	return false, errNoGate
}

// Remove does nothing: there is no gate.
func (*noGate) Remove(context.Context, reward.TemplateID) error { return nil }

func (*noGate) Holdings(context.Context, reward.TemplateID, string) ([]gate.Holding, string, int64, error) {
	return nil, "", 0, errNoGate
}

func (*noGate) Line(context.Context, reward.TemplateID, int64, int64) (gate.LineResult, error) {
	return gate.LineResult{}, errNoGate
}

func (*noGate) HoldingsOf(context.Context, reward.TemplateID, []string) (gate.HoldingsOfResult, error) {
	return gate.HoldingsOfResult{}, errNoGate
}

func (*noGate) Lock(context.Context, reward.TemplateID, gate.LockParams) (int64, bool, error) {
	return 0, false, errNoGate
}

func (*noGate) Unlock(context.Context, reward.TemplateID, int64) error { return errNoGate }

func (g *noGate) Hints() <-chan gate.Hint { return g.hints }

func (*noGate) Ping(context.Context) error { return errNoGate }

func (*noGate) Try(context.Context, reward.TemplateID) error { return errNoGate }

func (g *noGate) Close() { g.close.Do(func() { close(g.hints) }) }
