package storetest

import (
	"context"
	"testing"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
)

// before is a database in which something else happens right before the first write.
type before struct {
	rows.DB
	do func()
}

// Run runs statements that write after what happens first.
func (d *before) Run(ctx context.Context, what string, mode rows.Mode, build func() []rows.Statement) error {
	if do := d.do; do != nil && mode.Write {
		d.do = nil
		do()
	}
	return d.DB.Run(ctx, what, mode, build)
}

// after is a database in which something else happens right after some reads.
type after struct {
	rows.DB
	reads int
	do    func()
}

// Run runs statements, and then what happens next.
func (d *after) Run(ctx context.Context, what string, mode rows.Mode, build func() []rows.Statement) error {
	err := d.DB.Run(ctx, what, mode, build)
	if d.reads--; d.reads == 0 {
		d.do()
	}
	return err
}

// ExerciseMeanwhile changes promotions after a rule has read them, and before its result is
// written. over returns the shared methods of a store over its wrapped database.
func ExerciseMeanwhile(t *testing.T, open Open, over func(s *rows.Tables, wrap func(rows.DB) rows.DB) *rows.Tables) {
	t.Helper()
	for name, test := range map[string]func(b *bundle, meanwhile func(do func()) *rows.Tables){
		"StartOfARejectedOne": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.draft(1)
			_, err := meanwhile(func() { b.reject(1) }).PromotionMove(b.ctx, store.PromotionMoveParams{
				ID: 1, From: []reward.PromotionStatus{reward.Draft}, To: reward.Running, ApprovalAbove: worthLimit(100), Now: at(1),
			})
			b.wantCode(err, reward.CodeIllegalState)
			same(b, "status", reward.Draft, b.view(1).Status)
		},
		"PauseOfACancelledOne": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.hooked(1, reward.Canary{})
			_, err := meanwhile(func() { b.move(1, reward.PromotionCancelled) }).PromotionMove(b.ctx, store.PromotionMoveParams{
				ID: 1, From: []reward.PromotionStatus{reward.Running}, To: reward.Paused, Event: store.EventBreach, Now: at(1),
			})
			b.wantCode(err, reward.CodeIllegalState)
			same(b, "status", reward.PromotionCancelled, b.view(1).Status)
			same(b, "told", []store.WebhookDelivery{}, b.deliveries(at(99), at(199)))
		},
		"CloseOfAChangedOne": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.draft(1)
			must(meanwhile(func() { must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, Name: new("x")}))(b) }).PromotionClose(b.ctx, 1))(b)
			same(b, "name, and whether it is closed", []any{"x", true}, []any{b.view(1).Name, b.view(1).Closed})
		},
		"ChangeOfAClosedOne": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.draft(1)
			v := must(meanwhile(func() { must(b.PromotionClose(b.ctx, 1))(b) }).PromotionChange(b.ctx, rules.PromotionChange{ID: 1, Name: new("x"), By: "ann"}))(b)
			same(b, "name, and whether it is closed", []any{"x", true}, []any{v.Name, v.Closed})
		},
		"BudgetThatIsSpent": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.bounded(1, 1000, reward.Canary{})
			b.saveAmounts(0, 1, 0, 60)
			change := rules.PromotionChange{ID: 1, MaxAmount: new(reward.Amount(59)), By: "ann"}
			_, err := meanwhile(func() { b.dispatch(1, reward.Ready, 9) }).PromotionChange(b.ctx, change)
			b.wantCode(err, reward.CodeConflict)
			same(b, "authors", 0, len(must(b.PromotionAuthors(b.ctx, 1))(b)))
		},
		"CurrencyWithAmounts": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, Currency: "KRW", CreatedAt: epoch}))(b)
			_, err := meanwhile(func() { b.saveWorth(1, 1, 60) }).PromotionChange(b.ctx, rules.PromotionChange{ID: 1, Currency: new("EUR")})
			b.wantCode(err, reward.CodeImmutable)
		},
		"CanaryThatIsPaidAgain": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.bounded(1, 0, reward.Canary{Targets: 1})
			b.saveQueued(1, 1)
			b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeRefused})
			retry := func() { must(b.PayoutRetry(b.ctx, store.PayoutRetryParams{PromotionID: 1, Now: at(20)}))(b) }
			status, judged, err := meanwhile(retry).PromotionJudge(b.ctx, store.PromotionJudgeParams{ID: 1, Now: at(50)})
			b.must(err)
			same(b, "judged", []any{reward.Running, false}, []any{status, judged})
		},
		"EndOfOneThatGetsATarget": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.running(1)
			ended := must(meanwhile(func() { b.saveReady(1, 1) }).PromotionComplete(b.ctx, 1, settleAfter, at(20)))(b)
			same(b, "ended", []any{false, reward.Running}, []any{ended, b.view(1).Status})
		},
		"ApprovalOfOtherTargets": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.draft(1)
			b.saveWorth(1, 1, 60)
			p := store.PromotionApproveParams{ID: 1, By: "lee", Revision: b.view(1).Revision, Seen: &store.PromotionWorth{Count: 1, Amount: 60}}
			_, err := meanwhile(func() { b.saveWorth(1, 2, 40) }).PromotionApprove(b.ctx, p)
			b.wantCode(err, reward.CodePreconditionFailed)
			same(b, "approved by", "", b.view(1).ApprovedBy)
			p.Seen = nil
			v := must(meanwhile(func() { b.saveWorth(1, 3, 7) }).PromotionApprove(b.ctx, p))(b)
			same(b, "of whatever there is", []int64{3, 107}, []int64{v.Approval.Count, int64(v.Approval.Amount)})
			same(b, "started", reward.Running, b.move(1, reward.Running).Status)
			same(b, "dispatched", []reward.TargetID{1, 2, 3}, b.dispatchTargets(50, 9))
		},
		"ApprovalWithAnotherAuthor": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.draft(1)
			_, err := meanwhile(func() { b.must(b.PromotionAuthorAdd(b.ctx, 1, "lee")) }).PromotionApprove(b.ctx, store.PromotionApproveParams{
				ID: 1, By: "lee", Revision: b.view(1).Revision,
			})
			b.wantCode(err, reward.CodePreconditionFailed)
		},
		"RejectionOfACompletedOne": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.running(1)
			_, err := meanwhile(func() { b.complete(1, 20) }).PromotionReject(b.ctx, store.PromotionRejectParams{ID: 1, By: "mia", Reason: "no", Now: at(30)})
			b.wantCode(err, reward.CodeIllegalState)
		},
		"WaitForAnApprovalThatComes": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.running(1)
			b.saveWorth(1, 1, 500)
			paused := must(meanwhile(func() { b.approve(1, "lee") }).PromotionAwaitApproval(b.ctx, store.PromotionAwaitApprovalParams{ID: 1, ApprovalAbove: worthLimit(1), Now: at(9)}))(b)
			same(b, "paused", false, paused)
		},
		"CreationOfACreatedOne": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			create := func(by string) reward.Promotion {
				return reward.Promotion{ID: 1, Type: reward.Point, CreatedBy: by, CreatedAt: epoch}
			}
			_, err := meanwhile(func() { must(b.PromotionCreate(b.ctx, create("kim")))(b) }).PromotionCreate(b.ctx, create("ann"))
			b.wantCode(err, reward.CodeExists)
			same(b, "authors", []string{"kim"}, must(b.PromotionAuthors(b.ctx, 1))(b))
		},
		"CreationOfARegisteredOne": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			register := func() {
				must(b.PromotionRegister(b.ctx, []store.Registration{{ID: 1, Type: reward.Point}}, reward.Limits{}, epoch))(b)
			}
			p := must(meanwhile(register).PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, Name: "x", CreatedAt: at(1)}))(b)
			same(b, "completed", []any{"x", int64(2), epoch}, []any{p.Name, p.Version, p.CreatedAt})
		},
		"StartByARecordOfARejectedOne": func(b *bundle, meanwhile func(func()) *rows.Tables) {
			b.draft(1)
			started := []store.Registration{{ID: 1, Type: reward.Point, Started: true}}
			got := must(meanwhile(func() { b.reject(1) }).PromotionRegister(b.ctx, started, reward.Limits{}, at(1)))(b)
			same(b, "status", reward.Draft, got[0].Status)
			b.draft(2)
			started[0].ID = 2
			got = must(meanwhile(func() { b.must(b.PromotionAuthorAdd(b.ctx, 2, "ann")) }).PromotionRegister(b.ctx, started, reward.Limits{}, at(1)))(b)
			same(b, "granted to its author", new(reward.Amount), got[0].Approval.Granted)
		},
	} {
		run(t, open, name, func(b *bundle) {
			test(b, func(do func()) *rows.Tables {
				return over(b.Tables, func(db rows.DB) rows.DB { return &before{DB: db, do: do} })
			})
		})
	}
	budget := func(b *bundle, amount reward.Amount) {
		b.Helper()
		must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, MaxAmount: &amount}))(b)
	}
	dispatch := store.PayoutDispatchParams{PromotionID: 1, Limit: 9, MaxLen: plenty, ApprovalAbove: worthLimit(500), Now: at(20)}
	save := func(amount reward.Amount) store.PayoutSaveParams {
		r := row(1, 50)
		r.Amount = amount
		return store.PayoutSaveParams{Rows: []store.NewPayout{r}, MaxLen: plenty, ApprovalAbove: worthLimit(500), Now: epoch}
	}
	saved := func(b *bundle, res store.PayoutSaveResult, err error) (queued int) {
		b.Helper()
		b.must(err)
		same(b, "outcome", []store.SaveOutcome{store.Accepted}, res.Outcomes)
		b.books(1)
		return len(res.Queued)
	}
	for name, test := range map[string]func(b *bundle, meanwhile func(reads int, do func()) *rows.Tables){
		"SaveWhileTheBudgetFalls": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.bounded(1, 100, reward.Canary{})
			res, err := meanwhile(1, func() { budget(b, 59) }).PayoutSave(b.ctx, save(60))
			same(b, "queued", 0, saved(b, res, err))
		},
		"SaveWhileAnotherSpends": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.bounded(1, 100, reward.Canary{})
			res, err := meanwhile(1, func() { b.saveAmounts(plenty, 1, 1, 60) }).PayoutSave(b.ctx, save(60))
			same(b, "queued", 0, saved(b, res, err))
		},
		"SaveWhileAnotherFillsTheRoom": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.running(1)
			p := save(1)
			p.MaxLen = 2
			res, err := meanwhile(1, func() { b.saveQueued(1, 1, 2) }).PayoutSave(b.ctx, p)
			same(b, "queued", 0, saved(b, res, err))
		},
		"SaveIntoOneThatEnds": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.running(1)
			res, err := meanwhile(1, func() { b.complete(1, 20) }).PayoutSave(b.ctx, save(60))
			same(b, "queued", 0, saved(b, res, err))
			same(b, "status", reward.Running, b.view(1).Status)
		},
		"SaveIntoOneThatIsCancelled": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.running(1)
			res, err := meanwhile(1, func() { b.move(1, reward.PromotionCancelled) }).PayoutSave(b.ctx, save(60))
			same(b, "queued", 0, saved(b, res, err))
			b.wantState(1, 50, reward.Cancelled)
		},
		"SaveAboveTheLimitWithAnother": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.running(1)
			res, err := meanwhile(1, func() { b.saveWorth(1, 1, 450) }).PayoutSave(b.ctx, save(60))
			same(b, "queued", 0, saved(b, res, err))
		},
		"DispatchWhileTheBudgetFalls": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.bounded(1, 100, reward.Canary{})
			b.saveAmounts(0, 1, 1, 40, 40)
			list := must(meanwhile(1, func() { budget(b, 50) }).PayoutDispatch(b.ctx, dispatch))(b)
			same(b, "queued", []reward.TargetID{1}, targetsOf(list))
		},
		"DispatchWhileAnotherSpends": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.bounded(1, 100, reward.Canary{})
			b.saveAmounts(0, 1, 1, 40, 40, 40)
			list := must(meanwhile(1, func() { b.dispatch(1, reward.Ready, 1) }).PayoutDispatch(b.ctx, dispatch))(b)
			same(b, "queued", []reward.TargetID{2}, targetsOf(list))
		},
		"DispatchOfACanaryThatAnotherFills": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.bounded(1, 0, reward.Canary{Targets: 2})
			b.saveReady(1, 1, 2, 3)
			list := must(meanwhile(1, func() { b.dispatch(1, reward.Ready, 1) }).PayoutDispatch(b.ctx, dispatch))(b)
			same(b, "queued", []reward.TargetID{2}, targetsOf(list))
			same(b, "dispatched first", 2, b.canary().Dispatched)
		},
		"DispatchOfACanaryAboveTheLimitWithAnother": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.bounded(1, 0, reward.Canary{Targets: 5})
			b.saveWorth(1, 1, 450)
			list := must(meanwhile(1, func() { b.saveWorth(1, 2, 60) }).PayoutDispatch(b.ctx, dispatch))(b)
			same(b, "queued", []reward.TargetID{}, targetsOf(list))
		},
		"RetryWhileAnotherTakesThePage": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.bounded(1, 0, reward.Canary{Targets: 5})
			b.saveQueued(1, 1, 2)
			for target := reward.TargetID(1); target <= 2; target++ {
				b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeFailed, RetryAt: at(1)})
			}
			retry := dispatch
			retry.From, retry.Limit = reward.Retrying, 1
			list := must(meanwhile(2, func() { b.dispatch(1, reward.Retrying, 1) }).PayoutDispatch(b.ctx, retry))(b)
			same(b, "queued", []reward.TargetID{2}, targetsOf(list))
		},
		"DispatchOfAPausedOne": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.running(1)
			b.saveReady(1, 1)
			list := must(meanwhile(1, func() { b.move(1, reward.Paused) }).PayoutDispatch(b.ctx, dispatch))(b)
			same(b, "queued", []reward.TargetID{}, targetsOf(list))
		},
		"DispatchAboveTheLimitWithAnother": func(b *bundle, meanwhile func(int, func()) *rows.Tables) {
			b.running(1)
			b.saveWorth(1, 1, 450)
			list := must(meanwhile(1, func() { b.saveWorth(1, 2, 60) }).PayoutDispatch(b.ctx, dispatch))(b)
			same(b, "queued", []reward.TargetID{}, targetsOf(list))
		},
	} {
		run(t, open, name, func(b *bundle) {
			test(b, func(reads int, do func()) *rows.Tables {
				return over(b.Tables, func(db rows.DB) rows.DB { return &after{DB: db, reads: reads, do: do} })
			})
		})
	}
}

// reject rejects a promotion.
func (b *bundle) reject(id reward.PromotionID) {
	b.Helper()
	must(b.PromotionReject(b.ctx, store.PromotionRejectParams{ID: id, By: "mia", Reason: "no", Now: at(5)}))(b)
}
