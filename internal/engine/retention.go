package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	retentionLease    = "retention"
	retentionInterval = 10 * time.Minute
	// retentionBatch is the number of rows that a transaction removes at most, and
	// retentionPause separates two of them.
	retentionBatch = 1000
	retentionPause = 100 * time.Millisecond
	// retentionFailuresMax ends the work on promotions, or on templates, of a round. One
	// that fails stops no other, but so many mean that a server is unavailable.
	retentionFailuresMax = 10
	// lookRest is how many times as long as the latest look at a template took it is not
	// looked at again, up to lookRestMax. A look reads all coupons, so it may take minutes.
	lookRest    = 100
	lookRestMax = 24 * time.Hour
)

// retention removes rows that are older than the settings say. One instance at a time
// does, in small transactions. Zero settings remove nothing.
type retention struct {
	service.Base
	rows     store.Store
	gate     templateRemover
	periods  config.Retention
	instance string
	log      obs.Log

	looks map[reward.TemplateID]look // at templates that are not over
}

// look is the latest look at a template that is not over.
type look struct {
	next time.Time // it is not looked at again before
	told bool      // the log says what keeps it, if places do
}

// templateRemover is the part of gate.Gate that removes what is stored for a template.
type templateRemover interface {
	Remove(ctx context.Context, id reward.TemplateID) error
}

// run removes rows in rounds until ctx ends, while this instance holds the lease.
func (r *retention) run(ctx context.Context) {
	report := r.log.Streak("removing old rows failed", "old rows are removed again")
	store.Lead(ctx, store.LeadParams{
		Rows:  r.rows,
		Lease: store.LeaseTakeParams{Name: retentionLease, Owner: r.instance + "/" + rand.Text()[:8], TTL: leaseTTL},
		Lead: func(ctx context.Context) {
			for {
				if err := r.round(ctx); ctx.Err() == nil {
					report(err)
				}
				if !service.Sleep(ctx, service.Jitter(retentionInterval, 0.2)) {
					return
				}
			}
		},
		Log: r.log,
	})
}

// round removes everything that is too old by the clock of the database. A kind of rows
// whose removal fails stops no other kind.
func (r *retention) round(ctx context.Context) error {
	now, err := r.rows.Clock(ctx)
	if err != nil {
		return err
	}
	var failed []error
	if keep := r.periods.Audit; keep > 0 {
		failed = append(failed, r.remove(ctx, "audit entries", func() (int, error) { return r.rows.AuditForget(ctx, now.Add(-keep), retentionBatch) }))
	}
	if keep := r.periods.DeadLetters; keep > 0 {
		for _, status := range []reward.DeadLetterStatus{reward.DeadLetterReplayed, reward.DeadLetterDiscarded} {
			failed = append(failed, r.remove(ctx, "dead letters", func() (int, error) {
				return r.rows.DeadLetterForget(ctx, status, now.Add(-keep), retentionBatch)
			}))
		}
	}
	if keep := r.periods.Payouts; keep > 0 {
		failed = append(failed, r.payouts(ctx, now.Add(-keep), now))
	}
	if keep := r.periods.Coupons; keep > 0 {
		failed = append(failed, r.coupons(ctx, now.Add(-keep), now))
	}
	return errors.Join(failed...)
}

// coupons archives coupon templates that closed before a time, and removes their gates
// and rows. It archives first, in a transaction of its own: from then on nothing of the
// template changes, so a crash in between leaves rows that the next round removes.
func (r *retention) coupons(ctx context.Context, before, now time.Time) error {
	var last store.EndedTemplate
	var failed []error
	for {
		page, err := r.rows.TemplateEnded(ctx, before, last, retentionBatch)
		if err != nil {
			return errors.Join(append(failed, fmt.Errorf("coupons: %w", err))...)
		}
		for _, t := range page {
			last = t
			if err := r.couponsOf(ctx, t, before, now); err != nil {
				failed = append(failed, fmt.Errorf("coupons of template %d: %w", t.ID, err))
			}
			if len(failed) == retentionFailuresMax || ctx.Err() != nil {
				return errors.Join(failed...)
			}
		}
		if len(page) < retentionBatch {
			return errors.Join(failed...)
		}
	}
}

