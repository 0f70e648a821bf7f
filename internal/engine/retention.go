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
	rows     retainedRows
	gate     templateRemover
	periods  config.Retention
	instance string
	log      obs.Log

	looks map[reward.TemplateID]look // at templates that are not over
}

type retainedRows interface {
	store.Leases
	Clock(ctx context.Context) (time.Time, error)
	AuditForget(ctx context.Context, before time.Time, limit int) (int, error)
	DeadLetterForget(ctx context.Context, status reward.DeadLetterStatus, before time.Time, limit int) (int, error)
	PromotionEnded(ctx context.Context, before time.Time, after store.EndedPromotion, limit int) ([]store.EndedPromotion, error)
	PromotionArchive(ctx context.Context, id reward.PromotionID, before, now time.Time) (bool, error)
	PayoutForget(ctx context.Context, p store.PayoutForgetParams) (store.PayoutForgotten, error)
	TemplateEnded(ctx context.Context, before time.Time, after store.EndedTemplate, limit int) ([]store.EndedTemplate, error)
	TemplateArchive(ctx context.Context, id reward.TemplateID, before, now time.Time) (bool, error)
	TemplateForget(ctx context.Context, p store.TemplateForgetParams) (store.TemplateForgotten, error)
	TemplateGet(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, error)
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
		Lead:  func(ctx context.Context) { every(ctx, retentionInterval, report, r.round) },
		Log:   r.log,
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
		failed = append(failed, r.remove(ctx, func() (int, bool, error) {
			n, err := r.rows.AuditForget(ctx, now.Add(-keep), retentionBatch)
			return n, n == retentionBatch, named("audit entries", err)
		}, "what", "audit entries"))
	}
	if keep := r.periods.DeadLetters; keep > 0 {
		for _, status := range []reward.DeadLetterStatus{reward.DeadLetterReplayed, reward.DeadLetterDiscarded} {
			failed = append(failed, r.remove(ctx, func() (int, bool, error) {
				n, err := r.rows.DeadLetterForget(ctx, status, now.Add(-keep), retentionBatch)
				return n, n == retentionBatch, named("dead letters", err)
			}, "what", "dead letters"))
		}
	}
	if keep := r.periods.Payouts; keep > 0 {
		before := now.Add(-keep)
		failed = append(failed, eachEnded(ctx, func(last store.EndedPromotion) ([]store.EndedPromotion, error) {
			page, err := r.rows.PromotionEnded(ctx, before, last, retentionBatch)
			return page, named("payouts", err)
		}, func(p store.EndedPromotion) error {
			return named(fmt.Sprintf("payouts of promotion %d", p.ID), r.payoutsOf(ctx, p, before, now))
		}))
	}
	if keep := r.periods.Coupons; keep > 0 {
		before := now.Add(-keep)
		failed = append(failed, eachEnded(ctx, func(last store.EndedTemplate) ([]store.EndedTemplate, error) {
			page, err := r.rows.TemplateEnded(ctx, before, last, retentionBatch)
			return page, named("coupons", err)
		}, func(t store.EndedTemplate) error {
			return named(fmt.Sprintf("coupons of template %d", t.ID), r.couponsOf(ctx, t, before, now))
		}))
	}
	return errors.Join(failed...)
}

func named(rows string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", rows, err)
}

// eachEnded calls work for all promotions or templates that list returns in pages, each
// after the last of the page before. It ends early after retentionFailuresMax failures.
func eachEnded[T any](ctx context.Context, list func(last T) ([]T, error), work func(T) error) error {
	var last T
	var failed []error
	for {
		page, err := list(last)
		if err != nil {
			return errors.Join(append(failed, err)...)
		}
		for _, last = range page {
			if err := work(last); err != nil {
				failed = append(failed, err)
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
// rows. It archives first, in a transaction of its own: from then on nothing of the
// template changes, so a crash in between leaves rows that the next round removes. The
// gate comes before the rows: with its last row, a template is not looked at again.
func (r *retention) couponsOf(ctx context.Context, t store.EndedTemplate, before, now time.Time) error {
	if !t.Archived {
		if archived, err := r.archive(ctx, t.ID, before, now); err != nil || !archived {
			return err
		}
		r.log.Info("template archived", "template_id", t.ID)
	}
	if err := r.gate.Remove(ctx, t.ID); err != nil {
		return err
	}
	p := store.TemplateForgetParams{TemplateID: t.ID, Limit: retentionBatch}
	return r.remove(ctx, func() (int, bool, error) {
		page, err := r.rows.TemplateForget(ctx, p)
		if page.Last != nil {
			p.After = *page.Last
		}
		return page.Removed, page.Last != nil, err
	}, "what", "coupons", "template_id", t.ID)
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

// payoutsOf archives a promotion, if nothing of it is open, and removes its payouts. It
// archives first, in a transaction of its own: from then on no target can be saved
// again, so a crash in between leaves rows that the next round removes.
func (r *retention) payoutsOf(ctx context.Context, ended store.EndedPromotion, before, now time.Time) error {
	if !ended.Archived {
		if archived, err := r.rows.PromotionArchive(ctx, ended.ID, before, now); err != nil || !archived {
			return err
		}
		r.log.Info("promotion archived", "promotion_id", ended.ID)
	}
	p := store.PayoutForgetParams{PromotionID: ended.ID, Limit: retentionBatch, Before: before}
	return r.remove(ctx, func() (int, bool, error) {
		page, err := r.rows.PayoutForget(ctx, p)
		p.After = page.Last
		return page.Removed, page.Last != nil, err
	}, "what", "payouts", "promotion_id", ended.ID)
}

// remove calls forget, which removes a page and reports whether there may be another one,
// until there is none. attrs say in the log what was removed.
func (r *retention) remove(ctx context.Context, forget func() (n int, more bool, err error), attrs ...any) error {
	for total := 0; ; {
		n, more, err := forget()
		if err != nil {
			return err
		}
		if total += n; !more {
			if total > 0 {
				r.log.Info("old rows removed", append(attrs, "count", total)...)
			}
			return nil
		}
		if !service.Sleep(ctx, retentionPause) {
			return ctx.Err()
		}
	}
}
