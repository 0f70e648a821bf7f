package gatetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

const (
	histories      = 100
	historyMax     = 200 // operations
	historyClients = 4   // goroutines
	historyTotal   = 5
)

// exerciseLinearizable checks that concurrent calls return what a gate would return
// that handles one call after the other.
func exerciseLinearizable(t *testing.T, b *bundle) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range histories {
		each := *b
		each.id = reward.TemplateID(i + 1)
		s := state()
		s.Total = historyTotal
		each.load(s)
		h := newHistory(each.g, each.id, s)
		operations, err := h.make(b.ctx, random.Uint64())
		fixture.OK(b, err)
		if result := linearizable(operations); result != porcupine.Ok {
			t.Fatalf("history %d is %v (seed %d); its operations by time:\n%s", i, result, seed, describe(operations))
		}
	}
}

// linearizable checks a history against the model of a gate that handles one call
// after the other.
func linearizable(operations []porcupine.Operation) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(porcupine.Model{
		Init: func() any { return oneByOne{version: 1} },
		Step: func(state, input, output any) (bool, any) {
			s := state.(oneByOne)
			if users, isAdmit := input.([]string); isAdmit {
				want, after := s.admit(users)
				return reflect.DeepEqual(want, output), after
			}
			if user, isPlace := input.(string); isPlace {
				return s.place(user) == output, s
			}
			want, after := s.apply(input.(gate.ApplyParams))
			return want == output, after
		},
		Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
	}, operations, fixture.Patience)
}

// oneByOne models a gate of historyTotal coupons, one per user. It is a value: its
// methods return the changed model.
type oneByOne struct {
	version, live, next int64
	line                []gate.Request
	has                 map[string]reward.CouponID
}

func (s oneByOne) admit(users []string) ([]gate.Answer, oneByOne) {
	answers := make([]gate.Answer, len(users))
	s.line = slices.Clone(s.line)
	for i, user := range users {
		rank := slices.IndexFunc(s.line, func(w gate.Request) bool { return w.UserID == user })
		switch {
		case rank >= 0:
			answers[i] = gate.Answer{Verdict: gate.InLine, Ticket: s.line[rank].Ticket, Rank: int64(rank)}
		case s.has[user] != 0:
			answers[i] = gate.Answer{Verdict: gate.AtUserLimit, CouponID: s.has[user]}
		case s.live+int64(len(s.line)) >= historyTotal:
			answers[i] = gate.Answer{Verdict: gate.SoldOut}
		default:
			s.next++
			answers[i] = gate.Answer{Verdict: gate.Admitted, Ticket: s.next, Rank: int64(len(s.line))}
			s.line = append(s.line, gate.Request{UserID: user, Ticket: s.next})
		}
	}
	return answers, s
}

func (s oneByOne) place(user string) gate.PlaceResult {
	out := gate.PlaceResult{GateGeneration: 1, Version: s.version}
	for _, w := range s.line {
		if w.UserID == user {
			out.InLine, out.Request = true, gate.Request{UserID: user, Ticket: w.Ticket, Generation: 1}
		}
	}
	return out
}

func (s oneByOne) apply(p gate.ApplyParams) (gate.ApplyResult, oneByOne) {
	s.version, s.live, s.next = p.State.Version, p.State.Live, max(s.next, p.State.Settled)
	s.line = slices.DeleteFunc(slices.Clone(s.line), func(w gate.Request) bool {
		return w.Ticket <= p.State.Settled || slices.Contains(p.Left, gate.Request{UserID: w.UserID, Ticket: w.Ticket, Generation: 1})
	})
	s.has = maps.Clone(s.has)
	for _, f := range p.Holdings {
		if s.has == nil {
			s.has = map[string]reward.CouponID{}
		}
		if s.has[f.UserID] = f.CouponID; f.Held == 0 {
			delete(s.has, f.UserID)
		}
	}
	return gate.ApplyResult{Version: s.version}, s
}

// history calls a gate from several goroutines, and records when each call began and
// returned. Changes of the rows are applied one after the other; walk has the others.
type history struct {
	g     gate.Gate
	id    reward.TemplateID
	began time.Time
	left  atomic.Int64

	changing sync.Mutex // protects the rows below
	rows     gate.State
	requests map[int64]string // by ticket, of those not settled
	lefts    map[int64]bool   // by ticket
	holders  []string

	mu         sync.Mutex // protects operations
	operations []porcupine.Operation
}

