package pool

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/service"
)

// pollFloor is the shortest pause after an empty poll.
const pollFloor = time.Millisecond

// poll reads new entries for all consumers in one round trip, as long as any
// of them has a free place. After an empty poll it pauses, from pollFloor
// doubling to PollInterval, or until a hint or a freed place. It never uses a
// blocking read. [createPollingTask]
func (p *Pool) poll(readCtx, workCtx context.Context) {
	log := p.cfg.Log.For(obs.Poller)
	created, failures := 0, 0 // consumers registered; commands failed in a row
	pause := pollFloor
	for readCtx.Err() == nil {
		if names := p.Consumers(); created < len(names) {
			// Registers the consumers, and makes the group when it is missing.
			if err := p.cfg.Queue.Create(readCtx, p.stream, names); err != nil {
				failures++
				p.outage(readCtx, log, err, failures)
				continue
			}
			created = len(names)
			log.Info(obs.GroupCreated, "promotion_id", p.stream.PromotionID, "consumers", created)
		}
		reads := p.reads()
		if len(reads) == 0 || !p.alive() || !p.taking() {
			p.rest(readCtx, p.cfg.PollInterval)
			continue
		}
		// Not under readCtx: what the queue has given out must not be lost on a
		// stop.
		bounded, cancel := context.WithTimeout(workCtx, p.cfg.StopTimeout)
		entries, err := p.cfg.Queue.Read(bounded, p.stream, reads)
		cancel()
		if err != nil {
			failures++
			p.outage(readCtx, log, err, failures)
			continue
		}
		if failures > 0 {
			log.Info(obs.Recovered, "promotion_id", p.stream.PromotionID, "failures", failures)
			failures = 0
			created = 0 // the server may have forgotten the consumers
		}
		if len(entries) > 0 {
			pause = pollFloor
			p.cfg.Handler.Handle(workCtx, p.take(entries, ""))
			continue
		}
		if p.idleFor() >= p.cfg.IdleTimeout {
			p.cfg.Metrics.PoolIdleStopped()
			log.Info(obs.IdleStop, "promotion_id", p.stream.PromotionID)
			return
		}
		if p.rest(readCtx, pause) {
			pause = pollFloor
		} else {
			pause = min(2*pause, p.cfg.PollInterval)
		}
	}
}

// reads asks, for each consumer with free places, for at most BatchSize
// entries at a time.
func (p *Pool) reads() []queue.ReadParams {
	p.mu.Lock()
	defer p.mu.Unlock()
	var reads []queue.ReadParams
	for i, name := range p.names {
		for free := p.freeLocked(i); free > 0; free -= p.cfg.BatchSize {
			reads = append(reads, queue.ReadParams{Consumer: name, Count: min(free, p.cfg.BatchSize)})
		}
	}
	return reads
}

// rest waits for d, or less when hinted; it says whether it was hinted.
func (p *Pool) rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.wake:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// outage pauses after a failed command: growing, jittered, and with one line
// in the log when it begins and each time the failures have doubled.
func (p *Pool) outage(ctx context.Context, log obs.Log, err error, failures int) {
	if ctx.Err() != nil {
		return
	}
	if failures&(failures-1) == 0 {
		log.Warn(obs.Unavailable, err, "promotion_id", p.stream.PromotionID, "failures", failures)
	}
	service.Sleep(ctx, service.Backoff(failures, 10*time.Millisecond, 2*time.Second))
}

// idleFor is how long the promotion has had nothing to do, as far as this
// instance has seen and been told.
func (p *Pool) idleFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.items) > 0 {
		return 0
	}
	return time.Since(p.lastWork)
}

// tend renews the leases of what is in hand and claims what others left. It
// registers the consumers again too: a server that lost everything gets the
// group back from the next read, but not those who have not read yet. That the
// queue is away is for the poller to tell.
func (p *Pool) tend(ctx context.Context) {
	log := p.cfg.Log.For(obs.Consumer)
	tick := time.NewTicker(p.cfg.Lease / 5)
	defer tick.Stop()
	for {
		if p.alive() {
			p.claim(ctx, log)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !p.alive() {
			continue
		}
		p.extend(ctx, log)
		if err := p.cfg.Queue.Create(ctx, p.stream, p.Consumers()); err != nil && ctx.Err() == nil {
			log.Debug(obs.Unavailable, "error", err, "promotion_id", p.stream.PromotionID)
		}
	}
}

// extend renews every lease that has less than nine tenths left, so that a
// healthy one always outlasts a call. A lease that
// has run out is never renewed: somebody else may have claimed the entry.
func (p *Pool) extend(ctx context.Context, log obs.Log) {
	type hand struct {
		ids   []string
		items map[string]*Item
	}
	hands := make(map[string]*hand)
	p.mu.Lock()
	for it := range p.items {
		left := it.LeaseLeft()
		if left <= 0 || left > p.cfg.Lease*9/10 {
			continue
		}
		h := hands[it.Consumer]
		if h == nil {
			h = &hand{items: make(map[string]*Item)}
			hands[it.Consumer] = h
		}
		h.ids = append(h.ids, it.ID)
		h.items[it.ID] = it
	}
	p.mu.Unlock()
	for consumer, h := range hands {
		// The new lease counts from before the command: it is never thought to
		// last longer than it does.
		asked := time.Since(p.startedAt)
		owned, err := p.cfg.Queue.Extend(ctx, p.stream, consumer, h.ids)
		if err != nil {
			if ctx.Err() == nil {
				log.Debug(obs.Unavailable, "error", err, "promotion_id", p.stream.PromotionID, "consumer", consumer)
			}
			continue
		}
		for _, id := range owned {
			h.items[id].leaseEnd.Store(int64(asked + p.cfg.Lease))
		}
	}
}

// claim takes over entries whose consumer has let its lease run out.
func (p *Pool) claim(ctx context.Context, log obs.Log) {
	for ctx.Err() == nil {
		consumer, free := p.freest()
		if free <= 0 {
			return
		}
		entries, err := p.cfg.Queue.Claim(ctx, queue.ClaimParams{
			Stream: p.stream, Consumer: consumer, MinIdle: p.cfg.Lease, Count: min(free, 100),
		})
		if len(entries) > 0 {
			p.cfg.Metrics.Claimed(len(entries))
			log.Info(obs.Claimed, "promotion_id", p.stream.PromotionID, "count", len(entries))
			p.cfg.Handler.Handle(ctx, p.take(entries, consumer))
		}
		if err != nil && ctx.Err() == nil {
			log.Debug(obs.Unavailable, "error", err, "promotion_id", p.stream.PromotionID)
		}
		if err != nil || len(entries) == 0 {
			return
		}
	}
}

func (p *Pool) freest() (name string, free int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, n := range p.names {
		if f := p.freeLocked(i); f > free {
			name, free = n, f
		}
	}
	return name, free
}
