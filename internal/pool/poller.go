package pool

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/service"
)

// pollIntervalMin is the shortest pause after an empty poll.
const pollIntervalMin = time.Millisecond

// poll reads new entries for consumers that have capacity, in one round trip, and
// passes them to the handler, until readCtx ends or the pool has been idle for
// IdleTimeout. A claim that is due comes first: in a backlog the reads use all capacity,
// and maintain would find none for its claims. After an empty read it pauses, longer each
// time, up to PollInterval; a hint, or capacity that becomes free, ends the pause. It
// never uses a blocking read.
func (p *Pool) poll(readCtx, workCtx context.Context) {
	log := p.cfg.Log.For(obs.Poller)
	pause := pollIntervalMin
	registered, failures := 0, 0 // consumers that a Create named; failed commands in a row
	missing := false             // the stream did not exist at the latest Create
	for readCtx.Err() == nil {
		if names := p.Consumers(); registered < len(names) {
			exists, err := p.cfg.Queue.Create(readCtx, p.stream, names)
			if err != nil {
				failures++
				p.outage(readCtx, err, failures)
				continue
			}
			registered, missing = len(names), !exists
			if exists {
				log.Info("consumers registered", "promotion_id", p.stream.PromotionID, "consumers", len(names))
			}
		}
		if p.claimDue.Load() && p.cfg.Healthy() {
			p.claim(workCtx)
		}
		items, asked, err := p.read(readCtx, workCtx)
		if !asked {
			p.rest(readCtx, p.cfg.PollInterval)
			continue
		}
		if err != nil {
			failures++
			p.outage(readCtx, err, failures)
			continue
		}
		if failures > 0 {
			p.cfg.away(nil, "promotion_id", p.stream.PromotionID)
			failures = 0
			registered = 0 // the server may have lost the consumers, so register them again
		}
		if len(items) > 0 {
			if missing { // the stream exists by now
				registered = 0
			}
			pause = pollIntervalMin
			p.cfg.Handle(workCtx, items)
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

// read reads new entries. asked is false if the pool wants none now.
func (p *Pool) read(readCtx, workCtx context.Context) (items []*Item, asked bool, err error) {
	if !p.lockFetch(readCtx) {
		return nil, false, nil
	}
	defer p.unlockFetch()
	reads := p.reads()
	if len(reads) == 0 || !p.cfg.Healthy() || !p.cfg.AcceptsWork(p.stream.PromotionID) {
		return nil, false, nil
	}
	// Do not use readCtx: a stop must not lose entries that the queue has
	// delivered.
	bounded, cancel := context.WithTimeout(workCtx, p.cfg.StopTimeout)
	defer cancel()
	commanded := p.sinceStart()
	entries, err := p.cfg.Queue.Read(bounded, p.stream, reads)
	count := 0
	for _, r := range reads {
		count += r.Count
	}
	p.backlog = len(entries) >= min(count, p.cfg.BatchSize)
	if err != nil {
		return nil, true, err
	}
	return p.take(entries, false, commanded), true, nil
}

// reads returns read requests for all consumers that have capacity, or one request while
// there is no backlog.
func (p *Pool) reads() []queue.ReadParams {
	p.mu.Lock()
	defer p.mu.Unlock()
	var reads []queue.ReadParams
	for _, c := range p.consumers {
		for free := p.freeLocked(c); free > 0 && (p.backlog || len(reads) == 0); free -= p.cfg.BatchSize {
			reads = append(reads, queue.ReadParams{Consumer: c.name, Count: min(free, p.cfg.BatchSize)})
		}
	}
	return reads
}

// rest waits for d, a hint, or the end of ctx. It reports whether there was a hint.
func (p *Pool) rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-p.wake:
		return true
	case <-time.After(d):
	case <-ctx.Done():
	}
	return false
}

// outage reports a failed command and pauses, longer after each in a row.
func (p *Pool) outage(ctx context.Context, err error, failures int) {
	if ctx.Err() != nil {
		return
	}
	p.cfg.away(err, "promotion_id", p.stream.PromotionID)
	if service.Words(err) != "" {
		p.cfg.Refused(p.stream, err)
	}
	service.Sleep(ctx, service.Backoff(failures, 10*time.Millisecond, 2*time.Second))
}

// idleFor returns how long this pool has had no sign of QUEUED payouts.
func (p *Pool) idleFor() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.items) > 0 {
		return 0
	}
	return time.Since(p.lastWork)
}

