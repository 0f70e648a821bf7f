package coupon

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// leasePrefix starts the name of the lease that each issuing instance holds.
	leasePrefix    = "coupon issuer "
	leaseTTL       = 2 * time.Second
	assignInterval = 400 * time.Millisecond
	assignTimeout  = time.Second // of the database calls of one round
)

// IssuerManager runs an Issuer for each template assigned to this instance.
//
// While there are active templates, every issuing instance holds a lease under its own
// name. A hash of template and instance name assigns each template to one of the
// instances that hold a lease. If an instance crashes, others take over its templates
// within 3 s. For a moment, two instances may read different leases and both take a
// template. Each take gives the template a new epoch, and only the instance with the
// latest epoch can issue.
type IssuerManager struct {
	instance  string
	rows      Store
	templates *TemplateCache
	newIssuer func(id reward.TemplateID, epoch int64) *Issuer
	log       obs.Log

	mu      sync.Mutex // protects issuers
	issuers map[reward.TemplateID]*runningIssuer
}

// runningIssuer is an Issuer and its goroutine.
type runningIssuer struct {
	issuer *Issuer
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended
}

// run starts and stops issuers until ctx ends. It then stops all of them and
// releases the lease.
func (m *IssuerManager) run(ctx context.Context) {
	report := m.log.Streak("assigning templates failed", "")
	for ctx.Err() == nil {
		if err := m.round(ctx); ctx.Err() == nil {
			report(err)
		}
		service.Sleep(ctx, service.Jitter(assignInterval, 0.2))
	}
	m.retain(nil)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), assignTimeout)
	defer cancel()
	if err := m.rows.LeaseRelease(ctx, leasePrefix+m.instance, m.instance); err != nil {
		m.log.Warn("releasing lease failed", err, "lease", leasePrefix+m.instance)
	}
}

// round renews the lease, stops the issuers of templates that belong to other
// instances, and starts those of its own. While no template is active it renews
// nothing, so the lease expires. The first instance that then sees templates may take
// all of them, and the others get theirs when they have taken their leases again.
func (m *IssuerManager) round(ctx context.Context) error {
	active := m.templates.active()
	if len(active) == 0 {
		m.retain(nil)
		return nil
	}
	call, cancel := context.WithTimeout(ctx, assignTimeout)
	defer cancel()
	lease, err := m.rows.LeaseTake(call, store.LeaseTakeParams{
		Name: leasePrefix + m.instance, Owner: m.instance, TTL: leaseTTL, Among: leasePrefix,
	})
	if err != nil {
		return err
	}
	assigned := make(map[reward.TemplateID]bool)
	var take []reward.TemplateID
	for _, t := range active {
		if store.Holder(uint64(t.ID), lease.Holders) != m.instance { //nolint:gosec // any bits do
			continue
		}
		if m.runs(t.ID, t.Epoch) {
			assigned[t.ID] = true
		} else {
			take = append(take, t.ID)
		}
	}
	m.retain(assigned)
	for batch := range slices.Chunk(take, store.BatchMax) {
		epochs, err := m.rows.TemplateAssign(call, batch, m.instance)
		if err != nil {
			return err
		}
		for id, epoch := range epochs {
			m.start(ctx, id, epoch)
		}
	}
	return nil
}

// runs reports whether an issuer of the template runs with this epoch or a newer
// one. An issuer that has noticed that its epoch is lost has ended.
func (m *IssuerManager) runs(id reward.TemplateID, epoch int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.issuers[id]
	return one != nil && one.issuer.epoch >= epoch && !one.ended()
}

// ended reports whether the issuer's goroutine has ended.
func (i *runningIssuer) ended() bool {
	select {
	case <-i.done:
		return true
	default:
		return false
	}
}

// retain stops all issuers except those of the given templates, and waits until
// they have ended.
func (m *IssuerManager) retain(templates map[reward.TemplateID]bool) {
	m.mu.Lock()
	var ended []*runningIssuer
	for id, one := range m.issuers {
		if !templates[id] {
			delete(m.issuers, id)
			ended = append(ended, one)
		}
	}
	m.mu.Unlock()
	for _, one := range ended {
		one.cancel()
	}
	for _, one := range ended {
		<-one.done
	}
}

func (m *IssuerManager) start(ctx context.Context, id reward.TemplateID, epoch int64) {
	ctx, cancel := context.WithCancel(ctx)
	one := &runningIssuer{issuer: m.newIssuer(id, epoch), cancel: cancel, done: make(chan struct{})}
	m.mu.Lock()
	m.issuers[id] = one
	m.mu.Unlock()
	m.log.Info("issuer started", "template_id", id, "epoch", epoch)
	go func() {
		defer close(one.done)
		defer cancel()
		one.issuer.run(ctx)
	}()
}

// giveHint makes the template's issuer look for requests, if it runs here.
func (m *IssuerManager) giveHint(id reward.TemplateID) {
	m.mu.Lock()
	one := m.issuers[id]
	m.mu.Unlock()
	if one != nil {
		one.issuer.hint.Give()
	}
}

// epochs returns the epochs of the templates that this instance issues.
func (m *IssuerManager) epochs() map[reward.TemplateID]int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make(map[reward.TemplateID]int64, len(m.issuers))
	for id, one := range m.issuers {
		out[id] = one.issuer.epoch
	}
	return out
}
