package main

import (
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestAWholeFileRejectedStartsNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "targets.csv")
	fixture.OK(t, os.WriteFile(file, []byte("targetId\nx\n"), 0o600))
	for _, tt := range []struct {
		result string
		flags  []string
		want   string // error; empty: started or uploaded
	}{
		{`{"accepted":0,"rejected":2}`, []string{"--start"}, "not started: no line of the file was accepted"},
		{`{"accepted":0,"conflicts":2}`, nil, "not started: no line of the file was accepted"},
		{`{"accepted":0}`, []string{"--start"}, "not started: the file has no targets"},
		{`{"accepted":5,"rejected":1}`, []string{"--start", "--strict"}, "not started: 1 line of the file not accepted"},
		{`{"accepted":5,"conflicts":1,"rejected":1}`, []string{"--start", "--strict", "--output", "json"}, "not started: 2 lines of the file not accepted"},
		{`{"accepted":5,"rejected":1}`, []string{"--start"}, ""},
		{`{"accepted":0,"duplicates":5}`, []string{"--start", "--strict"}, ""},
	} {
		env, asked := fakeServer(t, map[string]answer{
			"POST /v1/promotions": {201, draftJSON}, "POST /v1/promotions/7/targets?fileName=targets.csv": {body: tt.result},
			"POST /v1/promotions/7/start": {202, runningJSON}, "GET /v1/promotions/7": {body: runningJSON},
		})
		r := largesseRun(t.Context(), "", env, append([]string{"promotion", "create", "--name", "S", "--type", "point", "--amount", "5", "--file", file}, tt.flags...)...)
		started := strings.Contains(strings.Join(asked(), "\n"), "/start")
		switch {
		case tt.want == "" && (r.code != exitDone || !started):
			t.Errorf("%s %v: %+v", tt.result, tt.flags, r)
		case tt.want != "" && (r.code != exitFailed || started || !strings.Contains(r.stderr, tt.want) || r.stdout == ""):
			t.Errorf("%s %v: started %t: %+v", tt.result, tt.flags, started, r)
		}
		env, _ = fakeServer(t, map[string]answer{"POST /v1/promotions/7/targets?fileName=targets.csv": {body: tt.result}})
		flags := slices.DeleteFunc(tt.flags, func(f string) bool { return f == "--start" })
		r = largesseRun(t.Context(), "", env, append([]string{"promotion", "upload", "7", file}, flags...)...)
		want := strings.TrimPrefix(tt.want, "not started: ")
		if failed := r.code == exitFailed; failed != (want != "") || !strings.Contains(r.stderr, want) || r.stdout == "" {
			t.Errorf("upload of %s %v: %+v", tt.result, flags, r)
		}
	}
}

func TestQuestions(t *testing.T) {
	t.Parallel()
	for question, args := range map[string][]string{
		"cancel 2 payouts not yet paid of Spring (7)":                                  {"promotion", "cancel", "7"},
		"close Spring (7) to further targets":                                          {"promotion", "close", "7"},
		"delete Spring (7) with 2 targets permanently":                                 {"promotion", "delete", "7"},
		"settle payout 8 of promotion 7 as FAILED":                                     {"promotion", "resolve", "7", "8", "--outcome", "failed", "--note", "n"},
		"approve 2 targets worth 20.00 EUR of Spring (7)":                              {"promotion", "approve", "7"},
		"cancel coupon 2 permanently":                                                  {"coupon", "cancel", "2"},
		"take user u7 out of the line of template 42":                                  {"coupon", "leave", "42", "--user", "u7"},
		"close template Autumn (42) to further requests":                               {"template", "close", "42"},
		"approve 9 coupons instead of 5 of template Autumn (42), with generated codes": {"template", "approve", "42"},
		"revoke API key 9 permanently":                                                 {"apikey", "revoke", "9"},
		"discard 2 dead letters":                                                       {"deadletter", "discard", "1", "2"},
		"discard all open dead letters of this source or reason":                       {"deadletter", "discard", "--reason", "MALFORMED"},
		"repair the books of promotion 7":                                              {"reconcile", "--promotion", "7", "--repair"},
		"repair the books of all active promotions and templates":                      {"reconcile", "--all", "--repair"},
	} {
		t.Run(question, func(t *testing.T) {
			t.Parallel()
			env, asked := fakeServer(t, map[string]answer{
				"GET /v1/promotions/7": {body: draftJSON}, "GET /v1/coupon-templates/42": {body: `{"id":"42","name":"Autumn","totalQuantity":5,"awaitingQuantity":9}`},
			})
			term := openTerminal(t, 80, 24)
			fixture.Must(io.WriteString(term.person, "n\n"))(t)
			var stdout, stderr strings.Builder
			code := run(t.Context(), args, world{stdin: term.File, stdout: &stdout, stderr: &stderr, environ: env})
			term.Close()
			// Without a terminal, each one is refused, and says what would happen.
			r := largesseRun(t.Context(), "", env, args...)
			if want := "largesse: this would " + question + "; add --yes to confirm\n"; r != (result{exitWrongUse, "", want}) {
				t.Errorf("without a terminal: %+v", r)
			}
			if code != exitFailed || !strings.Contains(stderr.String(), "This will "+question+". Continue? [y/N]") || !strings.Contains(stderr.String(), "nothing was changed") {
				t.Errorf("%d %s", code, stderr.String())
			}
			for _, request := range asked() {
				if !strings.HasPrefix(request, "GET ") {
					t.Errorf("it sent %s", request)
				}
			}
		})
	}
}

func TestKeysAndAuthoritiesFromFiles(t *testing.T) {
	t.Parallel()
	keys := make(chan string, 1)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys <- r.Header.Get("Authorization")
		_, _ = io.WriteString(w, draftJSON)
	}))
	t.Cleanup(server.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		fixture.OK(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	ca := write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	key, other, empty := write("key", "lgs_file\n"), write("other", "lgs_other"), write("empty", "\n")
	for _, tt := range []struct {
		env, args []string
		want      string
	}{
		{[]string{"LARGESSE_API_KEY_FILE=" + key}, nil, "lgs_file"},
		{[]string{"LARGESSE_API_KEY_FILE=" + key, "LARGESSE_API_KEY=lgs_env"}, nil, "lgs_env"},
		{[]string{"LARGESSE_API_KEY_FILE=" + key, "LARGESSE_API_KEY=lgs_env"}, []string{"--api-key-file", other}, "lgs_other"},
		{nil, []string{"--api-key-file", other, "--api-key", "lgs_flag"}, "lgs_flag"},
	} {
		args := append([]string{"promotion", "show", "7", "--server", server.URL}, tt.args...)
		r := largesseRun(t.Context(), "", append(tt.env, "LARGESSE_CA_FILE="+ca), args...)
		if r.code != exitDone {
			t.Fatalf("%+v", r)
		}
		if diff := cmp.Diff("Bearer "+tt.want, <-keys); diff != "" {
			t.Errorf("%v %v: %s", tt.env, tt.args, diff)
		}
	}
	for _, args := range [][]string{{"--ca-file", key}, {"--ca-file", dir + "/none"}, {"--api-key-file", dir + "/none"}, {"--api-key-file", empty}} {
		if r := largesseRun(t.Context(), "", nil, append([]string{"promotion", "show", "7", "--server", server.URL}, args...)...); r.code != exitWrongUse {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := largesseRun(t.Context(), "", nil, "--version"); r.code != exitDone || !strings.HasPrefix(r.stdout, "largesse ") {
		t.Errorf("%+v", r)
	}
}
