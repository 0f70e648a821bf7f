package coupon

import (
	"context"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// outcomeRows are rows that know one template and the outcomes of its requests.
type outcomeRows struct {
	Store

	mu       sync.Mutex // protects template
	template reward.CouponTemplate
}

func (r *outcomeRows) TemplateGet(context.Context, reward.TemplateID) (reward.CouponTemplate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.template, nil
}

// settle settles the next requests, and returns the template afterwards.
func (r *outcomeRows) settle(requests int64) reward.CouponTemplate {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.template.Settled += requests
	return r.template
}

func (r *outcomeRows) IssueOutcomes(_ context.Context, id reward.TemplateID, users []string) (map[string]reward.IssueOutcome, error) {
	out := make(map[string]reward.IssueOutcome)
	for _, user := range users {
		var ticket int64
		if _, err := fmt.Sscanf(user, "u%d", &ticket); err != nil {
			return nil, err
		}
		out[user] = reward.IssueOutcome{TemplateID: id, UserID: user, Ticket: ticket, Coupon: reward.Coupon{ID: reward.CouponID(ticket)}}
	}
	return out, nil
}

// loadedMemory returns an in-process gate with a template, without holdings.
func loadedMemory(t *testing.T, template *reward.CouponTemplate) gate.Gate {
	t.Helper()
	g := gate.NewMemory()
	begun := fixture.Must(g.LoadBegin(t.Context(), template.ID, "me"))(t)
	load := gate.Load{TemplateID: template.ID, Token: "me", Run: begun.Run}
	if s, err := g.LoadSwap(t.Context(), gate.SwapParams{Load: load, State: gatekeeper.StateOf(template)}); err != nil || !s.Done {
		t.Fatal(s, err)
	}
	return g
}

// TestRanksAreThrottled checks in a line of two thousand that moves ten times per second:
// the people in front hear a new rank at most every second, those at the end less
// often, and everybody hears the outcome at the very move that settles it.
func TestRanksAreThrottled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const people, each = 2000, 10
		log := fixture.Must(obs.NewLog(io.Discard, "error", "text"))(t)
		rows := &outcomeRows{template: reward.CouponTemplate{
			ID: 42, TotalQuantity: people, PerUserLimit: 1, Mode: reward.ModeStream, Generation: 1, Path: reward.PathGate,
			Granted: people, Grants: 1,
		}}
		g := loadedMemory(t, &rows.template)
		for n := range people {
			fixture.Must(g.Admit(t.Context(), 42, []string{fmt.Sprint("u", n+1)}, true))(t)
		}
		n := newNotifier(parts{rows: rows, gate: g, templates: gatekeeper.NewTemplateCache(rows, time.Hour, log)})
		type told struct {
			ranks   []time.Time
			last    Status
			outcome time.Time
		}
		all := make([]told, people)
		for i := range all {
			w, stop := n.Watch(42, fmt.Sprint("u", i+1), Status{Ticket: 1})
			go func() {
				defer stop()
				for s := range w.Updates() {
					if s.Kind != StatusWaiting {
						all[i].outcome = time.Now()
						return
					}
					if all[i].last.Kind == "" || s.Rank != all[i].last.Rank {
						all[i].ranks = append(all[i].ranks, time.Now())
					}
					all[i].last = s
				}
			}()
		}
		settled := make([]time.Time, people)
		time.Sleep(time.Second)
		for v := int64(1); (v-1)*each < people; v++ {
			for i := (v - 1) * each; i < v*each; i++ {
				settled[i] = time.Now()
			}
			now := rows.settle(each)
			state := gatekeeper.StateOf(&now)
			state.Version, state.Live, state.Used = v, state.Settled, state.Settled
			fixture.Must(g.Apply(t.Context(), gate.ApplyParams{TemplateID: 42, From: v - 1, State: state}))(t)
			n.hint(42)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		n.open.Wait()
		g.Close()
		events := 0
		for i, one := range all {
			if late := one.outcome.Sub(settled[i]); one.outcome.IsZero() || late > 2*hintedUpdateInterval {
				t.Fatalf("u%d heard the outcome %v after it was known", i+1, late)
			}
			for k := 1; k < len(one.ranks); k++ {
				if pause := one.ranks[k].Sub(one.ranks[k-1]); pause < rankInterval {
					t.Fatalf("u%d heard two ranks within %v", i+1, pause)
				}
			}
			events += len(one.ranks)
		}
		// 20 s at most; without intervals each would hear of every move: 200,000.
		if first, far := len(all[300].ranks), len(all[1999].ranks); first < 3 || far > 15 || events > 12*people {
			t.Errorf("u301 heard %d ranks in 3 s, u2000 %d in 20 s, all together %d", first, far, events)
		}
	})
}
