package test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/doctor"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/reward"
)

// order is what a simulated API has paid.
type order struct {
	id, reference, receiver, amount string
}

// shapedSim simulates an API of another shape than the Money API. Shape handles a
// request, and pay records what it pays: each reference once.
type shapedSim struct {
	t     *testing.T
	shape func(s *shapedSim, r *http.Request, body map[string]any) (status int, answer any)

	mu       sync.Mutex // protects the fields below
	random   *rand.Rand
	faulty   bool
	orders   []order
	by       map[string]order // by reference
	repeated int              // requests to pay a known reference
}

// pay pays a reference once, and reports whether it was new.
func (s *shapedSim) pay(o order) (order, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.by[o.reference]; ok {
		s.repeated++
		if s.faulty && (known.receiver != o.receiver || known.amount != o.amount) {
			s.t.Errorf("%+v came again as %+v", known, o)
		}
		return known, false
	}
	o.id = fmt.Sprintf("ID%d", len(s.orders)+1)
	s.orders, s.by[o.reference] = append(s.orders, o), o
	return o, true
}

func (s *shapedSim) find(reference string) []order {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.by[reference]; ok {
		return []order{o}
	}
	return nil
}

// fault draws what goes wrong with a request.
func (s *shapedSim) fault() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.faulty {
		return 0
	}
	return s.random.IntN(20)
}

func (s *shapedSim) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var body map[string]any
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &body); err != nil {
			s.t.Errorf("%s is not JSON: %v", raw, err)
		}
	}
	answer := func() (int, any) {
		r.Body = io.NopCloser(strings.NewReader(string(raw)))
		return s.shape(s, r, body)
	}
	switch s.fault() {
	case 1: // a proxy fails before the request arrives
		http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
	case 2: // or after
		answer()
		http.Error(w, "<html>bad gateway</html>", http.StatusBadGateway)
	case 3:
		answer()
		panic(http.ErrAbortHandler) // the response is lost
	case 4:
		panic(http.ErrAbortHandler)
	case 5: // no response in time
		answer()
		<-r.Context().Done()
	case 6:
		<-r.Context().Done()
	case 7:
		w.Header().Set("Retry-After", "1")
		http.Error(w, `{"name": "RATE_LIMIT_REACHED"}`, http.StatusTooManyRequests)
	case 8: // a proxy sends the request twice, and the second response arrives
		answer()
		send(w, answer)
	case 9:
		answer()
		http.Error(w, "", http.StatusServiceUnavailable)
	default:
		send(w, answer)
	}
}

func send(w http.ResponseWriter, answer func() (int, any)) {
	status, body := answer()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// field returns a part of a JSON value as text, by names and indices.
func field(value any, path ...any) string {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			m, _ := value.(map[string]any)
			value = m[step]
		case int:
			if l, _ := value.([]any); step < len(l) {
				value = l[step]
			}
		}
	}
	return fmt.Sprint(value)
}

type object = map[string]any

// pointsAPI has the shape of points-api.yaml.
func pointsAPI(s *shapedSim, r *http.Request, body map[string]any) (int, any) {
	raw, _ := io.ReadAll(r.Body)
	mac := hmac.New(sha256.New, []byte("signing key"))
	_, _ = io.WriteString(mac, r.Header.Get("X-Timestamp")+"."+r.Method+"."+r.URL.RequestURI()+"."+string(raw))
	if r.Header.Get("X-Signature") != "sha256="+hex.EncodeToString(mac.Sum(nil)) || r.Header.Get("X-Client") != "rewards" {
		return 401, object{"error": object{"code": "SIGNATURE"}}
	}
	credit := func(o order) object { return object{"id": o.id, "state": "POSTED"} }
	if r.Method == http.MethodGet {
		list := []any{}
		for _, o := range s.find(r.URL.Query().Get("reference")) {
			list = append(list, credit(o))
		}
		return 200, object{"credits": list}
	}
	account, ok := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/v1/accounts/"), "/credits")
	if !ok {
		return 404, object{}
	}
	if strings.HasPrefix(account, "closed") {
		return 422, object{"error": object{"code": "ACCOUNT_CLOSED"}}
	}
	o, fresh := s.pay(order{reference: field(body, "reference"), receiver: account, amount: field(body, "points")})
	if fresh {
		return 201, object{"credit": credit(o)}
	}
	return 200, object{"credit": credit(o)}
}

