// Package gatetest is the test suite for the drivers of gate.Gate.
package gatetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// Exercise runs the suite, or only the tests with these names. newGate returns a new gate
// without templates and closes it in a Cleanup. The tests run in parallel and may close
// their gate earlier.
func Exercise(t *testing.T, newGate func(t testing.TB) gate.Gate, only ...string) {
	t.Helper()
	ran := 0
	for name, exercise := range map[string]func(*testing.T, *bundle){
		"AdmitObservesTheOpeningTimes":        exerciseWindow,
		"AdmitReturnsTheCouponAtTheUserLimit": exerciseUserLimit,
		"UserIDsMayHaveAnyCharacters":         exerciseNames,
		"PositionsReturnRanks":                exercisePositions,
		"NothingIsServedUnlessLoaded":         exerciseNotLoaded,
		"HeadersDescribeEveryGate":            exerciseHeaders,
		"ReadDeliversARequestOnce":            exerciseRead,
		"ClaimReturnsPendingRequests":         exerciseClaim,
		"AckDeletesByTicketAndGeneration":     exerciseAck,
		"LongListsOfTickets":                  exerciseManyTickets,
		"ApplyRemovesOneByOneInKafkaMode":     exerciseApplyKafka,
		"CouponIDsAreExact":                   exerciseBigCoupons,
		"ServiceTimeIsTheLatest":              exerciseService,
		"LoadKeepsLineAndRequests":            exerciseLoadKeep,
		"LoadMakesLineAndRequestsAgain":       exerciseLoadRemake,
		"LoadFindsMissingUsers":               exerciseLoadBack,
		"LoadKeepsTheNextTicket":              exerciseLoadNext,
		"LoadClosesTheGate":                   exerciseLoadCloses,
		"UsersLeaveTheLine":                   exerciseLeave,
		"LineAndRequestsArePaged":             exerciseLine,
		"UsersComeBackToTheLine":              exerciseBack,
		"OnlyTheRequestThatLeftIsRemoved":     exerciseLeaveGeneration,
		"LoadRemovesThoseWhoLeft":             exerciseLoadLeft,
		"StepsOfALostLoadDoNothing":           exerciseLoadLost,
		"ApplyOfAnotherNumberingIsRefused":    exerciseApplyBase,
		"LoadStartsOver":                      exerciseLoadAgain,
		"LoadOfALongLine":                     exerciseLongLine,
		"SwapIsRefused":                       exerciseSwapRefused,
		"MarkerExcludesOtherLoaders":          exerciseMarker,
		"MarkerExpires":                       exerciseMarkerExpires,
		"TicketsAreForGrantedPlaces":          exercisePlaces,
		"ShrinkTakesBackPlaces":               exerciseShrink,
		"GrantsPause":                         exercisePause,
		"RetireRemovesUnusedGates":            exerciseRetire,
		"RemoveLeavesNothing":                 exerciseRemove,
		"HoldingsArePaged":                    exerciseHoldingsPages,
		"HoldingsOfUsers":                     exerciseHoldingsOf,
		"LockHasOneHolder":                    exerciseLock,
		"TemplatesAreSeparate":                exerciseSeparateTemplates,
		"HintsAreGiven":                       exerciseHints,
		"ListsAreLimited":                     exerciseBounds,
		"ACancelledCallDoesNothing":           exerciseCancelled,
		"CloseEndsHintsAndCalls":              exerciseClose,
		"HistoriesAreLinearizable":            exerciseLinearizable,
		"TheGateEqualsTheRowsAtOneVersion":    func(t *testing.T, b *bundle) { walk(t, b.g, nil) },
	} {
		if len(only) > 0 && !slices.Contains(only, name) {
			continue
		}
		ran++
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			exercise(t, &bundle{TB: t, g: newGate(t), ctx: t.Context(), id: 42})
		})
	}
	if ran < len(only) {
		t.Errorf("only %d of the tests %v exist", ran, only)
	}
}

// Walk runs the random walk of Exercise with losses of a template's gate. lose makes
// the driver see another server run; if all is true, it also deletes every key of the
// template.
func Walk(t *testing.T, g gate.Gate, lose func(t TB, id reward.TemplateID, all bool)) {
	t.Helper()
	walk(t, g, lose)
}

// TB has the methods that testing.TB and rapid.T share.
type TB interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// bundle holds what one test of the suite works with.
type bundle struct {
	testing.TB
	g   gate.Gate
	ctx context.Context
	id  reward.TemplateID
}

