package campaign

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func verify(secret, header string, body []byte, now time.Time) bool {
	stamp, mac, _ := strings.Cut(strings.TrimPrefix(header, "t="), ",v1=")
	at, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || now.Sub(time.Unix(at, 0)).Abs() > 5*time.Minute {
		return false // not from Largesse, or an old delivery sent again by somebody else
	}
	want := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(want, "%s.%s", stamp, body)
	return hmac.Equal([]byte(hex.EncodeToString(want.Sum(nil))), []byte(mac))
}

// TestWebhooksPageShowsWhatIsTested checks that docs/webhooks.md contains the
// function above, with which the sender's tests verify deliveries.
func TestWebhooksPageShowsWhatIsTested(t *testing.T) {
	t.Parallel()
	function := regexp.MustCompile(`(?ms)^func verify\(.*?^}$`)
	tested := fixture.Must(os.ReadFile("webhook_example_test.go"))(t)
	page := fixture.Must(os.ReadFile("../../docs/webhooks.md"))(t)
	if shown := function.Find(page); shown == nil || string(shown) != string(function.Find(tested)) {
		t.Errorf("docs/webhooks.md shows another function than the one that is tested:\n%s", shown)
	}
}
