//go:build ci

package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/sheet"
)

// TestExamples runs every line of every command's examples, as they stand there, on a
// server that accepts everything. The tutorial and TestServe run commands on a real one.
//
//nolint:paralleltest // the examples name files of the folder they are run in
func TestExamples(t *testing.T) {
	t.Chdir(t.TempDir())
	files := map[string]string{
		"targets.csv":            "targetId,userId,amount\n1,u1,100\n2,u2,200\n",
		"from-a-spreadsheet.csv": "targetId,amount\n3,10.50\n",
		"targets.csv.gz":         gzipped(t, "targetId\n3\n4\n"),
		"members.csv":            "Member no,Sum\n3,10.50\n",
		"members.xlsx":           "a workbook, which only a server reads",
		"codes.csv":              "code\n" + strings.Join(strings.Split("ABCDEFGHIJ", ""), "\n"),
		"key.txt":                "lgs_example\n",
		"codes.csv.gz":           gzipped(t, strings.Join(strings.Split("ABCDEFGHIJ", ""), "\n")),
		"codes.xlsx":             "code\n" + strings.Join(strings.Split("ABCDEFGHIJ", ""), "\n"), // its content decides
		"targets.ndjson.gz":      gzipped(t, `{"targetId":"5"}`+"\n"),
	}
	st := newStage(t)
	files["largesse.yaml"] = "data:\n  dir: ./by-file\nmoney:\n  url: http://" + st.money + "\nhttp:\n  listen: 127.0.0.1:0\n"
	for name, text := range files {
		fixture.OK(t, os.WriteFile(name, []byte(text), 0o600))
	}
	ran := 0
	exempt := make(map[int]int)
	spoken := make(map[string]bool) // JSON, by command
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		own := false
		for line := range strings.Lines(cmd.Example) {
			line = strings.TrimSpace(line)
			own = own || cmd.HasSubCommands() || strings.Contains(line, cmd.CommandPath())
			t.Run(cmd.CommandPath()+": "+line, func(t *testing.T) {
				ran++
				if i := exemption(line); i >= 0 {
					exempt[i]++
					parseOnly(t, line)
					return
				}
				st.run(t, line)
				path := leafOf(t, line)
				if path == cmd.CommandPath() && !spoken[path] && !slices.Contains(wordless, path) {
					spoken[path] = true
					if !strings.Contains(cmd.Example, "--output json") {
						st.run(t, line, "--output", outputJSON)
					}
				}
			})
		}
		if !own {
			t.Errorf("%s has no example of its own", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk((&cli{}).rootCommand())
	if ran < 120 || len(spoken) < 35 {
		t.Errorf("only %d examples were found, of %d commands that speak JSON", ran, len(spoken))
	}
	for i, e := range exemptions {
		if exempt[i] == 0 {
			t.Errorf("no example has %q any more: take it off the list", e.part)
		}
	}
	mustPass(t, "man/largesse-promotion-create.1", func(page string) bool { return strings.HasPrefix(page, ".nh\n.TH ") })
	mustPass(t, "payouts.csv", func(csv string) bool { return strings.Count(csv, "\n") == 3 })
	mustPass(t, "failed.csv", func(csv string) bool { return strings.HasPrefix(csv, "targetId,") })
	mustPass(t, "payouts.json", func(text string) bool {
		var rows []client.Payout
		return json.Unmarshal([]byte(text), &rows) == nil && len(rows) == 1
	})
}

// exemptions are examples of which only the flags are read, and why: everything
// else is run.
var exemptions = []struct{ part, reason string }{
	{"postgres://", "needs a PostgreSQL; benches need a Redis and a Kafka too, and measure for minutes"},
	{"--roles api,ingest", "needs a Redis: without the role payout nobody would work off a queue in this process"},
	{"man -l ", "man is no program of ours; its page is looked at in the end"},
}

// wordless are commands that --output does not change: what they write is for
// people or for a shell. Those that go on until they are interrupted have tests
// of their own.
var wordless = []string{
	"largesse help", "largesse completion bash", "largesse completion zsh", "largesse completion fish", "largesse completion powershell",
	"largesse serve", "largesse moneysim",
}

// leafOf is the path of the command that a line runs; "" = none of ours.
func leafOf(t *testing.T, line string) string {
	t.Helper()
	p := parseLine(t, line)
	if p.words[0] != "largesse" {
		return ""
	}
	cmd, _, err := (&cli{}).rootCommand().Find(p.words[1:])
	if err != nil {
		t.Fatal(err)
	}
	return cmd.CommandPath()
}

func exemption(line string) int {
	return slices.IndexFunc(exemptions, func(e struct{ part, reason string }) bool { return strings.Contains(line, e.part) })
}

// parseOnly reads the flags of a line; the help is shown instead of what it
// does.
func parseOnly(t *testing.T, line string) {
	t.Helper()
	p := parseLine(t, line)
	if p.words[0] != "largesse" {
		return
	}
	if r := largesseRun(t.Context(), "", p.environ, append(p.words[1:], "--help")...); r.code != exitDone || r.stderr != "" || !strings.Contains(r.stdout, "Usage:") {
		t.Errorf("%+v", r)
	}
}

func mustPass(t *testing.T, path string, good func(text string) bool) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil || !good(string(text)) {
		t.Errorf("%s: %v, %q", path, err, text[:min(len(text), 300)])
	}
}

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	fixture.Must(z.Write([]byte(text)))(t)
	fixture.OK(t, z.Close())
	return b.String()
}

