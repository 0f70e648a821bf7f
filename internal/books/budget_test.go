package books

import (
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// manyBooks is a store with many promotions, and a provider that has charged
// nothing. A comparison takes as long as checkTakes.
type manyBooks struct {
	bookRows
	charges

	mu      sync.Mutex // protects the fields below
	views   map[reward.PromotionID]*store.PromotionView
	read    map[reward.PromotionID]*store.PromotionView // a copy for readers; nil after a change
	checked map[reward.PromotionID][]time.Time
}

const checkTakes = 20 * time.Millisecond

type charges struct{}

func (charges) Charges(context.Context, reward.PromotionID, string) (money.ChargesPage, error) {
	return money.ChargesPage{}, nil
}

func newManyBooks(n int) *manyBooks {
	m := &manyBooks{views: make(map[reward.PromotionID]*store.PromotionView), checked: make(map[reward.PromotionID][]time.Time)}
	for i := range n {
		m.change(reward.PromotionID(i+1), 0)
	}
	return m
}

// change makes a promotion have n READY payouts.
func (m *manyBooks) change(id reward.PromotionID, n int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := &store.PromotionView{}
	v.ID, v.Status = id, reward.Running
	v.Counts.Payouts[reward.Ready] = n
	m.views[id], m.read = v, nil
}

func (m *manyBooks) get() map[reward.PromotionID]*store.PromotionView {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.read == nil {
		m.read = maps.Clone(m.views)
	}
	return m.read
}

func (m *manyBooks) PromotionGet(_ context.Context, id reward.PromotionID) (store.PromotionView, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return *m.views[id], nil
}

func (m *manyBooks) SummaryCompare(_ context.Context, id reward.PromotionID, _ bool) (store.Comparison, error) {
	time.Sleep(checkTakes)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.checked[id] = append(m.checked[id], time.Now())
	return store.Comparison{Kept: m.views[id].Counts, Rows: m.views[id].Counts}, nil
}

func (*manyBooks) SharedKeys(context.Context, reward.PromotionID) (store.SharedKeys, error) {
	return store.SharedKeys{}, nil
}

// since returns how many promotions were checked after a time, and how often.
func (m *manyBooks) since(at time.Time) (promotions, checks int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, list := range m.checked {
		before := checks
		for _, c := range list {
			if c.After(at) {
				checks++
			}
		}
		if checks > before {
			promotions++
		}
	}
	return promotions, checks
}

// moments returns at how many moments after a time promotions were checked. Checks
// that are less than 50 ms apart belong to one moment.
func (m *manyBooks) moments(at time.Time) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []time.Time
	for _, list := range m.checked {
		all = append(all, list...)
	}
	slices.SortFunc(all, time.Time.Compare)
	n := 0
	for i, c := range all {
		if c.After(at) && (i == 0 || c.Sub(all[i-1]) >= 50*time.Millisecond) {
			n++
		}
	}
	return n
}

func (m *manyBooks) reconciler(owns func(reward.PromotionID) bool) *Reconciler {
	return New(Config{
		Store: m, Charges: m, Views: m.get, Owns: owns, Interval: testInterval, DispatchHorizon: testHorizon, Hint: func(reward.PromotionID) {}, Metrics: obs.NewMetrics(),
	})
}

func TestManyPromotions(t *testing.T) {
	t.Parallel()
	const promotions, some = 1000, 50

	fixture.OnFakeTime(t, "EachIsCheckedSoonAndThenOnlyIfItChanges", func(t *testing.T) {
		m := newManyBooks(promotions)
		r := m.reconciler(nil)
		r.Start(t.Context())
		defer r.Stop()
		began := time.Now()
		time.Sleep(testInterval + 5*time.Minute)
		if n, _ := m.since(began); n != promotions {
			t.Errorf("%d of %d promotions were checked in six minutes", n, promotions)
		}
		// Nothing has changed: on average, one is checked per round.
		began = time.Now()
		time.Sleep(3 * time.Minute)
		if _, n := m.since(began); n < 140 || n > 240 {
			t.Errorf("%d checks in three minutes in which nothing changed", n)
		}
		// Several are checked in a row: an idle instance asks before the first of them
		// what others know of the provider.
		if n := m.moments(began); n > 60 {
			t.Errorf("checks at %d moments in three minutes in which nothing changed", n)
		}
		// Those that change are checked at their turn, in addition to the others.
		began = time.Now()
		for i := range some {
			m.change(reward.PromotionID(7*i+1), 1)
		}
		time.Sleep(testInterval + 20*time.Second)
		m.mu.Lock()
		defer m.mu.Unlock()
		for i := range some {
			if list := m.checked[reward.PromotionID(7*i+1)]; len(list) == 0 || !list[len(list)-1].After(began) {
				t.Fatalf("promotion %d was not checked after it changed", 7*i+1)
			}
		}
	})

	fixture.OnFakeTime(t, "TheTimeOfARoundIsLimited", func(t *testing.T) {
		m := newManyBooks(promotions)
		r := m.reconciler(nil)
		r.Start(t.Context())
		defer r.Stop()
		time.Sleep(testInterval) // until there are always some that are due
		began := time.Now()
		time.Sleep(time.Minute)
		if _, n := m.since(began); n > 60*1250/1000*int(roundBudget/checkTakes+1) {
			t.Errorf("%d checks of %v in a minute", n, checkTakes)
		}
	})

	fixture.OnFakeTime(t, "InstancesDivideThem", func(t *testing.T) {
		m := newManyBooks(promotions)
		for i := range 20 {
			r := m.reconciler(func(id reward.PromotionID) bool { return int(id)%20 == i })
			r.Start(t.Context())
			defer r.Stop()
		}
		began := time.Now()
		time.Sleep(testInterval + 15*time.Second)
		if n, checks := m.since(began); n != promotions || checks > promotions*3/2 { // each also checks some again
			t.Errorf("%d of %d promotions were checked, with %d checks", n, promotions, checks)
		}
	})
}
