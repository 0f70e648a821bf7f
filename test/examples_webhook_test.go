//go:build ci

package test

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestExampleReceiver builds the receiver of examples/, and sends it what a server and
// what an attacker would.
func TestExampleReceiver(t *testing.T) {
	t.Parallel()
	secret := func(key string) string { return "whsec_" + base64.StdEncoding.EncodeToString([]byte(key)) }
	receiver := exec.CommandContext(t.Context(), buildExample(t, "webhook-go"), "-listen", "127.0.0.1:0") // killed when the test ends
	receiver.Env = append(os.Environ(), "WEBHOOK_SECRETS="+secret("old key")+" "+secret("new key"))
	pipe, err := receiver.StdoutPipe()
	if err == nil {
		err = receiver.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = receiver.Process.Kill()
		_ = receiver.Wait()
	})
	out := bufio.NewReader(pipe)
	line := fixture.Must(out.ReadString('\n'))(t)
	address := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	sign := func(key, id string, at time.Time, body string) string {
		mac := hmac.New(sha256.New, []byte(key))
		fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body)
		return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	now := time.Now()
	for _, tt := range []struct {
		id, signature string
		at            time.Time
		body          string
		want          int
	}{
		{"1", sign("other key", "1", now, "forged"), now, "forged", http.StatusUnauthorized},
		{"1", "", now, "forged", http.StatusUnauthorized},
		{"1", sign("new key", "1", now, "a"), now, "changed", http.StatusUnauthorized},
		{"2", sign("new key", "1", now, "a"), now, "a", http.StatusUnauthorized},
		{"1", sign("new key", "1", now, "a"), now.Add(time.Second), "a", http.StatusUnauthorized},
		{"1", sign("new key", "1", now.Add(-6*time.Minute), "a"), now.Add(-6 * time.Minute), "a", http.StatusUnauthorized},
		{"1", sign("new key", "1", now, "a"), now, "a", http.StatusNoContent},
		{"1", sign("new key", "1", now, "a"), now, "a", http.StatusNoContent}, // again: not handled
		{"2", sign("old key", "2", now, "b"), now, "b", http.StatusNoContent},
		{"3", sign("gone key", "3", now, "c") + " " + sign("old key", "3", now, "c"), now, "c", http.StatusNoContent},
	} {
		req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader(tt.body)))(t)
		req.Close = true
		req.Header.Set("Webhook-Id", tt.id)
		req.Header.Set("Webhook-Timestamp", strconv.FormatInt(tt.at.Unix(), 10))
		req.Header.Set("Webhook-Signature", tt.signature)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != tt.want {
			t.Errorf("%+v: status %d", tt, res.StatusCode)
		}
	}
	for _, want := range []string{"a\n", "b\n", "c\n"} {
		if line, err := out.ReadString('\n'); line != want {
			t.Errorf("it handled %q, want %q (%v)", line, want, err)
		}
	}
}
