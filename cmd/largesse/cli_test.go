package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestMain(m *testing.M) { fixture.Main(m) }

// result is what one run of the command line left behind.
type result struct {
	code           int
	stdout, stderr string
}

// largesseRun runs the command line in this process.
func largesseRun(ctx context.Context, stdin string, environ []string, args ...string) result {
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, world{stdin: strings.NewReader(stdin), stdout: &stdout, stderr: &stderr, environ: environ})
	return result{code, stdout.String(), stderr.String()}
}

// wantedRun is a run of a command, with arguments, and what it must leave behind.
type wantedRun struct {
	args []string
	want result
}

// wantRuns runs the commands of a group one after the other.
func wantRuns(t *testing.T, environ []string, group, stdin string, runs []wantedRun) {
	t.Helper()
	for _, one := range runs {
		got := largesseRun(t.Context(), stdin, environ, append(strings.Fields(group), one.args...)...)
		if diff := cmp.Diff(one.want, got, cmp.AllowUnexported(result{})); diff != "" {
			t.Errorf("%v (-want +got):\n%s", one.args, diff)
		}
	}
}

// wrongRun is a run of a command, with arguments, that its user got wrong, and a part of the
// line that says how.
type wrongRun struct {
	args []string
	want string
}

// wantWrongUse runs the commands of a group, which must all be refused.
func wantWrongUse(t *testing.T, environ []string, group string, runs []wrongRun) {
	t.Helper()
	for _, one := range runs {
		r := largesseRun(t.Context(), "", environ, append(strings.Fields(group), one.args...)...)
		if r.code != exitWrongUse || r.stdout != "" || !strings.HasPrefix(r.stderr, "largesse: ") || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, one.want) {
			t.Errorf("%v: %+v\nwant %q", one.args, r, one.want)
		}
	}
}

// runningCommand is a run of the command line that continues.
type runningCommand struct {
	stdout *bufio.Reader
	stderr *bytes.Buffer // read after end
	stop   context.CancelFunc
	code   chan int
}

func begin(t *testing.T, environ, args []string) *runningCommand {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	out, in := io.Pipe()
	r := &runningCommand{stdout: bufio.NewReader(out), stderr: &bytes.Buffer{}, stop: stop, code: make(chan int, 1)}
	t.Cleanup(stop)
	go func() {
		defer in.Close()
		r.code <- run(ctx, args, world{stdin: strings.NewReader(""), stdout: in, stderr: r.stderr, environ: environ})
	}()
	return r
}

// drain reads on, so that nothing is held up.
func (r *runningCommand) drain() { go func() { _, _ = io.Copy(io.Discard, r.stdout) }() }

// line reads the next line that it prints.
func (r *runningCommand) line(t *testing.T) string {
	t.Helper()
	line, err := r.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("it says %q and ends with %d: %s", line, <-r.code, r.stderr)
	}
	return line
}

// end interrupts the command, and returns its exit code.
func (r *runningCommand) end() int {
	r.stop()
	r.drain()
	return <-r.code
}

// answer is what the fake server says to a method and URI.
type answer struct {
	status int
	body   string
}

// fakeServer answers as told and remembers what it was asked.
func fakeServer(t *testing.T, answers map[string]answer) (env []string, asked func() []string) {
	t.Helper()
	requests := make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(bytes.NewReader(body))
			if err != nil {
				t.Errorf("the body is not gzip: %v", err)
				return
			}
			body, _ = io.ReadAll(z)
		}
		requests <- strings.TrimSpace(r.Method + " " + r.RequestURI + " " + string(body))
		a, ok := answers[r.Method+" "+r.RequestURI]
		if !ok {
			t.Errorf("nobody expected %s %s", r.Method, r.RequestURI)
		}
		if a.status >= 400 {
			w.Header().Set("Content-Type", "application/problem+json")
		} else if r.Header.Get("Accept") == "text/csv" || r.URL.Query().Get("format") == "csv" {
			w.Header().Set("Content-Type", "text/csv")
		}
		w.WriteHeader(max(a.status, 200))
		_, _ = io.WriteString(w, a.body)
	}))
	t.Cleanup(server.Close)
	return []string{"LARGESSE_SERVER=" + server.URL}, func() []string {
		close(requests)
		var all []string
		for r := range requests {
			all = append(all, r)
		}
		return all
	}
}

