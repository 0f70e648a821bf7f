package coupon

import (
	"context"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// ownerLease begins the name of the lease that each issuing instance holds.
	leasePrefix    = "coupon issuer "
	leaseTTL       = 2 * time.Second
	assignInterval = 400 * time.Millisecond
	assignTimeout  = time.Second // bounds each call to the database
)

// Owner keeps the issuers of the templates that are this instance's. Every
// instance that issues holds a lease under its own name; of those that are
// held, a template belongs to the one that its hash points to, so that
// templates spread, and what a dead instance leaves behind is taken over within
// 3 s. Two instances that see the leases differently for a moment take a
// template from each other; the epoch sorts them out.
type IssuerManager struct {
	instance  string
	rows      store.Store
	templates *TemplateCache
	newIssuer func(id reward.TemplateID, epoch int64) *Issuer
	log       obs.Log

	mu      sync.Mutex // protects issuers
	issuers map[reward.TemplateID]*runningIssuer
}

// issuing is an issuer at work.
type runningIssuer struct {
	issuer *Issuer
	cancel context.CancelFunc
	done   chan struct{}
}

// run takes and leaves templates until ctx ends, and gives its lease up then.
func (o *IssuerManager) run(ctx context.Context) {
	failures := 0
	for ctx.Err() == nil {
		if err := o.round(ctx); err != nil && ctx.Err() == nil {
			failures++
			if failures&(failures-1) == 0 {
				o.log.Warn(obs.Failed, err, "failures", failures)
			}
		} else {
			failures = 0
		}
		service.Sleep(ctx, service.Jitter(assignInterval, 0.2))
	}
	o.retain(nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), assignTimeout)
	defer cancel()
	if err := o.rows.LeaseRelease(ctx, leasePrefix+o.instance, o.instance); err != nil {
		o.log.Warn(obs.CleanupFailed, err)
	}
}

// round holds the lease, sees who else does, and takes what is its own.
func (o *IssuerManager) round(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, assignTimeout)
	defer cancel()
	lease, err := o.rows.LeaseTake(call, store.LeaseTakeParams{
		Name: leasePrefix + o.instance, Owner: o.instance, TTL: leaseTTL, Among: leasePrefix,
	})
	if err != nil {
		return err
	}
	mine := make(map[reward.TemplateID]bool)
	var take []reward.TemplateID
	for _, t := range o.templates.active() {
		if ownerOf(t.ID, lease.Holders) != o.instance {
			continue
		}
		if o.runs(t.ID, t.Epoch) {
			mine[t.ID] = true
		} else {
			take = append(take, t.ID)
		}
	}
	o.retain(mine)
	for batch := range slices.Chunk(take, store.BatchMax) {
		epochs, err := o.rows.TemplateOwn(call, batch, o.instance)
		if err != nil {
			return err
		}
		for id, epoch := range epochs {
			o.start(ctx, id, epoch)
		}
	}
	return nil
}

// ownerOf is the instance whose hash with the template is the highest: when one
// comes or goes, only its own templates move.
func ownerOf(id reward.TemplateID, living []string) string {
	best, top := "", uint64(0)
	for _, name := range living {
		h := fnv.New64a()
		_, _ = h.Write([]byte(id.String() + " " + name)) // never fails
		// FNV alone leaves the high bits of short texts alike.
		sum := h.Sum64() * 0x9e3779b97f4a7c15
		sum ^= sum >> 32
		if best == "" || sum > top {
			best, top = name, sum
		}
	}
	return best
}

// has says whether an issuer is at work; one whose epoch was taken, as the row
// tells or as it has noticed itself, is not.
func (o *IssuerManager) runs(id reward.TemplateID, epoch int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	one := o.issuers[id]
	return one != nil && one.issuer.epoch >= epoch && !one.ended()
}

// over says that an issuer has ended by itself.
func (i *runningIssuer) ended() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

// keep ends the issuers that are not among mine, and waits for them.
func (o *IssuerManager) retain(mine map[reward.TemplateID]bool) {
	o.mu.Lock()
	var ended []*runningIssuer
	for id, one := range o.issuers {
		if !mine[id] {
			delete(o.issuers, id)
			ended = append(ended, one)
		}
	}
	o.mu.Unlock()
	for _, one := range ended {
		one.cancel()
	}
	for _, one := range ended {
		<-one.done
	}
}

func (o *IssuerManager) start(ctx context.Context, id reward.TemplateID, epoch int64) {
	ctx, cancel := context.WithCancel(ctx)
	one := &runningIssuer{issuer: o.newIssuer(id, epoch), cancel: cancel, done: make(chan struct{})}
	o.mu.Lock()
	o.issuers[id] = one
	o.mu.Unlock()
	o.log.Info(obs.Started, "template_id", id, "epoch", epoch)
	go func() {
		defer close(one.done)
		defer cancel()
		one.issuer.run(ctx)
	}()
}

// wake makes the issuer of a template look, if it is here.
func (o *IssuerManager) giveHint(id reward.TemplateID) {
	o.mu.Lock()
	one := o.issuers[id]
	o.mu.Unlock()
	if one != nil {
		one.issuer.giveHint()
	}
}

// mine returns the epochs of the templates that this instance issues.
func (o *IssuerManager) epochs() map[reward.TemplateID]int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make(map[reward.TemplateID]int64, len(o.issuers))
	for id, one := range o.issuers {
		out[id] = one.issuer.epoch
	}
	return out
}
