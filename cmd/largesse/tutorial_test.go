//go:build ci

package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// pageStep is a command of a page and the output that the page shows for it.
type pageStep struct{ command, output string }

var pageBlock = regexp.MustCompile("(?s)```(sh|text)\n(.*?)\n *```")

// pageSteps reads the blocks of a page: a command, then its output if the page
// shows any.
func pageSteps(t *testing.T, path string) []pageStep {
	t.Helper()
	text := fixture.Must(os.ReadFile(path))(t)
	var steps []pageStep
	for _, block := range pageBlock.FindAllStringSubmatch(string(text), -1) {
		var lines []string
		for line := range strings.Lines(block[2]) {
			lines = append(lines, strings.TrimSpace(line))
		}
		content := strings.Join(lines, "\n")
		switch last := len(steps) - 1; {
		case block[1] == "sh" && len(lines) == 1:
			steps = append(steps, pageStep{command: content})
		case block[1] == "text" && last >= 0 && steps[last].output == "":
			steps[last].output = content
		default:
			t.Fatalf("neither one command nor the output of one: %q", content)
		}
	}
	return steps
}

// alike are the forms of words that differ from run to run: IDs, codes of
// coupons, addresses, dates, times and transaction keys.
var alike = regexp.MustCompile(`^(\d{18}|[A-Z2-7]{26},?|http://127\.0\.0\.1:\d+,?|127\.0\.0\.1:\d+|\d{4}-\d\d-\d\d|\d\d:\d\d:\d\dZ|MS-[A-Z2-7]{6}-\d{10})$`)

// shapeOf replaces the letters and digits of a word that differs from run to run.
func shapeOf(word string) string {
	if !alike.MatchString(word) {
		return word
	}
	word = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(word, "address")
	return regexp.MustCompile(`[0-9A-Z]`).ReplaceAllString(word, "#")
}

var longID = regexp.MustCompile(`^\d{18}$`)

// pace is the end of a line of progress: how fast, and how long it will take.
var pace = regexp.MustCompile(`, [\d,]+/s( \w+ left)?$`)

// samePage reports whether an output is the one that a page shows. It adds what
// the IDs of the page are in this run to ids.
func samePage(page, got string, ids map[string]string) bool {
	want, have := strings.Split(page, "\n"), strings.Split(strings.TrimSpace(got), "\n")
	if want[0] == "…" {
		want = want[1:]
		have = have[max(len(have)-len(want), 0):]
	}
	return slices.EqualFunc(want, have, func(page, got string) bool {
		words, others := strings.Fields(page), strings.Fields(pace.ReplaceAllString(got, ""))
		return slices.EqualFunc(words, others, func(word, other string) bool {
			if longID.MatchString(word) {
				if known, again := ids[word]; again && known != other {
					return false
				}
				ids[word] = other
			}
			return shapeOf(word) == shapeOf(other)
		})
	})
}

// TestTutorial does what docs/tutorial.md says, and sees what it shows.
//
//nolint:paralleltest // the page names files of the folder it is read in
func TestTutorial(t *testing.T) {
	steps := pageSteps(t, "../../docs/tutorial.md")
	t.Chdir(t.TempDir())
	st := &stage{}
	ids := map[string]string{}
	for _, step := range steps {
		command := strings.NewReplacer("127.0.0.1:8090", st.money, "--rate 200 ", "--rate 2000 ").Replace(step.command)
		for page, id := range ids {
			command = strings.ReplaceAll(command, page, id)
		}
		words := shellWords(command)
		var got string
		switch words[0] {
		case "go": // this is the program
		case "curl":
			got = curlOutput(t, words)
		case "bin/largesse":
			got = st.follow(t, words[1:])
		default:
			out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v: %s", command, err, out)
			}
			got = string(out)
		}
		if step.output != "" && !samePage(step.output, got, ids) {
			t.Fatalf("%s\nprints\n%s\nand the page says\n%s", command, got, step.output)
		}
	}
	if len(steps) < 20 || st.server == "" {
		t.Errorf("only %d commands, server %q", len(steps), st.server)
	}
	if page := curlOutput(t, []string{"curl", st.server + "/"}); !strings.Contains(page, `<div id="app">`) {
		t.Errorf("this is no console: %s", page)
	}
}

// follow runs a command of a page, and returns what it prints. One that continues
// ends with the test.
func (st *stage) follow(t *testing.T, args []string) string {
	t.Helper()
	if args[0] != "moneysim" && args[0] != "serve" {
		r := largesseRun(t.Context(), "", []string{"LARGESSE_SERVER=" + st.server}, args...)
		if (r.code == exitDone) == strings.HasPrefix(r.stderr, "largesse:") {
			t.Errorf("%v ends with %d: %s", args, r.code, r.stderr)
		}
		return r.stderr + r.stdout
	}
	up := begin(t, nil, slices.Concat(args, []string{"--listen", "127.0.0.1:0"}))
	t.Cleanup(func() {
		if code := up.end(); code != exitDone {
			t.Errorf("%v ends with %d: %s", args, code, up.stderr)
		}
	})
	line := up.line(t)
	up.drain()
	address := regexp.MustCompile(`http://127\.0\.0\.1:\d+`).FindString(line)
	if args[0] == "serve" {
		st.server = address
	} else {
		st.money = strings.TrimPrefix(address, "http://")
	}
	return line
}

// curlOutput does what "curl [-s] [-X METHOD] ADDRESS [-d BODY]" would.
func curlOutput(t *testing.T, words []string) string {
	t.Helper()
	method, address, body := http.MethodGet, "", ""
	for i := 1; i < len(words); i++ {
		switch words[i] {
		case "-s":
		case "-X":
			i++
			method = words[i]
		case "-d":
			i++
			body = words[i]
		default:
			address = "http://" + strings.TrimPrefix(words[i], "http://")
		}
	}
	req := fixture.Must(http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body)))(t)
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v: %s, %v: %s", words, res.Status, err, text)
	}
	return string(text)
}
