package gatekeeper

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

const (
	heavyTemplates = 100
	lightTemplate  = heavyTemplates + 1
)

// heavyRows are rows of heavyTemplates templates that need work without end, and of one
// that is sold out.
type heavyRows struct {
	Store
	heavy     reward.CouponTemplate
	most, now atomic.Int64       // loads
	recorded  chan time.Duration // how long after the start the sold out template was looked at
	started   time.Time
}

func (r *heavyRows) TemplateGet(_ context.Context, id reward.TemplateID) (reward.CouponTemplate, error) {
	if id == lightTemplate {
		return reward.CouponTemplate{ID: id, TotalQuantity: 1, Live: 1, IssuedTotal: 1, Path: reward.PathGate}, nil
	}
	t := r.heavy
	t.ID = id
	return t, nil
}

func (r *heavyRows) TemplateActive(ctx context.Context, _ time.Time) ([]reward.CouponTemplate, error) {
	var all []reward.CouponTemplate
	for id := reward.TemplateID(1); id <= lightTemplate; id++ {
		t, _ := r.TemplateGet(ctx, id)
		all = append(all, t)
	}
	return all, nil
}

// draw lasts.
func (*heavyRows) draw(ctx context.Context, _ *reward.CouponTemplate, _ int64) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (r *heavyRows) RefusalRecord(_ context.Context, id reward.TemplateID, _ string, _ time.Time) error {
	if id == lightTemplate {
		r.recorded <- time.Since(r.started)
	}
	return nil
}

// heavyGate has a gate only for the sold out template. The load of another one lasts.
type heavyGate struct {
	gate.Gate
	rows *heavyRows
}

func (g *heavyGate) Headers(_ context.Context, ids []reward.TemplateID) ([]gate.Header, error) {
	out := make([]gate.Header, len(ids))
	for i, id := range ids {
		out[i] = gate.Header{Exists: true, Loaded: id == lightTemplate, LastRequestAt: time.Now()}
		if id == lightTemplate {
			out[i].Total, out[i].Live, out[i].IssuedTotal, out[i].PublishedCount, out[i].PublishedIssued = 1, 1, 1, 1, 1
		}
	}
	return out, nil
}

func (g *heavyGate) LoadBegin(ctx context.Context, _ reward.TemplateID, _ string) (gate.LoadBeginResult, error) {
	if g.rows.heavy.Mode == reward.ModeKafka {
		return gate.LoadBeginResult{Held: true}, nil // the load then waits for the consumers
	}
	g.rows.most.Store(max(g.rows.most.Load(), g.rows.now.Add(1)))
	<-ctx.Done()
	return gate.LoadBeginResult{}, context.Cause(ctx)
}

func (*heavyGate) Ping(context.Context) error { return nil }

func (*heavyGate) Try(context.Context, reward.TemplateID) error { return nil }

func (*heavyGate) LoadClose(context.Context, gate.Load) error { return nil }

func (*heavyGate) LoadHoldings(context.Context, gate.Load, []gate.Holding) error { return nil }

// allIssuers issues all templates.
type allIssuers struct{ Issuers }

func (allIssuers) Epochs() map[reward.TemplateID]int64 {
	epochs := make(map[reward.TemplateID]int64)
	for id := reward.TemplateID(1); id <= lightTemplate; id++ {
		epochs[id] = 0
	}
	return epochs
}

func (allIssuers) GiveHint(reward.TemplateID) {}

// unreadTopic is a topic with a record that nobody settles.
type unreadTopic struct{ TopicInspector }

func (unreadTopic) LogID(context.Context, string) (string, error) { return "log", nil }

func (unreadTopic) Ends(context.Context, string) (map[int32]int64, error) {
	return map[int32]int64{0: 1}, nil
}

func (*heavyRows) OffsetsGet(context.Context, string) (map[int32]int64, error) {
	return map[int32]int64{0: 0}, nil
}

// TestLongWorkBlocksNoOtherTemplate checks that a template is cared for while the draws,
// or the loads, of a hundred others last, or their loads wait for Kafka's consumers.
func TestLongWorkBlocksNoOtherTemplate(t *testing.T) {
	t.Parallel()
	for name, heavy := range map[string]reward.CouponTemplate{
		"Draws":   {TotalQuantity: 10, Path: reward.PathGate, Draw: reward.Draw{State: reward.DrawClosed}},
		"Loads":   {TotalQuantity: 2_000_000, Live: 1_000_000, Path: reward.PathGate},
		"Records": {TotalQuantity: 10, Path: reward.PathDatabase, Mode: reward.ModeKafka},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rows := &heavyRows{heavy: heavy, recorded: make(chan time.Duration, 1000), started: time.Now()}
				g := &heavyGate{rows: rows}
				templates := NewTemplateCache(rows, time.Hour, obs.Log{})
				ctx, stop := context.WithCancel(t.Context())
				topic := &IssueTopic{rows: rows, Inspector: unreadTopic{}}
				p := parts{rows: rows, gate: g, templates: templates}
				loader := &Loader{parts: p, topic: topic, ctx: ctx, loads: make(map[reward.TemplateID]*load)}
				m := &Maintainer{
					parts: p, issuers: allIssuers{}, loader: loader, draw: rows.draw,
					queueTTL: time.Hour, statuses: make(map[reward.TemplateID]*gateStatus),
					slots: make(chan struct{}, tasksMax), loads: make(chan struct{}, largeLoadsMax),
				}
				var running sync.WaitGroup
				running.Go(func() { templates.Run(ctx) })
				running.Go(func() { m.Run(ctx) })
				select {
				case after := <-rows.recorded:
					if after > 5*time.Second {
						t.Errorf("it was cared for after %v", after)
					}
				case <-time.After(20 * time.Second):
					t.Error("it is not cared for")
				}
				if most := rows.most.Load(); most > largeLoadsMax {
					t.Errorf("%d large loads at once", most)
				}
				stop()
				running.Wait()
				loader.open.Wait()
			})
		})
	}
}
