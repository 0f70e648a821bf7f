package redisgate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/gate/gatetest"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/reward"
)

func (r *rig) equal(what string, got, want any) {
	r.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		r.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

func (r *rig) state(generation int64) gate.State {
	return gate.State{Generation: generation, Version: 1, Total: 10, PerUserLimit: 1, Mode: reward.ModeStream, Granted: 1 << 40, Grants: 1}
}

// begin sets the marker and returns the parameters of the swap.
func (r *rig) begin(token string, s gate.State) gate.SwapParams {
	r.Helper()
	begun := fixture.Must(r.g.LoadBegin(r.Context(), r.id, token))(r)
	if !begun.Held {
		r.Fatal("another loader holds the marker")
	}
	p := gate.SwapParams{Load: gate.Load{TemplateID: r.id, Token: token, Run: begun.Run}, Old: begun.Gate.Generation, State: s}
	switch {
	case begun.Gate.Exists && begun.Intact && begun.Gate.Generation > s.Base:
		p.Kind = gate.LoadKeep
	case begun.Gate.Exists:
		p.Kind = gate.LoadRemake
	}
	return p
}

func (r *rig) swap(p gate.SwapParams) gate.SwapResult {
	r.Helper()
	return fixture.Must(r.g.LoadSwap(r.Context(), p))(r)
}

// closeAndSwap closes the gate, brings its line into order, and swaps.
func (r *rig) closeAndSwap(p gate.SwapParams) gate.SwapResult {
	r.Helper()
	return r.inSteps(p, 0, func(_ string, call func() error) { fixture.OK(r, call()) })
}

// inSteps loads a gate with a number of holders as package coupon does.
func (r *rig) inSteps(p gate.SwapParams, holders int, step func(name string, call func() error)) (result gate.SwapResult) {
	r.Helper()
	ctx, s := r.Context(), p.State
	step("LoadClose", func() error { return r.g.LoadClose(ctx, p.Load) })
	for first := 0; first < holders; first += gate.LoadMax {
		list := make([]gate.Holding, gate.LoadMax)
		for i := range list {
			list[i] = gate.Holding{UserID: fmt.Sprint("holder-", first+i), Held: 1, CouponID: reward.CouponID(1e17 + first + i)}
		}
		step("LoadHoldings", func() error { return r.g.LoadHoldings(ctx, p.Load, list) })
	}
	p.Holdings = holders
	for left := int64(1); p.Kind == gate.LoadKeep && left > 0; {
		step("LoadTrim", func() (err error) {
			left, err = r.g.LoadTrim(ctx, p.Load, s.Settled)
			return err
		})
	}
	for from := int64(0); p.Kind == gate.LoadRemake; {
		var page []gate.Request
		step("LoadPage", func() (err error) {
			page, err = r.g.LoadPage(ctx, p.Load, from)
			return err
		})
		if len(page) == 0 {
			break
		}
		users := make([]string, len(page))
		for i, w := range page {
			users[i] = w.UserID
		}
		step("LoadCopy", func() error { return r.g.LoadCopy(ctx, p.Load, s.Generation, s.Settled+p.Copied+1, users) })
		from += int64(len(page))
		p.Copied += int64(len(users))
	}
	step("LoadSwap", func() error {
		result = r.swap(p)
		return nil
	})
	return result
}

func (r *rig) load(s gate.State) {
	r.Helper()
	if result := r.closeAndSwap(r.begin("loader", s)); !result.Done {
		r.Fatal("the swap was refused")
	}
}

// admit returns the tickets of users; −1 = not in line.
func (r *rig) admit(users ...string) []int64 {
	r.Helper()
	var tickets []int64
	for _, a := range fixture.Must(r.g.Admit(r.Context(), r.id, users, true))(r).Answers {
		ticket := int64(-1)
		if a.Verdict == gate.Admitted || a.Verdict == gate.InLine {
			ticket = a.Ticket
		}
		tickets = append(tickets, ticket)
	}
	return tickets
}

func (r *rig) header() gate.Header {
	r.Helper()
	return fixture.Must(r.g.Headers(r.Context(), []reward.TemplateID{r.id}))(r)[0]
}

func (r *rig) wantNotLoaded() {
	r.Helper()
	for what, call := range gatetest.Calls(r.Context(), r.g, r.id) {
		if err := call(); !errors.Is(err, gate.ErrNotLoaded) {
			r.Fatalf("%s: %v, want ErrNotLoaded", what, err)
		}
	}
}

// dump returns the contents of the rig's keys, without the time of the latest request.
func (r *rig) dump() map[string]string {
	r.Helper()
	out := map[string]string{}
	for _, key := range r.keys(r.Context()) {
		switch kind := r.do("TYPE", key).(string); {
		case kind == "hash" && strings.Contains(key, "coupon:template:"):
			for field, value := range fixture.Must(r.raw.Do(r.Context(), r.raw.B().Hgetall().Key(key).Build()).AsStrMap())(r) {
				if field != "last_ask" {
					out[key+" "+field] = value
				}
			}
		default:
			out[key], _ = r.do("DUMP", key).(string)
		}
	}
	return out
}

// TestARestartWithOldData checks a restart from a snapshot that lacks the latest changes
// and has the marker of a loader.
func TestARestartWithOldData(t *testing.T) {
	t.Parallel()
	server := fixture.Own(t, fleet.NewRedis)
	r := newRig(t, server.Address())
	r.load(r.state(1))
	r.equal("tickets", r.admit("c", "b", "a"), []int64{1, 2, 3})
	late := r.begin("late", r.state(2))
	r.do("SAVE")
	r.equal("tickets", r.admit("lost"), []int64{4})
	fixture.OK(r, server.Kill())
	fixture.OK(r, server.Start(t.Context()))
	fixture.Until(t, "the server responds again", func() bool { return r.g.Ping(t.Context()) == nil })

	r.wantNotLoaded()
	h := r.header()
	h.LastRequestAt = time.Time{}
	r.equal("header", h, gate.Header{Exists: true, Generation: 1, Version: 1, LastTicket: 3, FirstTicket: 1, Total: 10, Granted: 1 << 40, Grants: 1, PublishedStock: 7, Waiting: 3, Backlog: 3})
	r.equal("a loader from before the loss", r.swap(late), gate.SwapResult{})
	r.wantNotLoaded()
	if acked, err := r.g.Ack(t.Context(), r.id, 1, []int64{1}); acked != 1 || err != nil {
		t.Fatalf("a gate that is not loaded: %d acknowledged, %v", acked, err)
	}
	fixture.Until(t, "the marker has expired", func() bool { return r.do("EXISTS", allKeys(r.prefix, r.id)[8]) == int64(0) })
	s := r.state(3)
	s.Settled = 1
	r.equal("swap", r.closeAndSwap(r.begin("next", s)), gate.SwapResult{Done: true, Waiting: 2})
	r.equal("tickets", r.admit("b", "a", "lost"), []int64{2, 3, 4})
	read, err := r.g.Read(t.Context(), r.id, "c", 10)
	fixture.OK(r, err)
	r.equal("requests", read, gate.Delivery{Generation: 3, Requests: []gate.Request{
		{UserID: "b", Ticket: 2, Generation: 1}, {UserID: "a", Ticket: 3, Generation: 1}, {UserID: "lost", Ticket: 4, Generation: 3},
	}})
}

// TestAMasterThatIsMasterAgainIsAnotherRun checks that a server that becomes a master
// again counts as another run, although its run id is the same.
func TestAMasterThatIsMasterAgainIsAnotherRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, fixture.Own(t, fleet.NewRedis).Address())
	r.load(r.state(1))
	r.do("REPLICAOF", "127.0.0.1", "1")
	r.do("REPLICAOF", "NO", "ONE")
	r.wantNotLoaded()
	if h := r.header(); !h.Exists || h.Loaded {
		t.Fatalf("header %+v", h)
	}
}

