package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// issuing is a template with two coupons left, of which one is promised.
func issuing() reward.CouponTemplate {
	return reward.CouponTemplate{
		Mode: reward.ModeStream, Path: reward.PathGate, Generation: 2, Floor: 1, Epoch: 3, Fence: 5, Settled: 3, Version: 7,
		TotalQuantity: 5, Live: 3, IssuedTotal: 3, PerUserLimit: 1, Granted: 4, Used: 3, OpensAt: now, ClosesAt: now.Add(time.Hour),
	}
}

// TestABatchIsRefused has for each change why the batch is refused as a whole.
func TestABatchIsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change                  func(t *reward.CouponTemplate, b *IssueBatch)
		inOrder, listed, direct SettleRefusal
	}{
		"as it is":   {func(*reward.CouponTemplate, *IssueBatch) {}, NotRefused, NotRefused, NotRefused},
		"archived":   {func(t *reward.CouponTemplate, _ *IssueBatch) { t.ArchivedAt = now }, RefusedArchived, RefusedArchived, RefusedArchived},
		"epoch":      {func(_ *reward.CouponTemplate, b *IssueBatch) { b.Epoch = 2 }, RefusedEpoch, NotRefused, NotRefused},
		"later":      {func(_ *reward.CouponTemplate, b *IssueBatch) { b.Epoch, b.Generation = 4, 9 }, RefusedEpoch, NotRefused, RefusedGeneration},
		"generation": {func(_ *reward.CouponTemplate, b *IssueBatch) { b.Generation = 1 }, RefusedGeneration, NotRefused, RefusedGeneration},
		"path":       {func(t *reward.CouponTemplate, _ *IssueBatch) { t.Path = reward.PathDatabase }, RefusedGeneration, NotRefused, RefusedPath},
		"same fence": {func(_ *reward.CouponTemplate, b *IssueBatch) { b.Fence = 5 }, NotRefused, NotRefused, RefusedFence},
		"no fence":   {func(_ *reward.CouponTemplate, b *IssueBatch) { b.Fence = 0 }, NotRefused, NotRefused, NotRefused},
		"mode":       {func(t *reward.CouponTemplate, _ *IssueBatch) { t.Mode = reward.ModeKafka }, NotRefused, NotRefused, RefusedPath},
	} {
		for kind, want := range []SettleRefusal{tt.inOrder, tt.listed, tt.direct} {
			template := issuing()
			b := IssueBatch{Kind: SettleKind(kind), Epoch: 3, Generation: 2, Path: reward.PathGate, Fence: 6}
			if b.Kind == SettleDirect {
				template.Mode = reward.ModeSync
			}
			tt.change(&template, &b)
			if got := b.Settle(template, Facts{Clock: now}); got.Refused != want || want != NotRefused && got.Template.Version != 7 {
				t.Errorf("%s, kind %d: %d, want %d", name, kind, got.Refused, want)
			}
		}
	}
}

