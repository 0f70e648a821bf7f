package moneysim_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// faulty names each fault of which a request either has charged or not.
var faulty = []struct {
	name    string
	faults  moneysim.Faults
	want    answer // zero: the connection is reset
	charged bool
}{
	{"Away", moneysim.Faults{Away: true}, answer{}, false},
	{"ResetBefore", moneysim.Faults{ResetBeforeRate: 1}, answer{}, false},
	{"ResetAfter", moneysim.Faults{ResetAfterRate: 1}, answer{}, true},
	{"Throttled", moneysim.Faults{ThrottleRate: 1}, answer{Status: 429, Code: "THROTTLED", RetryAfter: "1"}, false},
	{"Error", moneysim.Faults{ErrorRate: 1}, answer{Status: 500, Code: "INTERNAL_ERROR"}, false},
	{"Unauthorized", moneysim.Faults{MisconfiguredStatus: 401}, answer{Status: 401, Code: "MISCONFIGURED"}, false},
	{"WrongPath", moneysim.Faults{MisconfiguredStatus: 404}, answer{Status: 404}, false},
}

// The table of the package comment, each line with and without a copy.
func TestFaultsChargeWhatTheTableSays(t *testing.T) {
	t.Parallel()
	for _, c := range faulty {
		for _, twice := range []float64{0, 1} {
			t.Run(fmt.Sprintf("%sTwice%v", c.name, twice), func(t *testing.T) {
				t.Parallel()
				faults := c.faults
				faults.DuplicateRate = twice
				b := start(t, moneysim.Config{Faults: faults})
				got, err := b.point(1, 7, 10)
				if c.want != (answer{}) {
					if err != nil || got != c.want {
						t.Errorf("answer %+v, %v, want %+v", got, err, c.want)
					}
				} else if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
					t.Errorf("answer %+v, error %v, want a reset", got, err)
				}
				want := int64(0)
				if c.charged {
					want = 1
				}
				if n, _ := b.sim.Charges(1); n != want || b.sim.MaxChargesPerKey() != int(want) {
					t.Errorf("%d charges, want %d", n, want)
				}
				if err := b.sim.SetFaults(moneysim.Faults{}); err != nil {
					t.Fatal(err)
				}
				lookup := b.must(http.MethodGet, "/v1/transactions/1:7", "", "")
				if (lookup.Status == 200) != c.charged {
					t.Errorf("look-up %+v", lookup)
				}
				if again := b.mustPoint(1, 7, 10); again.Status != 200 || c.charged && again.Key != lookup.Key {
					t.Errorf("without the fault: %+v, looked up %+v", again, lookup)
				}
			})
		}
	}
}

func TestUnavailableIsChargedHalfTheTime(t *testing.T) {
	t.Parallel()
	b := start(t, moneysim.Config{Faults: moneysim.Faults{UnavailableRate: 1}})
	for target := range 200 {
		if got := b.mustPoint(1, target, 10); got != (answer{Status: 503, Code: "UNAVAILABLE"}) {
			t.Fatalf("target %d: %+v", target, got)
		}
	}
	if n, _ := b.sim.Charges(1); n < 60 || n > 140 {
		t.Errorf("%d of 200 charged", n)
	}
}

func TestDuplicates(t *testing.T) {
	t.Parallel()
	b := start(t, moneysim.Config{Faults: moneysim.Faults{DuplicateRate: 1}})
	const keys = 200
	var wg sync.WaitGroup
	for target := range keys {
		wg.Go(func() {
			first, err := b.point(1, target, 10)
			if err != nil || first.Status != 200 {
				t.Errorf("target %d: %+v, %v", target, first, err)
			}
			if again, err := b.point(1, target, 10); err != nil || again != first {
				t.Errorf("target %d: %+v, then %+v, %v", target, first, again, err)
			}
		})
	}
	wg.Wait()
	// Two calls a key, four requests, one of which found the key not charged.
	if got, want := b.sim.Stats(), (moneysim.Stats{Charges: keys, Requests: 4 * keys, DuplicateKeys: 3 * keys, Amount: 10 * keys}); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
	if n := b.sim.MaxChargesPerKey(); n != 1 {
		t.Errorf("%d charges for a key", n)
	}
	if n := b.sim.Busiest(time.Hour); n != 2*keys {
		t.Errorf("%d requests came in, want %d: copies are not sent by anybody", n, 2*keys)
	}
	if err := b.sim.SetFaults(moneysim.Faults{DuplicateRate: 1, ErrorRate: 1}); err != nil {
		t.Fatal(err)
	}
	before := b.sim.Stats()
	b.mustPoint(1, 7, 10)
	if got := b.sim.Stats(); got.Requests != before.Requests+2 || got.DuplicateKeys != before.DuplicateKeys+2 {
		t.Errorf("a failed pair: %+v, then %+v", before, got)
	}
}

