package api

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestPagesNameCalls checks that the calls which docs/api.md names exist, with their
// query parameters.
func TestPagesNameCalls(t *testing.T) {
	t.Parallel()
	b := setup(t)
	page := fixture.Must(os.ReadFile("../../docs/api.md"))(t)
	known := map[string]bool{}
	for pattern := range b.api.Operations() {
		known[anyPlace.ReplaceAllString(pattern, "{}")] = true
	}
	parameters := map[string]bool{}
	for pattern, op := range describedOperations(b.api) {
		for _, p := range op.Parameters {
			parameters[anyPlace.ReplaceAllString(pattern, "{}")+" "+p.Name] = true
		}
	}
	calls := regexp.MustCompile("`(GET|POST|PATCH|PUT|DELETE) (/[^ `?]+)(?:\\?([^ `]+))?`").FindAllStringSubmatch(string(page), -1)
	if len(calls) < 60 {
		t.Errorf("the page names %d calls", len(calls))
	}
	for _, call := range calls {
		pattern := anyPlace.ReplaceAllString(call[1]+" "+call[2], "{}")
		if !known[pattern] {
			t.Errorf("there is no call %s %s", call[1], call[2])
		}
		for query := range strings.SplitSeq(call[3], "&") {
			if name, _, _ := strings.Cut(query, "="); name != "" && !parameters[pattern+" "+name] {
				t.Errorf("%s %s has no parameter %s", call[1], call[2], name)
			}
		}
	}
}

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.json(t, "GET", "/openapi.json", "")
	a.want(t, http.StatusOK)
	doc := a.object(t)
	if v, _ := doc["openapi"].(string); !strings.HasPrefix(v, "3.1") {
		t.Errorf("openapi %v", doc["openapi"])
	}
	for _, want := range []string{"Largesse-Actor", "application/problem+json", "application/x-ndjson", "text/csv", "text/event-stream", "Preference-Applied"} {
		if !strings.Contains(a.body, want) {
			t.Errorf("%s is not described", want)
		}
	}
	if !strings.Contains(a.body, "A success at the first call") {
		t.Error("the description does not say why attemptLog may be empty")
	}
	if strings.Contains(a.body, "$schema") {
		t.Error("the description has the field $schema")
	}
}
