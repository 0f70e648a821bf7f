package storetest

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// shown is a text that names and metadata may have.
const shown = "O'Brien \"; DROP TABLE payouts; -- \\ 🎁 한국어 {$1} %s ?"

// everything changes every setting of a DRAFT.
func everything(id reward.PromotionID) rules.PromotionChange {
	return rules.PromotionChange{
		ID: id, Name: new(shown), RatePerSecond: new(7), Weight: new(8), MaxAmount: new(reward.Amount(9)), MaxRetries: new(10),
		Metadata: &reward.MetadataChange{"a": new(shown), "b": nil}, Amount: new(reward.Amount(11)), VoucherCode: new(shown), Currency: new("EUR"),
		Canary: &reward.Canary{Targets: 12, MaxFailureRate: 0.25}, StartsAt: new(at(13)),
		EndsAt: new(at(14)), Notes: new(shown + "\n"),
	}
}

func exerciseSteering(t *testing.T, open Open) {
	run(t, open, "AChangeChangesWhatItNames", func(b *bundle) {
		for id := range reward.PromotionID(2) {
			must(b.PromotionCreate(b.ctx, reward.Promotion{
				ID: 1 + id, Name: "n", Type: reward.Voucher, Amount: 1, VoucherCode: "v", Currency: "KRW", MaxRetries: 2, RatePerSecond: 3, Weight: 4,
				MaxAmount: 5, Canary: reward.Canary{Targets: 6, MaxFailureRate: 0.5}, StartsAt: at(7), WebhookURL: "https://hook",
				Metadata: `{"b":"c","d":"e"}`, CreatedBy: "kim", CreatedAt: epoch,
			}))(b)
		}
		b.approve(1, "lee")
		was := b.view(1)
		want := was
		want.Name, want.RatePerSecond, want.Weight, want.MaxAmount, want.MaxRetries = shown, 7, 8, 9, 10
		want.Metadata = reward.NewMetadata(map[string]string{"a": shown, "d": "e"})
		want.Amount, want.VoucherCode, want.Currency, want.StartsAt = 11, shown, "EUR", at(13)
		want.EndsAt, want.Notes = at(14), shown+"\n"
		want.Canary.Targets, want.Canary.MaxFailureRate, want.Version, want.Revision = 12, 0.25, 2, was.Revision+1
		want.ApprovedBy, want.Approval = "", reward.Approval{Round: 1} // it changes what the targets get
		got, err := b.PromotionChange(b.ctx, everything(1))
		b.must(err)
		same(b, "changed", want, got)
		got = b.view(1)
		same(b, "read", want, got)
		list := must(b.PromotionList(b.ctx, store.PromotionListParams{Limit: 9}))(b)
		want.ID, want.CreatedAt = was.ID, was.CreatedAt
		same(b, "listed", want, list[1])
		other := was
		other.ID, other.ApprovedBy, other.Approval, other.Revision = 2, "", reward.Approval{}, rules.FirstRevision(epoch)
		same(b, "the other one", other, list[0])

		want.Name, want.Version, want.Revision = "once more", 3, want.Revision+1
		got, err = b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, Name: new("once more"), Tags: []string{tagOf(9, epoch), tagOf(2, epoch)}})
		b.must(err)
		same(b, "one field", want, got)
		want.RatePerSecond, want.Weight, want.MaxAmount, want.Metadata, want.Version, want.Revision = 0, 1, 0, "", 4, want.Revision+1
		want.Amount, want.VoucherCode, want.Currency, want.Canary, want.StartsAt = 0, "", "", reward.Canary{}, time.Time{}
		want.EndsAt, want.Notes = time.Time{}, ""
		got = must(b.PromotionChange(b.ctx, rules.PromotionChange{
			ID: 1, RatePerSecond: new(int), Weight: new(int), MaxAmount: new(reward.Amount), Metadata: new(reward.MetadataChange),
			Amount: new(reward.Amount), VoucherCode: new(string), Currency: new(string), Canary: new(reward.Canary), StartsAt: new(time.Time),
			EndsAt: new(time.Time), Notes: new(string),
		}))(b)
		same(b, "cleared", want, got)

		must(b.PromotionReject(b.ctx, store.PromotionRejectParams{ID: 1, By: "mia", Reason: "no", Now: at(5)}))(b)
		want = b.view(1)
		authors := must(b.PromotionAuthors(b.ctx, 1))(b)
		want.Notes, want.Version = "why", 5
		got = must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, Notes: new("why"), By: "zoe"}))(b)
		same(b, "notes alone", want, got)
		same(b, "whose writer is no author", authors, must(b.PromotionAuthors(b.ctx, 1))(b))
	})
	run(t, open, "ARefusedChangeChangesNothing", func(b *bundle) {
		b.draft(1)
		was := b.view(1)
		many := reward.MetadataChange{}
		for i := range reward.MetadataEntriesMax + 1 {
			many[fmt.Sprint(i)] = new("")
		}
		for _, c := range []struct {
			change rules.PromotionChange
			code   string
		}{
			{rules.PromotionChange{ID: 2, Name: new("n")}, reward.CodeNotFound},
			{rules.PromotionChange{ID: 1, Name: new("n"), Tags: []string{}}, reward.CodePreconditionFailed},
			{rules.PromotionChange{ID: 1, Name: new("n"), Tags: []string{tagOf(0, epoch), tagOf(2, epoch)}}, reward.CodePreconditionFailed},
			// The same version of an earlier promotion with this ID.
			{rules.PromotionChange{ID: 1, Name: new("n"), Tags: []string{tagOf(was.Version, epoch.Add(-time.Microsecond))}}, reward.CodePreconditionFailed},
			{rules.PromotionChange{ID: 1, Name: new("nul\x00")}, reward.CodeInvalid},
			{rules.PromotionChange{ID: 1, Metadata: &many}, reward.CodeInvalid},
			{rules.PromotionChange{ID: 1, Metadata: &reward.MetadataChange{"a": new(strings.Repeat("ü", reward.MetadataTextMax+1))}}, reward.CodeInvalid},
			{rules.PromotionChange{ID: 1, Metadata: &reward.MetadataChange{"esc": new("\x1b[2J")}}, reward.CodeInvalid},
			{rules.PromotionChange{ID: 1, Weight: new(1<<30 + 1)}, reward.CodeInvalid},
		} {
			_, err := b.PromotionChange(b.ctx, c.change)
			b.wantCode(err, c.code)
		}
		now := b.view(1)
		same(b, "promotion", was, now)
	})
	run(t, open, "ACurrencyStaysWhileAmountsAreInIt", func(b *bundle) {
		must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 1, Type: reward.Point, Amount: 1050, MaxAmount: 9000, Currency: "EUR", CreatedAt: epoch}))(b)
		change := func(code, currency string, amount, budget *reward.Amount) {
			b.Helper()
			was := b.view(1)
			_, err := b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, Currency: &currency, Amount: amount, MaxAmount: budget})
			if code != "" {
				b.wantCode(err, code)
				same(b, "as before", was, b.view(1))
				return
			}
			b.must(err)
			same(b, "currency", currency, b.view(1).Currency)
		}
		some := new(reward.Amount(7000))
		change(reward.CodeImmutable, "KRW", nil, some)
		change(reward.CodeImmutable, "KRW", some, nil)
		change("", "KRW", some, some)
		b.saveWorth(1, 1, 500)
		change(reward.CodeImmutable, "EUR", some, some)
		change(reward.CodeImmutable, "", some, some)
		change("", "KRW", nil, nil)
		must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 2, Type: reward.Point, CreatedAt: epoch}))(b)
		b.saveWorth(2, 1, 500)
		must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 2, Currency: new("EUR")}))(b)
		same(b, "the first currency", "EUR", b.view(2).Currency)
	})
	// 400 are spent by rows of four states, and 50 by a READY row that may have been charged.
	run(t, open, "ABudgetIsNotBelowWhatIsSpent", func(b *bundle) {
		b.running(1)
		b.saveAmounts(plenty, 1, 0, 100, 100, 100, 100, 50, 7)
		b.finish(rules.Outcome{Ref: ref(1, 0, 1), Kind: rules.OutcomePaid, TransactionKey: "T"})
		b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, RetryAt: at(100)})
		b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomeNoAnswer})
		for target, maybe := range map[reward.TargetID]bool{4: true, 5: false} {
			must(b.PayoutReturn(b.ctx, store.PayoutReturnParams{Refs: []reward.Ref{ref(1, target, 1)}, MaybeCalled: maybe, Now: at(10)}))(b)
		}
		for _, budget := range []reward.Amount{451, 450, 0} {
			same(b, "budget", budget, must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, MaxAmount: &budget}))(b).MaxAmount)
		}
		_, err := b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, MaxAmount: new(reward.Amount(449))})
		b.wantCode(err, reward.CodeConflict)
	})
	run(t, open, "ABudgetThatIsExceededAlreadyAllowsOtherChanges", func(b *bundle) {
		b.bounded(1, 100, reward.Canary{})
		b.saveAmounts(plenty, 1, 0, 60, 40)
		b.finish(rules.Outcome{Ref: ref(1, 0, 1), Kind: rules.OutcomeRefused})
		b.saveAmounts(plenty, 1, 2, 60)
		b.finish(rules.Outcome{Ref: ref(1, 0, 1), Kind: rules.OutcomePaid, TransactionKey: "T"}) // paid after all: 160 of 100
		must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, Name: new("n"), MaxAmount: new(reward.Amount(100))}))(b)
		_, err := b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, MaxAmount: new(reward.Amount(99))})
		b.wantCode(err, reward.CodeConflict)
	})
	// A row that waits for its next call has more attempts than the new limit. It is
	// called once more, and that response decides.
	run(t, open, "FewerRetriesTakeHoldAtTheNextResponse", func(b *bundle) {
		b.running(1)
		b.saveQueued(1, 1)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeFailed, RetryAt: at(11)})
		same(b, "called again", []reward.TargetID{1}, b.dispatch(1, reward.Retrying, 9))
		b.finish(rules.Outcome{Ref: ref(1, 1, 2), Kind: rules.OutcomeFailed, RetryAt: at(11)})
		same(b, "attempts", int32(2), b.payout(1, 1).Attempts)
		must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, MaxRetries: new(0)}))(b)
		b.wantState(1, 1, reward.Retrying)
		same(b, "called once more", []reward.TargetID{1}, b.dispatch(1, reward.Retrying, 9))
		b.finish(rules.Outcome{Ref: ref(1, 1, 3), Kind: rules.OutcomeFailed, RetryAt: at(30)})
		b.wantState(1, 1, reward.Unknown)
	})
	run(t, open, "AChangeIsInTheChanges", func(b *bundle) {
		b.running(1)
		first := must(b.PromotionChanges(b.ctx, ""))(b)
		must(b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, RatePerSecond: new(3), Weight: new(4)}))(b)
		next := must(b.PromotionChanges(b.ctx, first.Mark))(b)
		same(b, "changes", []store.PromotionView{b.asRead(1)}, next.Active)
		same(b, "rate", 3, next.Active[0].RatePerSecond)
	})
	// Changes of the same version, dispatches and a start race. One change per
	// version succeeds, and the budget never falls below what is spent.
	run(t, open, "ChangesRaceWithEachOtherAndWithDispatches", func(b *bundle) {
		b.bounded(1, 1000, reward.Canary{})
		amounts := make([]reward.Amount, 100)
		for i := range amounts {
			amounts[i] = 10
		}
		b.saveAmounts(0, 1, 0, amounts...)
		var wg sync.WaitGroup
		var mu sync.Mutex
		changed, refused := 0, 0
		for i := range 8 {
			wg.Go(func() {
				_, err := b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, Name: new(fmt.Sprint(i)), Tags: []string{tagOf(1, epoch)}})
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					changed++
				} else if reward.HasCode(err, reward.CodePreconditionFailed) {
					refused++
				}
			})
			wg.Go(func() {
				budget := reward.Amount(990 - 110*i)
				_, err := b.PromotionChange(b.ctx, rules.PromotionChange{ID: 1, MaxAmount: &budget})
				if err != nil && !reward.HasCode(err, reward.CodeConflict) {
					b.Errorf("%v", err)
				}
			})
			wg.Go(func() {
				if _, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: 9, MaxLen: plenty, Now: at(20)}); err != nil {
					b.Errorf("%v", err)
				}
				v, err := b.PromotionGet(b.ctx, 1)
				if err != nil || exposed(v.Counts) > v.MaxAmount {
					b.Errorf("%d of %d is spent: %v", exposed(v.Counts), v.MaxAmount, err)
				}
			})
		}
		wg.Wait()
		if changed > 1 || changed+refused != 8 {
			b.Fatalf("%d changes of one version succeeded, %d were refused", changed, refused)
		}
	})
}

// tagOf returns the tag of a version of a promotion that was created at a time.
func tagOf(version int64, createdAt time.Time) string {
	return rules.PromotionTag(reward.Promotion{Version: version, CreatedAt: createdAt})
}