// TestWhatIsMissing checks that a deleted stream or group is not created again.
func TestWhatIsMissing(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		requests := RequestsKey(r.prefix, r.id)
		notLoaded := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, gate.ErrNotLoaded) {
				t.Errorf("%s: %v", what, err)
			}
			if h := r.header(); h.Loaded {
				t.Errorf("%s: %+v", what, h)
			}
		}
		r.load(r.state(1))
		r.do("XGROUP", "DESTROY", requests, group)
		_, err := r.g.Read(t.Context(), r.id, "c", 10)
		notLoaded("Read without the group", err)
		_, err = r.g.Claim(t.Context(), r.id, "c", 0, 10)
		notLoaded("Claim without the group", err)
		r.do("DEL", requests)
		_, err = r.g.Admit(t.Context(), r.id, []string{"a"}, true)
		notLoaded("Admit without the stream", err)
		_, err = r.g.Read(t.Context(), r.id, "c", 10)
		notLoaded("Read without the stream", err)
		_, err = r.g.Unacked(t.Context(), r.id, 1, []int64{1})
		notLoaded("Unacked without the stream", err)
		if r.do("EXISTS", requests, LineKey(r.prefix, r.id)) != int64(0) {
			t.Error("a key was created")
		}
		r.load(r.state(2))
		r.equal("tickets", r.admit("a"), []int64{1})
	})
}

