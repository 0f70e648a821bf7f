package payout

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Producer adds an entry to the stream for each dispatched payout, and tries that
// once. If the queue refuses an entry, the Producer returns the payout to READY.
// If it is unknown whether the queue added an entry, the sweeper finds out and
// returns the payout if the entry is missing.
type Producer struct {
	Queue queue.Queue
	Rows  store.Payouts // sets the time of each write
	// MaxLen limits the entries of each stream.
	MaxLen int
	// DispatchHorizon is Limits.DispatchHorizon. The queue refuses to add an
	// entry whose dispatch is older than half of it; see queueClock.deadline.
	DispatchHorizon time.Duration
	Lease           time.Duration // of an entry
	// Streams hears whether the queue takes entries.
	Streams *streamHealth
	Log     obs.Log
	clock   *queueClock // nil: all clocks are right
}

// addTimeout limits an add, also during a stop.
const addTimeout = 5 * time.Second

// Enqueue adds entries for payouts that have just become QUEUED, and returns how
// many the queue accepted. There are at most store.BatchMax payouts, of promotions
// of type t; those of one promotion must be adjacent and dispatched at one time. The
// rows are QUEUED, so it adds their entries even if ctx ends: otherwise they would wait
// for a dispatch horizon after each stop.
func (p *Producer) Enqueue(ctx context.Context, t reward.PromotionType, dispatched []reward.Payout) int {
	taken := 0
	for len(dispatched) > 0 {
		id := dispatched[0].PromotionID
		n := 1
		for n < len(dispatched) && dispatched[n].PromotionID == id {
			n++
		}
		taken += p.add(ctx, queue.Stream{Type: t, PromotionID: id}, dispatched[:n])
		dispatched = dispatched[n:]
	}
	return taken
}

// StreamLen returns the length of a promotion's stream, or MaxLen if the queue
// cannot tell.
func (p *Producer) StreamLen(ctx context.Context, v store.PromotionView) int {
	info, err := p.Queue.Info(ctx, queue.StreamOf(v.Promotion))
	if err != nil {
		return p.MaxLen
	}
	return int(info.Len)
}

func (p *Producer) add(ctx context.Context, s queue.Stream, payouts []reward.Payout) int {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), addTimeout)
	defer cancel()
	log := p.Log.For(obs.Producer)
	entries := make([]queue.NewEntry, len(payouts))
	buf := make([]byte, 0, 128*len(payouts))
	for i := range payouts {
		from := len(buf)
		m := payouts[i].Message()
		buf = m.AppendJSON(buf)
		entries[i] = queue.NewEntry{TargetID: m.TargetID, Dispatch: payouts[i].Dispatch, Message: buf[from:len(buf):len(buf)]}
	}
	added, err := p.Queue.Add(ctx, queue.AddParams{
		Stream: s, MaxLen: p.MaxLen, Deadline: p.clock.deadline(s, payouts[0].DueAt, p.DispatchHorizon), Entries: entries,
	})
	if err != nil {
		p.Streams.failed(s, err)
		return 0
	}
	p.Streams.works(s)
	log.Debug("payouts enqueued", "promotion_id", s.PromotionID, "count", added)
	if added == len(payouts) {
		return added
	}
	refs := make([]reward.Ref, 0, len(payouts)-added)
	for _, r := range payouts[added:] {
		refs = append(refs, r.Ref())
	}
	// MaybeCalled is not set: the queue has refused the entries, so nobody can
	// charge for this dispatch. If this write fails, the rows stay QUEUED until
	// the sweeper returns them.
	if _, err := p.Rows.PayoutReturn(ctx, store.PayoutReturnParams{Refs: refs, Lease: p.Lease}); err != nil {
		log.Warn("returning payouts failed", err, "promotion_id", s.PromotionID, "count", len(refs))
	}
	return added
}
