// Package storetest is the conformance suite of *rows.Tables. Every driver
// passes it.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// Open returns a migrated, empty store of the driver under test. The store
// belongs to the test alone and is closed when the test ends.
type Open func(t testing.TB) *rows.Tables

// Exercise runs the suite on a driver.
func Exercise(t *testing.T, open Open) {
	t.Helper()
	for name, part := range map[string]func(*testing.T, Open){
		"Store":           exerciseStore,
		"Promotions":      exercisePromotions,
		"Registrations":   exerciseRegistrations,
		"Steering":        exerciseSteering,
		"PromotionPages":  exercisePromotionPages,
		"Completion":      exerciseCompletion,
		"Save":            exerciseSave,
		"Dispatch":        exerciseDispatch,
		"Withdraw":        exerciseWithdraw,
		"Handovers":       exerciseDeliveries,
		"Finish":          exerciseFinish,
		"Rewrite":         exerciseRewrite,
		"Lookups":         exerciseLookups,
		"Reads":           exerciseReads,
		"PayoutHistory":   exercisePayoutHistory,
		"PayoutErrors":    exercisePayoutErrors,
		"DeadLetters":     exerciseDeadLetters,
		"Webhooks":        exerciseWebhooks,
		"Endpoints":       exerciseWebhookEndpoints,
		"Reconciliations": exerciseReconciliations,
		"Starts":          exerciseStarts,
		"Approvals":       exerciseApprovals,
		"Archive":         exerciseArchive,
		"TemplateArchive": exerciseTemplateArchive,
		"Budget":          exerciseBudget,
		"Ends":            exerciseEnds,
		"Canary":          exerciseCanary,
		"Judge":           exerciseJudge,
		"Bounds":          exerciseBounds,
		"Retry":           exerciseRetry,
		"Resolve":         exerciseResolve,
		"Again":           exerciseAgain,
		"Compare":         exerciseCompare,
		"Uploads":         exerciseUploads,
		"Leases":          exerciseLeases,
		"Instances":       exerciseInstances,
		"Templates":       exerciseTemplates,
		"SettleInOrder":   exerciseSettleInOrder,
		"SettleListed":    exerciseSettleListed,
		"Promises":        exercisePromises,
		"SettleDirect":    exerciseSettleDirect,
		"CouponStates":    exerciseCouponStates,
		"CouponCodes":     exerciseCodes,
		"CouponReads":     exerciseCouponReads,
		"CouponLeave":     exerciseLeave,
		"Draws":           exerciseDraws,
		"Refusals":        exerciseRefusals,
		"CouponRaces":     exerciseCouponRaces,
		"Views":           exerciseViews,
		"APIKeys":         exerciseAPIKeys,
		"Audits":          exerciseAudits,
		"Idempotencies":   exerciseIdempotencies,
		"Timelines":       exerciseTimelines,
		"Changes":         exerciseChanges,
		"Concurrency":     exerciseConcurrency,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part(t, open)
		})
	}
}

// The times that the suite uses: one with microseconds, and the settings of
// lookups.
var epoch = time.Date(2026, 11, 21, 10, 0, 0, 123456000, time.UTC)

const (
	lease       = 15 * time.Second
	settleAfter = time.Minute
	plenty      = 100_000 // enough capacity for every test
)

// at returns the time that is a number of seconds after epoch.
func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// bundle is a store with helpers. A helper fails the test if the step that it
// takes fails.
type bundle struct {
	testing.TB
	*rows.Tables
	ctx    context.Context
	opened time.Time
}

func setup(t testing.TB, open Open) *bundle {
	t.Helper()
	return &bundle{TB: t, Tables: open(t), ctx: t.Context(), opened: time.Now()}
}

// run runs a subtest with its own store.
func run(t *testing.T, open Open, name string, test func(b *bundle)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		test(setup(t, open))
	})
}