const draftJSON = `{"id":"7","name":"Spring","type":"POINT","status":"DRAFT","totalCount":2,"counts":{"ready":2},"amountTotal":2000,"currency":"EUR","createdAt":"2026-11-21T10:00:00Z"}`

const runningJSON = `{"id":"7","name":"Spring","type":"POINT","status":"RUNNING","totalCount":2,"expectedCount":4,"counts":{"ready":1,"succeeded":1},"amountTotal":2000,"amountSucceeded":1000,"etaSeconds":90,"createdAt":"2026-11-21T10:00:00Z","startedAt":"2026-11-21T10:01:00Z"}`

func TestHelp(t *testing.T) {
	t.Parallel()

	t.Run("ShowsTheSettingsInGroups", func(t *testing.T) {
		t.Parallel()
		for _, command := range []string{"serve", "migrate", "config", "doctor"} {
			r := largesseRun(t.Context(), "", nil, command, "--help")
			if r.code != exitDone || r.stderr != "" {
				t.Fatalf("%s --help: %+v", command, r)
			}
			for _, want := range []string{"Examples:\n  largesse " + command, "Settings of redis:\n", "--redis-stream-max-len int", "(default 100000)", "--output"} {
				if !strings.Contains(r.stdout, want) {
					t.Errorf("%s --help lacks %q", command, want)
				}
			}
		}
	})

	t.Run("IsWhatAGroupShowsAlone", func(t *testing.T) {
		t.Parallel()
		for _, args := range [][]string{{}, {"promotion"}, {"deadletter"}, {"template"}, {"coupon"}, {"user"}, {"completion"}, {"help"}, {"help", "bench"}} {
			if r := largesseRun(t.Context(), "", nil, args...); r.code != exitDone || !strings.Contains(r.stdout, "Available Commands:") {
				t.Errorf("%v: %+v", args, r)
			}
		}
	})
}