// payoutsAPI has the shape of payouts-api.yaml.
func payoutsAPI(s *shapedSim, r *http.Request, body map[string]any) (int, any) {
	if r.Header.Get("Authorization") != "Bearer access" {
		return 401, object{"name": "AUTHENTICATION_FAILURE"}
	}
	if r.Method != http.MethodPost || r.URL.Path != "/v1/payments/payouts" {
		return 404, object{}
	}
	if currency := field(body, "items", 0, "amount", "currency"); currency != "EUR" && currency != "USD" && currency != "GBP" {
		s.t.Errorf("paid in %q", currency)
	}
	batch := field(body, "sender_batch_header", "sender_batch_id")
	receiver := field(body, "items", 0, "receiver")
	if len(batch) > 30 || batch != r.Header.Get("PayPal-Request-Id") {
		s.t.Errorf("the batch is %q", batch)
	}
	if strings.HasPrefix(receiver, "closed") {
		return 400, object{"name": "VALIDATION_ERROR", "details": []any{object{"field": "/items/0/receiver", "issue": "is invalid"}}}
	}
	o, fresh := s.pay(order{reference: batch, receiver: receiver, amount: field(body, "items", 0, "amount", "value")})
	if !fresh {
		return 400, object{
			"name": "USER_BUSINESS_ERROR", "details": []any{object{"field": "SENDER_BATCH_ID", "issue": "Batch with given sender_batch_id already exists"}},
			"links": []any{object{"rel": "self", "href": "https://api-m.paypal.com/v1/payments/payouts/" + o.id}},
		}
	}
	return 201, object{"batch_header": object{
		"payout_batch_id": o.id, "batch_status": "PENDING", "sender_batch_header": object{"sender_batch_id": batch},
	}}
}

// giftCardAPI has the shape of gift-card-api.yaml.
func giftCardAPI(s *shapedSim, r *http.Request, body map[string]any) (int, any) {
	if r.Header.Get("Authorization") != "Bearer access" {
		return 401, object{}
	}
	show := func(o order) object { return object{"id": o.id, "external_id": o.reference, "status": "EXECUTED"} }
	if r.Method == http.MethodGet {
		list := []any{}
		for _, o := range s.find(r.URL.Query().Get("external_id")) {
			list = append(list, show(o))
		}
		return 200, object{"orders": list, "total_count": len(list)}
	}
	email := field(body, "reward", "recipient", "email")
	if strings.HasPrefix(email, "closed") {
		return 422, object{"errors": object{"message": "invalid", "payload": object{"reward": object{"recipient": object{"email": []any{"is invalid"}}}}}}
	}
	if field(body, "reward", "value", "currency_code") != "EUR" || field(body, "reward", "products", 0) != "CARD" {
		return 400, object{"errors": object{"message": "product"}}
	}
	o, fresh := s.pay(order{reference: field(body, "external_id"), receiver: email, amount: field(body, "reward", "value", "denomination")})
	if fresh {
		return 200, object{"order": show(o)}
	}
	return 201, object{"order": show(o)}
}

// TestProviderSettings pays through the settings of examples/provider-settings, to
// APIs that fail, lose responses, hang and get requests twice: each target is paid
// once, and the rows say what the API has paid.
func TestProviderSettings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		shape   func(*shapedSim, *http.Request, map[string]any) (int, any)
		voucher bool
		amount  string // of 1050 minor units
	}{
		"points-api":    {pointsAPI, false, "1050"},
		"payouts-api":   {payoutsAPI, false, "10.50"},
		"gift-card-api": {giftCardAPI, true, "10.5"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sim := &shapedSim{t: t, shape: tc.shape, random: rand.New(rand.NewPCG(1, 2)), by: map[string]order{}}
			server := httptest.NewServer(sim)
			t.Cleanup(server.Close)
			cfg := shapedConfig(t, name, server.URL)
			unhurried := cfg
			unhurried.Money.Timeout = 10 * time.Second // nothing hangs yet
			checkShaped(t, unhurried)
			sim.mu.Lock()
			sim.faulty, sim.orders, sim.by, sim.repeated = true, nil, map[string]order{}, 0
			sim.mu.Unlock()
			r := newRig(t, embedded, moneysim.Faults{}, func(c *config.Config) { c.Money, c.Redis.Stream.LeaseSeconds = cfg.Money, 10 })
			paid, closed := payShaped(t, r, tc.voucher)
			sim.mu.Lock()
			defer sim.mu.Unlock()
			users := map[string]order{}
			for _, o := range sim.orders {
				if users[o.receiver].id != "" {
					t.Errorf("%s was paid twice: %+v and %+v", o.receiver, o, users[o.receiver])
				}
				if users[o.receiver] = o; o.amount != tc.amount {
					t.Errorf("paid %+v", o)
				}
			}
			if len(users) != len(paid) || len(closed) != shapedClosed {
				t.Errorf("%d orders for %d paid, %d refused", len(users), len(paid), len(closed))
			}
			for user, key := range paid {
				if users[user].id != key {
					t.Errorf("%s: the row has %q, the API %+v", user, key, users[user])
				}
			}
			if sim.repeated == 0 {
				t.Error("no charge was repeated: the faults did nothing")
			}
		})
	}
}

const (
	shapedTargets = 60
	shapedClosed  = 6
)

