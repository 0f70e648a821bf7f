package store

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

const leadTTL = 15 * time.Second

// fakeLeases is a database with leases of many names. Its fields may be changed
// while mu is locked.
type fakeLeases struct {
	mu       sync.Mutex
	err      error           // the error of every call
	cutOff   map[string]bool // the owners whose calls fail
	delay    time.Duration   // of every call
	held     map[string]Lease
	released int // calls to LeaseRelease
}

func (f *fakeLeases) LeaseTake(ctx context.Context, p LeaseTakeParams) (Lease, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if delay := f.delay; delay > 0 {
		f.mu.Unlock()
		select {
		case <-time.After(delay):
		case <-ctx.Done():
		}
		f.mu.Lock()
	}
	if err := f.refuses(p.Owner); err != nil {
		return Lease{}, err
	}
	if err := ctx.Err(); err != nil {
		return Lease{}, err
	}
	if l := f.held[p.Name]; l.Owner != "" && l.Owner != p.Owner && time.Now().Before(l.Until) {
		return Lease{Owner: l.Owner, Until: l.Until}, nil
	}
	l := f.hold(p.Name, p.Owner, p.TTL)
	for name, other := range f.held {
		if strings.HasPrefix(name, p.Among) && time.Now().Before(other.Until) {
			l.Holders = append(l.Holders, other.Owner)
		}
	}
	slices.Sort(l.Holders)
	return l, nil
}

// hold gives a lease to an owner. The caller has locked mu.
func (f *fakeLeases) hold(name, owner string, ttl time.Duration) Lease {
	if f.held == nil {
		f.held = make(map[string]Lease)
	}
	f.held[name] = Lease{OK: true, Owner: owner, Until: time.Now().Add(ttl)}
	return f.held[name]
}

func (f *fakeLeases) refuses(owner string) error {
	if f.cutOff[owner] {
		return errors.New("away")
	}
	return f.err
}

func (f *fakeLeases) LeaseRelease(_ context.Context, name, owner string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.released++
	if err := f.refuses(owner); err != nil {
		return err
	}
	if f.held[name].Owner == owner {
		delete(f.held, name)
	}
	return nil
}

func (f *fakeLeases) set(change func(*fakeLeases)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// bubble runs a test on fake time.
func bubble(t *testing.T, name string, test func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, test)
	})
}

// leader runs Lead, and records when it leads.
type leader struct {
	mu         sync.Mutex
	leading    bool
	terms      int
	endedAt    time.Time // of the latest term
	followed   int
	log        bytes.Buffer
	stop       context.CancelFunc
	done       chan struct{}
	returnsNow bool // Lead returns without waiting for its context
}

