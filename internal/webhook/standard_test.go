//go:build ci

package webhook

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
)

// verifyInPython reads a secret, headers and a body, and verifies them with the Python
// library of the Standard Webhooks specification.
const verifyInPython = `
import json, sys
from standardwebhooks.webhooks import Webhook
given = json.load(sys.stdin)
print(json.dumps(Webhook(given["secret"]).verify(given["body"], given["headers"])))
`

func TestSignaturesAreStandardInPython(t *testing.T) {
	t.Parallel()
	in := fixture.Must(fleet.NewInstaller(t.Output()))(t)
	python := fixture.Must(in.StandardWebhooks(t.Context()))(t)
	const body = `{"type":"promotion.completed","data":{"name":"Frühling"}}`
	verify := func(secret string, header http.Header) (string, error) {
		headers := map[string]string{}
		for name := range header {
			headers[strings.ToLower(name)] = header.Get(name)
		}
		given := fixture.Must(json.Marshal(map[string]any{"secret": secret, "headers": headers, "body": body}))(t)
		cmd := exec.CommandContext(t.Context(), python, "-c", verifyInPython)
		cmd.Stdin = strings.NewReader(string(given))
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	first, second := NewSecret(), NewSecret()
	header := http.Header{}
	Sign(header, "17", time.Now(), []byte(body), second, first)
	for _, secret := range []string{first, second} {
		if out, err := verify(secret, header); err != nil || !strings.Contains(out, "promotion.completed") {
			t.Errorf("the library refuses it: %v, %s", err, out)
		}
	}
	if out, err := verify(NewSecret(), header); err == nil {
		t.Errorf("the library accepts another secret: %s", out)
	}
}
