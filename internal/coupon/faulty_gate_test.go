package coupon

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// losableGate is an in-process gate that can lose all data, or hang.
type losableGate struct {
	mu    sync.Mutex // protects the fields below
	inner gate.Gate
	users []*faultyGate
	open  sync.WaitGroup
}

func newLosableGate() *losableGate {
	f := &losableGate{}
	f.begin()
	return f
}

func (f *losableGate) begin() {
	f.inner = gate.NewMemory()
	hints := f.inner.Hints()
	f.open.Go(func() {
		for w := range hints {
			f.mu.Lock()
			for _, u := range f.users {
				select {
				case u.hintsIn <- w:
				default: // a hint may be lost
				}
			}
			f.mu.Unlock()
		}
	})
}

func (f *losableGate) gate(testing.TB) *faultyGate {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := &faultyGate{now: f.now, hintsIn: make(chan gate.Hint, 64)}
	g.hints = g.hintsIn
	f.users = append(f.users, g)
	return g
}

func (f *losableGate) now() gate.Gate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inner
}

func (f *losableGate) lose() {
	f.mu.Lock()
	old := f.inner
	f.begin()
	f.mu.Unlock()
	old.Close()
}

// hang lets the gate hang, as a server that is stopped and keeps its connections, until
// resume is called. It serves what it was sent meanwhile.
func (f *losableGate) hang() (resume func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hung := make(chan struct{})
	for _, u := range f.users {
		u.set(func(g *faultyGate) { g.hung = hung })
	}
	return sync.OnceFunc(func() { close(hung) })
}

func (f *losableGate) close() {
	f.now().Close()
	f.open.Wait()
}

var errGateDown = errors.New("the gate's server does not respond")

var errReplyLost = errors.New("the reply was lost")

// faultyGate is an instance's gate. It can be down, hang, or lose applies.
type faultyGate struct {
	now   func() gate.Gate
	hints <-chan gate.Hint
	// hintsIn feeds hints from a losableGate.
	hintsIn chan gate.Hint

	mu        sync.Mutex // protects the fields below
	down      bool
	hung      chan struct{} // until it is closed, calls have no effect; nil = it never hung
	loseApply bool
	onShrink  func() // called after each Shrink
	admits    int    // calls of Admit
	closes    int    // calls of LoadClose
	loseLock  int    // every so many replies of Lock are lost; 0 = none
	locks     int
	// clockAhead is how far the clock of the server is ahead.
	clockAhead time.Duration
}

func (g *faultyGate) set(f func(*faultyGate)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g)
}

// through makes a call with one result.
func through[T any](ctx context.Context, g *faultyGate, call func(context.Context, gate.Gate) (T, error)) (T, error) {
	g.mu.Lock()
	down, hung := g.down, g.hung
	g.mu.Unlock()
	var none T
	if down {
		return none, errGateDown
	}
	if hung == nil {
		return call(ctx, g.now())
	}
	type reply struct {
		value T
		err   error
	}
	replies := make(chan reply, 1)
	go func() {
		<-hung
		// A server executes what it has received, even if the caller has given up.
		value, err := call(context.WithoutCancel(ctx), g.now())
		replies <- reply{value, err}
	}()
	select {
	case r := <-replies:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// act makes a call without a result.
func act(ctx context.Context, g *faultyGate, call func(context.Context, gate.Gate) error) error {
	_, err := through(ctx, g, func(ctx context.Context, in gate.Gate) (struct{}, error) { return struct{}{}, call(ctx, in) })
	return err
}

func (g *faultyGate) Admit(ctx context.Context, id reward.TemplateID, users []string, admit bool) (gate.AdmitResult, error) {
	g.set(func(g *faultyGate) { g.admits++ })
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.AdmitResult, error) {
		return in.Admit(ctx, id, users, admit)
	})
}

func (g *faultyGate) Place(ctx context.Context, id reward.TemplateID, user string) (gate.PlaceResult, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.PlaceResult, error) { return in.Place(ctx, id, user) })
}

func (g *faultyGate) Line(ctx context.Context, id reward.TemplateID, after, upTo int64) (gate.LineResult, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.LineResult, error) { return in.Line(ctx, id, after, upTo) })
}

func (g *faultyGate) Positions(ctx context.Context, id reward.TemplateID, users []string) (gate.PositionsResult, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.PositionsResult, error) {
		return in.Positions(ctx, id, users)
	})
}

func (g *faultyGate) Headers(ctx context.Context, ids []reward.TemplateID) ([]gate.Header, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) ([]gate.Header, error) { return in.Headers(ctx, ids) })
}

func (g *faultyGate) Read(ctx context.Context, id reward.TemplateID, consumer string, count int) (gate.Delivery, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.Delivery, error) {
		return in.Read(ctx, id, consumer, count)
	})
}

func (g *faultyGate) Claim(ctx context.Context, id reward.TemplateID, consumer string, after int64, count int) (gate.Delivery, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.Delivery, error) {
		return in.Claim(ctx, id, consumer, after, count)
	})
}

func (g *faultyGate) Ack(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) (int, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (int, error) { return in.Ack(ctx, id, generation, tickets) })
}

func (g *faultyGate) Unacked(ctx context.Context, id reward.TemplateID, generation int64, tickets []int64) ([]bool, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) ([]bool, error) {
		return in.Unacked(ctx, id, generation, tickets)
	})
}

