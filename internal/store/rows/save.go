package rows

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// Insertion is a batch of payouts to insert, with what rules make of new ones.
type Insertion struct {
	Rows    []store.NewPayout // each target once
	Intakes []Intake          // of each promotion, by ID
	// Guard fails with ErrStale if an intake does not hold any more. It comes after the lock
	// of the counts.
	Guard Statement
	// Offsets has the highest offset of each partition, in key order. They are stored
	// unless a row is known with other content, or refused.
	Offsets     []store.Offset
	DeadLetters []Statement
	MaxLen      int // limits the QUEUED rows of each promotion
	Now         time.Time
}

// Intake is what a promotion makes of its new rows.
type Intake struct {
	reward.Promotion
	rules.Bounds              // within which, with all new rows, they become QUEUED while there is room
	State        reward.State // of the others
	Refuses      bool         // the promotion is archived, and takes none
	// Unvalued becomes Approval.Unvalued if a new row has no amount; 0 if it is that already.
	Unvalued int32
}

// Inserted says how an Insertion ended.
type Inserted struct {
	Known  map[store.PayoutID]store.NewPayout // rows that existed, as they are
	Queued []store.PayoutID                   // new rows that are QUEUED
}

// PayoutSave inserts a batch of payouts in one transaction, together with
// their counts, partition offsets and dead letters. The promotions must exist.
// A batch may name several promotions.
//
// New rows of a CANCELLED promotion are CANCELLED. Those of a RUNNING promotion become
// QUEUED with dispatch 1, from the front of the batch, as long as MaxLen has capacity, if
// the promotion stays within rules.Bounds with the whole batch. All others are READY.
// A COMPLETED promotion that gains rows becomes RUNNING again.
//
// If a batch names a target twice, the first one counts. Offsets never move
// back. If the outcome of any row is store.Conflict or store.Archived, the offsets are not stored:
// the caller stores them together with the dead letters of these rows. A dead
// letter with a known source, partition, offset and log is dropped.
func (t *Tables) PayoutSave(ctx context.Context, p store.PayoutSaveParams) (res store.PayoutSaveResult, err error) {
	const what = "save payouts"
	b, err := newSaveBatch(p.Rows)
	if err != nil {
		return store.PayoutSaveResult{}, err
	}
	in := Insertion{Rows: b.rows, DeadLetters: AddDeadLetters(p.DeadLetters), MaxLen: p.MaxLen, Now: p.Now}
	if !b.conflicting {
		in.Offsets = highest(p.Offsets)
	}
	err = whileStale(what, func() error {
		if err := t.takeIn(ctx, what, b, p.ApprovalAbove, &in); err != nil {
			return err
		}
		done, err := t.payouts.Insert(ctx, what, in)
		if err == nil {
			res = b.result(p.Rows, &in, done)
		}
		return err
	})
	if err != nil {
		return store.PayoutSaveResult{}, err
	}
	return res, nil
}

// takeIn reads the promotions of a batch, and lets rules decide about its new rows.
func (t *Tables) takeIn(ctx context.Context, what string, b *saveBatch, above reward.Limits, in *Insertion) error {
	if len(b.rows) == 0 {
		return nil
	}
	views, err := list(ctx, t.db.Read, what, scanView, ViewsOf, b.ids)
	switch {
	case err != nil:
		return err
	case len(views) < len(b.ids):
		return reward.NewError(reward.KindNotFound, reward.CodeNotFound, "a payout names a promotion that does not exist")
	}
	in.Intakes = make([]Intake, len(views))
	read := make([]readPromotion, len(views))
	for i := range views {
		p := views[i].Promotion
		read[i] = readOf(&p)
		k := Intake{Promotion: p, State: rules.Saved(p), Refuses: !p.ArchivedAt.IsZero()}
		if b.unvalued[p.ID] && p.Approval.Unvalued <= p.Approval.Round {
			k.Unvalued = p.Approval.Round + 1
			p.Approval.Unvalued = k.Unvalued
		}
		k.Bounds = rules.BoundsOf(p, above, in.Now)
		in.Intakes[i] = k
	}
	in.Guard = t.guard(read...)
	return nil
}

// saveBatch has the first row of each target of a batch.
type saveBatch struct {
	rows        []store.NewPayout
	first       map[store.PayoutID]int // its position in the caller's rows
	conflicting bool                   // two rows of a target differ
	ids         []reward.PromotionID   // ascending
	unvalued    map[reward.PromotionID]bool
}

