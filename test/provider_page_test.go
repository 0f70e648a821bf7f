package test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// httpBlock is an HTTP message of a page.
var httpBlock = regexp.MustCompile("(?s)```http\n(.*?)```")

// simStart are the letters of a start of moneysim in its transaction keys.
var simStart = regexp.MustCompile(`MS-[A-Z2-7]{6}-`)

// TestProviderPage sends the requests of docs/provider.md to moneysim, in order,
// and compares its responses with those of the page.
func TestProviderPage(t *testing.T) {
	t.Parallel()
	text := fixture.Must(os.ReadFile("docs/provider.md"))(t)
	_, simURL := startSim(t, moneysim.Faults{})
	blocks := httpBlock.FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 14 || len(blocks)%2 != 0 {
		t.Fatalf("the page has %d HTTP messages", len(blocks))
	}
	for i := 0; i < len(blocks); i += 2 {
		asked, answered := blocks[i][1], blocks[i+1][1]
		line, rest, _ := strings.Cut(asked, "\n")
		words := strings.Fields(line)
		headers, body, _ := strings.Cut(rest, "\n\n")
		req := fixture.Must(http.NewRequestWithContext(t.Context(), words[0], simURL+words[1], strings.NewReader(body)))(t)
		for header := range strings.Lines(headers) {
			name, value, ok := strings.Cut(strings.TrimSpace(header), ": ")
			if !ok {
				t.Fatalf("not a header: %q", header)
			}
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		want, err := http.ReadResponse(bufio.NewReader(strings.NewReader(answered)), req)
		if err != nil {
			t.Fatalf("%v in %s", err, answered)
		}
		_ = want.Body.Close()
		_, wantBody, _ := strings.Cut(answered, "\n\n")
		if res.StatusCode != want.StatusCode {
			t.Errorf("%s: status %d, the page says %d", line, res.StatusCode, want.StatusCode)
		}
		if diff := cmp.Diff(decoded(t, wantBody), decoded(t, simStart.ReplaceAllString(string(got), "MS-K3QZ7F-"))); diff != "" {
			t.Errorf("%s: (-page +moneysim):\n%s", line, diff)
		}
		for name := range want.Header {
			if name != "Content-Length" && res.Header.Get(name) != want.Header.Get(name) {
				t.Errorf("%s: header %s is %q", line, name, res.Header.Get(name))
			}
		}
	}
}

func decoded(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}
