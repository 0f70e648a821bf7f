package gatekeeper

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// leaseStore has one template, whose recount takes a minute, and the lease of the
// reconciler.
type leaseStore struct {
	Store
	recounts chan context.Context // the context of each recount

	mu     sync.Mutex // protects what follows
	holder string
	until  time.Time
}

func (s *leaseStore) TemplateActive(context.Context, time.Time) ([]reward.CouponTemplate, error) {
	return []reward.CouponTemplate{{ID: 7}}, nil
}

func (s *leaseStore) CouponRecount(ctx context.Context, _ reward.TemplateID) (store.CouponCount, error) {
	s.recounts <- ctx
	service.Sleep(ctx, time.Minute)
	return store.CouponCount{}, errors.New("refused")
}

func (s *leaseStore) LeaseTake(_ context.Context, p store.LeaseTakeParams) (store.Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder != p.Owner && time.Now().Before(s.until) {
		return store.Lease{}, nil
	}
	s.holder, s.until = p.Owner, time.Now().Add(p.TTL)
	return store.Lease{OK: true}, nil
}

func (s *leaseStore) LeaseRelease(_ context.Context, _, owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holder == owner {
		s.holder, s.until = "", time.Time{}
	}
	return nil
}

// lease returns the holder of the lease, and for how much longer it has it.
func (s *leaseStore) lease() (holder string, left time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holder, time.Until(s.until)
}

func TestReconcilerLease(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, rows *leaseStore, instance string) context.CancelFunc {
		t.Helper()
		r := &Reconciler{interval: time.Second, parts: parts{
			instance: instance, rows: rows, templates: NewTemplateCache(rows, time.Hour, obs.Log{}), ids: service.NewIDs(),
		}}
		fixture.OK(t, r.templates.Refresh(t.Context()))
		ctx, cancel := context.WithCancel(t.Context())
		go r.RunRounds(ctx)
		return cancel
	}

	t.Run("ARoundKeepsTheLeaseAndAStopReleasesIt", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			rows := &leaseStore{recounts: make(chan context.Context, 100)}
			stop := begin(t, rows, "first")
			round := <-rows.recounts
			time.Sleep(50 * time.Second) // several times the TTL
			if holder, left := rows.lease(); !strings.HasPrefix(holder, "first/") || left <= 0 || round.Err() != nil {
				t.Errorf("%q has the lease for %v, %v", holder, left, round.Err())
			}
			stop()
			synctest.Wait()
			if holder, _ := rows.lease(); holder != "" {
				t.Errorf("%q still has the lease", holder)
			}
		})
	})

	t.Run("ACrashedInstanceBlocksForSeconds", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			rows := &leaseStore{recounts: make(chan context.Context, 100), holder: "crashed", until: time.Now().Add(reconcileLeaseTTL)}
			stop := begin(t, rows, "second")
			defer stop()
			crashed := time.Now()
			<-rows.recounts
			if took := time.Since(crashed); took < reconcileLeaseTTL || took > 25*time.Second {
				t.Errorf("took over after %v", took)
			}
		})
	})

	t.Run("ALostLeaseEndsTheRound", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			rows := &leaseStore{recounts: make(chan context.Context, 100)}
			defer begin(t, rows, "first")()
			round := <-rows.recounts
			rows.mu.Lock()
			rows.holder, rows.until = "another", time.Now().Add(time.Hour)
			rows.mu.Unlock()
			lost := time.Now()
			<-round.Done()
			if took := time.Since(lost); took > reconcileLeaseTTL {
				t.Errorf("went on for %v", took)
			}
		})
	})
}