func (b *bundle) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// must returns a value, and ends the test if there is an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(r testing.TB) T {
		r.Helper()
		if err != nil {
			r.Fatal(err)
		}
		return v
	}
}

// wantCode fails the test unless err has the code.
func (b *bundle) wantCode(err error, code string) {
	b.Helper()
	if !reward.HasCode(err, code) {
		b.Fatalf("error is %v, want code %s", err, code)
	}
}

// recent reports whether a time of the database is of this test. Its clock may be off.
func (b *bundle) recent(at time.Time) bool {
	return at.After(b.opened.Add(-time.Minute)) && at.Before(time.Now().Add(time.Minute))
}

// same fails the test unless got equals want.
func same[T any](b *bundle, what string, want, got T) {
	b.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		b.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// draft creates a DRAFT with three retries.
func (b *bundle) draft(id reward.PromotionID) {
	b.Helper()
	must(b.PromotionCreate(b.ctx, reward.Promotion{
		ID: id, Name: "summer", Type: reward.Point, Amount: 100, Currency: "KRW", MaxRetries: 3, CreatedAt: epoch,
	}))(b)
}

// running creates a RUNNING promotion with three retries.
func (b *bundle) running(id reward.PromotionID) {
	b.Helper()
	b.draft(id)
	b.move(id, reward.Running)
}

func (b *bundle) move(id reward.PromotionID, to reward.PromotionStatus) reward.Promotion {
	b.Helper()
	p := must(b.PromotionMove(b.ctx, store.PromotionMoveParams{
		ID: id, To: to, Now: at(1), Reason: "because",
		From: []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused, reward.Completed},
	}))(b)
	return p
}

// view reads a promotion.
func (b *bundle) view(id reward.PromotionID) store.PromotionView {
	b.Helper()
	return must(b.PromotionGet(b.ctx, id))(b)
}

// complete completes a promotion at a second if nothing of it is open, and reports
// whether it did.
func (b *bundle) complete(id reward.PromotionID, second int) bool {
	b.Helper()
	return must(b.PromotionComplete(b.ctx, id, settleAfter, at(second)))(b)
}

// row returns a payout to insert. Its user, amount and summary (0, 1 or 2)
// follow from the target.
func row(id reward.PromotionID, target reward.TargetID) store.NewPayout {
	return store.NewPayout{
		PromotionID: id, TargetID: target, SummaryID: reward.SummaryID(target % 3),
		UserID: fmt.Sprintf("u%d", target), Amount: 100 + reward.Amount(target),
	}
}

// firstTargets returns n targets from 0 on.
func firstTargets(n int) []reward.TargetID {
	list := make([]reward.TargetID, n)
	for i := range list {
		list[i] = reward.TargetID(i)
	}
	return list
}

// saveReady saves targets as READY at epoch.
func (b *bundle) saveReady(id reward.PromotionID, targets ...reward.TargetID) {
	b.Helper()
	b.save(0, id, targets...)
}

// saveQueued saves targets as QUEUED at epoch.
func (b *bundle) saveQueued(id reward.PromotionID, targets ...reward.TargetID) {
	b.Helper()
	n := len(b.save(plenty, id, targets...).Queued)
	refs := make([]reward.Ref, len(targets))
	for i, target := range targets {
		refs[i] = ref(id, target, 0)
	}
	n += len(must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: id, Refs: refs, Limit: plenty, MaxLen: plenty, Now: epoch}))(b))
	if n != len(targets) {
		b.Fatalf("%d rows queued, want %d", n, len(targets))
	}
}

func (b *bundle) save(maxLen int, id reward.PromotionID, targets ...reward.TargetID) store.PayoutSaveResult {
	b.Helper()
	rows := make([]store.NewPayout, len(targets))
	for i, target := range targets {
		rows[i] = row(id, target)
	}
	return must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: rows, MaxLen: maxLen, Now: epoch}))(b)
}

func (b *bundle) payout(id reward.PromotionID, target reward.TargetID) reward.Payout {
	b.Helper()
	p, _, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: id, TargetID: target})
	b.must(err)
	return p
}

