package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// compare reads both sides of the counts of a promotion, and repairs them if
// repair is set.
func (b *bundle) compare(id reward.PromotionID, repair bool) store.Comparison {
	b.Helper()
	return must(b.SummaryCompare(b.ctx, id, repair))(b)
}

// exerciseRepair changes counts as no method can, and checks that a
// repair sets them to those of the rows.
func exerciseRepair(b *arena) {
	b.running(1)
	b.running(2)
	b.saveQueued(1, 0, 1, 2, 3, 4, 5)
	b.saveQueued(2, 1)
	b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
	b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomeFailed, RetryAt: at(20)})
	b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomeRefused})
	for what, test := range map[string]struct {
		sql   string
		whole bool // whether the counts of the whole promotion differ
	}{
		"a count":              {`UPDATE summaries SET queued = queued + 3 WHERE promotion_id = 1 AND summary_id = 0`, true},
		"an amount":            {`UPDATE summaries SET succeeded_amount = 0 WHERE promotion_id = 1 AND summary_id = 0`, true},
		"the attempts":         {`UPDATE summaries SET attempts = 77 WHERE promotion_id = 1 AND summary_id = 0`, true},
		"a summary":            {`UPDATE summaries SET ready = 5, queued = 0 WHERE promotion_id = 1 AND summary_id = 2`, false},
		"a summary that is no": {`INSERT INTO summaries (promotion_id, summary_id, ready) VALUES (1, 9, 4)`, false},
		"a summary that went":  {`DELETE FROM summaries WHERE promotion_id = 1 AND summary_id = 1`, false},
		"everything":           {`UPDATE summaries SET failed = 8, failed_amount = 9, attempts = 7 WHERE promotion_id = 1`, true},
	} {
		b.must(b.raw.Exec(test.sql))
		recount := must(b.SummaryRecount(b.ctx, 1))(b)
		v := b.view(1)
		for _, repair := range []bool{false, true} {
			c := b.compare(1, repair)
			same(b.bundle, what+": rows", recount, c.Rows)
			same(b.bundle, what+": kept", v.Counts, c.Kept)
			same(b.bundle, what+": differ", test.whole, c.Kept != c.Rows)
		}
		b.books(1)
		c := b.compare(1, true)
		same(b.bundle, what+": after the repair", c.Rows, c.Kept)
	}
	b.books(2)
	b.finish(rules.Outcome{Ref: ref(1, 4, 1), Kind: rules.OutcomePaid})
	b.books(1)
}

// exerciseRepairOfEnded checks that a repair lets an ended promotion go on that
// has payouts left: it ended only because its counts were wrong.
func exerciseRepairOfEnded(b *arena) {
	b.running(1)
	b.saveQueued(1, 1, 2)
	b.saveReady(1, 3)
	b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
	before := b.compare(1, false).Rows
	forget := `UPDATE summaries SET ready = 0, queued = 0, ready_amount = 0, queued_amount = 0 WHERE promotion_id = %d`
	b.must(b.raw.Exec(fmt.Sprintf(forget, 1)))
	done := b.complete(1, 30)
	same(b.bundle, "completed by wrong counts", true, done)
	ended := b.view(1)
	gone := must(b.PromotionStreamDestroyed(b.ctx, 1, ended.LastDispatchedAt))(b)
	same(b.bundle, "stream destroyed", true, gone)

	c := b.compare(1, false)
	same(b.bundle, "ended", true, c.Ended)
	same(b.bundle, "rows", before, c.Rows)
	v := b.view(1)
	same(b.bundle, "status after a comparison", reward.Completed, v.Status)
	c = b.compare(1, true)
	same(b.bundle, "ended before the repair", true, c.Ended)
	b.books(1)
	running := func() {
		b.Helper()
		v = b.view(1)
		same(b.bundle, "status after the repair", reward.Running, v.Status)
		same(b.bundle, "finished at", time.Time{}, v.FinishedAt)
		same(b.bundle, "stream destroyed", false, v.StreamDestroyed)
		same(b.bundle, "ended after the repair", false, b.compare(1, true).Ended)
	}
	running()
	// A promotion that an earlier repair left COMPLETED has right counts.
	b.must(b.raw.Exec(`UPDATE promotions SET status = 'COMPLETED', stream_gone = (1 = 1), finished_at = created_at WHERE id = 1`))
	b.compare(1, true)
	running()
	list := must(b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, From: reward.Ready, Limit: 9, MaxLen: plenty, Now: at(40)}))(b)
	same(b.bundle, "dispatched again", 1, len(list))
	b.finish(rules.Outcome{Ref: ref(1, 2, 1), Kind: rules.OutcomePaid})
	b.finish(rules.Outcome{Ref: ref(1, 3, 1), Kind: rules.OutcomePaid})
	done = b.complete(1, 50)
	same(b.bundle, "completed", true, done)
	same(b.bundle, "ended in good order", b.compare(1, true).Ended, true)
	v = b.view(1)
	same(b.bundle, "status in good order", reward.Completed, v.Status)

	// A CANCELLED promotion stays CANCELLED, but works again.
	b.running(2)
	b.saveQueued(2, 1)
	b.saveReady(2, 2)
	b.move(2, reward.PromotionCancelled)
	b.must(b.raw.Exec(fmt.Sprintf(forget, 2)))
	done = b.complete(2, 30)
	same(b.bundle, "cancelled one ended", true, done)
	b.compare(2, true)
	b.books(2)
	v = b.view(2)
	same(b.bundle, "status of the cancelled one", reward.PromotionCancelled, v.Status)
	same(b.bundle, "end of the cancelled one", time.Time{}, v.FinishedAt)
	moved := must(b.PayoutCancelStep(b.ctx, store.PayoutCancelStepParams{PromotionID: 2, Lease: lease, Now: at(40)}))(b)
	same(b.bundle, "cancelled", 1, moved)
}

