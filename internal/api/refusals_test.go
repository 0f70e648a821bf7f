package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/store"
)

// send answers a request of a client behind the trusted proxy without a network.
func (b *bundle) send(method, path, token, client string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, http.NoBody)
	r.RemoteAddr = "10.0.0.1:80"
	r.Header.Set("X-Forwarded-For", client)
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	w := httptest.NewRecorder()
	b.api.ServeHTTP(w, r)
	return w
}

func behindProxy(c *Config) { c.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }

// TestWhoGuessesIsSlowedDown guesses keys from one address, and uses a key that was not
// used before from the same address.
func TestWhoGuessesIsSlowedDown(t *testing.T) {
	t.Parallel()
	inMemory(t, func(t *testing.T, b *bundle) {
		var mu sync.Mutex // protects got
		got := map[int]int{}
		guess := func() {
			status := b.send("GET", "/v1/promotions", string(auth.NewKeyText()), "198.51.100.1").Code
			mu.Lock()
			got[status]++
			mu.Unlock()
		}
		// A wrong key is counted after its read, so those that are read come one by one.
		for range 200 {
			guess()
		}
		var guessing sync.WaitGroup
		for range 800 {
			guessing.Go(guess)
		}
		guessing.Wait()
		if got[http.StatusUnauthorized] != 200 || got[http.StatusTooManyRequests] != 800 {
			t.Errorf("guesses were answered %v", got)
		}
		key, text := auth.NewKey(7, "till", auth.RoleViewer, "admin", nil, time.Now())
		fixture.OK(t, b.store.APIKeyCreate(t.Context(), key))
		if a := b.send("GET", "/v1/promotions", string(text), "198.51.100.1"); a.Code != http.StatusOK {
			t.Errorf("a new key from the same address: %d %s", a.Code, a.Body)
		}
	}, behindProxy, byKeys)
}

// TestRefusalsAreRecorded floods the API with requests that it refuses, from many
// addresses and in many spellings of paths. The audit and the log name who it was and
// stay short, and no refusal is missing from the counts.
func TestRefusalsAreRecorded(t *testing.T) {
	t.Parallel()
	metrics := obs.NewMetrics()
	inMemory(t, func(t *testing.T, b *bundle) {
		b.api.Start(t.Context())
		entries := func() []store.AuditLine { return b.store.audit(t, refusalAction) }
		if a := b.send("POST", "/v1/promotions/12/start", "viewer", "2001:db8::7"); a.Code != http.StatusForbidden {
			t.Fatalf("%d %s", a.Code, a.Body)
		}
		if a := b.send("GET", "/v1/users/u8/history", "shopper", "192.0.2.8"); a.Code != http.StatusForbidden {
			t.Fatalf("%d %s", a.Code, a.Body)
		}
		if a := b.send("GET", "/v1/audit", "lgs_abcdefghijkl", "192.0.2.9"); a.Code != http.StatusUnauthorized {
			t.Fatalf("%d %s", a.Code, a.Body)
		}
		if a := b.send("GET", "/v1/me", "", "192.0.2.10"); a.Code != http.StatusUnauthorized { // as before signing in
			t.Fatalf("%d %s", a.Code, a.Body)
		}
		synctest.Wait()
		want := []string{
			`the viewer viewer start-promotion 2001:db8::7 403 {"count":1}`, `u7 shopper get-user-history 192.0.2.8 403 {"count":1}`,
			`  list-audit 192.0.2.9 401 {"count":1,"key":"lgs_abcdefgh"}`,
		}
		for _, l := range entries() {
			text := fmt.Sprintf("%s %s %s %s %d %s", l.Actor, l.Role, l.Subject, l.Address, l.Status, l.Detail)
			if !slices.Contains(want, text) || l.Code == "" || l.RequestID == "" || l.EndedAt.IsZero() {
				t.Errorf("%s: %+v", text, l)
			}
		}
		if n := len(entries()); n != len(want) {
			t.Errorf("%d entries at once", n)
		}
		const flood = 3000
		for i := range flood {
			b.send("GET", fmt.Sprintf("/v1/promotions/%d%%2F", i), fmt.Sprintf("lgs_%08d", i), fmt.Sprintf("198.51.%d.%d", i/250, i%250))
			time.Sleep(time.Minute / flood)
			if i == flood/4 { // the flood hides no caller with a role
				b.send("POST", "/v1/promotions/12/cancel", "viewer", "2001:db8::7")
				synctest.Wait()
				if last := entries()[len(entries())-1]; last.Actor != "the viewer" || last.Subject != "cancel-promotion" {
					t.Errorf("during the flood: %+v", last)
				}
			}
		}
		time.Sleep(tallyWindow)
		synctest.Wait()
		b.api.Stop()
		lines := entries()
		var counted int
		for _, l := range lines {
			var n int
			if _, err := fmt.Sscanf(l.Detail, `{"count":%d`, &n); err != nil {
				t.Errorf("%s: %v", l.Detail, err)
			}
			counted += n
		}
		if most := 4 * (2*refusalKinds + 1); len(lines) > most || counted != flood+4 {
			t.Errorf("%d entries (at most %d) count %d refusals of %d", len(lines), most, counted, flood+4)
		}
		if warned := strings.Count(b.log.String(), "access refused"); warned != len(lines) {
			t.Errorf("%d warnings for %d entries", warned, len(lines))
		}
		if page := b.do(t, "GET", "/metrics", nil).body; !strings.Contains(page, `largesse_http_refusals_total{status="401"} 3001`) {
			_, counts, _ := strings.Cut(page, "# TYPE largesse_http_refusals_total")
			t.Errorf("the metrics do not count them: %.300s", counts)
		}
	}, guarded, behindProxy, func(c *Config) { c.Metrics = metrics })
}

// TestChangesNameTheClient checks that the audit has the address of each client, as a
// trusted proxy names it, for commands too that fail.
func TestChangesNameTheClient(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded, behindProxy)
	for _, path := range []string{"/v1/promotions/12/start", "/v1/coupon-templates/42/close", "/v1/promotions/12/cancel"} {
		b.send("POST", path, "operator", "203.0.113.9, 198.51.100.1")
	}
	audit := b.store.audit(t, "")
	for _, l := range audit {
		if l.Address != "198.51.100.1" {
			t.Errorf("%+v", l)
		}
	}
	if len(audit) != 3 {
		t.Errorf("%d entries", len(audit))
	}
}
