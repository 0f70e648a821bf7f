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
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a running simulator and a plain HTTP client for it.
type bench struct {
	t    testing.TB
	sim  *moneysim.Server
	url  string
	http *http.Client
}

func start(t testing.TB, cfg moneysim.Config) *bench {
	t.Helper()
	sim, err := moneysim.New(cfg)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	addr, err := sim.Start("127.0.0.1:0")
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	return newBench(t, sim, "http://"+addr, &http.Transport{MaxIdleConnsPerHost: 64})
}

func newBench(t testing.TB, sim *moneysim.Server, url string, transport *http.Transport) *bench {
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		sim.Close()
	})
	return &bench{t: t, sim: sim, url: url, http: &http.Client{Transport: transport}}
}

// inMemory runs a test on fake time, with a simulator that its client reaches in memory.
func inMemory(t *testing.T, faults moneysim.Faults, test func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		sim, err := moneysim.New(moneysim.Config{Faults: faults})
		if err != nil {
			t.Fatal(err)
		}
		in := fixture.NewListener()
		srv := &http.Server{Handler: sim.Handler(), ReadHeaderTimeout: time.Minute}
		go func() { _ = srv.Serve(in) }()
		t.Cleanup(func() { _ = srv.Close() })
		test(t, newBench(t, sim, "http://pay.example", &http.Transport{DialContext: in.Dial}))
	})
}

// answer is what a request came back with.
type answer struct {
	Status     int
	Key        string // transactionKey
	Code       string
	RetryAfter string
}