func newHistory(g gate.Gate, id reward.TemplateID, loaded gate.State) *history {
	h := &history{g: g, id: id, began: time.Now(), rows: loaded, requests: map[int64]string{}, lefts: map[int64]bool{}}
	h.left.Store(historyMax)
	return h
}

func (h *history) make(ctx context.Context, seed uint64) ([]porcupine.Operation, error) {
	errs := make(chan error, historyClients)
	for i := range historyClients {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		go func() { errs <- h.client(ctx, i, random) }()
	}
	var failed error
	for range historyClients {
		if err := <-errs; err != nil {
			failed = err
		}
	}
	return h.operations, failed
}

func (h *history) client(ctx context.Context, client int, random *rand.Rand) error {
	for h.left.Load() > 0 {
		user := func() string { return fmt.Sprint("u", random.IntN(3*historyTotal)) }
		var err error
		switch n := random.IntN(10); {
		case n < 5:
			users := []string{user(), user(), user()}[:1+random.IntN(3)]
			_, err = h.do(client, users, func() (any, error) {
				result, err := h.g.Admit(ctx, h.id, users, true)
				return result.Answers, err
			})
		case n < 6:
			err = h.leave(ctx, client, user())
		case n < 8:
			err = h.change(ctx, client, h.settle(ctx, random))
		default:
			err = h.change(ctx, client, h.cancel)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// do makes one operation, unless historyMax have been made, and returns its output.
func (h *history) do(client int, input any, operation func() (any, error)) (any, error) {
	if h.left.Add(-1) < 0 {
		return nil, nil
	}
	called := time.Since(h.began)
	output, err := operation()
	returned := time.Since(h.began)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: client, Input: input, Call: int64(called), Output: output, Return: int64(returned),
	})
	return output, nil
}

// change makes a version of the rows, and applies it.
func (h *history) change(ctx context.Context, client int, make func(*gate.ApplyParams) error) error {
	h.changing.Lock()
	defer h.changing.Unlock()
	p := gate.ApplyParams{TemplateID: h.id, From: h.rows.Version}
	if err := make(&p); err != nil {
		return err
	}
	h.rows.Version++
	p.State = h.rows
	_, err := h.do(client, p, func() (any, error) { return h.g.Apply(ctx, p) })
	return err
}

// settle returns a change that issues or rejects requests.
func (h *history) settle(ctx context.Context, random *rand.Rand) func(*gate.ApplyParams) error {
	return func(p *gate.ApplyParams) error {
		read, err := h.g.Read(ctx, h.id, "issuer", 10)
		for _, r := range read.Requests {
			h.requests[r.Ticket] = r.UserID
		}
		for range 1 + random.IntN(2) {
			user, asked := h.requests[h.rows.Settled+1]
			if !asked {
				break
			}
			h.rows.Settled++
			delete(h.requests, h.rows.Settled)
			if !h.lefts[h.rows.Settled] && h.rows.Live < h.rows.Total && random.IntN(4) > 0 {
				h.rows.Live++
				h.holders = append(h.holders, user)
				p.Holdings = append(p.Holdings, gate.Holding{UserID: user, Held: 1, CouponID: reward.CouponID(h.rows.Settled)})
			}
		}
		return err
	}
}

// leave lets a user leave the line.
func (h *history) leave(ctx context.Context, client int, user string) error {
	output, err := h.do(client, user, func() (any, error) { return h.g.Place(ctx, h.id, user) })
	place, _ := output.(gate.PlaceResult)
	if err != nil || !place.InLine {
		return err
	}
	return h.change(ctx, client, func(p *gate.ApplyParams) error {
		if place.Ticket > h.rows.Settled {
			h.lefts[place.Ticket] = true
			p.Left = []gate.Request{place.Request}
		}
		return nil
	})
}

// cancel cancels the oldest coupon.
func (h *history) cancel(p *gate.ApplyParams) error {
	if len(h.holders) > 0 {
		h.rows.Live--
		p.Holdings = []gate.Holding{{UserID: h.holders[0]}}
		h.holders = h.holders[1:]
	}
	return nil
}

// describe formats the operations of a history by time.
func describe(operations []porcupine.Operation) string {
	slices.SortFunc(operations, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	text := ""
	for _, o := range operations {
		text += fmt.Sprintf("%d–%d client %d: %+v gave %+v\n", o.Call, o.Return, o.ClientId, o.Input, o.Output)
	}
	return text
}