func startLeader(t *testing.T, rows Leases, owner string, returnsNow bool) *leader {
	t.Helper()
	l := &leader{done: make(chan struct{}), returnsNow: returnsNow}
	log := fixture.Must(obs.NewLog(&l.log, "info", "text"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	l.stop = cancel
	go func() {
		defer close(l.done)
		Lead(ctx, LeadParams{
			Rows: rows, Lease: LeaseTakeParams{Name: "books", Owner: owner, TTL: leadTTL}, Log: log,
			Lead: l.lead, Follow: func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				if l.leading {
					t.Error("Follow runs while Lead does")
				}
				l.followed++
			},
		})
	}()
	return l
}

func (l *leader) lead(ctx context.Context) {
	l.mu.Lock()
	l.leading = true
	l.terms++
	l.mu.Unlock()
	if !l.returnsNow {
		<-ctx.Done()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading, l.endedAt = false, time.Now()
}

func (l *leader) now() (leading bool, terms int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leading, l.terms
}

func (l *leader) end() {
	l.stop()
	<-l.done
}

func TestLead(t *testing.T) {
	t.Parallel()
	away := errors.New("away")

	bubble(t, "OneOfManyLeadsAndHandsOverAtItsEnd", func(t *testing.T) {
		rows := &fakeLeases{}
		one := startLeader(t, rows, "one", false)
		synctest.Wait()
		other := startLeader(t, rows, "other", false)
		time.Sleep(time.Hour)
		if leading, terms := one.now(); !leading || terms != 1 {
			t.Errorf("one leads: %v, in term %d, want one long term", leading, terms)
		}
		if leading, terms := other.now(); leading || terms != 0 {
			t.Errorf("the other leads: %v, term %d", leading, terms)
		}
		one.end()
		if rows.released != 1 {
			t.Errorf("%d releases at the end, want 1", rows.released)
		}
		time.Sleep(leadTTL / 2) // less than the lease would have lasted
		if leading, _ := other.now(); !leading {
			t.Error("the other does not lead after the lease was released")
		}
		other.end()
		if other.followed < 500 || one.followed != 0 {
			t.Errorf("%d and %d attempts without the lease, want about 720 and 0", other.followed, one.followed)
		}
		if out := one.log.String() + other.log.String(); out != "" {
			t.Errorf("logged %s", out)
		}
	})

	bubble(t, "AnotherOwnerEndsTheTermAtTheNextRenewal", func(t *testing.T) {
		rows := &fakeLeases{}
		l := startLeader(t, rows, "one", false)
		time.Sleep(time.Minute)
		rows.set(func(f *fakeLeases) { f.hold("books", "thief", time.Minute) })
		time.Sleep(leadTTL/3 + time.Millisecond)
		if leading, _ := l.now(); leading {
			t.Error("still leads although another owner has the lease")
		}
		time.Sleep(time.Minute + leadTTL)
		if leading, terms := l.now(); !leading || terms != 2 {
			t.Errorf("leads: %v, in term %d, want the second after the other's lease expired", leading, terms)
		}
		l.end()
	})

	bubble(t, "AFailedRenewalEndsNothingBeforeTheTTL", func(t *testing.T) {
		rows := &fakeLeases{}
		l := startLeader(t, rows, "one", false)
		time.Sleep(leadTTL) // renewed at 5 s, 10 s and 15 s
		synctest.Wait()
		rows.set(func(f *fakeLeases) { f.err = away })
		time.Sleep(leadTTL - time.Millisecond)
		if leading, terms := l.now(); !leading || terms != 1 {
			t.Errorf("leads: %v, in term %d, want the first until the TTL has passed", leading, terms)
		}
		rows.set(func(f *fakeLeases) { f.err = nil })
		time.Sleep(leadTTL)
		if _, terms := l.now(); terms > 2 {
			t.Errorf("%d terms", terms)
		}
		l.end()
		if out := l.log.String(); !strings.Contains(out, `msg="lease unavailable" lease=books failures=1`) ||
			!strings.Contains(out, `msg="lease available again" lease=books failures=`) {
			t.Errorf("log:\n%s", out)
		}
	})

	bubble(t, "TheTermEndsWhenTheTTLHasPassedSinceTheLastGoodRenewalBegan", func(t *testing.T) {
		rows := &fakeLeases{}
		l := startLeader(t, rows, "one", false)
		synctest.Wait()
		const delay = time.Second
		rows.set(func(f *fakeLeases) { f.delay = delay })
		time.Sleep(leadTTL/3 + delay + time.Millisecond) // renewed from 5 s to 6 s
		lastGood := time.Now().Add(-delay - time.Millisecond)
		rows.set(func(f *fakeLeases) { f.err = away })
		time.Sleep(2 * leadTTL)
		l.mu.Lock()
		if want := lastGood.Add(leadTTL); !l.endedAt.Equal(want) || l.terms != 1 {
			t.Errorf("the term ended %v after that, want at once; %d terms", l.endedAt.Sub(want), l.terms)
		}
		l.mu.Unlock()
		rows.set(func(f *fakeLeases) { f.err, f.delay = nil, 0 })
		time.Sleep(leadTTL / 2)
		if leading, terms := l.now(); !leading || terms != 2 {
			t.Errorf("leads: %v, in term %d, want the second", leading, terms)
		}
		l.end()
	})

	bubble(t, "ADatabaseThatHangsHoldsNoTerm", func(t *testing.T) {
		rows := &fakeLeases{}
		l := startLeader(t, rows, "one", false)
		synctest.Wait()
		took := time.Now()
		rows.set(func(f *fakeLeases) { f.delay = time.Hour })
		time.Sleep(2 * leadTTL)
		l.mu.Lock()
		if got := l.endedAt.Sub(took); got != leadTTL {
			t.Errorf("the term lasted %v, want %v", got, leadTTL)
		}
		l.mu.Unlock()
		l.end()
	})

	bubble(t, "ReturnsWithinItsBoundAndTellsOfAFailedRelease", func(t *testing.T) {
		rows := &fakeLeases{err: away}
		l := startLeader(t, rows, "one", false)
		synctest.Wait()
		asked := time.Now()
		l.end()
		if took := time.Since(asked); took != 0 {
			t.Errorf("it took %v to return", took)
		}
		if out := l.log.String(); !strings.Contains(out, `msg="releasing lease failed" lease=books error=away`) {
			t.Errorf("log:\n%s", out)
		}
	})

	bubble(t, "LeadsAgainAfterLeadHasReturned", func(t *testing.T) {
		l := startLeader(t, &fakeLeases{}, "one", true)
		time.Sleep(time.Minute)
		if _, terms := l.now(); terms < 10 || terms > 16 {
			t.Errorf("%d terms in a minute, want about 12", terms)
		}
		l.end()
	})
}