// shellLine is a line as a shell would read it.
type shellLine struct {
	environ []string // set in front of the command
	words   []string
	from    string // file whose unpacked content is piped in; "" = none
	to      string // file that takes stdout; "" = none
}

// parseLine reads what the examples have of a shell: quotes, variables in front,
// "zcat FILE |", "> FILE", "source <(…)" and a "&" at the end.
func parseLine(t *testing.T, line string) shellLine {
	t.Helper()
	if inner, ok := strings.CutPrefix(line, "source <("); ok {
		line = strings.TrimSuffix(inner, ")")
	}
	words := shellWords(strings.TrimSuffix(line, " &"))
	var p shellLine
	for len(words) > 0 && strings.Contains(words[0], "=") {
		p.environ, words = append(p.environ, words[0]), words[1:]
	}
	if i := slices.Index(words, "|"); i >= 0 {
		if i != 2 || words[0] != "zcat" {
			t.Fatalf("this test cannot pipe from %q", words[:i])
		}
		p.from, words = words[1], words[i+1:]
	}
	if i := slices.Index(words, ">"); i >= 0 {
		if i != len(words)-2 {
			t.Fatalf("this test cannot redirect %q", words)
		}
		p.to, words = words[i+1], words[:i]
	}
	p.words = words
	return p
}

// stage is what examples run on.
type stage struct {
	money   string // host:port of the provider
	sim     *moneysim.Server
	server  string
	configs string // folder of the configuration of the user
}

// everything is the answer to every request: a part of it is a promotion that is done, a
// template that is over, and so on.
const everything = `{"id":"7","name":"Spring","status":"COMPLETED","totalCount":2,"counts":{"succeeded":2},"released":2,"count":2,"accepted":2,
	"closesAt":"2020-01-01T00:00:00Z","counters":{"count":2},"coupon":{"id":"7","code":"C"},"requestId":"42:u7","key":"lgs_x","secret":"whsec_x",
	"stepSeconds":10,"points":[{"at":"2026-11-21T10:00:00Z","succeeded":2}],"items":[%s],"nextCursor":""}`

// newStage starts a provider, and a server that accepts everything.
func newStage(t *testing.T) *stage {
	t.Helper()
	sim, err := moneysim.New(moneysim.Config{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(sim.Close)
	st := &stage{sim: sim, configs: t.TempDir()}
	if st.money, err = sim.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		format := map[string]string{"csv": "text/csv", "xlsx": sheet.MediaType}[r.URL.Query().Get("format")] // of a report
		switch cmp.Or(format, r.Header.Get("Accept")) {
		case "text/csv":
			w.Header().Set("Content-Type", "text/csv")
			first := "targetId"
			if strings.HasSuffix(r.URL.Path, "/coupons") {
				first = "id"
			}
			_, _ = io.WriteString(w, first+",state\n1,SUCCEEDED\n2,SUCCEEDED\n")
			return
		case sheet.MediaType:
			w.Header().Set("Content-Type", sheet.MediaType)
			_, _ = io.WriteString(w, "a workbook")
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(io.Discard, r.Body)
		for part, text := range map[string]string{"/v1/audit": `{"items":[{"actor":"alice"}]}`, "/v1/promotions/12345/errors": `[{"code":"X"}]`} {
			if r.URL.Path == part {
				_, _ = io.WriteString(w, text)
				return
			}
		}
		_, _ = fmt.Fprintf(w, everything, fmt.Sprintf(everything, ""))
	}))
	t.Cleanup(server.Close)
	st.server = server.URL
	return st
}

// lasting are commands that go on until they are interrupted, and by which line
// one knows that they are up.
var lasting = map[string]string{
	"largesse serve":       "serving on http://127.0.0.1:",
	"largesse moneysim":    "the simulated Money API listens on http://127.0.0.1:",
	"largesse demo --keep": "The server keeps running at http://127.0.0.1:",
	"largesse demo --open": "The server keeps running at http://127.0.0.1:",
}