func (b *bundle) wantState(id reward.PromotionID, target reward.TargetID, want reward.State) {
	b.Helper()
	if got := b.payout(id, target).State; got != want {
		b.Fatalf("target %d is %s, want %s", target, got, want)
	}
}

func ref(id reward.PromotionID, target reward.TargetID, dispatch int32) reward.Ref {
	return reward.Ref{PromotionID: id, TargetID: target, Dispatch: dispatch}
}

// finish writes one outcome at second 10.
func (b *bundle) finish(o rules.Outcome) store.FinishResult {
	b.Helper()
	res := must(b.PayoutFinish(b.ctx, store.PayoutFinishParams{Outcomes: []rules.Outcome{o}, Lease: lease, Now: at(10)}))(b)
	return res[0]
}

// settleLookups writes results of lookups and returns the second charges that they
// prove.
func (b *bundle) settleLookups(p store.PayoutSettleParams) []store.SecondCharge {
	b.Helper()
	return must(b.PayoutSettle(b.ctx, p))(b)
}

// all reads every payout of a promotion, page by page.
func (b *bundle) all(id reward.PromotionID) []reward.Payout {
	b.Helper()
	var list []reward.Payout
	p := store.PayoutListParams{PromotionID: id, Limit: store.BatchMax}
	for {
		page := must(b.PayoutList(b.ctx, p))(b)
		list = append(list, page...)
		if len(page) < p.Limit {
			return list
		}
		p.After = &page[len(page)-1].TargetID
	}
}

// books fails the test unless the counts of a promotion and of each of its
// summaries match its rows.
func (b *bundle) books(id reward.PromotionID) {
	b.Helper()
	v := must(b.PromotionGet(b.ctx, id))(b)
	recount := must(b.SummaryRecount(b.ctx, id))(b)
	var total reward.Counts
	want := make(map[reward.SummaryID]reward.Counts)
	for _, p := range b.all(id) {
		total = counted(total, p)
		if p.SummaryID > 0 {
			want[p.SummaryID] = counted(want[p.SummaryID], p)
		}
	}
	same(b, "recounted, against the rows", total, recount)
	same(b, "counts, against the rows", total, v.Counts)
	list := must(b.SummaryList(b.ctx, id, 1000))(b)
	got := make(map[reward.SummaryID]reward.Counts)
	for _, s := range list {
		if s.Total() > 0 {
			got[s.ID] = s.Counts
		}
	}
	same(b, "counts per summary, against the rows", want, got)
}

func counted(c reward.Counts, p reward.Payout) reward.Counts {
	c.Payouts[p.State]++
	c.Amounts[p.State] += p.Amount
	c.Attempts += int64(p.Attempts)
	return c
}

func exerciseStore(t *testing.T, open Open) {
	run(t, open, "AnswersAndMigratesAgain", func(b *bundle) {
		b.running(1)
		b.saveReady(1, 1)
		b.must(b.Ping(b.ctx))
		b.must(b.Migrate(b.ctx))
		b.wantState(1, 1, reward.Ready)
	})
	run(t, open, "TellsTheTime", func(b *bundle) {
		before := must(b.Clock(b.ctx))(b)
		after := must(b.Clock(b.ctx))(b)
		if !b.recent(before) || after.Before(before) {
			b.Fatalf("the clock shows %v and then %v", before, after)
		}
	})
	run(t, open, "ACallerWhoLeftChangesNothing", func(b *bundle) {
		b.running(1)
		ctx, cancel := context.WithCancel(b.ctx)
		cancel()
		_, err := b.PayoutSave(ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(1, 1)}, Now: epoch})
		if !errors.Is(err, context.Canceled) {
			b.Fatalf("error is %v, want context.Canceled", err)
		}
		same(b, "rows", 0, len(b.all(1)))
		b.saveReady(1, 1)
		b.books(1)
	})
}