func TestWrongUse(t *testing.T) {
	t.Parallel()
	wantWrongUse(t, nil, "", []wrongRun{
		{[]string{"promtion"}, `largesse: there is no command "promtion"; did you mean promotion?`},
		{[]string{"dance"}, `largesse: there is no command "dance"; see largesse --help`},
		{[]string{"promotion", "lst"}, `largesse: promotion has no command "lst"; did you mean list?`},
		{[]string{"coupon", "isue", "42", "--user", "x"}, `largesse: coupon has no command "isue"; did you mean issue?`},
		{[]string{"coupon", "--user", "x"}, "largesse: unknown flag: --user"},
		{[]string{"help", "promtion"}, `largesse: there is no command "promtion"; did you mean promotion?`},
		{[]string{"completion", "powershel"}, `largesse: completion has no command "powershel"; did you mean powershell?`},
		{[]string{"promotion", "list", "7"}, `largesse: promotion list takes no arguments, but got "7"`},
		{[]string{"promotion", "show"}, "largesse: promotion show needs a promotion ID, but got 0 arguments"},
		{[]string{"promotion", "upload", "7"}, "needs a promotion ID and a FILE, but got 1 argument;"},
		{[]string{"promotion", "list", "--limt", "5"}, "unknown flag: --limt; did you mean --limit?"},
		{[]string{"promotion", "list", "--limit", "x"}, `--limit "x" must be a whole number; see largesse promotion list --help`},
		{[]string{"demo", "--targets", "abc"}, `--targets "abc" must be a whole number;`},
		{[]string{"demo", "--targets", "0"}, "--targets 0 must be from 1 to 1000000"},
		{[]string{"sim", "--steps", "0"}, "--steps 0 must be from 1 to 20000"},
		{[]string{"sim", "--data", "."}, "--data . is not empty: use a new or empty directory"},
		{[]string{"promotion", "watch", "7", "--every", "5"}, `--every "5" must be a duration`},
		{[]string{"promotion", "show", "abc"}, `"abc" is not a promotion ID: it must be a whole number from 1`},
		{[]string{"promotion", "upload", "007", "f.csv"}, `"007" is not a promotion ID`},
		{[]string{"promotion", "create", "--name", "x", "--type", "point", "--amount", "0"}, "--amount 0 must be from 1 to 1000000000000000"},
		{[]string{"promotion", "create", "--name", "x", "--type", "point", "--max-retries", "21"}, "--max-retries 21 must be from 0 to 20"},
		{[]string{"promotion", "create", "--name", "x", "--type", "point", "--currency", "eur"}, `--currency "eur" must be three capital letters`},
		{[]string{"promotion", "create", "--name", "x", "--type", "point", "--voucher", "V-1"}, "--voucher needs --type voucher"},
		{[]string{"promotion", "create", "--name", strings.Repeat("é", 201), "--type", "point"}, "--name must have 1 to 200 characters, not 201"},
		{[]string{"promotion", "payouts", "7", "--target", "x"}, `--target "x" must be a whole number from 0`},
		{[]string{"promotion", "list", "--status", "foo"}, `--status "foo" must be one of draft, running,`},
		{[]string{"promotion", "upload", "7", "cli_test.go"}, "the name of cli_test.go does not end with .csv, .txt, .tsv, .xlsx, .ndjson or .jsonl"},
		{[]string{"serve", "--config", "nofile.yaml"}, "nofile.yaml"},
		{[]string{"config", "--config", "cli_test.go"}, "it is not YAML"},
		{[]string{"promotion", "list", "--limit=-1"}, "--limit -1 must be at least 0"},
		{[]string{"promotion", "list", "--server", "localhost"}, `the server address "localhost" must look like http://127.0.0.1:8080`},
		{[]string{"promotion", "create", "--type", "point"}, "--name is missing"},
		{[]string{"promotion", "create", "--name", "x", "--type", "cash"}, "--type must be point or voucher"},
		{[]string{"promotion", "create", "--name", "x", "--type", "point", "--rate", "0"}, "--rate 0 must be at least 1"},
		{[]string{"promotion", "create", "--name", "x", "--type", "point", "--canary-max-failure-rate", "0.1"}, "needs --canary-targets"},
		{[]string{"promotion", "create", "--name", "x", "--type", "point", "--starts-at", "noon"}, `--starts-at "noon" must look like 2026-12-24T18:00:00Z`},
		{[]string{"promotion", "create", "--name", "x", "--type", "point", "--starts-at", "2099-01-01T00:00:00Z", "--start"}, "use only one of them"},
		{[]string{"promotion", "export", "7", "--state", "lost"}, `--state "lost" must be one of ready,`},
		{[]string{"promotion", "resolve", "7", "x", "--outcome", "failed", "--note", "n"}, `"x" is not a target ID`},
		{[]string{"promotion", "resolve", "7", "8", "--note", "n"}, "--outcome must be succeeded or failed"},
		{[]string{"promotion", "resolve", "7", "8", "--outcome", "failed"}, "--note is missing"},
		{[]string{"promotion", "resolve", "7", "8", "--outcome", "succeeded", "--note", "n"}, "--transaction-key is missing"},
		{[]string{"promotion", "resolve", "7", "8", "--outcome", "failed", "--note", "n", "--transaction-key", "T"}, "--transaction-key needs --outcome succeeded"},
		{[]string{"deadletter", "list", "--status", "gone"}, `--status "gone" must be one of open,`},
		{[]string{"deadletter", "replay"}, "deadletter replay needs IDs, --source, --reason or --all"},
		{[]string{"deadletter", "discard", "7", "--all"}, "use only one of IDs, a filter"},
		{[]string{"deadletter", "discard", "--all"}, "this would discard all open dead letters; add --yes"},
		{[]string{"reconcile"}, "reconcile needs either --promotion ID, --template ID, --all or --list"},
		{[]string{"reconcile", "--all", "--promotion", "7"}, "reconcile needs either"},
		{[]string{"template", "create", "--name", "x", "--quantity", "5", "--opens", "2026-12-24T18:00:00Z", "--closes", "2026-12-24T18:00:00Z"}, "--closes must be after --opens"},
		{[]string{"template", "create", "--name", "x", "--quantity", "5", "--draw-from", "2026-12-24T18:00:00Z"}, "--draw-from needs --opens"},
		{[]string{"template", "create", "--name", "x", "--quantity", "5", "--valid-for", "1500ms"}, "--valid-for 1.5s must be whole seconds"},
		{[]string{"template", "create", "--name", "x", "--quantity", "5", "--valid-for", "40000d"}, "up to 100 years"},
		{[]string{"template", "set", "42", "--hold", "xd"}, "--hold"},
		{[]string{"template", "create", "--name", "x", "--quantity", "5", "--mode", "fast"}, `--mode "fast" must be one of stream, kafka, sync`},
		{[]string{"template", "create", "--name", "x", "--quantity", "5", "--when-redis-away", "cry"}, `--when-redis-away "cry" must be one of database, wait`},
		{[]string{"template", "set", "42"}, "template set needs at least one flag"},
		{[]string{"coupon", "issue", "42"}, "--user is missing"},
		{[]string{"coupon", "issue", "42", "--user", strings.Repeat("x", 256)}, "--user: userId is longer than"},
		{[]string{"coupon", "issue", "42", "--user", "ann "}, "--user: userId has a space at its beginning or end"},
		{[]string{"coupon", "issue", "42", "--user", "u7", "--wait", "31s"}, "--wait 31s must be from 0s to 30s"},
		{[]string{"coupon", "list"}, "coupon list needs one of --template ID, --user USER and --code CODE"},
		{[]string{"coupon", "list", "--user", "u7", "--status", "used"}, "--status, --sort and --csv need --template ID"},
		{[]string{"user", "history"}, "user history needs a USER, but got 0 arguments"},
		{[]string{"promotion", "upload", "7", "f", "--format", "xml"}, `--format "xml" must be csv, tsv, xlsx or ndjson`},
		{[]string{"promotion", "watch", "7", "--every", "1ms"}, "--every 1ms must be at least 10ms"},
		{[]string{"version", "--output", "xml"}, `--output "xml" must be table or json`},
		{[]string{"moneysim", "--listen", "8090"}, `--listen "8090" must look like host:port, e.g. 127.0.0.1:8090`},
		{[]string{"moneysim", "--latency", "-1s"}, "--latency and --jitter must be at least 0s"},
		{[]string{"moneysim", "--error-rate", "2"}, "errorRate must be from 0 to 1"},
		{[]string{"moneysim", "--away", "--misconfigured-status", "500"}, "misconfiguredStatus must be 0 or one of [401 403"},
		{[]string{"serve", "--redis-strem-max-len", "5"}, "did you mean --redis-stream-max-len?"},
		{[]string{"serve"}, "money.url is not set"},
		{[]string{"serve", "--money-timeout", "5"}, `money.timeout = "5" (flag --money-timeout) must be a duration with a unit`},
		{[]string{"serve", "--listen", "0.0.0.0:80"}, "(flag --http-listen) must be a loopback address"},
		{[]string{"migrate", "--database-url", "mysql://u:hunter2@h"}, `database.url = "mysql://u:xxxxx@h"`},
	})
}

