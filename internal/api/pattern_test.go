package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/store"
)

// noAudits are rows without an audit.
type noAudits struct{ Rows }

func (noAudits) AuditBegin(context.Context, store.AuditLine) error             { return nil }
func (noAudits) AuditEnd(context.Context, int64, int, string, time.Time) error { return nil }
func (noAudits) AuditDrop(context.Context, int64) error                        { return nil }

// TestPatternsHold checks that no body field is accepted that the pattern of the
// description forbids. The checks are made in Go, so the two could differ.
func TestPatternsHold(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *Config) { c.Rows = noAudits{c.Rows} })
	b.store.Close() // what is accepted fails there, which is quicker than thousands of commits
	schemas := b.described(t)["components"].(tree)["schemas"].(tree)
	characters := []rune{'a', 'É', 'ß', '漢', '😀', 0x85, 0xA0, 0xAD, 0x1680, 0x2003, 0x200B, 0x2028, 0x202E, 0x3000, 0xFEFF}
	for c := range rune(0x80) {
		if testing.Short() && c%8 != 0 && c != '\n' {
			continue // requests are slow under the race detector, which looks for nothing here
		}
		characters = append(characters, c)
	}
	covered := 0
	for _, f := range []struct {
		schema, field, method, path string
		body                        string // with %s for the value
		base                        string
	}{
		{"CreatePromotion", "currency", "POST", "/v1/promotions", `{"name":"x","type":"POINT","amount":1,"currency":%s}`, "EUR"},
		{"CreatePromotion", "voucherCode", "POST", "/v1/promotions", `{"name":"x","type":"VOUCHER","voucherCode":%s}`, "V-1"},
		{"CreateTemplate", "name", "POST", "/v1/coupon-templates", `{"totalQuantity":1,"name":%s}`, "ab"},
		{"ChangeTemplate", "name", "PATCH", "/v1/coupon-templates/42", `{"name":%s}`, "ab"},
		{"CreateAPIKey", "name", "POST", "/v1/api-keys", `{"role":"viewer","name":%s}`, "till 4"},
		{"CreateWebhookEndpoint", "description", "POST", "/v1/webhook-endpoints", `{"url":"https://hooks.example/","events":["payout.failed"],"description":%s}`, "ab"},
		{"ChangeWebhookEndpoint", "description", "PATCH", "/v1/webhook-endpoints/7", `{"description":%s}`, "ab"},
		{"ResolvePayout", "note", "POST", "/v1/promotions/7/payouts/8/resolve", `{"outcome":"FAILED","note":%s}`, "ab"},
		{"ResolvePayout", "transactionKey", "POST", "/v1/promotions/7/payouts/8/resolve", `{"outcome":"SUCCEEDED","note":"x","transactionKey":%s}`, "T1"},
	} {
		covered++
		text := schemas[f.schema].(tree)["properties"].(tree)[f.field].(tree)["pattern"].(string)
		// In other languages than Go, \s is every space of Unicode.
		text = strings.ReplaceAll(text, `[^\s`, `[^\s\x{85}\x{FEFF}\p{Z}`)
		if text == `\S` {
			text = `[^\s\x{85}\x{FEFF}\p{Z}]`
		}
		pattern := regexp.MustCompile(text)
		values := map[string]bool{"": true, f.base: true, " ": true, "\u00a0\u2003": true}
		for _, c := range characters {
			for _, v := range []string{string(c), string(c) + f.base, f.base + string(c), f.base[:1] + string(c) + f.base[1:]} {
				values[v] = true
			}
		}
		accepted := 0
		for value := range values {
			quoted := fixture.Must(json.Marshal(value))(t)
			r := httptest.NewRequestWithContext(t.Context(), f.method, f.path, strings.NewReader(fmt.Sprintf(f.body, quoted)))
			r.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			b.api.ServeHTTP(w, r)
			if w.Code == http.StatusUnprocessableEntity || w.Code == http.StatusBadRequest {
				continue
			}
			if accepted++; !pattern.MatchString(value) {
				t.Errorf("%s.%s: %q has status %d, but does not match %s", f.schema, f.field, value, w.Code, text)
			}
		}
		if accepted == 0 {
			t.Errorf("%s.%s: nothing is accepted", f.schema, f.field)
		}
	}
	// TestReceiverURLs checks the URLs.
	all := 0
	for _, fields := range patterns {
		all += len(fields)
	}
	if covered != all-3 {
		t.Errorf("%d of %d patterns are checked", covered, all-3)
	}
}
