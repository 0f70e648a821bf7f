package campaign

import (
	"context"
	"hash/maphash"
	"sync/atomic"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// dryRunTargetsMax limits the targets that a dry run remembers to find repeats: about
	// 100 MB.
	dryRunTargetsMax = 2_000_000
	// dryRunsTargetsMax limits those of all dry runs of an instance. One whose file arrives
	// slowly remembers little, and holds up no other.
	dryRunsTargetsMax = 4 * dryRunTargetsMax
)

// dryRun returns the result that an upload would have, without saving anything.
func (u *Uploads) dryRun(ctx context.Context, reader *TargetReader, view store.PromotionView) (UploadResult, error) {
	d := u.newRehearsal(u.cfg.Rows, view)
	defer d.forget()
	err := pump(ctx, reader, d.handle)
	return d.result, err
}

// rehearsal totals a file against the stored rows and the file's earlier lines.
type rehearsal struct {
	tally
	rows       uploadRows // nil: no rows are stored
	targetsMax int
	all        *atomic.Int64 // targets that dry runs remember
	// seen has the fingerprint of the row that each target has or would get.
	seen map[reward.TargetID]uint64
	seed maphash.Seed
}

// newRehearsal returns a rehearsal; rows is nil if none are stored. It ends with forget.
func (u *Uploads) newRehearsal(rows uploadRows, view store.PromotionView) *rehearsal {
	return &rehearsal{
		tally: newTally(view), rows: rows, targetsMax: u.cfg.DryRunTargetsMax, all: &u.rehearsed,
		seen: make(map[reward.TargetID]uint64), seed: maphash.MakeSeed(),
	}
}

// forget ends a rehearsal.
func (d *rehearsal) forget() { d.all.Add(-int64(len(d.seen))) }

func (d *rehearsal) handle(ctx context.Context, b targetBatch) error {
	if err := d.fits(b); err != nil {
		return err
	}
	before := len(d.seen)
	defer func() { d.all.Add(int64(len(d.seen) - before)) }()
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
	if d.all.Load()+int64(len(d.seen)-before) > dryRunsTargetsMax {
		return reward.NewError(reward.KindUnavailable, reward.CodeUnavailable,
			"the dry runs of this instance have more than %d targets in all; try again later", dryRunsTargetsMax)
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