// serveInTurn starts a server that gives one answer after the other, the last one again
// and again, and returns its URL.
func serveInTurn(t *testing.T, answers []answer) string {
	t.Helper()
	var n atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a := answers[min(int(n.Add(1)), len(answers))-1]
		w.WriteHeader(max(a.status, 200))
		_, _ = io.WriteString(w, a.body)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestFailures(t *testing.T) {
	t.Parallel()

	t.Run("NameTheCureWhenNoServerIsThere", func(t *testing.T) {
		t.Parallel()
		r := largesseRun(t.Context(), "", nil, "promotion", "list", "--server", "http://127.0.0.1:1")
		if r.code != exitFailed || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, "start it (largesse serve)") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("SpeakOfNoServerWhereNoneIsCalled", func(t *testing.T) {
		t.Parallel()
		r := largesseRun(t.Context(), "", nil, "migrate", "--database-url", "postgres://u:hunter2@127.0.0.1:1/x")
		if r.code != exitFailed || strings.Contains(r.stderr, "largesse serve") || strings.Contains(r.stderr, "hunter2") ||
			strings.Count(r.stderr, "connection refused") != 1 {
			t.Errorf("%+v", r)
		}
	})

	t.Run("ShowAProblemInOneLine", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{"POST /v1/promotions/7/resume": {409, `{"code":"ILLEGAL_STATE","detail":"promotion 7 is DRAFT;\nonly PAUSED can be resumed\u001b[2J"}`}})
		r := largesseRun(t.Context(), "", env, "promotion", "resume", "7")
		want := "largesse: promotion 7 is DRAFT; only PAUSED can be resumed\uFFFD[2J (ILLEGAL_STATE)\n"
		if r.code != exitFailed || r.stderr != want {
			t.Errorf("%+v", r)
		}
	})

	t.Run("NameFlagsInsteadOfFields", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{"PATCH /v1/promotions/7": {422, `{"code":"VALIDATION_FAILED","detail":"2 fields are invalid","errors":[
			{"field":"ratePerSecond","detail":"must be at most 1000000"},{"field":"canary.targets","detail":"must be at least 1"}]}`}})
		r := largesseRun(t.Context(), "", env, "promotion", "set", "7", "--rate", "99999999")
		if want := "--rate must be at most 1000000, --canary-targets must be at least 1 ("; r.code != exitFailed || !strings.Contains(r.stderr, want) {
			t.Errorf("%+v", r)
		}
	})

	t.Run("PointToTheServersLog", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{"GET /v1/promotions/7": {500, `{"code":"INTERNAL","detail":"sorry","requestId":"r9"}`}})
		r := largesseRun(t.Context(), "", env, "promotion", "show", "7")
		if r.code != exitFailed || !strings.Contains(r.stderr, "see the server's log for request r9") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("SayWhereToLook", func(t *testing.T) {
		t.Parallel()
		for code, cure := range cures {
			env, _ := fakeServer(t, map[string]answer{"GET /v1/promotions/7": {404, `{"code":"` + code + `","detail":"no"}`}})
			r := largesseRun(t.Context(), "", env, "promotion", "show", "7")
			if want := "largesse: no (" + code + "); " + cure + "\n"; r != (result{exitFailed, "", want}) {
				t.Errorf("%+v", r)
			}
			command, ok := strings.CutPrefix(cure, "see largesse ")
			if !ok {
				continue
			}
			if r := largesseRun(t.Context(), "", nil, append(strings.Fields(command), "--help")...); r.code != exitDone {
				t.Errorf("%q: %+v", cure, r)
			}
		}
	})

	t.Run("AskWhetherItIsTheRightServer", func(t *testing.T) {
		t.Parallel()
		for status, asks := range map[int]bool{401: true, 404: true, 502: false} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html")
				w.WriteHeader(status)
				_, _ = io.WriteString(w, "<html>\n<title>Another program</title>")
			}))
			t.Cleanup(server.Close)
			r := largesseRun(t.Context(), "", nil, "promotion", "list", "--server", strings.Replace(server.URL, "//", "//u:hunter2@", 1))
			asked := strings.Contains(r.stderr, "is http://u:xxxxx@"+server.Listener.Addr().String()+" a Largesse server? Select another with --server, --profile or LARGESSE_SERVER\n")
			if r.code != exitFailed || asked != asks || strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("%d: %+v", status, r)
			}
		}
		page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
		t.Cleanup(page.Close)
		for _, args := range [][]string{{"promotion", "list"}, {"promotion", "export", "7"}} {
			r := largesseRun(t.Context(), "", nil, append(args, "--server", page.URL)...)
			if r.code != exitFailed || r.stdout != "" || !strings.Contains(r.stderr, "check that "+page.URL+" is a Largesse server") {
				t.Errorf("%+v", r)
			}
		}
	})

	t.Run("SayThatItIsNoWebServer", func(t *testing.T) {
		t.Parallel()
		for _, said := range []string{"", "220 mail.example ESMTP\r\n", "-ERR unknown command\r\n"} { // Redis says nothing to a Host line
			other := fixture.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
			t.Cleanup(func() { _ = other.Close() })
			go func() {
				for {
					conn, err := other.Accept()
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, said)
					_, _ = conn.Read(make([]byte, 1))
					_ = conn.Close()
				}
			}()
			for _, scheme := range []string{"http://", "https://"} {
				server := scheme + other.Addr().String()
				r := largesseRun(t.Context(), "", nil, "promotion", "list", "--server", server)
				if r.code != exitFailed || strings.Count(r.stderr, "\n") != 1 || !strings.Contains(r.stderr, server+" has stopped, or it is another program, such as Redis") {
					t.Errorf("%q: %+v", said, r)
				}
			}
		}
	})

	t.Run("AskForAKey", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{"GET /v1/promotions/7": {401, `{"code":"UNAUTHORIZED","detail":"no key"}`}})
		r := largesseRun(t.Context(), "", env, "promotion", "show", "7")
		if r.code != exitFailed || !strings.Contains(r.stderr, "set LARGESSE_API_KEY or --api-key-file") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("SayInterrupted", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		r := largesseRun(ctx, "", env, "promotion", "show", "7")
		if r.code != exitFailed || !strings.HasPrefix(r.stderr, "largesse: interrupted: ") {
			t.Errorf("%+v", r)
		}
	})
}

func TestConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "l.yaml")
	fixture.OK(t, os.WriteFile(file, []byte("money:\n  url: https://u:hunter2@pay\n"), 0o600))
	env := []string{"LARGESSE_REDIS_STREAM_BATCH_SIZE=5", "LARGESSE_REDIS_STREAM_BACH_SIZE=5", "LARGESSE_SERVER=http://x"}

	t.Run("ShowsValuesAndTheirSources", func(t *testing.T) {
		t.Parallel()
		r := largesseRun(t.Context(), "", env, "config", "--config", file, "--listen", "127.0.0.1:1", "--roles", "api", "--roles", "payout")
		if r.code != exitDone || strings.Contains(r.stdout, "hunter2") {
			t.Errorf("%+v", r)
		}
		for _, want := range []string{
			"  url: https://u:xxxxx@pay # file " + file + " line 2\n", "  listen: 127.0.0.1:1 # flag --http-listen\n",
			"    batch-size: 5 # environment LARGESSE_REDIS_STREAM_BATCH_SIZE\n", "roles: [api, payout] # flag --roles\n",
		} {
			if !strings.Contains(r.stdout, want) {
				t.Errorf("the output lacks %q:\n%s", want, r.stdout)
			}
		}
		want := "largesse: warning: environment variable LARGESSE_REDIS_STREAM_BACH_SIZE is not a setting; did you mean LARGESSE_REDIS_STREAM_BATCH_SIZE?\n"
		if r.stderr != want {
			t.Errorf("stderr %q", r.stderr)
		}
	})

	t.Run("SpeaksJSON", func(t *testing.T) {
		t.Parallel()
		r := largesseRun(t.Context(), "", nil, "config", "--config", file, "--output", "json")
		var values []struct{ Name, Value, Source string }
		if err := json.Unmarshal([]byte(r.stdout), &values); err != nil || len(values) < 25 || values[0].Name != "data.dir" || values[0].Source != "default" {
			t.Errorf("%v: %s", err, r.stdout)
		}
	})
}

