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

// dryRun returns the result that an upload would have, without saving anything.
func (u *Uploads) dryRun(ctx context.Context, reader *TargetReader, view store.PromotionView) (UploadResult, error) {
	select {
	case u.dryRuns <- struct{}{}:
		defer func() { <-u.dryRuns }()
	case <-ctx.Done():
		return UploadResult{}, bodyBroken(context.Cause(ctx))
	}
	d := newRehearsal(u.cfg.Rows, view, u.cfg.DryRunTargetsMax)
	err := pump(ctx, reader, d.handle)
	return d.result, err
}

// rehearsal totals a file against the stored rows and the file's earlier lines.
type rehearsal struct {
	tally
	rows       uploadRows
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
	known, err := d.known(ctx, b.rows)
	if err != nil {
		return err
	}
	outcomes := make([]store.SaveOutcome, len(b.rows))
	for i, r := range b.rows {
		print := d.fingerprint(r.UserID, r.Amount, r.VoucherCode)
		before, repeat := d.seen[r.TargetID]
		if !repeat {
			before, repeat = known[r.TargetID]
			if !repeat {
				before = print
			}
			d.seen[r.TargetID] = before
		}
		switch {
		case !repeat:
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

func (d *rehearsal) known(ctx context.Context, rows []store.NewPayout) (map[reward.TargetID]uint64, error) {
	ids := make([]store.PayoutID, 0, len(rows))
	for _, r := range rows {
		if _, ok := d.seen[r.TargetID]; !ok {
			ids = append(ids, store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID})
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	heads, err := d.rows.PayoutGetMany(ctx, ids)
	if err != nil {
		return nil, err
	}
	known := make(map[reward.TargetID]uint64, len(heads))
	for _, h := range heads {
		known[h.TargetID] = d.fingerprint(h.UserID, h.Amount, h.VoucherCode)
	}
	return known, nil
}

// fingerprint hashes the fields that make a repeated target equal.
func (d *rehearsal) fingerprint(user string, amount reward.Amount, voucher string) uint64 {
	return maphash.Comparable(d.seed, store.NewPayout{UserID: user, Amount: amount, VoucherCode: voucher})
}
