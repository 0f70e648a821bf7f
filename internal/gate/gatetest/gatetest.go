// Package gatetest is the suite that every driver of gate.Gate passes.
package gatetest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
)

// patience bounds every wait for something that has to happen.
const patience = 20 * time.Second

// Exercise runs the suite. newGate returns a gate of its own without any
// template, closed in its own Cleanup; the suite runs in parallel and may close
// it earlier.
func Exercise(t *testing.T, newGate func(t testing.TB) gate.Gate) {
	t.Helper()
	for name, exercise := range map[string]func(*testing.T, *bundle){
		"AskJudgesInOrder":                     exerciseAsk,
		"AskKeepsToTheWindow":                  exerciseWindow,
		"AskTellsAHolderWhatHeHas":             exerciseHolders,
		"AskOnlyLooks":                         exerciseLook,
		"AskTakesABatch":                       exerciseBatch,
		"AskersNeverExceedTheStock":            exerciseConcurrentAsk,
		"UsersHaveAnyName":                     exerciseNames,
		"PlacesTellRanks":                      exercisePlaces,
		"NothingIsServedUnlessLoaded":          exerciseNotLoaded,
		"HeadersDescribeEveryGate":             exerciseHeaders,
		"ReadGivesARequestOnce":                exerciseRead,
		"ClaimTakesOverWhatIsPending":          exerciseClaim,
		"AckDeletesByTicketAndGeneration":      exerciseAck,
		"LongListsOfTickets":                   exerciseManyTickets,
		"ApplyFreesAndTells":                   exerciseApply,
		"ApplyInAnyOrder":                      exerciseApplyOrder,
		"ApplyRepairs":                         exerciseRepair,
		"ApplyLetsThemLeaveOneByOne":           exerciseApplyKafka,
		"ApplyOfManyFacts":                     exerciseManyFacts,
		"CouponIDsAreExact":                    exerciseBigCoupons,
		"ServiceFallsWhileAnybodyWaits":        exerciseService,
		"LoadTakesTheLineOver":                 exerciseLoad,
		"LoadLeavesOutWhoIsGone":               exerciseLoadKafka,
		"LoadKeepsWhoWasPassed":                exerciseLoadPassed,
		"LoadLeavesOutWhoHas":                  exerciseLoadHolders,
		"LoadBeginsAnew":                       exerciseLoadAnew,
		"LoadOfALongLine":                      exerciseLongLine,
		"SwapIsRefused":                        exerciseSwapRefused,
		"MarkerKeepsOthersOut":                 exerciseMarker,
		"MarkerLapses":                         exerciseMarkerLapses,
		"LowerLeavesRoomForThePromised":        exerciseLower,
		"LowerHoldsWhateverIsApplied":          exerciseLowerApply,
		"LowerLapses":                          exerciseLowerLapses,
		"LowerIsDroppedByASwap":                exerciseLowerSwap,
		"RetireRemovesWhatNobodyNeeds":         exerciseRetire,
		"HoldersPages":                         exerciseHoldersPages,
		"LockHasOneHolder":                     exerciseLock,
		"TemplatesAreApart":                    exerciseApart,
		"WakesTell":                            exerciseWakes,
		"ListsAreBounded":                      exerciseBounds,
		"ACancelledCallDoesNothing":            exerciseCancelled,
		"CloseEndsWakesAndCalls":               exerciseClose,
		"HistoriesAreLinearizable":             exerciseLinearizable,
		"TheGateEqualsTheRowsAtSomeOneVersion": func(t *testing.T, b *bundle) { walk(t, b.g, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exercise(t, &bundle{TB: t, g: newGate(t), ctx: t.Context(), id: 42})
		})
	}
}

// Walk walks at random, as Exercise does, and now and then loses the gate of a
// template: lose makes the driver see another run, and with all of it removes
// every key of the template too.
func Walk(t *testing.T, g gate.Gate, lose func(t TB, id reward.TemplateID, all bool)) {
	t.Helper()
	walk(t, g, lose)
}

// TB is what testing.TB and rapid.T have in common.
type TB interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// bundle is what a part of the suite works with.
type bundle struct {
	testing.TB
	g   gate.Gate
	ctx context.Context
	id  reward.TemplateID
}