// TestWrongTypes replaces each key by one of a wrong type: a call fails and changes
// nothing, or does not use the key.
func TestWrongTypes(t *testing.T) {
	t.Parallel()
	r := onRedis(t)
	keys := allKeys(r.prefix, r.id)
	needs := map[string][]string{ // calls that must fail
		keys[0]: {"Admit", "Positions", "Place", "LoadLeft", "Read", "Claim", "Unacked", "Apply", "Shrink", "PauseGrants", "Holdings", "Ack", "LoadBegin", "LoadClose", "LoadTrim", "LoadMissing", "LoadBack", "LoadPage", "LoadSwap", "Headers", "Retire"},
		keys[1]: {"Admit", "Positions", "Place", "LoadLeft", "Apply", "Shrink", "LoadTrim", "LoadMissing", "LoadPage", "LoadSwap", "Headers", "Retire"},
		keys[2]: {"Admit", "Place", "LoadLeft", "LoadMissing", "LoadBack", "LoadPage", "Apply", "Read", "Claim", "Unacked", "Ack", "Headers"},
		keys[3]: {"Admit", "Apply", "Holdings"},
		keys[7]: {"Apply"},
		keys[8]: {"LoadBegin", "LoadClose", "LoadHoldings", "LoadTrim", "LoadLeft", "LoadMissing", "LoadBack", "LoadPage", "LoadCopy", "LoadSwap"},
		keys[9]: {"LoadHoldings", "LoadSwap"}, keys[10]: {"LoadCopy", "LoadSwap"}, keys[11]: {"LoadSwap"},
	}
	for key, must := range needs {
		for _, name := range slices.Sorted(maps.Keys(r.everyCall(gate.SwapParams{}))) {
			r.do(append([]string{"DEL"}, keys...)...)
			r.load(r.state(1))
			r.admit("a", "b", "z")
			swap := r.begin("second", r.state(2))
			if strings.HasPrefix(name, "Load") {
				fixture.OK(r, r.g.LoadClose(t.Context(), swap.Load))
			}
			r.do("DEL", key)
			if key == keys[8] {
				r.do("RPUSH", key, "wrong")
			} else {
				r.do("SET", key, "wrong")
			}
			r.do("PERSIST", keys[8]) // the marker of the load must not expire in between
			before := r.dump()
			err := r.everyCall(swap)[name]()
			if err == nil && slices.Contains(must, name) {
				t.Errorf("%s with a wrong %s returned no error", name, key)
			}
			if err != nil && !strings.Contains(err.Error(), "WRONGTYPE") {
				t.Errorf("%s with a wrong %s: %v", name, key, err)
			}
			if err != nil {
				if diff := cmp.Diff(before, r.dump()); diff != "" {
					t.Errorf("%s with a wrong %s (-before +after):\n%s", name, key, diff)
				}
			}
		}
	}
}