func newSaveBatch(all []store.NewPayout) (*saveBatch, error) {
	b := &saveBatch{
		rows: make([]store.NewPayout, 0, len(all)), first: make(map[store.PayoutID]int, len(all)), unvalued: make(map[reward.PromotionID]bool),
	}
	for i := range all {
		r := &all[i]
		if err := r.Check(); err != nil {
			return nil, err
		}
		id := store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}
		if at, ok := b.first[id]; ok {
			b.conflicting = b.conflicting || !SameContent(&all[at], r)
			continue
		}
		b.first[id] = i
		b.rows = append(b.rows, *r)
		if _, ok := b.unvalued[r.PromotionID]; !ok {
			b.ids = append(b.ids, r.PromotionID)
		}
		b.unvalued[r.PromotionID] = b.unvalued[r.PromotionID] || r.Amount == 0
	}
	slices.Sort(b.ids)
	return b, nil
}

// result returns the outcome of every row of the caller. It compares a row with
// the stored row of its target: the one that was known before, or the first one
// of the batch.
func (b *saveBatch) result(all []store.NewPayout, in *Insertion, done Inserted) store.PayoutSaveResult {
	res := store.PayoutSaveResult{Outcomes: make([]store.SaveOutcome, len(all)), Queued: make([]reward.Payout, 0, len(done.Queued))}
	refuses := make(map[reward.PromotionID]bool)
	for i := range in.Intakes {
		refuses[in.Intakes[i].ID] = in.Intakes[i].Refuses
	}
	for i := range all {
		r := &all[i]
		id := store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}
		stands, known := done.Known[id]
		switch {
		case !known && refuses[r.PromotionID]:
			res.Outcomes[i] = store.Archived
			continue
		case !known && b.first[id] == i:
			continue // Accepted
		case !known:
			stands = all[b.first[id]]
		}
		res.Outcomes[i] = store.Conflict
		if SameContent(&stands, r) {
			res.Outcomes[i] = store.Duplicate
		}
	}
	now := instant(in.Now)
	for _, id := range done.Queued {
		r := &all[b.first[id]]
		res.Queued = append(res.Queued, reward.Payout{
			PromotionID: r.PromotionID, TargetID: r.TargetID, SummaryID: r.SummaryID, UserID: r.UserID, Amount: r.Amount,
			VoucherCode: r.VoucherCode, State: reward.Queued, Dispatch: 1, DueAt: now, FirstDispatchedAt: now, UpdatedAt: now, Trace: r.Trace,
		})
	}
	return res
}

// SameContent reports whether two rows of a target pay the same.
func SameContent(a, b *store.NewPayout) bool {
	return a.Amount == b.Amount && a.UserID == b.UserID && a.VoucherCode == b.VoucherCode
}

// highest returns the highest offset of each partition, in key order.
func highest(offsets []store.Offset) []store.Offset {
	sorted := slices.SortedFunc(slices.Values(offsets), func(a, b store.Offset) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(b.Next, a.Next))
	})
	return slices.CompactFunc(sorted, func(a, b store.Offset) bool { return a.Topic == b.Topic && a.Partition == b.Partition })
}

// continueEnded lets promotion $1, which has ended in the status $2, continue in $3 if it
// has payouts left.
const continueEnded = `UPDATE promotions SET finished_at = NULL, status = $3, stream_gone = stream_gone AND $4
WHERE id = $1 AND status = $2 AND finished_at IS NOT NULL AND EXISTS (
  SELECT 1 FROM summaries s WHERE s.promotion_id = $1 AND s.summary_id = 0 AND s.ready + s.queued + s.retrying > 0)`

// ContinueEnded returns the statements by which promotions continue that have ended and have
// payouts left, as rules.Reopen says.
func ContinueEnded(ids ...reward.PromotionID) []Statement {
	var all []Statement
	for _, id := range ids {
		for _, ended := range []reward.PromotionStatus{reward.Completed, reward.PromotionCancelled} {
			p := rules.Reopen(reward.Promotion{Status: ended, StreamDestroyed: true})
			all = append(all, Statement{SQL: continueEnded, Args: []any{int64(id), string(ended), string(p.Status), p.StreamDestroyed}})
		}
	}
	return all
}