func TestOutOfReachTakesLookupsToo(t *testing.T) {
	t.Parallel()
	calls := []struct{ method, path string }{
		{http.MethodGet, "/v1/transactions/1:7"},
		{http.MethodGet, "/v1/charges?promotionId=1"},
		{http.MethodPost, "/v1/vouchers/charge"},
	}
	for _, status := range []int{401, 403, 404, 405, 407, 413, 415} {
		b := start(t, moneysim.Config{Faults: moneysim.Faults{MisconfiguredStatus: status}})
		for _, c := range calls {
			a, err := b.do(c.method, c.path, "", "")
			if status == http.StatusProxyAuthRequired && err != nil {
				continue // some clients make an error of it
			}
			if err != nil || a.Status != status || (a.Code == "MISCONFIGURED") != (status != 404) {
				t.Errorf("%d %s: %+v, %v", status, c.path, a, err)
			}
		}
	}
	b := start(t, moneysim.Config{Faults: moneysim.Faults{Away: true}})
	for _, c := range calls {
		if a, err := b.do(c.method, c.path, "", ""); err == nil {
			t.Errorf("away, %s: %+v", c.path, a)
		}
	}
	if got := b.must(http.MethodPut, "/faults", "", `{}`); got.Status != 200 {
		t.Fatalf("PUT /faults while away: %+v", got)
	}
	if got := b.mustPoint(1, 7, 10); got.Status != 200 {
		t.Errorf("back again: %+v", got)
	}
}

func TestMoreFaultsAreChecked(t *testing.T) {
	t.Parallel()
	for _, f := range []moneysim.Faults{
		{SlowDripRate: 2},
		{DuplicateRate: -1},
		{ThrottleRate: math.NaN()},
		{ResetBeforeRate: 1.1},
		{ResetAfterRate: -0.1},
		{UnavailableRate: 7},
		{MisconfiguredStatus: 500},
		{MisconfiguredStatus: 409},
		{MisconfiguredStatus: -1},
	} {
		if _, err := moneysim.New(moneysim.Config{Faults: f}); err == nil {
			t.Errorf("%+v was taken", f)
		}
	}
}

// Under everything at once the ledger holds what the callers were told.
func TestEveryFaultAtOnceChargesOncePerKey(t *testing.T) {
	t.Parallel()
	b := start(t, moneysim.Config{Seed: 5, Faults: moneysim.Faults{
		JitterMs: 2, ErrorRate: 0.1, TimeoutRate: 0.02, LostReplyRate: 0.05, SlowDripRate: 0.02, DuplicateRate: 0.3,
		ThrottleRate: 0.1, ResetBeforeRate: 0.05, ResetAfterRate: 0.05, UnavailableRate: 0.1,
	}})
	b.http.Timeout = 300 * time.Millisecond
	const keys = 400
	var lost atomic.Int64
	var wg sync.WaitGroup
	for w := range 20 {
		wg.Go(func() {
			for i := range keys / 20 {
				target := w*keys + i
				for tries := 1; ; tries++ {
					a, err := b.point(1, target, 10)
					if err == nil && a.Status == 200 {
						break
					}
					if err != nil {
						lost.Add(1)
					}
					if tries == 60 {
						t.Errorf("target %d never got through: %+v, %v", target, a, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	b.sim.Close() // waits for what is under way
	if s := b.sim.Stats(); s.Charges != keys || s.Amount != 10*keys || b.sim.MaxChargesPerKey() != 1 || s.DuplicateKeys == 0 {
		t.Errorf("%+v, at most %d charges for a key", s, b.sim.MaxChargesPerKey())
	}
	if lost.Load() == 0 {
		t.Error("no answer was lost")
	}
	if n := b.sim.Open(); n != 0 {
		t.Errorf("%d calls are open after Close", n)
	}
}

func TestOpenMax(t *testing.T) {
	t.Parallel()
	b := start(t, moneysim.Config{Faults: moneysim.Faults{TimeoutRate: 1}})
	var wg sync.WaitGroup
	for target := range 8 {
		wg.Go(func() { _, _ = b.point(1, target, 10) }) // ends with Close
	}
	fixture.Until(t, "8 requests are open", func() bool { return b.sim.Open() == 8 })
	b.get("/stats", new(moneysim.Stats)) // no call of the Money API
	if n := b.sim.OpenMax(); n != 8 {
		t.Errorf("at most %d open, want 8", n)
	}
	b.sim.Close()
	wg.Wait()
	if open, most := b.sim.Open(), b.sim.OpenMax(); open != 0 || most != 8 {
		t.Errorf("after Close %d open, at most %d", open, most)
	}
	b.sim.Reset()
	if open, busiest := b.sim.OpenMax(), b.sim.Busiest(time.Hour); open != 0 || busiest != 0 {
		t.Errorf("after a reset at most %d open, %d came in", open, busiest)
	}
}