// must fails the test on an error and passes the value on.
func must[T any](v T, err error) func(TB) T {
	return func(t TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (b *bundle) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// equal compares what is with what should be.
func equal[T any](t TB, what string, got, want T) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// state is a template of 3 coupons, one per user, open, in STREAM mode, at
// version 1 of generation 1.
func state() gate.State {
	return gate.State{Generation: 1, Version: 1, Total: 3, PerUserLimit: 1, Mode: reward.ModeStream}
}

var tokens atomic.Int64

func newToken() string { return fmt.Sprintf("loader-%d", tokens.Add(1)) }

// load makes the gate.
func (b *bundle) load(s gate.State, facts ...gate.Holding) gate.SwapResult {
	b.Helper()
	token := newToken()
	begun := must(b.g.LoadBegin(b.ctx, b.id, token))(b)
	if !begun.Held {
		b.Fatal("the marker is somebody else's")
	}
	b.ok(b.g.LoadHoldings(b.ctx, b.id, token, facts, nil))
	swapped := must(b.g.LoadSwap(b.ctx, gate.SwapParams{
		TemplateID: b.id, Token: token, Run: begun.Run, State: s, Holdings: len(facts), KeepAbove: s.Settled,
	}))(b)
	if !swapped.Done {
		b.Fatal("the swap was refused")
	}
	return swapped
}

func (b *bundle) ask(users ...string) []gate.Answer {
	b.Helper()
	asking := must(b.g.Admit(b.ctx, b.id, users, true))(b)
	if len(asking.Answers) != len(users) {
		b.Fatalf("%d answers to %d askers", len(asking.Answers), len(users))
	}
	return asking.Answers
}

// admit lets users in, who must get tickets from first on.
func (b *bundle) admit(first int64, users ...string) {
	b.Helper()
	for i, a := range b.ask(users...) {
		if a.Verdict != gate.Admitted || a.Ticket != first+int64(i) {
			b.Fatalf("%s got %+v, want ticket %d", users[i], a, first+int64(i))
		}
	}
}

func (b *bundle) apply(from int64, s gate.State, facts ...gate.Holding) gate.ApplyResult {
	b.Helper()
	return must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: from, State: s, Holdings: facts}))(b)
}

func (b *bundle) header() gate.Header {
	b.Helper()
	return must(b.g.Headers(b.ctx, []reward.TemplateID{b.id}))(b)[0]
}

// places is the ranks of users; −1 = not in line.
func (b *bundle) ranks(users ...string) []int64 {
	b.Helper()
	placing := must(b.g.Positions(b.ctx, b.id, users))(b)
	out := make([]int64, len(placing.Positions))
	for i, p := range placing.Positions {
		out[i] = -1
		if p.InLine {
			out[i] = p.Rank
		}
	}
	return out
}

func (b *bundle) facts() map[string]gate.Holding {
	b.Helper()
	return allFacts(b.ctx, b, b.g, b.id)
}

// allFacts turns all pages of Holders.
func allFacts(ctx context.Context, t TB, g gate.Gate, id reward.TemplateID) map[string]gate.Holding {
	t.Helper()
	out := map[string]gate.Holding{}
	for cursor := ""; ; {
		facts, next, _, err := g.Holdings(ctx, id, cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range facts {
			out[f.UserID] = f
		}
		if next == "" {
			return out
		}
		cursor = next
	}
}

// requests is the request stream as "user:ticket", as far as Read gives it.
func tickets(requests []gate.Request) []int64 {
	out := make([]int64, len(requests))
	for i, r := range requests {
		out[i] = r.Ticket
	}
	return out
}

func (b *bundle) wantNotLoaded(what string, err error) {
	b.Helper()
	if !errors.Is(err, gate.ErrNotLoaded) {
		b.Fatalf("%s: the error is %v, want ErrNotLoaded", what, err)
	}
}

// until polls a condition that time alone makes true.
func (b *bundle) until(what string, condition func() bool) {
	b.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("waited %v in vain until %s", patience, what)
		}
	}
}

// names is n users.
func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i+1)
	}
	return out
}
