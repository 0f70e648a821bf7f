package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// brokenProvider is a provider that does what it should, but for its flaw.
type brokenProvider struct {
	flaw     string
	forgetAt time.Time
	paying   sync.Mutex    // makes check and payment one step
	crowd    chan struct{} // closed when two charges of one key have been checked

	mu        sync.Mutex // protects what follows
	list      []brokenCharge
	unpaid    int  // charges of the second key that have been checked
	strangers bool // whether a call was refused for its credentials
}

type brokenCharge struct {
	IdempotencyKey string `json:"idempotencyKey"`
	Amount         int64  `json:"amount"`
	TransactionKey string `json:"transactionKey"`
}

func (p *brokenProvider) has(flaw string) bool { return p.flaw == flaw }

func (p *brokenProvider) find(key string) (brokenCharge, bool) {
	same := func(c brokenCharge) bool { return c.IdempotencyKey == key }
	switch p.flaw {
	case "knows charges by target":
		same = func(c brokenCharge) bool {
			return c.IdempotencyKey[strings.Index(c.IdempotencyKey, ":"):] == key[strings.Index(key, ":"):]
		}
	case "joins the IDs":
		same = func(c brokenCharge) bool {
			return strings.ReplaceAll(c.IdempotencyKey, ":", "") == strings.ReplaceAll(key, ":", "")
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.has("forgets") && p.strangers && time.Now().After(p.forgetAt) {
		return brokenCharge{}, false
	}
	i := slices.IndexFunc(p.list, same)
	if i < 0 {
		return brokenCharge{}, false
	}
	return p.list[i], true
}

func (p *brokenProvider) pay(key string, amount int64) brokenCharge {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := brokenCharge{key, amount, "T-" + strconv.Itoa(len(p.list)+1)}
	p.list = append(p.list, c)
	return c
}

// awaitAnother returns when two charges of the second key, which is charged several times at
// once, have found that it is not paid.
func (p *brokenProvider) awaitAnother() {
	p.mu.Lock()
	if len(p.list) == 1 {
		if p.unpaid++; p.unpaid == 2 {
			close(p.crowd)
		}
	}
	waits := len(p.list) == 1
	p.mu.Unlock()
	if waits {
		<-p.crowd
	}
}

func (p *brokenProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	say := func(status int, body any) {
		if p.has("HTML errors") && status != http.StatusOK {
			http.Error(w, "<html>sorry</html>", status)
			return
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	refused := func(status int, code string) { say(status, map[string]string{"code": code}) }
	key, isLookup := strings.CutPrefix(r.URL.Path, "/v1/transactions/")
	switch {
	case r.Header.Get("Authorization") != "Bearer right" && !p.has("accepts everybody"):
		p.mu.Lock()
		p.strangers = true
		p.mu.Unlock()
		refused(cmp.Or(map[string]int{"refuses by 422 for credentials": 422}[p.flaw], http.StatusUnauthorized), "UNAUTHORIZED")
	case isLookup:
		c, found := p.find(key)
		switch {
		case found && p.has("lookup invents its answer"), !found && p.has("lookup finds everything"):
			say(http.StatusOK, map[string]string{"transactionKey": "T-" + key})
		case !found || p.has("lookup finds nothing"):
			refused(http.StatusNotFound, "NOT_FOUND")
		default:
			say(http.StatusOK, map[string]string{"transactionKey": c.TransactionKey})
		}
	case r.URL.Path == "/v1/charges":
		p.page(r, say)
	default:
		p.charge(r, say, refused)
	}
}

func (p *brokenProvider) page(r *http.Request, say func(int, any)) {
	from, _ := strconv.Atoi(r.FormValue("cursor"))
	limit, _ := strconv.Atoi(r.FormValue("limit"))
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(p.list), func(c brokenCharge) bool {
		return !strings.HasPrefix(c.IdempotencyKey, r.FormValue("promotionId")+":")
	})
	if p.has("lists twice what it paid once") {
		list = append(slices.Clone(list), list[0])
	}
	end := min(from+limit, len(list))
	page := map[string]any{"charges": list[min(from, end):end]}
	if end < len(list) {
		next := end
		switch p.flaw {
		case "pages repeat":
			next--
		case "pages skip":
			next++
		}
		page["nextCursor"] = strconv.Itoa(next)
	}
	say(http.StatusOK, page)
}

func (p *brokenProvider) charge(r *http.Request, say func(int, any), refused func(int, string)) {
	var body struct {
		UserID string
		Amount *int64
	}
	err := json.NewDecoder(r.Body).Decode(&body)
	key := r.Header.Get("Idempotency-Key")
	if p.has("pays anything") && body.Amount == nil {
		body.Amount = new(int64)
	}
	switch {
	case p.has("fails at malformed charges") && err != nil:
		refused(http.StatusInternalServerError, "EXCEPTION")
		return
	case p.has("pays anything"):
	case err != nil, key == "", body.Amount == nil, *body.Amount < 1 && !strings.Contains(r.URL.Path, "voucher"):
		refused(http.StatusBadRequest, "MALFORMED")
		return
	}
	if body.UserID == "closed" {
		if p.has("refuses with 500") {
			refused(http.StatusInternalServerError, "CLOSED")
			return
		}
		if p.has("notes what it refuses") {
			p.pay(key, *body.Amount)
		}
		refused(http.StatusUnprocessableEntity, "CLOSED")
		return
	}
	if !p.has("checks, then pays") {
		p.paying.Lock()
		defer p.paying.Unlock()
	}
	c, found := p.find(key)
	if p.has("checks, then pays") && !found {
		p.awaitAnother()
	}
	switch {
	case found && p.has("refuses a repeat"):
		refused(http.StatusUnprocessableEntity, "DUPLICATE")
		return
	case found && c.Amount != *body.Amount && !p.has("pays another body again"):
		refused(http.StatusUnprocessableEntity, "KEY_REUSED")
		return
	case !found, p.has("pays a repeat"), p.has("pays another body again") && c.Amount != *body.Amount:
		c = p.pay(key, *body.Amount)
	case p.has("names a repeat differently"):
		c.TransactionKey += "-again"
	}
	switch {
	case p.has("names no transaction"):
		say(http.StatusOK, map[string]string{"status": "done"})
	case p.has("one transaction for all"):
		say(http.StatusOK, map[string]string{"transactionKey": "T"})
	case p.has("answers 201"):
		say(http.StatusCreated, map[string]string{"transactionKey": c.TransactionKey})
	default:
		say(http.StatusOK, map[string]string{"transactionKey": c.TransactionKey})
	}
}

// TestProviderCheck plays against providers that are right but for one thing. Each
// fails at the check for it, with an advice that says what to change.
func TestProviderCheck(t *testing.T) {
	t.Parallel()
	for flaw, want := range map[string][2]string{ // name of the failed or warned check, and a part of its advice
		"":                               {},
		"pays a repeat":                  {"repeat", "look the key up before you pay, in the same transaction"},
		"names a repeat differently":     {"repeat", "answer a known one with its transactionKey"},
		"refuses a repeat":               {"repeat", "answer the same charge again with 200"},
		"checks, then pays":              {"concurrent", "a unique key in one transaction, or a lock"},
		"pays another body again":        {"other-body", "whatever the body: refuse a known key"},
		"lookup finds nothing":           {"lookup.known", "as soon as it is made"},
		"lookup finds everything":        {"lookup.unknown", "payouts count as paid that nobody paid"},
		"lookup invents its answer":      {"lookup.known", "with the transactionKey of the charge"},
		"forgets":                        {"lookup.later", "never forget a charge"},
		"refuses with 500":               {"refusal", "refuse with 422 and a JSON code: a 5xx is charged again"},
		"notes what it refuses":          {"refusal", "answer 404 with a JSON code for a key that was refused"},
		"names no transaction":           {"charge", `200 and {"transactionKey": "…"}`},
		"answers 201":                    {"charge", `200 and {"transactionKey": "…"}`},
		"one transaction for all":        {"burst", "a transactionKey of its own"},
		"knows charges by target":        {"promotions", "keep the whole Idempotency-Key"},
		"joins the IDs":                  {"promotions", "keep the whole Idempotency-Key"},
		"HTML errors":                    {"lookup.unknown", `add a code to the 404`},
		"accepts everybody":              {"credentials", "check the credentials of each call"},
		"refuses by 422 for credentials": {"credentials", "answer 401 or 403"},
		"pays anything":                  {"malformed", "refuse it with 400"},
		"fails at malformed charges":     {"malformed", "the same charge comes again"},
		"lists twice what it paid once":  {"list", "begin each page after the last charge"},
		"pages repeat":                   {"list", "begin each page after the last charge"},
		"pages skip":                     {"list", "begin each page where the one before ended"},
	} {
		t.Run(cmp.Or(flaw, "none"), func(t *testing.T) {
			t.Parallel()
			const wait = 700 * time.Millisecond
			server := httptest.NewServer(&brokenProvider{flaw: flaw, forgetAt: time.Now().Add(wait), crowd: make(chan struct{})})
			defer server.Close()
			cfg := config.Default()
			cfg.Money.URL = server.URL
			cfg.Money.TokenFile = filepath.Join(t.TempDir(), "token")
			fixture.OK(t, os.WriteFile(cfg.Money.TokenFile, []byte("right\n"), 0o600))
			p := ProviderCheckParams{User: `u"7`, RefuseUser: "closed", VoucherCode: "V"}
			if flaw == "forgets" {
				p.Wait = wait
			}
			checks := fixture.Must(CheckProvider(t.Context(), cfg, p))(t)
			var lines strings.Builder
			for _, c := range checks {
				fmt.Fprintf(&lines, "%s %s: %s; %s\n", c.Status, c.Name, c.Found, c.Advice)
			}
			if flaw == "" {
				for _, c := range checks {
					if c.Status != CheckOK {
						t.Errorf("a provider without a flaw:\n%s", lines.String())
					}
				}
				if len(checks) != 16 {
					t.Errorf("%d checks:\n%s", len(checks), lines.String())
				}
				return
			}
			found := slices.ContainsFunc(checks, func(c Check) bool {
				wanted := CheckFail
				if flaw == "fails at malformed charges" {
					wanted = CheckWarn
				}
				return c.Status == wanted && c.Name == want[0] && strings.Contains(c.Advice, want[1])
			})
			if !found {
				t.Errorf("no failed check %q says %q:\n%s", want[0], want[1], lines.String())
			}
		})
	}
}

// TestProviderCheckOfNothing names what is wrong when nobody answers.
func TestProviderCheckOfNothing(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Money.URL = "http://127.0.0.1:1"
	checks, err := CheckProvider(t.Context(), cfg, ProviderCheckParams{User: "u", VoucherCode: "V"})
	if err != nil || len(checks) != 1 || checks[0].Status != CheckFail || !strings.Contains(checks[0].Advice, "scheme, host and port") {
		t.Errorf("%+v, %v", checks, err)
	}
}

// TestProviderCheckOfPoints: a description that gives the same for a voucher as for
// points gives none, and each currency of the settings is charged.
func TestProviderCheckOfPoints(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	seen := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Key, Currency string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		mu.Lock()
		seen[body.Currency]++
		mu.Unlock()
		if body.Currency == "USD" {
			w.WriteHeader(http.StatusPaymentRequired)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"id": "T-" + body.Key})
	}))
	defer server.Close()
	cfg := config.Default()
	cfg.Money.URL, cfg.Money.Currencies = server.URL, []string{"EUR", "USD"}
	cfg.Money.Request.Path, cfg.Money.Request.Body = "/v2", `{"key": key, "currency": currency, "value": amount}`
	cfg.Money.Response.Paid, cfg.Money.Response.TransactionKey, cfg.Money.Lookup.Without = "status == 200", "body.id", "repeat"
	checks := fixture.Must(CheckProvider(t.Context(), cfg, ProviderCheckParams{User: "u", VoucherCode: "V"}))(t)
	found := map[string]Check{}
	for _, c := range checks {
		found[c.Name] = c
	}
	if c := found["voucher"]; c.Status != CheckOK || !strings.Contains(c.Found, "no voucher is given: the type must be POINT") {
		t.Errorf("%+v", c)
	}
	if c := found["currencies"]; c.Status != CheckFail || !strings.Contains(c.Advice, "remove it from money.currencies") {
		t.Errorf("%+v", c)
	}
	if len(seen) != 2 || seen["USD"] != 1 {
		t.Errorf("charged in %v", seen)
	}
}