// everyCall returns every call, of which those of a load need one that has closed the gate.
func (r *rig) everyCall(swap gate.SwapParams) map[string]func() error {
	ctx := r.Context()
	all := gatetest.Calls(ctx, r.g, r.id)
	maps.Copy(all, gatetest.Steps(ctx, r.g, swap.Load))
	maps.Copy(all, map[string]func() error{
		"Ack":        func() error { _, err := r.g.Ack(ctx, r.id, 1, []int64{1}); return err },
		"Line":       func() error { _, err := r.g.Line(ctx, r.id, 0, 10); return err },
		"HoldingsOf": func() error { _, err := r.g.HoldingsOf(ctx, r.id, []string{"a"}); return err },
		"Headers":    func() error { _, err := r.g.Headers(ctx, []reward.TemplateID{r.id}); return err },
		"Lock": func() error {
			_, _, err := r.g.Lock(ctx, r.id, gate.LockParams{Lease: time.Hour, Nonce: "n"})
			return err
		},
		"Unlock":    func() error { return r.g.Unlock(ctx, r.id, 1) },
		"Retire":    func() error { _, err := r.g.Retire(ctx, r.id, 0); return err },
		"Remove":    func() error { return r.g.Remove(ctx, r.id) },
		"LoadBegin": func() error { _, err := r.g.LoadBegin(ctx, r.id, swap.Load.Token); return err },
		"LoadSwap":  func() error { _, err := r.g.LoadSwap(ctx, swap); return err },
	})
	return all
}

// TestAnExternalEntryIsInTheWay checks that a failing write leaves everything unchanged:
// writes that can fail come first.
func TestAnExternalEntryIsInTheWay(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		r.load(r.state(1))
		r.admit("a")
		r.do("XADD", RequestsKey(r.prefix, r.id), "*", "what", "is this")
		before := r.dump()
		if _, err := r.g.Admit(t.Context(), r.id, []string{"b", "c"}, true); err == nil {
			t.Fatal("no error")
		}
		r.equal("keys", r.dump(), before)
		s := r.state(2)
		s.Base = 1
		r.load(s)
		r.equal("tickets", r.admit("a", "b"), []int64{1, 2})
	})
}

// TestScriptsAreForgotten calls every script, which the server does not know.
func TestScriptsAreForgotten(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		forget := func() {
			for _, node := range r.raw.Nodes() {
				fixture.OK(r, node.Do(t.Context(), node.B().ScriptFlush().Build()).Error())
			}
		}
		forget()
		r.load(r.state(1))
		forget()
		r.equal("tickets", r.admit("a", "b"), []int64{1, 2})
		forget()
		if h := r.header(); h.Waiting != 2 {
			t.Fatalf("header %+v", h)
		}
		swap := r.begin("second", r.state(2))
		called, all := map[string]bool{}, r.everyCall(swap)
		// call reports whether the load continues: its marker may expire on a busy machine.
		call := func(what string) bool {
			forget()
			err := all[what]()
			if errors.Is(err, gate.ErrLoadLost) {
				return false
			}
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			called[what] = true
			return true
		}
		for what := range all {
			if !strings.HasPrefix(what, "Load") && what != "Retire" && what != "Remove" {
				call(what)
			}
		}
		steps := []string{"LoadBegin", "LoadClose", "LoadHoldings", "LoadTrim", "LoadLeft", "LoadMissing", "LoadBack", "LoadPage", "LoadCopy", "LoadSwap"}
		fixture.Until(t, "a load from its begin to its end", func() bool {
			return !slices.ContainsFunc(steps, func(what string) bool { return !call(what) })
		})
		call("Retire")
		call("Remove")
		if len(called) != len(all) {
			t.Errorf("called only %v", called)
		}
	})
}