// TestABatchIsSettled has for each batch its outcomes, and the template afterwards: settled,
// live, used, version.
func TestABatchIsSettled(t *testing.T) {
	t.Parallel()
	type change = func(t *reward.CouponTemplate, b *IssueBatch, f *Facts)
	nothing := func(*reward.CouponTemplate, *IssueBatch, *Facts) {}
	holds := func(slots ...int) change {
		return func(_ *reward.CouponTemplate, _ *IssueBatch, f *Facts) {
			f.Holdings = map[string]Holding{"a": {Slots: slots}}
		}
	}
	closes := func(_ *reward.CouponTemplate, _ *IssueBatch, f *Facts) { f.Clock = now.Add(time.Hour) }
	for name, tt := range map[string]struct {
		kind     SettleKind
		requests string // a user, a ticket, a generation, and R for an own reason
		change   change
		want     string
	}{
		"in order":                        {SettleInOrder, "b51 a41", nothing, "b5 a4 | 5 5 4 8"},
		"after the end of the template":   {SettleInOrder, "a41", closes, "a4 | 4 4 4 8"},
		"settled before, and a gap":       {SettleInOrder, "a31 b41 c61", nothing, "ALREADY b4 GAP | 4 4 4 8"},
		"in order, sold out":              {SettleInOrder, "a41 b51 c61", nothing, "a4 b5 SOLD_OUT | 6 5 4 8"},
		"twice, with a limit of one":      {SettleInOrder, "a41 a51", nothing, "a4 USER_LIMIT | 5 4 4 8"},
		"who has one":                     {SettleInOrder, "a41", holds(1), "USER_LIMIT | 4 3 4 8"},
		"who has one of two":              {SettleInOrder, "a41", func(t *reward.CouponTemplate, _ *IssueBatch, f *Facts) { t.PerUserLimit = 2; holds(1)(t, nil, f) }, "a4 | 4 4 4 8"},
		"for an own reason":               {SettleInOrder, "a41R", nothing, "NOT_DRAWN | 4 3 4 8"},
		"left the line":                   {SettleInOrder, "a41 b51", func(_ *reward.CouponTemplate, _ *IssueBatch, f *Facts) { f.Left = map[int]bool{0: true} }, "ALREADY b5 | 5 4 4 8"},
		"codes end before the quantity":   {SettleInOrder, "a41 b51", func(t *reward.CouponTemplate, _ *IssueBatch, _ *Facts) { t.CodesImported = 4 }, "a4 SOLD_OUT | 5 4 4 8"},
		"listed, with gaps":               {SettleListed, "b72 a41", nothing, "b7 a4 | 7 5 4 8"},
		"listed, below the settled one":   {SettleListed, "a21", nothing, "a2 | 3 4 4 8"},
		"listed, known":                   {SettleListed, "a41 b51", func(_ *reward.CouponTemplate, _ *IssueBatch, f *Facts) { f.Known = map[int]bool{0: true} }, "ALREADY b5 | 5 4 4 8"},
		"listed, void":                    {SettleListed, "a43 b40", nothing, "ALREADY ALREADY | 3 3 3 7"},
		"listed, no gate gave it":         {SettleListed, "a91 b81", nothing, "NEVER b8 | 8 4 4 8"},
		"direct, of what is not promised": {SettleDirect, "a b", nothing, "a4 PROMISED | 4 4 3 8"},
		"direct, sold out":                {SettleDirect, "a b c", func(t *reward.CouponTemplate, _ *IssueBatch, _ *Facts) { t.Granted = 3 }, "a4 b5 SOLD_OUT | 5 5 3 8"},
		"direct, nothing issued":          {SettleDirect, "a", holds(1), "USER_LIMIT | 3 3 3 7"},
		"direct, not open":                {SettleDirect, "a", func(_ *reward.CouponTemplate, _ *IssueBatch, f *Facts) { f.Clock = now.Add(-1) }, "NOT_OPEN | 3 3 3 7"},
		"direct, closed":                  {SettleDirect, "a", closes, "CLOSED | 3 3 3 7"},
	} {
		template, b, f := issuing(), IssueBatch{Kind: tt.kind, Epoch: 3, Generation: 2, Path: reward.PathGate, Fence: 6, Now: now}, Facts{Clock: now}
		if tt.kind == SettleDirect {
			template.Mode = reward.ModeSync
		}
		for n, request := range strings.Fields(tt.requests) {
			r := CouponRequest{UserID: request[:1], CouponID: reward.CouponID(n + 1)}
			if len(request) > 2 {
				r.Ticket, r.Generation = int64(request[1]-'0'), int64(request[2]-'0')
			}
			if strings.HasSuffix(request, "R") {
				r.Reason = reward.ReasonNotDrawn
			}
			b.Requests = append(b.Requests, r)
		}
		tt.change(&template, &b, &f)
		s := b.Settle(template, f)
		outcomes := make([]string, len(b.Requests))
		for i := range b.Requests {
			outcomes[i] = [...]string{"?", "?", "ALREADY", "GAP", "NOT_OPEN", "CLOSED", "NEVER"}[s.Unsettled(&b, &b.Requests[i])]
		}
		for _, d := range s.Decisions {
			switch d.Reason {
			case "":
				outcomes[d.At] = fmt.Sprint(b.Coupon(&s.Template, d).UserID, d.Ticket)
			case reward.ReasonLeft:
			default:
				outcomes[d.At] = d.Reason
			}
		}
		after := &s.Template
		got := fmt.Sprintf("%s | %d %d %d %d", strings.Join(outcomes, " "), after.Settled, after.Live, after.Used, after.Version)
		if got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
		if tt.kind == SettleDirect && after.Fence != 6 {
			t.Errorf("%s: the fence is %d, want 6", name, after.Fence)
		}
	}
}

// TestWhatABatchAssumes has the batches that are sure without a read.
func TestWhatABatchAssumes(t *testing.T) {
	t.Parallel()
	request := func(user string, ticket int64, reason string) CouponRequest {
		return CouponRequest{UserID: user, Ticket: ticket, Generation: 2, CouponID: reward.CouponID(ticket), Reason: reason}
	}
	for name, tt := range map[string]struct {
		change   func(t *reward.CouponTemplate, b *IssueBatch)
		requests []CouponRequest
		want     bool
	}{
		"new users, after a gap that may be settled": {nil, []CouponRequest{request("b", 9, ""), request("a", 8, "")}, true},
		"an own reason":       {nil, []CouponRequest{request("a", 8, reward.ReasonError)}, true},
		"a user twice":        {nil, []CouponRequest{request("a", 8, ""), request("a", 9, "")}, false},
		"a ticket twice":      {nil, []CouponRequest{request("a", 8, ""), request("b", 8, "")}, false},
		"a ticket of no gate": {nil, []CouponRequest{request("a", 0, "")}, false},
		"a gap":               {nil, []CouponRequest{request("a", 8, ""), request("b", 10, "")}, false},
		"no stock":            {func(t *reward.CouponTemplate, _ *IssueBatch) { t.Live = 5 }, []CouponRequest{request("a", 8, "")}, false},
		"refused":             {func(_ *reward.CouponTemplate, b *IssueBatch) { b.Epoch = 4 }, []CouponRequest{request("a", 8, "")}, false},
		"a limit above 1":     {func(t *reward.CouponTemplate, _ *IssueBatch) { t.PerUserLimit = 2 }, []CouponRequest{request("a", 8, "")}, false},
		"nothing":             {nil, nil, false},
	} {
		template, b := issuing(), IssueBatch{Epoch: 3, Generation: 2, Requests: tt.requests}
		if tt.change != nil {
			tt.change(&template, &b)
		}
		if _, sure := b.Assume(template); sure != tt.want {
			t.Errorf("%s: %t, want %t", name, sure, tt.want)
		}
	}
}