func (b *bench) do(method, path, key, body string) (answer, error) {
	req, err := http.NewRequest(method, b.url+path, io.NopCloser(strings.NewReader(body)))
	if err != nil {
		return answer{}, err
	}
	req.ContentLength = int64(len(body))
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	} else {
		req.Body = http.NoBody
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
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
	b.t.Helper()
	a, err := b.do(method, path, key, body)
	if err != nil {
		b.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

func (b *bench) get(path string, into any) {
	b.t.Helper()
	resp, err := b.http.Get(b.url + path)
	if err != nil {
		b.t.Fatalf("GET %s: %v", path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		b.t.Fatalf("GET %s: %v", path, err)
	}
}

func pointBody(promotion, target, amount int) (key, body string) {
	return fmt.Sprintf("%d:%d", promotion, target),
		fmt.Sprintf(`{"promotionId":"%d","targetId":"%d","userId":"u%d","amount":%d}`, promotion, target, target, amount)
}

func (b *bench) point(promotion, target, amount int) (answer, error) {
	key, body := pointBody(promotion, target, amount)
	return b.do(http.MethodPost, "/v1/points/charge", key, body)
}

func (b *bench) mustPoint(promotion, target, amount int) answer {
	b.t.Helper()
	a, err := b.point(promotion, target, amount)
	if err != nil {
		b.t.Fatalf("charge %d:%d: %v", promotion, target, err)
	}
	return a
}

func TestCharge(t *testing.T) {
	t.Parallel()
	t.Run("PaysOncePerKey", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{})
		first := b.mustPoint(1, 7, 1000)
		if first.Status != 200 || first.Key == "" {
			t.Fatalf("first charge: %+v", first)
		}
		if again := b.mustPoint(1, 7, 1000); again != first {
			t.Errorf("repeat: %+v, want %+v", again, first)
		}
		if other := b.mustPoint(1, 8, 500); other.Key == first.Key {
			t.Errorf("another target got the same transaction %q", other.Key)
		}
		want := moneysim.Stats{Charges: 2, Requests: 3, DuplicateKeys: 1, Amount: 1500}
		if diff := cmp.Diff(want, b.sim.Stats()); diff != "" {
			t.Errorf("stats (-want +got):\n%s", diff)
		}
		var overWire moneysim.Stats
		if b.get("/stats", &overWire); overWire != want {
			t.Errorf("/stats: %+v, want %+v", overWire, want)
		}
	})
	t.Run("PaysOncePerKeyUnderContention", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{})
		const callers = 50
		var wg sync.WaitGroup
		var paid sync.Map
		gate := make(chan struct{})
		for range callers {
			wg.Go(func() {
				<-gate
				a, err := b.point(1, 7, 10)
				if err != nil || a.Status != 200 {
					t.Errorf("charge: %+v, %v", a, err)
				}
				paid.Store(a.Key, true)
			})
		}
		close(gate)
		wg.Wait()
		keys := 0
		paid.Range(func(any, any) bool { keys++; return true })
		if keys != 1 {
			t.Errorf("%d transaction keys for one charge", keys)
		}
		if diff := cmp.Diff(moneysim.Stats{Charges: 1, Requests: callers, DuplicateKeys: callers - 1, Amount: 10}, b.sim.Stats()); diff != "" {
			t.Errorf("stats (-want +got):\n%s", diff)
		}
		if n := b.sim.MaxChargesPerKey(); n != 1 {
			t.Errorf("%d charges for a key", n)
		}
	})
	t.Run("KnowsABodyHoweverItIsSpelled", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{})
		asText := b.must(http.MethodPost, "/v1/points/charge", "1:7", `{"promotionId":"1","targetId":"7","userId":"u","amount":5}`)
		asNumber := b.must(http.MethodPost, "/v1/points/charge", "1:7", ` {"amount":5, "userId":"u", "targetId":7, "promotionId":1} `)
		if asText.Status != 200 || asNumber != asText {
			t.Errorf("as text %+v, as numbers %+v", asText, asNumber)
		}
	})
	t.Run("RefusesAnotherBodyUnderTheSameKey", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{})
		b.mustPoint(1, 7, 1000)
		want := answer{Status: 422, Code: "KEY_REUSED"}
		if got := b.mustPoint(1, 7, 1001); got != want {
			t.Errorf("another amount: %+v", got)
		}
		got := b.must(http.MethodPost, "/v1/vouchers/charge", "1:7", `{"promotionId":"1","targetId":"7","userId":"u7","amount":1000,"voucherCode":"V"}`)
		if got != want {
			t.Errorf("another kind: %+v", got)
		}
		if s := b.sim.Stats(); s.Charges != 1 || s.Amount != 1000 {
			t.Errorf("stats: %+v", s)
		}
	})
	t.Run("ChecksWhatItIsAsked", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{})
		for _, c := range []struct {
			name, path, key, body string
			want                  answer
		}{
			{"not JSON", "points", "1:7", `{`, answer{Status: 400, Code: "MALFORMED"}},
			{"two values", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":1}{}`, answer{Status: 400, Code: "MALFORMED"}},
			{"unknown field", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":1,"x":1}`, answer{Status: 400, Code: "MALFORMED"}},
			{"id not canonical", "points", "1:7", `{"promotionId":1,"targetId":"07","userId":"u","amount":1}`, answer{Status: 400, Code: "MALFORMED"}},
			{"amount as text", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":"1"}`, answer{Status: 400, Code: "MALFORMED"}},
			{"no promotion", "points", "1:7", `{"targetId":7,"userId":"u","amount":1}`, answer{Status: 422, Code: "INVALID"}},
			{"promotion 0", "points", "0:7", `{"promotionId":0,"targetId":7,"userId":"u","amount":1}`, answer{Status: 422, Code: "INVALID"}},
			{"no target", "points", "1:7", `{"promotionId":1,"userId":"u","amount":1}`, answer{Status: 422, Code: "INVALID"}},
			{"no user", "points", "1:7", `{"promotionId":1,"targetId":7,"amount":1}`, answer{Status: 422, Code: "INVALID"}},
			{"no amount", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u"}`, answer{Status: 422, Code: "INVALID"}},
			{"amount 0", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":0}`, answer{Status: 422, Code: "INVALID"}},
			{"amount below 0", "vouchers", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":-1,"voucherCode":"V"}`, answer{Status: 422, Code: "INVALID"}},
			{"points with a voucher", "points", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":1,"voucherCode":"V"}`, answer{Status: 422, Code: "INVALID"}},
			{"voucher without a code", "vouchers", "1:7", `{"promotionId":1,"targetId":7,"userId":"u","amount":1}`, answer{Status: 422, Code: "INVALID"}},
			{"no key", "points", "", `{"promotionId":1,"targetId":7,"userId":"u","amount":1}`, answer{Status: 422, Code: "KEY_MISMATCH"}},
			{"another's key", "points", "1:8", `{"promotionId":1,"targetId":7,"userId":"u","amount":1}`, answer{Status: 422, Code: "KEY_MISMATCH"}},
			{"wrong path", "coins", "1:7", `{}`, answer{Status: 404}},
		} {
			if got := b.must(http.MethodPost, "/v1/"+c.path+"/charge", c.key, c.body); got != c.want {
				t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
			}
		}
		if s := b.sim.Stats(); s.Charges != 0 {
			t.Errorf("wrong requests were charged: %+v", s)
		}
		resp, err := b.http.Post(b.url+"/v1/points/charge", "text/plain", strings.NewReader(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnsupportedMediaType {
			t.Errorf("text/plain: %d", resp.StatusCode)
		}
	})
	t.Run("GivesVouchersAndListsBothKinds", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{})
		v := b.must(http.MethodPost, "/v1/vouchers/charge", "2:1", `{"promotionId":2,"targetId":1,"userId":"","amount":0,"voucherCode":"V"}`)
		p := b.mustPoint(1, 9223372036854775807, 30)
		if v.Status != 200 || p.Status != 200 {
			t.Fatalf("voucher %+v, points %+v", v, p)
		}
		var got page
		b.get("/charges", &got)
		want := page{Charges: []item{
			{"2:1", "2", "1", "VOUCHER", 0, v.Key},
			{"1:9223372036854775807", "1", "9223372036854775807", "POINT", 30, p.Key},
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("charges (-want +got):\n%s", diff)
		}
	})
}

type item struct {
	IdempotencyKey, PromotionID, TargetID, Type string
	Amount                                      int64
	TransactionKey                              string
}

type page struct {
	Charges    []item
	NextCursor string
}

func TestLookup(t *testing.T) {
	t.Parallel()
	b := start(t, moneysim.Config{})
	paid := b.mustPoint(1, 7, 10)
	for path, want := range map[string]answer{
		"1:7": {Status: 200, Key: paid.Key},
		"1:8": {Status: 404, Code: "TRANSACTION_NOT_FOUND"},
		"1":   {Status: 400, Code: "MALFORMED"},
		"1:x": {Status: 400, Code: "MALFORMED"},
		"x:1": {Status: 400, Code: "MALFORMED"},
		"1:+": {Status: 400, Code: "MALFORMED"},
	} {
		if got := b.must(http.MethodGet, "/v1/transactions/"+path, "", ""); got != want {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	b := start(t, moneysim.Config{})
	for i := 1; i <= 7; i++ {
		b.mustPoint(1, i, 10)
		b.mustPoint(2, i, 100)
	}
	for path, want := range map[string]int{
		"/charges?limit=4": 14, "/charges?limit=7": 14, "/charges?limit=0": 14,
		"/v1/charges?promotionId=2&limit=3": 7, "/v1/charges?promotionId=3&limit=3": 0,
	} {
		seen := map[string]bool{}
		for cursor := ""; ; {
			var p page
			b.get(path+"&cursor="+cursor, &p)
			for _, c := range p.Charges {
				seen[c.IdempotencyKey] = true
			}
			if cursor = p.NextCursor; cursor == "" {
				break
			}
		}
		if len(seen) != want {
			t.Errorf("%s: %d charges over all pages, want %d", path, len(seen), want)
		}
	}
	if n, amount := b.sim.Charges(2); n != 7 || amount != 700 {
		t.Errorf("Charges(2) = %d, %d", n, amount)
	}
	for _, path := range []string{"/charges?cursor=x", "/charges?limit=-1", "/v1/charges"} {
		if got := b.must(http.MethodGet, path, "", ""); got.Status != 400 || got.Code != "MALFORMED" {
			t.Errorf("%s: %+v", path, got)
		}
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	t.Run("ErrorsChargeNothing", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{Faults: moneysim.Faults{ErrorRate: 1}})
		if got := b.mustPoint(1, 7, 10); got != (answer{Status: 500, Code: "INTERNAL_ERROR"}) {
			t.Errorf("%+v", got)
		}
		if got := b.must(http.MethodGet, "/v1/transactions/1:7", "", ""); got.Status != 404 {
			t.Errorf("look-up: %+v", got)
		}
	})
	t.Run("ARefusedKeyStaysRefused", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{Faults: moneysim.Faults{RefuseRate: 0.5}})
		refused := 0
		for target := range 200 {
			first := b.mustPoint(1, target, 10)
			if first.Status == 422 && strings.HasPrefix(first.Code, "REFUSED_") {
				refused++
			} else if first.Status != 200 {
				t.Fatalf("target %d: %+v", target, first)
			}
			if again := b.mustPoint(1, target, 10); again != first {
				t.Errorf("target %d: %+v, then %+v", target, first, again)
			}
		}
		if refused < 60 || refused > 140 {
			t.Errorf("%d of 200 refused at a rate of 0.5", refused)
		}
		if n, _ := b.sim.Charges(1); n != int64(200-refused) {
			t.Errorf("%d charged, %d refused of 200", n, refused)
		}
	})
	t.Run("APaidKeyIsNotRefusedLater", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{})
		first := b.mustPoint(1, 7, 10)
		if got := b.must(http.MethodPut, "/faults", "", `{"refuseRate":1}`); got.Status != 200 {
			t.Fatalf("PUT /faults: %+v", got)
		}
		if again := b.mustPoint(1, 7, 10); again != first {
			t.Errorf("%+v, then %+v", first, again)
		}
		if other := b.mustPoint(1, 8, 10); other.Status != 422 {
			t.Errorf("a new key: %+v", other)
		}
	})
	t.Run("ALostReplyIsCharged", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{Faults: moneysim.Faults{LostReplyRate: 1}})
		if a, err := b.point(1, 7, 10); !errors.Is(err, io.EOF) {
			t.Errorf("answer %+v, error %v, want the connection closed", a, err)
		}
		if got := b.must(http.MethodGet, "/v1/transactions/1:7", "", ""); got.Status != 200 {
			t.Errorf("look-up: %+v", got)
		}
	})
	t.Run("ATimeoutIsChargedHalfTheTime", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{Faults: moneysim.Faults{TimeoutRate: 1}})
		b.http.Timeout = 5 * time.Second
		const keys = 100
		var wg sync.WaitGroup
		for target := range keys {
			wg.Go(func() {
				if a, err := b.point(1, target, 10); err == nil {
					t.Errorf("target %d was answered: %+v", target, a)
				}
			})
		}
		wg.Wait()
		b.sim.Close() // waits for what is under way
		if n, _ := b.sim.Charges(1); n < 25 || n > 75 {
			t.Errorf("%d of %d charged", n, keys)
		}
	})
	t.Run("ARepeatMeetsItsOwnChance", func(t *testing.T) {
		t.Parallel()
		b := start(t, moneysim.Config{Faults: moneysim.Faults{ErrorRate: 0.5}})
		for target := range 50 {
			tries := 1
			for b.mustPoint(1, target, 10).Status != 200 {
				if tries++; tries > 60 {
					t.Fatalf("target %d never got through at an error rate of 0.5", target)
				}
			}
		}
		if n := b.sim.MaxChargesPerKey(); n != 1 {
			t.Errorf("%d charges for a key", n)
		}
	})
	t.Run("TheSameSeedBringsTheSameFaults", func(t *testing.T) {
		t.Parallel()
		run := func(seed uint64) (statuses [200]int) {
			b := start(t, moneysim.Config{Seed: seed, Faults: moneysim.Faults{ErrorRate: 0.3, RefuseRate: 0.3}})
			var wg sync.WaitGroup
			for target := range statuses {
				wg.Go(func() {
					a, err := b.point(1, target, 10)
					if err != nil {
						t.Errorf("target %d: %v", target, err)
					}
					statuses[target] = a.Status
				})
			}
			wg.Wait()
			return statuses
		}
		first, second, other := run(7), run(7), run(8)
		if first != second {
			t.Error("two runs of seed 7 differ")
		}
		if first == other {
			t.Error("seeds 7 and 8 bring the same faults")
		}
	})
	t.Run("LatencyIsKeptAndJittered", func(t *testing.T) {
		t.Parallel()
		inMemory(t, moneysim.Faults{LatencyMs: 60, JitterMs: 20}, func(t *testing.T, b *bench) {
			for target := range 5 {
				begun := time.Now()
				b.mustPoint(1, target, 10)
				if took := time.Since(begun); took < 40*time.Millisecond || took > 80*time.Millisecond {
					t.Errorf("answered after %v", took)
				}
			}
		})
	})
	t.Run("TheRateIsHeld", func(t *testing.T) {
		t.Parallel()
		inMemory(t, moneysim.Faults{RatePerSecond: 50}, func(t *testing.T, b *bench) {
			for part, want := range []int{5, 5, 2} { // at once, and what is allowed again
				paid, throttled := 0, 0
				for target := range 20 {
					switch a := b.mustPoint(1, 20*part+target, 10); a {
					case answer{Status: 429, Code: "RATE_LIMITED", RetryAfter: "1"}:
						throttled++
					default:
						paid++
					}
				}
				if paid != want || throttled != 20-want {
					t.Errorf("%d paid, %d throttled, want %d paid", paid, throttled, want)
				}
				time.Sleep(time.Second / time.Duration(1+24*part)) // then a 25th of a second
			}
		})
	})
	t.Run("AreReplacedReadAndReset", func(t *testing.T) {
		t.Parallel()
		begin := moneysim.Faults{LatencyMs: 1}
		b := start(t, moneysim.Config{Faults: begin})
		b.mustPoint(1, 7, 10)
		if got := b.must(http.MethodPut, "/faults", "", `{"errorRate":1,"jitterMs":2}`); got.Status != 200 {
			t.Fatalf("PUT /faults: %+v", got)
		}
		var got moneysim.Faults
		if b.get("/faults", &got); got != (moneysim.Faults{ErrorRate: 1, JitterMs: 2}) {
			t.Errorf("faults: %+v", got)
		}
		for body, status := range map[string]int{
			`{"errorRate":1.5}`: 422, `{"errorRate":-1}`: 422, `{"latencyMs":-1}`: 422, `{"ratePerSecond":-1}`: 422,
			`{"mood":1}`: 400, `nonsense`: 400,
		} {
			if a := b.must(http.MethodPut, "/faults", "", body); a.Status != status {
				t.Errorf("PUT /faults %s: %+v, want %d", body, a, status)
			}
		}
		if b.sim.Faults().ErrorRate != 1 {
			t.Errorf("a refused change took hold: %+v", b.sim.Faults())
		}
		if a := b.must(http.MethodPost, "/reset", "", ""); a.Status != 204 {
			t.Fatalf("POST /reset: %+v", a)
		}
		if s := b.sim.Stats(); s != (moneysim.Stats{}) {
			t.Errorf("stats after a reset: %+v", s)
		}
		if b.sim.Faults() != begin {
			t.Errorf("faults after a reset: %+v", b.sim.Faults())
		}
		if n := b.sim.MaxChargesPerKey(); n != 0 {
			t.Errorf("%d charges for a key after a reset", n)
		}
	})
	t.Run("AreCheckedAtTheStart", func(t *testing.T) {
		t.Parallel()
		if _, err := moneysim.New(moneysim.Config{Faults: moneysim.Faults{RefuseRate: math.NaN()}}); err == nil {
			t.Error("NaN was taken as a rate")
		}
	})
}

