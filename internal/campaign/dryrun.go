package campaign

import (
	"context"
	"hash/maphash"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// dryRunTargetsMax limits the targets that a dry run remembers to find
	// repeats: about 100 MB for each of the dryRunsMax concurrent dry runs.
	dryRunTargetsMax = 2_000_000
	dryRunsMax       = 4
)

// enterDryRun waits until a dry run may begin, and returns what ends it.
func (u *Uploads) enterDryRun(ctx context.Context) (leave func(), err error) {
	select {
	case u.dryRuns <- struct{}{}:
		return func() { <-u.dryRuns }, nil
	case <-ctx.Done():
		return nil, bodyBroken(context.Cause(ctx))
	}
}

// dryRun returns the result that an upload would have, without saving anything.
func (u *Uploads) dryRun(ctx context.Context, reader *TargetReader, view store.PromotionView) (UploadResult, error) {
	leave, err := u.enterDryRun(ctx)
	if err != nil {
		return UploadResult{}, err
	}
	defer leave()
	d := newRehearsal(u.cfg.Rows, view, u.cfg.DryRunTargetsMax)
	err = pump(ctx, reader, d.handle)
	return d.result, err
}

// rehearsal totals a file against the stored rows and the file's earlier lines.
type rehearsal struct {
	tally
	rows       uploadRows // nil: no rows are stored
	targetsMax int
	// seen has the fingerprint of the row that each target has or would get.
	seen map[reward.TargetID]uint64
	seed maphash.Seed
}

func newRehearsal(rows uploadRows, view store.PromotionView, targetsMax int) *rehearsal {
	return &rehearsal{
		tally: newTally(view), rows: rows, targetsMax: targetsMax,
		seen: make(map[reward.TargetID]uint64), seed: maphash.MakeSeed(),
	}
}

func (d *rehearsal) handle(ctx context.Context, b targetBatch) error {
	if err := d.fits(b); err != nil {
		return err
	}
	if err := d.readStored(ctx, b.rows); err != nil {
		return err
	}
	outcomes := make([]store.SaveOutcome, len(b.rows))
	for i, r := range b.rows {
		print := d.fingerprint(r.UserID, r.Amount, r.VoucherCode)
		switch before, repeat := d.seen[r.TargetID]; {
		case !repeat:
			d.seen[r.TargetID] = print
			outcomes[i] = store.Accepted
		case before == print:
			outcomes[i] = store.Duplicate
		default:
			outcomes[i] = store.Conflict
		}
	}
	if len(d.seen) > d.targetsMax {
		return reward.NewError(reward.KindInvalid, CodeDryRunTooLarge,
			"a dry run takes at most %d targets; split the file for it", d.targetsMax)
	}
	d.add(b, outcomes)
	return nil
}

// readStored adds the stored rows to seen.
func (d *rehearsal) readStored(ctx context.Context, rows []store.NewPayout) error {
	ids := make([]store.PayoutID, 0, len(rows))
	for _, r := range rows {
		if _, ok := d.seen[r.TargetID]; !ok {
			ids = append(ids, store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID})
		}
	}
	if len(ids) == 0 || d.rows == nil {
		return nil
	}
	stored, err := d.rows.PayoutGetMany(ctx, ids)
	for _, r := range stored {
		d.seen[r.TargetID] = d.fingerprint(r.UserID, r.Amount, r.VoucherCode)
	}
	return err
}

// fingerprint hashes the fields that make a repeated target equal.
func (d *rehearsal) fingerprint(user string, amount reward.Amount, voucher string) uint64 {
	return maphash.Comparable(d.seed, store.NewPayout{UserID: user, Amount: amount, VoucherCode: voucher})
}