// equal fails the test unless got equals want.
func equal[T any](t TB, what string, got, want T, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// state returns the state of an open template: 3 coupons, one per user, STREAM mode,
// version 1, generation 1, and more places than any test needs.
func state() gate.State {
	return gate.State{Generation: 1, Version: 1, Total: 3, PerUserLimit: 1, Mode: reward.ModeStream, Granted: places, Grants: 1}
}

// places is the number of granted places in tests about something else.
const places = 1 << 41

var tokens atomic.Int64

func newToken() string { return fmt.Sprintf("loader-%d", tokens.Add(1)) }

// loading is a load in progress.
type loading struct {
	gate.Load
	*bundle
	begun gate.LoadBeginResult
}

// begin begins a load and closes the gate.
func (b *bundle) begin() *loading {
	b.Helper()
	token := newToken()
	begun := fixture.Must(b.g.LoadBegin(b.ctx, b.id, token))(b)
	if !begun.Held {
		b.Fatal("another loader holds the marker")
	}
	l := &loading{Load: gate.Load{TemplateID: b.id, Token: token, Run: begun.Run}, bundle: b, begun: begun}
	fixture.OK(b, b.g.LoadClose(b.ctx, l.Load))
	return l
}

// prepare stores holdings, and trims or copies the line. gone are those in line who no
// longer wait. It returns the parameters of the swap.
func (l *loading) prepare(s gate.State, gone []gate.Request, holdings ...gate.Holding) gate.SwapParams {
	l.Helper()
	p := gate.SwapParams{Load: l.Load, Old: l.begun.Gate.Generation, State: s, Holdings: len(holdings)}
	for chunk := range slices.Chunk(holdings, gate.LoadMax) {
		fixture.OK(l, l.g.LoadHoldings(l.ctx, l.Load, chunk))
	}
	switch {
	case !l.begun.Gate.Exists:
	case s.Mode == reward.ModeStream && l.begun.Gate.Generation > s.Base:
		p.Kind = gate.LoadKeep
		for fixture.Must(l.g.LoadTrim(l.ctx, l.Load, s.Settled))(l) > 0 {
		}
	default:
		p.Kind = gate.LoadRemake
		for from := int64(0); ; {
			page := fixture.Must(l.g.LoadPage(l.ctx, l.Load, from))(l)
			if len(page) == 0 {
				break
			}
			from += int64(len(page))
			var users []string
			for _, one := range page {
				if !slices.Contains(gone, gate.Request{UserID: one.UserID, Ticket: one.Ticket}) {
					users = append(users, one.UserID)
				}
			}
			fixture.OK(l, l.g.LoadCopy(l.ctx, l.Load, s.Generation, s.Settled+p.Copied+1, users))
			p.Copied += int64(len(users))
		}
	}
	return p
}

// load loads the gate. It keeps the line in ModeStream, unless the gate is of State.Base
// or an earlier generation. Otherwise everyone in line gets a new ticket.
func (b *bundle) load(s gate.State, holdings ...gate.Holding) gate.SwapResult {
	b.Helper()
	swapped := fixture.Must(b.g.LoadSwap(b.ctx, b.begin().prepare(s, nil, holdings...)))(b)
	if !swapped.Done {
		b.Fatal("the swap was refused")
	}
	return swapped
}

func (b *bundle) answers(users ...string) []gate.Answer {
	b.Helper()
	result := fixture.Must(b.g.Admit(b.ctx, b.id, users, true))(b)
	if len(result.Answers) != len(users) {
		b.Fatalf("%d answers for %d users", len(result.Answers), len(users))
	}
	return result.Answers
}

// admit admits users, who must get tickets from first on.
func (b *bundle) admit(first int64, users ...string) {
	b.Helper()
	for i, a := range b.answers(users...) {
		if a.Verdict != gate.Admitted || a.Ticket != first+int64(i) {
			b.Fatalf("%s got %+v, want ticket %d", users[i], a, first+int64(i))
		}
	}
}

func (b *bundle) apply(from int64, s gate.State, holdings ...gate.Holding) gate.ApplyResult {
	b.Helper()
	return fixture.Must(b.g.Apply(b.ctx, gate.ApplyParams{TemplateID: b.id, From: from, State: s, Holdings: holdings}))(b)
}

func (b *bundle) header() gate.Header {
	b.Helper()
	return fixture.Must(b.g.Headers(b.ctx, []reward.TemplateID{b.id}))(b)[0]
}

// ranks returns the ranks of users; −1 = not in line.
func (b *bundle) ranks(users ...string) []int64 {
	b.Helper()
	positions := fixture.Must(b.g.Positions(b.ctx, b.id, users))(b)
	out := make([]int64, len(positions.Positions))
	for i, p := range positions.Positions {
		out[i] = -1
		if p.InLine {
			out[i] = p.Rank
		}
	}
	return out
}

func (b *bundle) holdings() map[string]gate.Holding {
	b.Helper()
	return allHoldings(b.ctx, b, b.g, b.id)
}

// allHoldings reads all pages of Holdings.
func allHoldings(ctx context.Context, t TB, g gate.Gate, id reward.TemplateID) map[string]gate.Holding {
	t.Helper()
	out := map[string]gate.Holding{}
	for cursor := ""; ; {
		holdings, next, _, err := g.Holdings(ctx, id, cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range holdings {
			out[f.UserID] = f
		}
		if next == "" {
			return out
		}
		cursor = next
	}
}

// tickets returns the tickets of requests.
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

// names returns n user ids.
func names(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i+1)
	}
	return out
}