// TestAFullServer checks that a full server refuses new requests and still allows the
// calls that free memory.
func TestAFullServer(t *testing.T) {
	t.Parallel()
	r := newRig(t, fixture.Own(t, fleet.NewRedis).Address())
	s := r.state(1)
	s.Total = 5
	r.load(s)
	r.equal("tickets", r.admit("a", "b", "c"), []int64{1, 2, 3})
	r.do("HSET", TemplateKey(r.prefix, r.id), "last_ask", "0") // so that the next request stores its time
	r.do("CONFIG", "SET", "maxmemory", "1")
	full := func(err error) bool { return err != nil && strings.Contains(err.Error(), "OOM") }

	before := r.dump()
	for range 2 {
		if _, err := r.g.Admit(t.Context(), r.id, []string{"a", "d"}, true); !full(err) {
			t.Fatalf("Admit: %v", err)
		}
	}
	r.equal("keys", r.dump(), before)
	r.equal("users in line get their tickets", r.admit("a", "c"), []int64{1, 3})
	read, err := r.g.Read(t.Context(), r.id, "c", 10)
	if err != nil || len(read.Requests) != 3 {
		t.Fatalf("Read: %v, %v", read, err)
	}
	if read, err = r.g.Claim(t.Context(), r.id, "d", 0, 10); err != nil || len(read.Requests) != 3 {
		t.Fatalf("Claim: %v, %v", read, err)
	}
	s.Version, s.Settled, s.Live, s.IssuedTotal = 2, 2, 1, 1
	result := fixture.Must(r.g.Apply(t.Context(), gate.ApplyParams{
		TemplateID: r.id, From: 1, State: s, Holdings: []gate.Holding{{UserID: "a", Held: 1, CouponID: 9}},
		Outcomes: []gate.Outcome{{UserID: "a", Ticket: 1, CouponID: 9}, {UserID: "b", Ticket: 2, Reason: reward.ReasonUserLimit}},
	}))(t)
	r.equal("apply", result, gate.ApplyResult{Version: 2})
	s.Mode, s.Version = reward.ModeKafka, 3 // no request leaves the line, and the apply still passes
	result = fixture.Must(r.g.Apply(t.Context(), gate.ApplyParams{TemplateID: r.id, From: 2, State: s, Holdings: []gate.Holding{{UserID: "b", Held: 1, CouponID: 10}}}))(t)
	r.equal("apply", result, gate.ApplyResult{Version: 3})
	if acked, err := r.g.Ack(t.Context(), r.id, 1, []int64{1, 2}); acked != 2 || err != nil {
		t.Fatalf("Ack: %d, %v", acked, err)
	}
	if shrunk, err := r.g.Shrink(t.Context(), r.id); err != nil {
		t.Fatalf("Shrink: %v, %v", shrunk, err)
	}
	s.Mode = reward.ModeStream
	s.Generation = 2
	r.load(s)
	third := r.begin("third", r.state(3))
	if err := r.g.LoadHoldings(t.Context(), third.Load, []gate.Holding{{UserID: "a", Held: 1}}); !full(err) {
		t.Fatalf("LoadHoldings: %v", err)
	}
	r.begin("third", r.state(3)) // again
	third.Holdings = 1
	r.equal("swap without the holdings", r.swap(third), gate.SwapResult{})

	r.do("CONFIG", "SET", "maxmemory", "0")
	r.equal("tickets", r.admit("c", "d"), []int64{3, 4})
}