// maintain renews the leases of pending entries, adopts and claims entries, and registers
// the pool's consumers again, for a server that lost its data. It does not warn about
// failures, because poll does.
func (p *Pool) maintain(ctx context.Context) {
	log := p.cfg.Log.For(obs.Consumer)
	tick := time.NewTicker(p.cfg.Lease / 5)
	defer tick.Stop()
	adoptFrom := "" // where the next Adopt continues
	for {
		p.claimDue.Store(true)
		if p.cfg.Healthy() {
			adoptFrom = p.adopt(ctx, log, adoptFrom)
			p.claim(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if !p.cfg.Healthy() {
			continue
		}
		p.extend(ctx, log)
		if _, err := p.cfg.Queue.Create(ctx, p.stream, p.Consumers()); err != nil && ctx.Err() == nil {
			log.Debug("registering consumers failed", "error", err, "promotion_id", p.stream.PromotionID)
		}
	}
}

// extend renews every lease of which less than nine tenths are left, so that nearly a
// whole one is left when a call starts. It never renews an expired lease: another
// consumer may have claimed the entry.
func (p *Pool) extend(ctx context.Context, log obs.Log) {
	expiring := make(map[string]map[string]*Item) // by consumer and entry
	p.mu.Lock()
	for it := range p.items {
		left := it.LeaseLeft()
		if left <= 0 || left > p.cfg.Lease*9/10 {
			continue
		}
		if expiring[it.Consumer] == nil {
			expiring[it.Consumer] = make(map[string]*Item)
		}
		expiring[it.Consumer][it.ID] = it
	}
	p.mu.Unlock()
	for consumer, items := range expiring {
		// Count the new lease from before the command, so that this pool never
		// takes it for longer than the server does.
		commanded := p.sinceStart()
		owned, err := p.cfg.Queue.Extend(ctx, p.stream, consumer, slices.Collect(maps.Keys(items)))
		if err != nil && ctx.Err() == nil {
			log.Debug("renewing leases failed", "error", err, "promotion_id", p.stream.PromotionID, "consumer", consumer)
		}
		for _, id := range owned {
			items[id].leaseEnd.Store(int64(commanded + p.cfg.Lease))
		}
	}
}

// adopt gives a lease to entries that belong to no consumer. from is where the call
// before stopped; adopt returns where the next one continues.
func (p *Pool) adopt(ctx context.Context, log obs.Log, from string) (next string) {
	bounded, cancel := context.WithTimeout(ctx, p.cfg.StopTimeout)
	defer cancel()
	next, err := p.cfg.Queue.Adopt(bounded, queue.AdoptParams{
		Stream: p.stream, Consumer: p.Consumers()[0], MinAge: p.cfg.Lease, From: from,
	})
	if err != nil && ctx.Err() == nil {
		log.Debug("adopting entries failed", "error", err, "promotion_id", p.stream.PromotionID)
	}
	return next
}

// claim takes over entries whose lease has expired, until it finds fewer than it asks for
// or no consumer has capacity. In the latter case the claim stays due.
func (p *Pool) claim(ctx context.Context) {
	log := p.cfg.Log.For(obs.Consumer)
	for more := true; more && ctx.Err() == nil; {
		items, full, err := p.claimSome(ctx)
		if len(items) > 0 {
			p.cfg.Metrics.Claimed(len(items))
			log.Info("expired entries claimed", "promotion_id", p.stream.PromotionID, "count", len(items))
			p.cfg.Handle(ctx, items)
		}
		if err != nil && ctx.Err() == nil {
			log.Debug("claiming entries failed", "error", err, "promotion_id", p.stream.PromotionID)
		}
		more = full
	}
}

// claimSome claims entries for the consumer with the most capacity. full is true if there
// may be more. Otherwise no claim is due before the next round of maintain.
func (p *Pool) claimSome(ctx context.Context) (items []*Item, full bool, err error) {
	if !p.lockFetch(ctx) {
		return nil, false, nil
	}
	defer p.unlockFetch()
	consumer, free := p.freest()
	if free <= 0 {
		return nil, false, nil
	}
	asked := min(free, 100)
	bounded, cancel := context.WithTimeout(ctx, p.cfg.StopTimeout)
	defer cancel()
	commanded := p.sinceStart()
	claimed, err := p.cfg.Queue.Claim(bounded, queue.ClaimParams{
		Stream: p.stream, Consumer: consumer, MinIdle: p.cfg.Lease, Count: asked, From: p.claimFrom,
	})
	p.claimFrom = claimed.Next
	full = err == nil && len(claimed.Entries) >= asked
	p.claimDue.Store(full)
	return p.take(claimed.Entries, true, commanded), full, err
}

// lockFetch waits until no other read or claim is in progress, and reports false
// if ctx ended first.
func (p *Pool) lockFetch(ctx context.Context) bool {
	select {
	case p.fetch <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *Pool) unlockFetch() { <-p.fetch }

// freest returns the consumer with the most capacity; zero if none has any.
func (p *Pool) freest() (name string, free int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.consumers {
		if f := p.freeLocked(c); f > free {
			name, free = c.name, f
		}
	}
	return name, free
}
