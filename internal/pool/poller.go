package pool

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/service"
)

// pollIntervalMin is the shortest pause after an empty poll.
const pollIntervalMin = time.Millisecond

// poll reads new entries for all consumers in one round trip while any of them
// has capacity. After an empty poll it pauses, from pollIntervalMin doubling to
// PollInterval, or until a hint or freed capacity. It never uses a blocking
// read.
func (p *Pool) poll(readCtx, workCtx context.Context) {
	log := p.cfg.Log.For(obs.Poller)
	report := log.Streak("work queue unavailable", "work queue available again")
	pause := pollIntervalMin
	created, failures := 0, 0 // registered consumers; failed commands in a row
	for readCtx.Err() == nil {
		if names := p.Consumers(); created < len(names) {
			// Create also creates the group if it is missing.
			if err := p.cfg.Queue.Create(readCtx, p.stream, names); err != nil {
				failures++
				p.outage(readCtx, report, err, failures)
				continue
			}
			created = len(names)
			log.Info("consumers registered", "promotion_id", p.stream.PromotionID, "consumers", created)
		}
		reads := p.reads()
		if len(reads) == 0 || !p.healthy() || !p.acceptsWork() {
			p.rest(readCtx, p.cfg.PollInterval)
			continue
		}
		// Do not use readCtx: a stop must not lose entries that the queue has
		// delivered.
		bounded, cancel := context.WithTimeout(workCtx, p.cfg.StopTimeout)
		entries, err := p.cfg.Queue.Read(bounded, p.stream, reads)
		cancel()
		if err != nil {
			failures++
			p.outage(readCtx, report, err, failures)
			continue
		}
		if failures > 0 {
			report(nil, "promotion_id", p.stream.PromotionID)
			failures = 0
			created = 0 // the server may have lost the consumers
		}
		if len(entries) > 0 {
			pause = pollIntervalMin
			p.cfg.Handler.Handle(workCtx, p.take(entries, ""))
			continue
		}
		if p.idleFor() >= p.cfg.IdleTimeout {
			p.cfg.Metrics.PoolIdleStopped()
			log.Info("idle pool stopped", "promotion_id", p.stream.PromotionID)
			return
		}
		if p.rest(readCtx, pause) {
			pause = pollIntervalMin
		} else {
			pause = min(2*pause, p.cfg.PollInterval)
		}
	}
}

// reads returns read requests of at most BatchSize entries for each consumer
// with capacity.
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

// rest waits for d, or until a hint, and reports whether there was a hint.
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

// outage reports a failed command and pauses. The pause grows with the failures
// in a row.
func (p *Pool) outage(ctx context.Context, report func(error, ...any), err error, failures int) {
	if ctx.Err() != nil {
		return
	}
	report(err, "promotion_id", p.stream.PromotionID)
	service.Sleep(ctx, service.Backoff(failures, 10*time.Millisecond, 2*time.Second))
}

// idleFor returns how long the promotion has had no work, as far as this
// instance knows.
func (p *Pool) idleFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.items) > 0 {
		return 0
	}
	return time.Since(p.lastWork)
}

// maintain renews leases and claims expired entries. It also registers the
// consumers again: after a server lost its data, the next read restores the
// group, but not the consumers that have not read yet. The poller reports an
// unavailable queue.
func (p *Pool) maintain(ctx context.Context) {
	log := p.cfg.Log.For(obs.Consumer)
	tick := time.NewTicker(p.cfg.Lease / 5)
	defer tick.Stop()
	for {
		if p.healthy() {
			p.claim(ctx, log)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !p.healthy() {
			continue
		}
		p.extend(ctx, log)
		if err := p.cfg.Queue.Create(ctx, p.stream, p.Consumers()); err != nil && ctx.Err() == nil {
			log.Debug("registering consumers failed", "error", err, "promotion_id", p.stream.PromotionID)
		}
	}
}

// extend renews every lease that has less than nine tenths left, so that a call
// can count on nearly a whole lease. It never renews an expired lease: another
// consumer may have claimed the entry.
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
		// Count the new lease from before the command, so that it never seems
		// longer than it is.
		asked := time.Since(p.startedAt)
		owned, err := p.cfg.Queue.Extend(ctx, p.stream, consumer, h.ids)
		if err != nil {
			if ctx.Err() == nil {
				log.Debug("renewing leases failed", "error", err, "promotion_id", p.stream.PromotionID, "consumer", consumer)
			}
			continue
		}
		for _, id := range owned {
			h.items[id].leaseEnd.Store(int64(asked + p.cfg.Lease))
		}
	}
}

// claim takes over entries whose lease has expired.
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
			log.Info("expired entries claimed", "promotion_id", p.stream.PromotionID, "count", len(entries))
			p.cfg.Handler.Handle(ctx, p.take(entries, consumer))
		}
		if err != nil && ctx.Err() == nil {
			log.Debug("claiming entries failed", "error", err, "promotion_id", p.stream.PromotionID)
		}
		if err != nil || len(entries) == 0 {
			return
		}
	}
}

// freest returns the consumer with the largest capacity, which may be zero.
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