// shapedConfig loads an example, and points it at the simulation.
func shapedConfig(t *testing.T, name, url string) config.Config {
	t.Helper()
	dir := t.TempDir()
	program := map[string]config.Value{}
	for setting, text := range map[string]string{"money.url": url, "money.timeout": "2s", "money.settle-after": "2s"} {
		program[setting] = config.Value{Text: text, Source: "test"}
	}
	for setting, secret := range map[string]string{"token-file": "access", "signature-key-file": "signing key"} {
		file := filepath.Join(dir, setting)
		fixture.OK(t, os.WriteFile(file, []byte(secret), 0o600))
		switch {
		case name == "points-api" && setting == "signature-key-file":
			program["money.request.signature-key-file"] = config.Value{Text: file, Source: "test"}
		case name != "points-api" && setting == "token-file":
			program["money.token-file"] = config.Value{Text: file, Source: "test"}
		}
	}
	cfg, _, err := config.Load(config.LoadParams{File: "examples/provider-settings/" + name + ".yaml", Program: program})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// checkShaped lets largesse provider check judge the settings and the simulation.
func checkShaped(t *testing.T, cfg config.Config) {
	t.Helper()
	checks := fixture.Must(doctor.CheckProvider(t.Context(), cfg, doctor.ProviderCheckParams{User: "ann@example.com", RefuseUser: "closed@example.com", VoucherCode: "CARD"}))(t)
	for _, c := range checks {
		// These APIs do not compare the body of a repeated charge, and the gift cards
		// need a voucher code.
		if c.Status == doctor.CheckFail && (c.Name == "voucher" || cfg.Money.Request.Path != "/api/v2/orders") {
			t.Errorf("%+v", c)
		}
	}
}

// payShaped pays a promotion, and returns the transaction keys by user.
func payShaped(t *testing.T, r *rig, voucher bool) (paid map[string]string, closed []string) {
	t.Helper()
	create := client.NewPromotion{Name: t.Name(), Type: "POINT", Amount: 1050}
	if r.cfg.Money.Currencies[0] != reward.NoCurrency {
		create.Currency = "EUR"
	}
	if voucher {
		create.Type, create.VoucherCode = "VOUCHER", "CARD"
	}
	var file strings.Builder
	file.WriteString("targetId,userId\n")
	for i := range shapedTargets {
		user := fmt.Sprintf(`"o'""neil ✓ {%d}\@example.com"`, i)
		if r.cfg.Money.Request.Path == "/v1/accounts/{userId}/credits" {
			user = fmt.Sprintf(`"o'""neil ✓ {%d}?#%%@example.com"`, i) // without what may not be in a path
		}
		if i < shapedClosed {
			user = fmt.Sprintf("closed-%d@example.com", i)
		}
		fmt.Fprintf(&file, "%d,%s\n", i, user)
	}
	id, _ := r.pay(create, strings.NewReader(file.String()))
	r.until(id, "settled", func(p client.Promotion) bool {
		return p.Status == "COMPLETED" && (p.Counts.Unknown == 0 || r.cfg.Money.Lookup.Path == "")
	})
	paid = map[string]string{}
	for row, err := range r.api.Payouts(t.Context(), id, client.PayoutFilter{}) {
		switch {
		case err != nil:
			t.Fatal(err)
		case row.State == "SUCCEEDED":
			paid[row.UserID] = row.TransactionKey
		case strings.HasPrefix(row.UserID, "closed") && (row.State == "FAILED" || row.State == "UNKNOWN" && r.cfg.Money.Lookup.Path == ""):
			// Without a lookup, a refusal after a call without a response proves
			// nothing: a person decides.
			closed = append(closed, row.UserID)
		default:
			t.Errorf("%+v", row)
		}
	}
	return paid, closed
}

// TestProviderSettingsWait: a provider whose key is no longer remembered, and that
// has no lookup, is not charged again. The payout waits for a person.
func TestProviderSettingsWait(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		calls.Add(1)
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(server.Close)
	cfg := shapedConfig(t, "payouts-api", server.URL)
	r := newRig(t, embedded, moneysim.Faults{}, func(c *config.Config) {
		c.Money = cfg.Money
		c.Money.Timeout, c.Money.SettleAfter, c.Money.IdempotencyWindow = 300*time.Millisecond, 100*time.Millisecond, 1500*time.Millisecond
	})
	id, _ := r.pay(client.NewPromotion{Name: t.Name(), Type: "POINT", Amount: 1050, Currency: "EUR"}, strings.NewReader("targetId,userId\n1,ann@example.com\n"))
	r.until(id, "waiting for a person", func(p client.Promotion) bool { return p.Status == "COMPLETED" && p.Counts.Unknown == 1 })
	if n := calls.Load(); n < 1 || n > 3 {
		t.Errorf("%d charges", n)
	}
}

// TestProviderSettingsPage loads the settings of docs/provider-settings.md.
func TestProviderSettingsPage(t *testing.T) {
	t.Parallel()
	page := fixture.Must(os.ReadFile("docs/provider-settings.md"))(t)
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	file := filepath.Join(t.TempDir(), "largesse.yaml")
	fixture.OK(t, os.WriteFile(file, []byte(text), 0o600))
	cfg, warnings, err := config.Load(config.LoadParams{File: file})
	if err != nil || len(warnings) > 0 || cfg.Money.Custom().Path != "/v2/orders" {
		t.Errorf("%v, %q, %+v", err, warnings, cfg.Money)
	}
}