func TestSlowDrip(t *testing.T) {
	t.Parallel()
	inMemory(t, moneysim.Faults{SlowDripRate: 1}, func(t *testing.T, b *bench) {
		key, body := pointBody(1, 7, 10)
		req, err := http.NewRequest(http.MethodPost, b.url+"/v1/points/charge", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
		begun := time.Now()
		resp, err := b.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		first := make([]byte, 4)
		if _, err := io.ReadFull(resp.Body, first); err != nil || resp.StatusCode != http.StatusOK || string(first) != `{"tr` {
			t.Errorf("status %d, %q, %v", resp.StatusCode, first, err)
		}
		if took := time.Since(begun); took < 150*time.Millisecond || took > time.Second {
			t.Errorf("four bytes within %v", took)
		}
		if n, _ := b.sim.Charges(1); n != 1 {
			t.Errorf("%d charges while it drips", n)
		}
		b.sim.Close()
		if _, err := io.ReadAll(resp.Body); err == nil {
			t.Error("the answer became whole")
		}
	})
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
			fixture.Until(t, "8 requests have arrived", func() bool { return b.sim.Stats().Requests == 8 })
			b.sim.Close()
			b.sim.Close()
			wg.Wait()
			if failed.Load() != 8 {
				t.Errorf("%d of 8 calls failed", failed.Load())
			}
			if _, err := b.sim.Start("127.0.0.1:0"); err == nil {
				t.Error("a closed simulator was started again")
			}
		})
	}
}
