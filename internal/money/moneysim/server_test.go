package moneysim_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

func TestMain(m *testing.M) { fixture.Main(m) }

// bench is a running simulator and a plain HTTP client for it.
type bench struct {
	*testing.T
	sim  *moneysim.Server
	url  string
	http *http.Client
}

func start(t *testing.T, cfg moneysim.Config) *bench {
	t.Helper()
	sim := fixture.Must(moneysim.New(cfg))(t)
	addr := fixture.Must(sim.Start("127.0.0.1:0"))(t)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		sim.Close()
	})
	return &bench{T: t, sim: sim, url: "http://" + addr, http: &http.Client{Transport: transport}}
}

// answer is what a request came back with.
type answer struct {
	Status     int
	Key        string // transactionKey
	Code       string
	RetryAfter string
}

func (b *bench) do(method, path, key, body string) (answer, error) {
	req, err := http.NewRequest(method, b.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	req.GetBody = nil // so that the client does not repeat it
	resp, err := b.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	var parsed struct{ TransactionKey, Code string }
	_ = json.Unmarshal(raw, &parsed) // an answer that is not JSON has neither
	return answer{resp.StatusCode, parsed.TransactionKey, parsed.Code, resp.Header.Get("Retry-After")}, nil
}

func (b *bench) must(method, path, key, body string) answer {
	b.Helper()
	return fixture.Must(b.do(method, path, key, body))(b)
}

func (b *bench) get(path string, into any) {
	b.Helper()
	resp, err := b.http.Get(b.url + path)
	fixture.OK(b, err)
	defer func() { _ = resp.Body.Close() }()
	fixture.OK(b, json.NewDecoder(resp.Body).Decode(into))
}

func (b *bench) point(promotion, target, amount int) (answer, error) {
	return b.do(http.MethodPost, "/v1/points/charge", fmt.Sprintf("%d:%d", promotion, target),
		fmt.Sprintf(`{"promotionId":"%d","targetId":"%d","userId":"u%d","amount":%d}`, promotion, target, target, amount))
}

func (b *bench) mustPoint(promotion, target, amount int) answer {
	b.Helper()
	return fixture.Must(b.point(promotion, target, amount))(b)
}

// TestPaysOncePerKey charges each of two keys by many callers at once, whose requests all
// arrive twice.
func TestPaysOncePerKey(t *testing.T) {
	t.Parallel()
	b := start(t, moneysim.Config{Faults: moneysim.Faults{DuplicateRate: 1}})
	const keys, callers = 2, 25
	var wg sync.WaitGroup
	var paid sync.Map
	for i := range keys * callers {
		wg.Go(func() {
			a, err := b.point(1, i%keys, 10)
			if err != nil || a.Status != 200 {
				t.Errorf("charge: %+v, %v", a, err)
			}
			paid.Store(a.Key, true)
		})
	}
	wg.Wait()
	got := 0
	paid.Range(func(any, any) bool { got++; return true })
	if got != keys || b.sim.MaxChargesPerKey() != 1 {
		t.Errorf("%d transaction keys, at most %d charges for a key", got, b.sim.MaxChargesPerKey())
	}
	want := moneysim.Stats{Charges: keys, Requests: 2 * keys * callers, DuplicateKeys: 2*keys*callers - keys, Amount: 10 * keys}
	fixture.Equal(t, want, b.sim.Stats())
	var overWire moneysim.Stats
	if b.get("/stats", &overWire); overWire != want {
		t.Errorf("/stats: %+v, want %+v", overWire, want)
	}
	if n := b.sim.Busiest(time.Hour); n != keys*callers {
		t.Errorf("%d requests came in, want %d: copies are not sent by anybody", n, keys*callers)
	}
}

func TestRequestsAreChecked(t *testing.T) {
	t.Parallel()
	b := start(t, moneysim.Config{})
	asText := b.must(http.MethodPost, "/v1/points/charge", "9:9", `{"promotionId":"9","targetId":"9","userId":"u","amount":5}`)
	asNumber := b.must(http.MethodPost, "/v1/points/charge", "9:9", ` {"amount":5, "userId":"u", "targetId":9, "promotionId":9} `)
	if asText.Status != 200 || asNumber != asText {
		t.Errorf("as text %+v, as numbers %+v", asText, asNumber)
	}
	malformed, invalid := answer{Status: 400, Code: "MALFORMED"}, answer{Status: 422, Code: "INVALID"}
	for _, c := range []struct {
		name, path, key, body string
		want                  answer
	}{
		{"two values", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":1}{}`, malformed},
		{"unknown field", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":1,"x":1}`, malformed},
		{"id not canonical", "points", "1:7", `{"promotionId":1,"targetId":"07","userId":"u","amount":1}`, malformed},
		{"amount as text", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":"1"}`, malformed},
		{"no promotion", "points", "1:7", `{"targetId":7,"userId":"u","amount":1}`, invalid},
		{"no target", "points", "1:7", `{"promotionId":1,"userId":"u","amount":1}`, invalid},
		{"no user", "points", "1:7", `{"promotionId":1,"targetId":7,"amount":1}`, invalid},
		{"amount 0", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":0}`, invalid},
		{"points with a voucher", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":1,"voucherCode":"V"}`, invalid},
		{"voucher without a code", "vouchers", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":1}`, invalid},
		{"no key", "points", "", `{"promotionId":1,"targetId":7,"userId":"u","amount":1}`, answer{Status: 422, Code: "KEY_MISMATCH"}},
		{"another's key", "points", "1:8", `{"promotionId":1,"targetId":7,"userId":"u","amount":1}`, answer{Status: 422, Code: "KEY_MISMATCH"}},
		{"another amount", "points", "9:9", `{"promotionId":9,"targetId":9,"userId":"u","amount":6}`, answer{Status: 422, Code: "KEY_REUSED"}},
		{"another kind", "vouchers", "9:9", `{"promotionId":9,"targetId":9,"userId":"u","amount":5,"voucherCode":"V"}`, answer{Status: 422, Code: "KEY_REUSED"}},
	} {
		if got := b.must(http.MethodPost, "/v1/"+c.path+"/charge", c.key, c.body); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	if s := b.sim.Stats(); s.Charges != 1 || s.Amount != 5 {
		t.Errorf("wrong requests were charged: %+v", s)
	}
	for path, want := range map[string]answer{
		"9:9": {Status: 200, Key: asText.Key}, "1:8": {Status: 404, Code: "TRANSACTION_NOT_FOUND"}, "1": malformed, "1:x": malformed,
	} {
		if got := b.must(http.MethodGet, "/v1/transactions/"+path, "", ""); got != want {
			t.Errorf("look-up of %s: %+v, want %+v", path, got, want)
		}
	}
}

// TestFaultsChargeWhatTheTableSays checks the table of the package comment, each line
// with and without a copy. What the client makes of the faults is in package money.
func TestFaultsChargeWhatTheTableSays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults  moneysim.Faults
		want    answer // zero: there is none
		charged bool
	}{
		"Away":         {moneysim.Faults{Away: true}, answer{}, false},
		"ResetBefore":  {moneysim.Faults{ResetBeforeRate: 1}, answer{}, false},
		"ResetAfter":   {moneysim.Faults{ResetAfterRate: 1}, answer{}, true},
		"LostReply":    {moneysim.Faults{LostReplyRate: 1}, answer{}, true},
		"Throttled":    {moneysim.Faults{ThrottleRate: 1}, answer{Status: 429, Code: "THROTTLED", RetryAfter: "1"}, false},
		"Error":        {moneysim.Faults{ErrorRate: 1}, answer{Status: 500, Code: "INTERNAL_ERROR"}, false},
		"Unauthorized": {moneysim.Faults{MisconfiguredStatus: 401}, answer{Status: 401, Code: "MISCONFIGURED"}, false},
		"WrongPath":    {moneysim.Faults{MisconfiguredStatus: 404}, answer{Status: 404}, false},
	} {
		for _, twice := range []float64{0, 1} {
			t.Run(fmt.Sprintf("%sTwice%v", name, twice), func(t *testing.T) {
				t.Parallel()
				c.faults.DuplicateRate = twice
				b := start(t, moneysim.Config{Faults: c.faults})
				got, err := b.point(1, 7, 10)
				if noAnswer := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF); noAnswer != (c.want == answer{}) || got != c.want {
					t.Errorf("answer %+v, %v, want %+v", got, err, c.want)
				}
				if n, _ := b.sim.Charges(1); n != int64(b.sim.MaxChargesPerKey()) || (n == 1) != c.charged {
					t.Errorf("%d charges", n)
				}
				fixture.OK(t, b.sim.SetFaults(moneysim.Faults{}))
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
	for name, faults := range map[string]moneysim.Faults{"Unavailable": {UnavailableRate: 1}, "Timeout": {TimeoutRate: 1}} {
		t.Run(name+"IsChargedHalfTheTime", func(t *testing.T) {
			t.Parallel()
			b := start(t, moneysim.Config{Faults: faults})
			const keys = 100
			var wg sync.WaitGroup
			for target := range keys {
				wg.Go(func() {
					if a, err := b.point(1, target, 10); err == nil && a != (answer{Status: 503, Code: "UNAVAILABLE"}) {
						t.Errorf("target %d: %+v", target, a)
					}
				})
			}
			fixture.Until(t, "all have arrived", func() bool { return b.sim.Stats().Requests == keys })
			b.sim.Close() // ends what hangs
			wg.Wait()
			if n, _ := b.sim.Charges(1); n < 25 || n > 75 {
				t.Errorf("%d of %d charged", n, keys)
			}
		})
	}
}

// TestSeed checks that the same seed brings the same faults, that a refused key stays
// refused, and that a paid one is not refused later.
func TestSeed(t *testing.T) {
	t.Parallel()
	run := func(seed uint64) (statuses [200]int) {
		b := start(t, moneysim.Config{Seed: seed, Faults: moneysim.Faults{RefuseRate: 0.5}})
		for target := range statuses {
			first := b.mustPoint(1, target, 10)
			if again := b.mustPoint(1, target, 10); again != first {
				t.Errorf("target %d: %+v, then %+v", target, first, again)
			}
			statuses[target] = first.Status
		}
		if got := b.must(http.MethodPut, "/faults", "", `{"refuseRate":1}`); got.Status != 200 {
			t.Fatalf("PUT /faults: %+v", got)
		}
		charged, _ := b.sim.Charges(1)
		for target, status := range statuses {
			if again := b.mustPoint(1, target, 10); again.Status != status {
				t.Errorf("target %d had the status %d, and has %+v", target, status, again)
			}
			if status == 422 {
				charged++
			}
		}
		if charged != int64(len(statuses)) {
			t.Errorf("%d of %d are charged or refused", charged, len(statuses))
		}
		return statuses
	}
	first, second, other := run(7), run(7), run(8)
	if first != second {
		t.Error("two runs of seed 7 differ")
	}
	if first == other {
		t.Error("seeds 7 and 8 bring the same faults")
	}
}

func TestFaultsAreReplacedReadAndReset(t *testing.T) {
	t.Parallel()
	begin := moneysim.Faults{LatencyMs: 1}
	b := start(t, moneysim.Config{Faults: begin})
	first := b.mustPoint(1, 7, 10)
	if got := b.must(http.MethodPut, "/faults", "", `{"errorRate":1,"jitterMs":2}`); got.Status != 200 {
		t.Fatalf("PUT /faults: %+v", got)
	}
	for body, status := range map[string]int{`{"errorRate":1.5}`: 422, `{"mood":1}`: 400, `nonsense`: 400} {
		if a := b.must(http.MethodPut, "/faults", "", body); a.Status != status {
			t.Errorf("PUT /faults %s: %+v, want %d", body, a, status)
		}
	}
	var got moneysim.Faults
	if b.get("/faults", &got); got != (moneysim.Faults{ErrorRate: 1, JitterMs: 2}) {
		t.Errorf("faults: %+v", got)
	}
	if a := b.must(http.MethodPost, "/reset", "", ""); a.Status != 204 {
		t.Fatalf("POST /reset: %+v", a)
	}
	if b.sim.Stats() != (moneysim.Stats{}) || b.sim.Faults() != begin || b.sim.MaxChargesPerKey() != 0 || b.sim.OpenMax() != 0 || b.sim.Busiest(time.Hour) != 0 {
		t.Errorf("after a reset: %+v, %+v", b.sim.Stats(), b.sim.Faults())
	}
	if again := b.mustPoint(2, 8, 10); again.Key == first.Key {
		t.Errorf("two payouts have the transaction %s", again.Key)
	}
	for _, f := range []moneysim.Faults{
		{RefuseRate: math.NaN()},
		{SlowDripRate: 2},
		{DuplicateRate: -1},
		{ThrottleRate: math.NaN()},
		{ResetBeforeRate: 1.1},
		{ResetAfterRate: -0.1},
		{UnavailableRate: 7},
		{MisconfiguredStatus: 500},
		{MisconfiguredStatus: 409},
		{LatencyMs: -1},
		{RatePerSecond: -1},
	} {
		if _, err := moneysim.New(moneysim.Config{Faults: f}); err == nil {
			t.Errorf("%+v was taken", f)
		}
	}
}

func TestClose(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]moneysim.Faults{
		"EndsHangingRequests": {TimeoutRate: 1},
		"EndsLongLatencies":   {LatencyMs: 60_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t, moneysim.Config{Faults: faults})
			var failed atomic.Int64
			var wg sync.WaitGroup
			for target := range 8 {
				wg.Go(func() {
					if _, err := b.point(1, target, 10); err != nil {
						failed.Add(1)
					}
				})
			}
			fixture.Until(t, "8 requests are open", func() bool { return b.sim.OpenMax() == 8 })
			b.get("/stats", new(moneysim.Stats)) // no call of the Money API
			b.sim.Close()
			b.sim.Close()
			wg.Wait()
			if failed.Load() != 8 || b.sim.OpenMax() != 8 {
				t.Errorf("%d of 8 calls failed, at most %d were open", failed.Load(), b.sim.OpenMax())
			}
			if _, err := b.sim.Start("127.0.0.1:0"); err == nil {
				t.Error("a closed simulator was started again")
			}
		})
	}
}

func TestListOfAPromotion(t *testing.T) {
	t.Parallel()
	b := start(t, moneysim.Config{})
	for i := range 7 {
		b.mustPoint(1, i, 10)
		b.mustPoint(2, i, 100)
	}
	seen := map[string]bool{}
	for cursor := "0"; cursor != ""; {
		var page struct {
			Charges    []struct{ IdempotencyKey, PromotionID, TransactionKey string }
			NextCursor string
		}
		b.get("/v1/charges?promotionId=2&limit=3&cursor="+cursor, &page)
		for _, c := range page.Charges {
			seen[c.IdempotencyKey] = c.PromotionID == "2" && c.TransactionKey != ""
		}
		cursor = page.NextCursor
	}
	if n, amount := b.sim.Charges(2); len(seen) != 7 || !seen["2:0"] || n != 7 || amount != 700 {
		t.Errorf("listed %v, Charges(2) = %d, %d", seen, n, amount)
	}
}