func (g *faultyGate) Apply(ctx context.Context, p gate.ApplyParams) (gate.ApplyResult, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.ApplyResult, error) {
		g.mu.Lock()
		lose := g.loseApply
		g.mu.Unlock()
		if lose {
			return gate.ApplyResult{Version: p.State.Version}, nil
		}
		return in.Apply(ctx, p)
	})
}

func (g *faultyGate) LoadBegin(ctx context.Context, id reward.TemplateID, token string) (gate.LoadBeginResult, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.LoadBeginResult, error) {
		return in.LoadBegin(ctx, id, token)
	})
}

func (g *faultyGate) LoadClose(ctx context.Context, l gate.Load) error {
	g.set(func(g *faultyGate) { g.closes++ })
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.LoadClose(ctx, l) })
}

func (g *faultyGate) LoadHoldings(ctx context.Context, l gate.Load, holdings []gate.Holding) error {
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.LoadHoldings(ctx, l, holdings) })
}

func (g *faultyGate) LoadTrim(ctx context.Context, l gate.Load, settled int64) (int64, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (int64, error) { return in.LoadTrim(ctx, l, settled) })
}

func (g *faultyGate) LoadLeft(ctx context.Context, l gate.Load, left []gate.Request) error {
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.LoadLeft(ctx, l, left) })
}

func (g *faultyGate) LoadMissing(ctx context.Context, l gate.Load, after int64) ([]gate.Request, int64, error) {
	var upTo int64
	list, err := through(ctx, g, func(ctx context.Context, in gate.Gate) (list []gate.Request, err error) {
		list, upTo, err = in.LoadMissing(ctx, l, after)
		return list, err
	})
	if err != nil {
		return nil, 0, err
	}
	return list, upTo, nil
}

func (g *faultyGate) LoadBack(ctx context.Context, l gate.Load, back []gate.Request) error {
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.LoadBack(ctx, l, back) })
}

func (g *faultyGate) LoadPage(ctx context.Context, l gate.Load, from int64) ([]gate.Request, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) ([]gate.Request, error) { return in.LoadPage(ctx, l, from) })
}

func (g *faultyGate) LoadCopy(ctx context.Context, l gate.Load, generation, first int64, users []string) error {
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.LoadCopy(ctx, l, generation, first, users) })
}

func (g *faultyGate) LoadSwap(ctx context.Context, p gate.SwapParams) (gate.SwapResult, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.SwapResult, error) { return in.LoadSwap(ctx, p) })
}

func (g *faultyGate) Shrink(ctx context.Context, id reward.TemplateID) (gate.ShrinkResult, error) {
	out, err := through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.ShrinkResult, error) { return in.Shrink(ctx, id) })
	g.mu.Lock()
	then := g.onShrink
	g.mu.Unlock()
	if then != nil {
		then()
	}
	return out, err
}

func (g *faultyGate) PauseGrants(ctx context.Context, id reward.TemplateID, pause time.Duration) error {
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.PauseGrants(ctx, id, pause) })
}

func (g *faultyGate) Retire(ctx context.Context, id reward.TemplateID, idle time.Duration) (bool, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (bool, error) { return in.Retire(ctx, id, idle) })
}

func (g *faultyGate) Remove(ctx context.Context, id reward.TemplateID) error {
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.Remove(ctx, id) })
}

func (g *faultyGate) Holdings(ctx context.Context, id reward.TemplateID, cursor string) ([]gate.Holding, string, int64, error) {
	var next string
	var version int64
	list, err := through(ctx, g, func(ctx context.Context, in gate.Gate) (list []gate.Holding, err error) {
		list, next, version, err = in.Holdings(ctx, id, cursor)
		return list, err
	})
	if err != nil {
		return nil, "", 0, err
	}
	return list, next, version, nil
}

func (g *faultyGate) HoldingsOf(ctx context.Context, id reward.TemplateID, users []string) (gate.HoldingsOfResult, error) {
	return through(ctx, g, func(ctx context.Context, in gate.Gate) (gate.HoldingsOfResult, error) {
		return in.HoldingsOf(ctx, id, users)
	})
}

func (g *faultyGate) Lock(ctx context.Context, id reward.TemplateID, p gate.LockParams) (int64, bool, error) {
	var ok bool
	token, err := through(ctx, g, func(ctx context.Context, in gate.Gate) (token int64, err error) {
		token, ok, err = in.Lock(ctx, id, p)
		return token, err
	})
	if err != nil {
		return 0, false, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.locks++; g.loseLock > 0 && g.locks%g.loseLock == 0 {
		return 0, false, errReplyLost
	}
	return token + g.clockAhead.Microseconds(), ok, nil
}

func (g *faultyGate) Unlock(ctx context.Context, id reward.TemplateID, token int64) error {
	g.mu.Lock()
	token -= g.clockAhead.Microseconds()
	g.mu.Unlock()
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.Unlock(ctx, id, token) })
}

func (g *faultyGate) Ping(ctx context.Context) error {
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.Ping(ctx) })
}

func (g *faultyGate) Try(ctx context.Context, id reward.TemplateID) error {
	return act(ctx, g, func(ctx context.Context, in gate.Gate) error { return in.Try(ctx, id) })
}

func (g *faultyGate) Hints() <-chan gate.Hint { return g.hints }

func (g *faultyGate) Close() {}
