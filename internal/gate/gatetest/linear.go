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
		b.ok(err)
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
	line                []gate.SettledTicket
	has                 map[string]reward.CouponID
}

func (s oneByOne) admit(users []string) ([]gate.Answer, oneByOne) {
	answers := make([]gate.Answer, len(users))
	s.line = slices.Clone(s.line)
	for i, user := range users {
		rank := slices.IndexFunc(s.line, func(w gate.SettledTicket) bool { return w.UserID == user })
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
			s.line = append(s.line, gate.SettledTicket{UserID: user, Ticket: s.next})
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
	if p.State.Version <= s.version || s.version < p.From {
		return gate.ApplyResult{Behind: p.State.Version > s.version, Version: s.version}, s
	}
	s.version, s.live, s.next = p.State.Version, p.State.Live, max(s.next, p.State.Settled)
	s.line = slices.DeleteFunc(slices.Clone(s.line), func(w gate.SettledTicket) bool {
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
// returned.
type history struct {
	g     gate.Gate
	id    reward.TemplateID
	began time.Time
	left  atomic.Int64

	mu         sync.Mutex // protects the fields below
	rows       gate.State
	requests   map[int64]string // by ticket, of those not settled
	holdings   [][]gate.Holding // by version
	lefts      [][]gate.Request // by version
	applies    []gate.ApplyParams
	operations []porcupine.Operation
}

func newHistory(g gate.Gate, id reward.TemplateID, loaded gate.State) *history {
	h := &history{g: g, id: id, began: time.Now(), rows: loaded, requests: map[int64]string{}, holdings: make([][]gate.Holding, 2), lefts: make([][]gate.Request, 2)}
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
	for {
		var err error
		switch n := random.IntN(10); {
		case n < 5:
			users := make([]string, 1+random.IntN(3))
			for i := range users {
				users[i] = fmt.Sprint("u", random.IntN(3*historyTotal))
			}
			err = h.do(client, users, func() (any, error) {
				result, err := h.g.Admit(ctx, h.id, users, true)
				return result.Answers, err
			})
		case n < 6:
			err = h.leave(ctx, client, fmt.Sprint("u", random.IntN(3*historyTotal)))
		case n < 8:
			err = h.settle(ctx, client, random)
		case n < 9:
			err = h.cancel(ctx, client)
		default:
			err = h.applyAgain(ctx, client, random)
		}
		if err != nil || h.left.Load() <= 0 {
			return err
		}
	}
}

// do makes one operation, unless historyMax have been made.
func (h *history) do(client int, input any, operation func() (any, error)) error {
	if h.left.Add(-1) < 0 {
		return nil
	}
	called := time.Since(h.began)
	output, err := operation()
	returned := time.Since(h.began)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: client, Input: input, Call: int64(called), Output: output, Return: int64(returned),
	})
	return nil
}

// settle issues or rejects requests in the rows, and applies the change.
func (h *history) settle(ctx context.Context, client int, random *rand.Rand) error {
	read, err := h.g.Read(ctx, h.id, "issuer", 10)
	if err != nil {
		return err
	}
	h.mu.Lock()
	for _, r := range read.Requests {
		h.requests[r.Ticket] = r.UserID
	}
	var holdings []gate.Holding
	for range 1 + random.IntN(2) {
		user, asked := h.requests[h.rows.Settled+1]
		if !asked {
			break
		}
		h.rows.Settled++
		delete(h.requests, h.rows.Settled)
		if h.leftLocked(h.rows.Settled) {
			continue
		}
		if h.rows.Live < h.rows.Total && random.IntN(4) > 0 {
			h.rows.Live++
			holdings = append(holdings, gate.Holding{UserID: user, Held: 1, CouponID: reward.CouponID(h.rows.Settled)})
		}
	}
	return h.applyLocked(ctx, client, holdings, nil)
}

// leave lets a user leave the line in the rows, and applies the change.
func (h *history) leave(ctx context.Context, client int, user string) error {
	var place gate.PlaceResult
	err := h.do(client, user, func() (any, error) {
		var err error
		place, err = h.g.Place(ctx, h.id, user)
		return place, err
	})
	h.mu.Lock()
	if err != nil || !place.InLine || place.Ticket <= h.rows.Settled || h.leftLocked(place.Ticket) {
		h.mu.Unlock()
		return err
	}
	return h.applyLocked(ctx, client, nil, []gate.Request{place.Request})
}

// leftLocked reports whether the request of a ticket has left the line.
func (h *history) leftLocked(ticket int64) bool {
	return slices.ContainsFunc(h.lefts, func(left []gate.Request) bool { return len(left) > 0 && left[0].Ticket == ticket })
}

// cancel cancels a coupon in the rows, and applies the change.
func (h *history) cancel(ctx context.Context, client int) error {
	h.mu.Lock()
	var holdings []gate.Holding
	for _, f := range h.coverLocked(1) {
		if f.Held > 0 {
			h.rows.Live--
			holdings = []gate.Holding{{UserID: f.UserID}}
			break
		}
	}
	return h.applyLocked(ctx, client, holdings, nil)
}

// applyLocked creates a version of the rows, unlocks the mutex, and applies the
// version.
func (h *history) applyLocked(ctx context.Context, client int, holdings []gate.Holding, left []gate.Request) error {
	h.rows.Version++
	h.holdings, h.lefts = append(h.holdings, holdings), append(h.lefts, left)
	p := gate.ApplyParams{TemplateID: h.id, From: h.rows.Version - 1, State: h.rows, Holdings: holdings, Left: left}
	h.applies = append(h.applies, p)
	h.mu.Unlock()
	return h.apply(ctx, client, p)
}

// apply applies a change. If the gate is behind, it applies all missing changes.
func (h *history) apply(ctx context.Context, client int, p gate.ApplyParams) error {
	var result gate.ApplyResult
	err := h.do(client, p, func() (any, error) {
		var err error
		result, err = h.g.Apply(ctx, p)
		return result, err
	})
	if err != nil || !result.Behind {
		return err
	}
	h.mu.Lock()
	cover := gate.ApplyParams{
		TemplateID: h.id, From: result.Version, State: h.rows, Holdings: h.coverLocked(result.Version), Left: slices.Concat(h.lefts[result.Version+1:]...),
	}
	h.mu.Unlock()
	return h.apply(ctx, client, cover)
}

// applyAgain repeats an earlier apply.
func (h *history) applyAgain(ctx context.Context, client int, random *rand.Rand) error {
	h.mu.Lock()
	if len(h.applies) == 0 {
		h.mu.Unlock()
		return nil
	}
	p := h.applies[random.IntN(len(h.applies))]
	h.mu.Unlock()
	return h.apply(ctx, client, p)
}

// coverLocked returns the latest holding of each user that changed above a version.
func (h *history) coverLocked(above int64) []gate.Holding {
	var out []gate.Holding
	for _, holdings := range h.holdings[above+1:] {
		for _, f := range holdings {
			out = slices.DeleteFunc(out, func(known gate.Holding) bool { return known.UserID == f.UserID })
			out = append(out, f)
		}
	}
	return out
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
