package payout

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// Producer saves targets as rows, and adds an entry to the stream for each dispatched
// payout, once. It returns a payout to READY if the queue refuses its entry. If it is
// unknown whether the queue added an entry, the sweeper finds out.
type Producer struct {
	*shared
	health *streamHealth
	log    obs.Log
}

func newProducer(s *shared) *Producer {
	return &Producer{shared: s, health: newStreamHealth(s), log: s.cfg.Log.For(obs.Producer)}
}

// Save writes at most store.BatchMax rows of promotions of type t (see
// rows.Driver.PayoutSave; it sets MaxLen), and adds an entry for each that became
// QUEUED. After a crash in between, the sweeper returns these rows to READY.
func (p *Producer) Save(ctx context.Context, t reward.PromotionType, params store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	params.MaxLen = p.cfg.MaxLen
	if p.cfg.Direct || !p.clock.acceptsAll() {
		params.MaxLen = 0 // the rows wait for a feeder with capacity, whose clock the queue accepts
	}
	res, err := p.rows.PayoutSave(ctx, params)
	if err != nil {
		return res, err
	}
	// One add per promotion, in the order of arrival.
	slices.SortStableFunc(res.Queued, func(a, b reward.Payout) int { return cmp.Compare(a.PromotionID, b.PromotionID) })
	p.Enqueue(ctx, t, res.Queued)
	return res, nil
}

// addTimeout limits an add, also during a stop.
const addTimeout = 5 * time.Second

// Enqueue adds entries for at most store.BatchMax payouts that have just become QUEUED,
// and returns how many the queue accepted. The payouts of one promotion must be adjacent
// and dispatched at one time. It adds them even if ctx ends: otherwise they would wait
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
	info, err := p.cfg.Queue.Info(ctx, queue.StreamOf(v.Promotion))
	if err != nil {
		return p.cfg.MaxLen
	}
	return int(info.Len)
}

func (p *Producer) add(ctx context.Context, s queue.Stream, payouts []reward.Payout) int {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), addTimeout)
	defer cancel()
	entries := make([]queue.NewEntry, len(payouts))
	buf := make([]byte, 0, 128*len(payouts))
	for i := range payouts {
		from := len(buf)
		m := payouts[i].Message()
		buf = m.AppendJSON(buf)
		entries[i] = queue.NewEntry{TargetID: m.TargetID, Dispatch: payouts[i].Dispatch, Message: buf[from:len(buf):len(buf)]}
	}
	added, err := p.cfg.Queue.Add(ctx, queue.AddParams{
		Stream: s, MaxLen: p.cfg.MaxLen, Deadline: p.clock.deadline(s, payouts[0].DueAt), Entries: entries,
	})
	if err != nil {
		p.health.failed(s, err)
		return 0
	}
	p.health.works(s)
	p.log.Debug("payouts enqueued", "promotion_id", s.PromotionID, "count", added)
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
	if _, err := p.rows.PayoutReturn(ctx, store.PayoutReturnParams{Refs: refs, Lease: p.cfg.Limits.Lease}); err != nil {
		p.log.Warn("returning payouts failed", err, "promotion_id", s.PromotionID, "count", len(refs))
	}
	return added
}

const (
	// tryInterval separates the tries whether streams work again, of tryMax streams at a
	// time, each for at most tryTimeout.
	tryInterval = time.Second
	tryMax      = 8
	tryTimeout  = time.Second
)

// streamHealth reports when entries cannot be added to the work streams, or read from
// them. It is safe for concurrent use.
type streamHealth struct {
	service.Base
	*shared

	mu      sync.Mutex            // protects failing
	failing map[queue.Stream]bool // the latest command failed
}

func newStreamHealth(s *shared) *streamHealth {
	return &streamHealth{shared: s, failing: make(map[queue.Stream]bool)}
}

func (h *streamHealth) failed(s queue.Stream, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failing[s] = true
	const effect = "dispatched payouts wait until it does"
	reason := "Redis did not say whether it took entries into the work streams: " + effect + "; check that it answers"
	if refusal := service.Refusal(err, "Redis", "the work stream of promotion "+s.PromotionID.String()+" needs", effect); refusal != "" {
		reason = refusal + "; largesse doctor has the remedy"
	}
	h.cfg.Troubles.Set(obs.PartStreams, reason)
}

func (h *streamHealth) works(s queue.Stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.failing[s] {
		return
	}
	if delete(h.failing, s); len(h.failing) == 0 {
		h.cfg.Troubles.Clear(obs.PartStreams)
	}
}

// run finds out when streams work again. Their promotions may have nothing to add or to
// read for long.
func (h *streamHealth) run(ctx context.Context) {
	for service.Sleep(ctx, service.Jitter(tryInterval, 0.1)) {
		var trying sync.WaitGroup
		for _, s := range h.some() {
			trying.Go(func() {
				ctx, cancel := context.WithTimeout(ctx, tryTimeout)
				defer cancel()
				if h.cfg.Queue.Try(ctx, s) == nil {
					h.works(s)
				}
			})
		}
		trying.Wait()
	}
}