// couponsOf archives a template, if nothing of it is open, and removes its gate and its
// rows. The gate comes first: with its last row, a template is not looked at again.
func (r *retention) couponsOf(ctx context.Context, t store.EndedTemplate, before, now time.Time) error {
	id := t.ID
	if !t.Archived {
		if archived, err := r.archive(ctx, id, before, now); err != nil || !archived {
			return err
		}
		r.log.Info("template archived", "template_id", id)
	}
	if err := r.gate.Remove(ctx, id); err != nil {
		return err
	}
	p := store.TemplateForgetParams{TemplateID: id, Limit: retentionBatch}
	for total := 0; ; {
		page, err := r.rows.TemplateForget(ctx, p)
		if err != nil {
			return err
		}
		if total += page.Removed; page.Last == nil {
			if total > 0 {
				r.log.Info("old rows removed", "what", "coupons", "template_id", id, "count", total)
			}
			return nil
		}
		p.After = *page.Last
		if !service.Sleep(ctx, retentionPause) {
			return context.Cause(ctx)
		}
	}
}

// errPlacesKept is logged once per process and template: nothing else would tell.
var errPlacesKept = errors.New("places are still promised to its waiting line; if no instance uses the Redis of that line any more, run: largesse template release-places ID")

// archive archives a template that is over, unless it was looked at too recently.
func (r *retention) archive(ctx context.Context, id reward.TemplateID, before, now time.Time) (bool, error) {
	began, last := time.Now(), r.looks[id]
	if began.Before(last.next) {
		return false, nil
	}
	archived, err := r.rows.TemplateArchive(ctx, id, before, now)
	if archived {
		delete(r.looks, id)
		return true, err
	}
	if err == nil && !last.told {
		if t, err := r.rows.TemplateGet(ctx, id); err == nil && t.Promised() > 0 {
			r.log.Warn("old template cannot be archived", errPlacesKept, "template_id", id, "places", t.Promised())
			last.told = true
		}
	}
	last.next = time.Now().Add(min(lookRest*time.Since(began), lookRestMax))
	if r.looks == nil {
		r.looks = make(map[reward.TemplateID]look)
	}
	r.looks[id] = last
	return false, err
}

// payouts archives promotions that ended before a time, and removes their payouts. It
// archives first, in a transaction of its own: from then on no target can be saved
// again, so a crash in between leaves rows that the next round removes.
func (r *retention) payouts(ctx context.Context, before, now time.Time) error {
	var last store.EndedPromotion
	var failed []error
	for {
		page, err := r.rows.PromotionEnded(ctx, before, last, retentionBatch)
		if err != nil {
			return errors.Join(append(failed, fmt.Errorf("payouts: %w", err))...)
		}
		for _, p := range page {
			last = p
			if err := r.payoutsOf(ctx, p, before, now); err != nil {
				failed = append(failed, fmt.Errorf("payouts of promotion %d: %w", p.ID, err))
			}
			if len(failed) == retentionFailuresMax || ctx.Err() != nil {
				return errors.Join(failed...)
			}
		}
		if len(page) < retentionBatch {
			return errors.Join(failed...)
		}
	}
}

// payoutsOf archives a promotion, if nothing of it is open, and removes its payouts.
func (r *retention) payoutsOf(ctx context.Context, ended store.EndedPromotion, before, now time.Time) error {
	id := ended.ID
	if !ended.Archived {
		if archived, err := r.rows.PromotionArchive(ctx, id, before, now); err != nil || !archived {
			return err
		}
		r.log.Info("promotion archived", "promotion_id", id)
	}
	p := store.PayoutForgetParams{PromotionID: id, Limit: retentionBatch, Before: before}
	for total := 0; ; {
		page, err := r.rows.PayoutForget(ctx, p)
		if err != nil {
			return err
		}
		total += page.Removed
		if p.After = page.Last; p.After == nil {
			if total > 0 {
				r.log.Info("old rows removed", "what", "payouts", "promotion_id", id, "count", total)
			}
			return nil
		}
		if !service.Sleep(ctx, retentionPause) {
			return ctx.Err()
		}
	}
}

// remove calls forget until it removes less than a batch.
func (r *retention) remove(ctx context.Context, what string, forget func() (int, error)) error {
	total := 0
	for {
		n, err := forget()
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if total += n; n < retentionBatch {
			break
		}
		if !service.Sleep(ctx, retentionPause) {
			return ctx.Err()
		}
	}
	if total > 0 {
		r.log.Info("old rows removed", "what", what, "count", total)
	}
	return nil
}