func TestMoneySim(t *testing.T) {
	t.Parallel()
	sim := begin(t, nil, []string{"moneysim", "--listen", "127.0.0.1:0", "--output", "json", "--latency", "1ms"})
	decoder := json.NewDecoder(sim.stdout)
	var started struct{ URL string }
	fixture.OK(t, decoder.Decode(&started))
	req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, started.URL+"/v1/points/charge", strings.NewReader(`{"promotionId":"1","targetId":"2","userId":"u","amount":3}`)))(t)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "1:2")
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("status %d", res.StatusCode)
	}
	sim.stop()
	var stats struct{ Charges, Amount int64 }
	if err := decoder.Decode(&stats); err != nil || stats.Charges != 1 || stats.Amount != 3 {
		t.Errorf("stats %+v, %v", stats, err)
	}
	if code := <-sim.code; code != exitDone {
		t.Errorf("exit code %d", code)
	}
}

func TestDeadLetterList(t *testing.T) {
	t.Parallel()
	answers := map[string]answer{"GET /v1/dead-letters?limit=200": {body: `{"items":[
		{"id":"2","source":"campaign-promotion-point-publish","partition":1,"offset":"9","value":"x","reason":"MALFORMED","detail":"not\tJSON\u001b[0m","status":"OPEN","at":"2026-11-21T10:00:00Z"},
		{"id":"1","source":"s","offset":"8","reason":"TYPE_MISMATCH","detail":"d","at":"2026-11-21T09:00:00Z"}]}`}}

	t.Run("IsATable", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, answers)
		r := largesseRun(t.Context(), "", env, "deadletter", "list", "--limit", "1")
		want := "ID  AT                    STATUS  SOURCE                            PARTITION  OFFSET  REASON     DETAIL\n" +
			"2   2026-11-21 10:00:00Z  OPEN    campaign-promotion-point-publish  1          9       MALFORMED  not JSON\uFFFD[0m\n"
		fixture.Equal(t, result{exitDone, want, "only the first 1 are shown; --limit 0 shows all\n"}, r, cmp.AllowUnexported(result{}))
	})

	t.Run("CanBeEmpty", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, map[string]answer{"GET /v1/dead-letters?limit=200": {body: `{"items":[]}`}})
		if r := largesseRun(t.Context(), "", env, "deadletter", "list"); r.code != exitDone || r.stdout != "" || r.stderr != "there are no dead letters\n" {
			t.Errorf("%+v", r)
		}
		if r := largesseRun(t.Context(), "", env, "deadletter", "list", "--output", "json"); r.stdout != "[]\n" || r.stderr != "" {
			t.Errorf("%+v", r)
		}
	})
}