// exerciseRefusedByCounts breaks the counts of a promotion. The error of an outcome
// names them, and a repair lets it be recorded.
func exerciseRefusedByCounts(b *arena) {
	b.running(1)
	b.saveQueued(1, 1)
	b.must(b.raw.Exec(`UPDATE summaries SET queued = 0`))
	refused := func(what string, err error) {
		b.Helper()
		var broken *store.ConstraintError
		if !errors.As(err, &broken) || !strings.Contains(broken.Constraint, "queued") {
			b.Errorf("%s with broken counts: %v", what, err)
		}
	}
	_, err := b.PayoutFinish(b.ctx, store.PayoutFinishParams{Outcomes: []rules.Outcome{{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid}}, Lease: lease, Now: at(10)})
	refused("finish", err)
	_, err = b.PayoutReturn(b.ctx, store.PayoutReturnParams{Refs: []reward.Ref{ref(1, 1, 1)}, Lease: lease, Now: at(10)})
	refused("return", err)
	b.compare(1, true)
	b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
	b.books(1)
}

// exerciseRepairAmongWrites makes counts wrong, and repairs them by two
// callers at once while others save, dispatch and finish payouts.
func exerciseRepairAmongWrites(b *arena) {
	b.running(1)
	targets := firstTargets(900)
	b.saveReady(1, targets...)
	for phase, sql := range []string{
		`UPDATE summaries SET failed = failed + 3, failed_amount = failed_amount + 7, attempts = attempts + 5 WHERE promotion_id = 1`,
		`UPDATE summaries SET ready = ready + 50, cancelled = 9 WHERE promotion_id = 1 AND summary_id < 2`,
		`UPDATE summaries SET succeeded = 0, succeeded_amount = 0 WHERE promotion_id = 1`,
		`INSERT INTO summaries (promotion_id, summary_id, ready, attempts) VALUES (1, 9, 4, 6)`,
	} {
		b.must(b.raw.Exec(sql))
		b.must(together(4, func(w int) error {
			for n := range 6 {
				if w < 2 {
					if _, err := b.SummaryCompare(b.ctx, 1, true); err != nil {
						return err
					}
					continue
				}
				list, err := b.PayoutDispatch(b.ctx, store.PayoutDispatchParams{PromotionID: 1, Limit: 9, MaxLen: plenty, Now: at(n)})
				if err != nil {
					return err
				}
				p := store.PayoutFinishParams{Lease: lease, Now: at(10)}
				for _, got := range list {
					p.Outcomes = append(p.Outcomes, rules.Outcome{
						Ref: ref(1, got.TargetID, got.Dispatch), Kind: kinds[rand.IntN(len(kinds))], RetryAt: at(20),
					})
				}
				if _, err := b.PayoutFinish(b.ctx, p); err != nil {
					return err
				}
				rows := []store.NewPayout{row(1, reward.TargetID(10_000*w+100*phase+n))}
				if _, err := b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: rows, MaxLen: plenty, Now: at(n)}); err != nil {
					return err
				}
			}
			return nil
		}))
		b.books(1)
	}
}
