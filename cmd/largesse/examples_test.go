//go:build ci

package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/money/moneysim"
)

// TestExamples runs every line of every command's examples, as they stand there
// but for the names of what has to exist: each line gets promotions, templates,
// coupons and dead letters of its own, in the state that it speaks of.
//
//nolint:paralleltest // the examples name files of the folder they are run in
func TestExamples(t *testing.T) {
	t.Chdir(t.TempDir())
	files := map[string]string{
		"targets.csv":       "targetId,userId,amount\n1,u1,100\n2,u2,200\n",
		"targets.csv.gz":    gzipped(t, "targetId\n3\n4\n"),
		"codes.csv":         "code\n" + strings.Join(strings.Split("ABCDEFGHIJ", ""), "\n"),
		"key.txt":           "lgs_example\n",
		"codes.csv.gz":      gzipped(t, strings.Join(strings.Split("ABCDEFGHIJ", ""), "\n")),
		"targets.ndjson.gz": gzipped(t, `{"targetId":"5"}`+"\n"),
	}
	st := newStage(t, "--money-timeout", "300ms", "--redis-stream-lease-seconds", "1")
	st.lost = newStage(t, "--money-timeout", "300ms", "--redis-stream-lease-seconds", "1", "--money-give-up-after", "100ms")
	files["largesse.yaml"] = "data:\n  dir: ./by-file\nmoney:\n  url: http://" + st.money + "\nhttp:\n  listen: 127.0.0.1:0\n"
	for name, text := range files {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
		return json.Unmarshal([]byte(text), &rows) == nil && len(rows) == 2
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
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
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

// stage is a server with its provider, for examples to run on.
type stage struct {
	money  string // host:port of the provider
	sim    *moneysim.Server
	server string
	kafka  []string
	api    *client.Client
	// lost is another one, which soon gives up on payouts that get no answer, and
	// looks them up; nil: there is none.
	lost *stage
	seq  int
	// configs is the folder of the configuration of the user.
	configs string
}

// newStage starts a provider and a server; both end with the test.
func newStage(t *testing.T, flags ...string) *stage {
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
	args := append([]string{"serve", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--money-url", "http://" + st.money, "--output", "json", "--log-level", "error"}, flags...)
	up := begin(t, nil, args)
	t.Cleanup(func() {
		if code := up.end(); code != exitDone {
			t.Errorf("serve ends with %d: %s", code, up.stderr)
		}
	})
	var said struct{ Server, Kafka string }
	if err := json.NewDecoder(up.stdout).Decode(&said); err != nil {
		t.Fatalf("serve: %v", err)
	}
	up.drain()
	st.server, st.kafka = said.Server, strings.Split(said.Kafka, ",")
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	if st.api, err = client.New(st.server, client.Options{Actor: "stage", Transport: transport}); err != nil {
		t.Fatal(err)
	}
	return st
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
	go func() {
		defer in.Close()
		r.code <- run(ctx, args, world{stdin: strings.NewReader(""), stdout: in, stderr: r.stderr, environ: environ})
	}()
	return r
}

// drain reads on, so that nothing is held up.
func (r *runningCommand) drain() { go func() { _, _ = io.Copy(io.Discard, r.stdout) }() }

// end interrupts the command, and returns its exit code.
func (r *runningCommand) end() int {
	r.stop()
	r.drain()
	return <-r.code
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
	line = strings.NewReplacer("127.0.0.1:8090", st.money, "2026-", "2099-", "/usr/local/share", "./share").Replace(line)
	p := parseLine(t, line)
	switch p.words[0] {
	case "largesse":
	case "curl":
		st.curl(t, p.words)
		return
	default:
		t.Fatalf("this test cannot run %q", p.words[0])
	}
	on, words := st.prepare(t, p.words)
	cmd, _, err := (&cli{}).rootCommand().Find(words[1:])
	if err != nil {
		t.Fatal(err)
	}
	args := slices.Concat(words[1:], shorter[cmd.CommandPath()], more)
	environ := append([]string{"LARGESSE_SERVER=" + on.server, "LARGESSE_ACTOR=example", "XDG_CONFIG_HOME=" + st.configs}, p.environ...)
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
		if err := os.WriteFile(p.to, []byte(r.stdout), 0o600); err != nil {
			t.Fatal(err)
		}
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
	req, err := http.NewRequestWithContext(t.Context(), words[2], "http://"+words[3], strings.NewReader(words[5]))
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Errorf("%s", res.Status)
	}
	st.faults(t, moneysim.Faults{})
}

func (st *stage) faults(t *testing.T, f moneysim.Faults) {
	t.Helper()
	if err := st.sim.SetFaults(f); err != nil {
		t.Fatal(err)
	}
}

func gunzipped(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(filepath.Clean(path))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// prepare makes what a command speaks of and puts its names into the line; on is
// the stage where that is.
func (st *stage) prepare(t *testing.T, words []string) (on *stage, named []string) {
	t.Helper()
	names := make(map[string]string) // of placeholders
	on = st
	group, verb := at(words, 1), at(words, 2)
	switch group {
	case "promotion":
		if verb == "resolve" {
			on = st.lost
		}
		if verb != "create" && verb != "list" {
			names["12345"] = on.promotion(t, verb)
		}
	case "template":
		if verb != "create" && verb != "list" {
			names["42"] = st.template(t, verb)
		}
	case "coupon":
		names["42"] = st.template(t, verb)
		names["12345"] = st.coupon(t, names["42"])
		switch verb {
		case "leave":
			names["42"] = st.left(t)
		case "use":
			names["ID"] = names["12345"]
		case "status":
			if _, err := st.api.IssueCoupon(t.Context(), names["42"], "u7", 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}
	case "user":
		names["42"], names["43"] = st.template(t, verb), st.template(t, verb)
	case "deadletter":
		names["7"] = st.deadLetter(t)
	case "reconcile":
		names["12345"], names["42"] = st.promotion(t, "show"), st.template(t, "show")
	case "apikey":
		names["ID"] = st.key(t)
	case "webhook":
		if verb != "create" && verb != "list" {
			names["3"], names["71"] = st.endpoint(t)
		}
	case "profile":
		st.profile(t, verb)
	case "doctor":
		if r := largesseRun(t.Context(), "", nil, "migrate", "--config", "largesse.yaml"); r.code != exitDone {
			t.Fatalf("%+v", r)
		}
	}
	if names["ID"] == "" {
		names["ID"] = names["12345"]
	}
	if group == "template" || group == "coupon" && verb == "issue" {
		names["ID"] = names["42"]
	}
	for _, word := range words {
		if name := names[word]; name != "" {
			word = name
		}
		named = append(named, word)
	}
	return on, named
}

func at(words []string, i int) string {
	if i < len(words) {
		return words[i]
	}
	return ""
}

// next is a number that nothing here has yet.
func (st *stage) next() string {
	st.seq++
	return fmt.Sprint(1000 + st.seq)
}

// promotion makes a promotion in a state that a verb can be used in.
func (st *stage) promotion(t *testing.T, verb string) string {
	t.Helper()
	ctx := t.Context()
	p := client.NewPromotion{ID: st.next(), Name: "Spring", Type: "POINT", Amount: 10}
	slow := slices.Contains([]string{"pause", "resume", "cancel"}, verb)
	if slow {
		p.RatePerSecond = 1
	}
	made, err := st.api.CreatePromotion(ctx, p)
	if err == nil {
		_, err = st.api.UploadTargets(ctx, made.ID, strings.NewReader("targetId\n7\n8\n"), client.UploadOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains([]string{"start", "approve", "reject", "upload", "close", "delete", "set"}, verb) {
		return made.ID
	}
	switch verb {
	case "retry":
		st.faults(t, moneysim.Faults{RefuseRate: 1})
		defer st.faults(t, moneysim.Faults{})
	case "resolve":
		st.promotion(t, "show") // the provider answers, so calls are made
		st.faults(t, moneysim.Faults{Away: true})
		defer st.faults(t, moneysim.Faults{}) // from then on it says that it knows nothing, which decides nothing for a minute
	}
	if _, err := st.api.StartPromotion(ctx, made.ID); err != nil {
		t.Fatal(err)
	}
	switch {
	case verb == "resolve":
		st.await(t, made.ID, func(p client.Promotion) bool { return p.Counts.Unknown == 2 })
	case verb == "resume":
		if _, err := st.api.PausePromotion(ctx, made.ID); err != nil {
			t.Fatal(err)
		}
	case !slow:
		st.await(t, made.ID, func(p client.Promotion) bool { return p.Status == "COMPLETED" })
	}
	return made.ID
}

// await polls a promotion.
func (st *stage) await(t *testing.T, id string, so func(client.Promotion) bool) {
	t.Helper()
	fixture.Until(t, "promotion "+id+" is as the example needs it", func() bool {
		p, err := st.api.Promotion(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return so(p)
	})
}

// template makes a template in a state that a verb can be used in.
func (st *stage) template(t *testing.T, verb string) string {
	t.Helper()
	ctx := t.Context()
	n := client.NewTemplate{ID: st.next(), Name: "Spring", TotalQuantity: 10}
	if verb == "entrants" {
		opens := time.Now().Add(time.Second)
		n.OpensAt, n.Draw = &opens, &client.NewDraw{From: time.Now().Add(-time.Minute)}
	}
	made, err := st.api.CreateTemplate(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	switch verb {
	case "watch":
		_, err = st.api.CloseTemplate(ctx, made.ID)
	case "entrants":
		_, err = st.api.IssueCoupon(ctx, made.ID, "u7", 0)
		fixture.Until(t, "the draw is done", func() bool {
			drawn, err := st.api.Template(ctx, made.ID)
			if err != nil {
				t.Fatal(err)
			}
			return drawn.Draw.State == "DONE"
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return made.ID
}

// left returns a template whose line user u7 has left, before a coupon was issued.
func (st *stage) left(t *testing.T) (template string) {
	t.Helper()
	fixture.Until(t, "u7 has left a line", func() bool {
		template = st.template(t, "leave")
		r, err := st.api.IssueCoupon(t.Context(), template, "u7", 0)
		if err == nil {
			err = st.api.LeaveLine(t.Context(), r.ID)
		}
		return err == nil
	})
	return template
}

// coupon issues one to somebody.
func (st *stage) coupon(t *testing.T, template string) string {
	t.Helper()
	r, err := st.api.IssueCoupon(t.Context(), template, "somebody", 5*time.Second)
	if err != nil || r.Coupon == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	return r.Coupon.ID
}

// deadLetter makes one that is OPEN.
func (st *stage) deadLetter(t *testing.T) string {
	t.Helper()
	before := st.openLetters(t)
	st.seq++
	if _, err := (lab.Publishing{Brokers: st.kafka, PromotionID: int64(1000 + st.seq), Targets: 1, Malformed: 1}).Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	var id string
	fixture.Until(t, "there is another dead letter", func() bool {
		for _, one := range st.openLetters(t) {
			if !slices.Contains(before, one) {
				id = one
			}
		}
		return id != ""
	})
	return id
}

func (st *stage) openLetters(t *testing.T) []string {
	t.Helper()
	var ids []string
	for d, err := range st.api.DeadLetters(t.Context(), client.DeadLetterFilter{Status: "OPEN"}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, d.ID)
	}
	return ids
}

// key makes an API key.
func (st *stage) key(t *testing.T) string {
	t.Helper()
	k, err := st.api.CreateAPIKey(t.Context(), client.NewAPIKey{Name: "example", Role: "viewer"})
	if err != nil {
		t.Fatal(err)
	}
	return k.ID
}

// endpoint makes a webhook endpoint with a delivery.
func (st *stage) endpoint(t *testing.T) (id, delivery string) {
	t.Helper()
	e, err := st.api.CreateWebhookEndpoint(t.Context(), client.NewWebhookEndpoint{URL: "https://hooks.example", Events: []string{"coupon.used"}})
	if err != nil {
		t.Fatal(err)
	}
	d, err := st.api.TestWebhookEndpoint(t.Context(), e.ID)
	if err != nil {
		t.Fatal(err)
	}
	return e.ID, d.ID
}

// profile makes a file with the one profile that the verbs other than add need.
func (st *stage) profile(t *testing.T, verb string) {
	t.Helper()
	all := profiles{Profiles: map[string]profile{}}
	if verb != "add" {
		all.Profiles["production"] = profile{Server: st.server}
	}
	if err := (world{environ: []string{"XDG_CONFIG_HOME=" + st.configs}}).saveProfiles(all); err != nil {
		t.Fatal(err)
	}
}