// shorter is what is added to commands that would run for long, or on ports that
// others may have.
var shorter = map[string][]string{
	"largesse demo":     {"--targets", "20", "--shoppers", "10", "--coupons", "3"},
	"largesse sim":      {"--steps", "10"},
	"largesse moneysim": {"--listen", "127.0.0.1:0"},
	"largesse serve":    {"--listen", "127.0.0.1:0"},
}

// run runs a line, with more flags, and wants it to be done.
func (st *stage) run(t *testing.T, line string, more ...string) {
	line = strings.NewReplacer("127.0.0.1:8090", st.money, "2026-", "2099-", "/usr/local/share", "./share", " ID", " 7").Replace(line)
	p := parseLine(t, line)
	switch p.words[0] {
	case "largesse":
	case "curl":
		st.curl(t, p.words)
		return
	default:
		t.Fatalf("this test cannot run %q", p.words[0])
	}
	words := p.words
	cmd, _, err := (&cli{}).rootCommand().Find(words[1:])
	if err != nil {
		t.Fatal(err)
	}
	switch at(words, 1) {
	case "profile":
		st.profile(t, at(words, 2))
	case "doctor":
		if r := largesseRun(t.Context(), "", nil, "migrate", "--config", "largesse.yaml"); r.code != exitDone {
			t.Fatalf("%+v", r)
		}
	}
	args := slices.Concat(words[1:], shorter[cmd.CommandPath()], more)
	if cmd.CommandPath() == "largesse apikey create" {
		args = append(args, "--name", rand.Text()) // examples are run more than once, and names are given once
	}
	environ := append([]string{"LARGESSE_SERVER=" + st.server, "LARGESSE_ACTOR=example", "XDG_CONFIG_HOME=" + st.configs}, p.environ...)
	for name, up := range lasting {
		if strings.HasPrefix(strings.Join(words, " ")+" ", name+" ") {
			untilUp(t, begin(t, environ, args), up)
			return
		}
	}
	stdin := ""
	if p.from != "" {
		stdin = gunzipped(t, p.from)
	}
	r := largesseRun(t.Context(), stdin, environ, args...)
	if r.code != exitDone {
		t.Errorf("%v: %+v", args, r)
	}
	if strings.Contains(strings.Join(args, " "), "--output json") {
		if d := json.NewDecoder(strings.NewReader(r.stdout)); d.Decode(new(any)) != nil || d.More() {
			t.Errorf("%v: no JSON: %q", args, r.stdout)
		}
	} else if r.stdout == "" && !strings.HasPrefix(r.stderr, "there are no ") && !strings.HasPrefix(r.stderr, "user ") &&
		!strings.HasPrefix(r.stderr, "there are no such payouts") && !strings.HasPrefix(r.stderr, "there are no changes") {
		t.Errorf("%v says nothing: %+v", args, r)
	}
	if p.to != "" && more == nil {
		fixture.OK(t, os.WriteFile(p.to, []byte(r.stdout), 0o600))
	}
}

// untilUp waits until a command says that it is up, and interrupts it.
func untilUp(t *testing.T, r *runningCommand, up string) {
	t.Helper()
	var said strings.Builder
	for !strings.Contains(said.String(), up) {
		line, err := r.stdout.ReadString('\n')
		said.WriteString(line)
		if err != nil {
			t.Fatalf("it says %q and ends with %d: %s", &said, <-r.code, r.stderr)
		}
	}
	if code := r.end(); code != exitDone {
		t.Errorf("it ends with %d: %s", code, r.stderr)
	}
}

// curl does what the one curl among the examples would.
func (st *stage) curl(t *testing.T, words []string) {
	t.Helper()
	if len(words) != 6 || words[1] != "-X" || words[4] != "-d" {
		t.Fatalf("this test cannot run %q", words)
	}
	req := fixture.Must(http.NewRequestWithContext(t.Context(), words[2], "http://"+words[3], strings.NewReader(words[5])))(t)
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("%s", res.Status)
	}
	fixture.OK(t, st.sim.SetFaults(moneysim.Faults{}))
}

func gunzipped(t *testing.T, path string) string {
	t.Helper()
	file := fixture.Must(os.Open(filepath.Clean(path)))(t)
	defer file.Close()
	z := fixture.Must(gzip.NewReader(file))(t)
	text := fixture.Must(io.ReadAll(z))(t)
	return string(text)
}

func at(words []string, i int) string {
	if i < len(words) {
		return words[i]
	}
	return ""
}

// profile makes a file with the one profile that the verbs other than add need.
func (st *stage) profile(t *testing.T, verb string) {
	t.Helper()
	all := profiles{Profiles: map[string]profile{}}
	if verb != "add" {
		all.Profiles["production"] = profile{Server: st.server}
	}
	fixture.OK(t, (world{environ: []string{"XDG_CONFIG_HOME=" + st.configs}}).saveProfiles(all))
}