func (h *streamHealth) some() []queue.Stream {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []queue.Stream
	for s := range h.failing {
		if out = append(out, s); len(out) == tryMax {
			break
		}
	}
	return out
}

const (
	compareInterval = 2 * time.Second // between two comparisons of the clocks
	compareTimeout  = 2 * time.Second // of one comparison
)

// queueClock compares the clocks of the queue's servers with the database's, which sets
// the time of each dispatch, and reports a difference that matters as a trouble. A
// comparison that fails changes nothing. Its methods are safe for concurrent use.
type queueClock struct {
	service.Base
	*shared
	log obs.Log

	clocks   atomic.Pointer[queue.Clocks] // nil before the first comparison
	compared chan struct{}                // closed after the first comparison
	once     sync.Once                    // closes compared
}

func newQueueClock(s *shared) *queueClock {
	return &queueClock{shared: s, log: s.cfg.Log.For(obs.Producer), compared: make(chan struct{})}
}

// local reports whether the queue is in this process. Its clock is that of this
// instance then, which may differ from the database's as much as it likes.
func (c *queueClock) local() bool { return c.cfg.Direct || c.cfg.QueueIsLocal }

func (c *queueClock) horizon() time.Duration { return c.cfg.Limits.DispatchHorizon() }

func (c *queueClock) run(ctx context.Context) {
	for {
		c.compare(ctx)
		if !service.Sleep(ctx, service.Jitter(compareInterval, 0.2)) {
			return
		}
	}
}

func (c *queueClock) compare(ctx context.Context) {
	defer c.once.Do(func() { close(c.compared) })
	bounded, cancel := context.WithTimeout(ctx, compareTimeout)
	defer cancel()
	clocks, err := c.cfg.Queue.Clocks(bounded)
	var earliest, latest time.Time
	if err == nil {
		earliest, latest, err = c.rows.clock.between(bounded)
	}
	if err != nil {
		c.log.Debug("comparing clocks failed", "error", err)
		return
	}
	accuracy := latest.Sub(earliest)
	here := time.Since(earliest.Add(accuracy / 2)) // how far this instance is ahead
	relative := func(k service.Clock) service.Clock {
		return service.Clock{Ahead: k.Ahead + here, RoundTrip: k.RoundTrip + accuracy}
	}
	of := clocks.Of
	clocks = queue.Clocks{Worst: relative(clocks.Worst), Of: func(s queue.Stream) service.Clock { return relative(of(s)) }}
	c.clocks.Store(&clocks)
	if reason := c.judge(clocks.Worst); reason != "" {
		c.cfg.Troubles.Set(obs.PartRedisClock, reason)
	} else {
		c.cfg.Troubles.Clear(obs.PartRedisClock)
	}
}

// judge returns what is wrong with a clock, or "" for a difference that is small.
func (c *queueClock) judge(clock service.Clock) string {
	if c.local() || clock.Skew() <= c.horizon()/10 {
		return ""
	}
	skew := clock.Ahead.Abs().Round(100 * time.Millisecond)
	const remedy = "synchronize both clocks by NTP"
	switch {
	case clock.Ahead > c.aheadMax():
		return fmt.Sprintf("Redis's clock is %s ahead of the database's: this instance dispatches no payouts until the difference is below %s; %s", skew, c.aheadMax(), remedy)
	case clock.Ahead > 0:
		return fmt.Sprintf("Redis's clock is %s ahead of the database's: this instance stops dispatching if the difference exceeds %s; %s", skew, c.aheadMax(), remedy)
	}
	return fmt.Sprintf("Redis's clock is %s behind the database's: payouts that Redis loses are noticed that much later; %s", skew, remedy)
}

// aheadMax is the largest difference at which an instance dispatches: a quarter of the
// horizon is left for the add then, because the deadline is at most one horizon after the
// dispatch.
func (c *queueClock) aheadMax() time.Duration { return c.horizon() * 3 / 4 }

func (c *queueClock) ahead(s queue.Stream) time.Duration {
	if clocks := c.clocks.Load(); clocks != nil {
		return clocks.Of(s).Ahead
	}
	return 0
}

// accepts reports whether the queue would accept a payout of a stream that is
// dispatched now.
func (c *queueClock) accepts(s queue.Stream) bool {
	return c.local() || c.ahead(s) <= c.aheadMax()
}

// acceptsAll reports whether the queue would accept every payout.
func (c *queueClock) acceptsAll() bool {
	clocks := c.clocks.Load()
	return c.local() || clocks == nil || clocks.Worst.Ahead <= c.aheadMax()
}

// deadline returns the time by the clock of a stream's server after which the queue must
// refuse a payout that was dispatched at dispatchedAt: half a horizon later, corrected by
// the difference of the clocks, but never more than one horizon later. So the sweeper
// returns no payout that has an entry or still gets one, even if the difference was
// measured wrong; see Sweeper.sweep. A queue in this process has the clock of this
// instance, so its difference is known exactly and needs no limit.
func (c *queueClock) deadline(s queue.Stream, dispatchedAt time.Time) time.Time {
	ahead := c.ahead(s)
	if !c.local() {
		ahead = min(ahead, c.horizon()/2)
	}
	return dispatchedAt.Add(c.horizon()/2 + ahead)
}
