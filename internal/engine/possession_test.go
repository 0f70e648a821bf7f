package engine

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/store"
)

// fakeLeases stores one lease, and can be unavailable.
type fakeLeases struct {
	store.Leases // methods that this test does not call

	mu    sync.Mutex // protects what follows
	away  bool
	owner string
	until time.Time
}

func (f *fakeLeases) LeaseTake(_ context.Context, p store.LeaseTakeParams) (store.Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.away {
		return store.Lease{}, errors.New("the database is unavailable")
	}
	if f.owner == "" || f.owner == p.Owner || time.Now().After(f.until) {
		f.owner, f.until = p.Owner, time.Now().Add(p.TTL)
	}
	return store.Lease{OK: f.owner == p.Owner, Owner: f.owner, Until: f.until}, nil
}

func (f *fakeLeases) LeaseRelease(_ context.Context, _, owner string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.owner == owner {
		f.owner = ""
	}
	return nil
}

func (f *fakeLeases) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// held returns a lease of host-1 on its own rows; lost is closed when it is lost.
func held(t *testing.T) (l *lease, rows *fakeLeases, lost <-chan error) {
	t.Helper()
	rows = &fakeLeases{}
	over := make(chan error, 1)
	l = fixture.Must(takeLease(t.Context(), rows, "n", "host-1", func(err error) { over <- err }, obs.Log{}))(t)
	return l, rows, over
}

func TestLease(t *testing.T) {
	t.Parallel()
	fixture.OnFakeTime(t, "ADatabaseThatIsAwayIsNoLoss", func(t *testing.T) {
		l, rows, lost := held(t)
		rows.set(func() { rows.away = true })
		time.Sleep(time.Minute)
		rows.set(func() { rows.away = false })
		time.Sleep(time.Minute)
		if len(lost) != 0 {
			t.Fatalf("lost: %v", <-lost)
		}
		l.release()
		if rows.owner != "" {
			t.Errorf("%s owns it after the release", rows.owner)
		}
	})
	fixture.OnFakeTime(t, "AnotherHolderIs", func(t *testing.T) {
		l, rows, lost := held(t)
		rows.set(func() { rows.owner, rows.until = "host-2/x", time.Now().Add(time.Hour) })
		time.Sleep(time.Minute)
		if len(lost) != 1 || !errors.Is(<-lost, parts.ErrInUse) {
			t.Error("the loss was not reported")
		}
		l.release()
		if rows.owner != "host-2/x" {
			t.Error("the release removed the lease of another owner")
		}
	})
	fixture.OnFakeTime(t, "ADeadHoldersLeaseIsWaitedFor", func(t *testing.T) {
		rows := &fakeLeases{owner: "dead/x", until: time.Now().Add(10 * time.Second)}
		began := time.Now()
		l := fixture.Must(takeAbandonedLease(t.Context(), rows, "n", "host-1", func(error) {}, obs.Log{}))(t)
		if took := time.Since(began); took < 10*time.Second || took > 12*time.Second {
			t.Errorf("took %v", took)
		}
		l.release()
	})
	fixture.OnFakeTime(t, "ALivingHolderRefusesAndIsNamed", func(t *testing.T) {
		rows := &fakeLeases{owner: "living-7/x", until: time.Now().Add(time.Hour)}
		_, err := takeAbandonedLease(t.Context(), rows, "n", "host-1", func(error) {}, obs.Log{})
		if !errors.Is(err, parts.ErrInUse) || !strings.Contains(err.Error(), "living-7") {
			t.Errorf("error %v", err)
		}
	})
}
