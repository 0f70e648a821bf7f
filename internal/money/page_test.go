package money

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// pageBodies maps the bodies in the tables of docs/provider.md to bodies that
// they stand for.
var pageBodies = map[string][]string{
	"`{\"transactionKey\": \"T-1\"}`":  {`{"transactionKey": "T-1"}`, `{"transactionKey": 17, "more": {}}`},
	"`{\"code\": \"ACCOUNT_CLOSED\"}`": {`{"code": "ACCOUNT_CLOSED"}`, `{"code": 17, "message": "closed"}`},
	"`{\"code\": \"NOT_FOUND\"}`":      {`{"code": "NOT_FOUND"}`},
	"`{\"code\": \"USER_NOT_FOUND\"}`": {`{"code": "USER_NOT_FOUND"}`},
	"anything":                         {"", "<html>", `{"code": "X"}`, `[1]`},
	"without a `transactionKey`":       {"", "<html>", `{"code": "X"}`, `{"transactionKey": ""}`, `{"transactionKey": null}`},
	"without a `code`":                 {"", "<html>", `{"error": "X"}`, `{"code": ""}`, `{"code": {"a": 1}}`},
}

// pageRows returns the cells of a table of docs/provider.md that follows a line.
func pageRows(t *testing.T, after string) [][]string {
	t.Helper()
	text := fixture.Must(os.ReadFile("../../docs/provider.md"))(t)
	_, table, ok := strings.Cut(string(text), after+"\n\n|")
	if !ok {
		t.Fatalf("the page has no table after %q", after)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	var rows [][]string
	for i, line := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if i > 1 && cells[0] != "–" {
			rows = append(rows, cells)
		}
	}
	return rows
}

func TestPageClassifiesCharges(t *testing.T) {
	t.Parallel()
	rows := pageRows(t, "A charge:")
	if len(rows) < 9 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	for _, cells := range rows {
		for status := range strings.FieldsSeq(cells[0]) {
			code, err := strconv.Atoi(status)
			bodies := pageBodies[cells[1]]
			if err != nil || bodies == nil {
				t.Fatalf("not understood: %q", cells)
			}
			for _, body := range bodies {
				a := classify(reply{status: code, body: []byte(body)}, nil, time.Now())
				if got := "`" + string(a.Class) + "`"; got != cells[2] {
					t.Errorf("%d with %q is %s, the page says %s", code, body, got, cells[2])
				}
			}
		}
	}
	if a := classify(reply{status: 403, body: []byte(`{"code": "USER_BLOCKED"}`)}, map[string]bool{"USER_BLOCKED": true}, time.Now()); a.Class != reward.AnswerRefused {
		t.Errorf("a 403 with a code of money.refusal-codes is %s", a.Class)
	}
}

func TestPageClassifiesLookups(t *testing.T) {
	t.Parallel()
	rows := pageRows(t, "A lookup:")
	if len(rows) != 3 {
		t.Fatalf("the table has %d rows", len(rows))
	}
	meant := map[string][]string{} // bodies by status
	for _, cells := range rows[:2] {
		meant[cells[0]] = pageBodies[cells[1]]
	}
	for _, bodies := range pageBodies {
		for _, body := range bodies {
			for status := 200; status < 600; status++ {
				code := strconv.Itoa(status)
				found := classifyLookup(reply{status: status, body: []byte(body)}, time.Now())
				known := strings.Contains(body, "transactionKey") && readBody([]byte(body)).TransactionKey != ""
				coded := readBody([]byte(body)).Code != ""
				if want := meant[code] != nil && code == "200" && known; found.Found != want {
					t.Errorf("%s with %q: found %t", code, body, found.Found)
				}
				if want := meant[code] != nil && code == "404" && coded; found.NotFound != want {
					t.Errorf("%s with %q: not found %t", code, body, found.NotFound)
				}
			}
		}
	}
}
