package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestSignaturesAreStandard verifies messages with the Go library of the Standard
// Webhooks specification and with the project's own client.
func TestSignaturesAreStandard(t *testing.T) {
	t.Parallel()
	body := []byte(`{"type":"promotion.completed","timestamp":"2026-03-01T09:30:00Z","data":{"name":"Frühling"}}`)
	first, second := NewSecret(), NewSecret()
	if first == second || !strings.HasPrefix(first, "whsec_") {
		t.Fatalf("the secrets are %s and %s", first, second)
	}
	signed := func(secrets ...string) http.Header {
		header := http.Header{}
		Sign(header, "17", time.Now(), body, secrets...)
		return header
	}
	old := http.Header{}
	Sign(old, "17", time.Now().Add(-6*time.Minute), body, first)
	for name, tc := range map[string]struct {
		header http.Header
		secret string
		body   []byte
		good   bool
	}{
		"OneSecret":      {signed(first), first, body, true},
		"TheNewOfTwo":    {signed(second, first), second, body, true},
		"TheOldOfTwo":    {signed(second, first), first, body, true},
		"AnotherSecret":  {signed(first), second, body, false},
		"AnotherBody":    {signed(first), first, append([]byte(" "), body...), false},
		"AnOldSignature": {old, first, body, false},
		"NoSecret":       {signed(), first, body, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			library := fixture.Must(standardwebhooks.NewWebhook(tc.secret))(t)
			if err := library.Verify(tc.body, tc.header); (err == nil) != tc.good {
				t.Errorf("the library: %v", err)
			}
			if err := client.VerifyWebhook(tc.secret, tc.header, tc.body); (err == nil) != tc.good {
				t.Errorf("the client: %v", err)
			}
		})
	}
}
