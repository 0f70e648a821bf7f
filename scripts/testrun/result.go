package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// linesKept bounds how much output of one test is kept.
const linesKept = 300

// testName names a test; Test is empty for what a package prints by itself.
type testName struct{ Package, Test string }

func (n testName) String() string {
	pkg := strings.TrimPrefix(strings.TrimPrefix(n.Package, module), "/")
	if pkg == "" {
		pkg = "."
	}
	return strings.TrimSpace(pkg + " " + n.Test)
}

// failure is one failed test, or something else that went wrong.
type failure struct {
	name   string
	output string
}

// result is what came of a suite; tests count with their subtests.
type result struct {
	suite    string
	passed   int
	skipped  []string
	failures []failure
	took     time.Duration

	open   map[testName]bool     // begun, no verdict yet
	output map[testName][]string // of tests without a good verdict
	builds map[string][]string   // compiler output by import path
	failed map[string]int        // failed tests by package
	judged bool                  // a package came to an end
}

func newResult(name string) *result {
	return &result{
		suite:  name,
		open:   map[testName]bool{},
		output: map[testName][]string{},
		builds: map[string][]string{},
		failed: map[string]int{},
	}
}

// fail records a failure that is no test's.
func (r *result) fail(name, output string) {
	r.failures = append(r.failures, failure{name, output})
}

// event is one line of `go test -json`.
type event struct {
	Action      string
	Package     string
	Test        string
	ImportPath  string // of build-output
	Output      string
	FailedBuild string
}

// read takes one line that `go test -json` printed and returns the text in it
// that is meant for people.
func (r *result) read(line string) string {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil {
		// The go command itself complains outside of JSON.
		e = event{Action: "output", Output: line + "\n"}
	}
	name := testName{e.Package, e.Test}
	switch e.Action {
	case "run":
		r.open[name] = true
	case "output":
		r.output[name] = keepTail(append(r.output[name], e.Output))
	case "build-output":
		r.builds[e.ImportPath] = keepTail(append(r.builds[e.ImportPath], e.Output))
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.endPackage(e)
			break
		}
		r.endTest(name, e.Action)
	}
	return e.Output
}

func (r *result) endTest(name testName, verdict string) {
	delete(r.open, name)
	switch verdict {
	case "pass":
		r.passed++
	case "skip":
		r.skipped = append(r.skipped, name.String())
	case "fail":
		r.failed[name.Package]++
		r.fail(name.String(), strings.Join(r.output[name], ""))
	}
	delete(r.output, name)
}

// endPackage judges a package: a build that failed, a panic, a leak found in
// TestMain and a time-out all show only here. "skip" means no test files.
func (r *result) endPackage(e event) {
	r.judged = true
	own := testName{Package: e.Package}
	if e.Action == "fail" {
		var cut []testName
		for name := range r.open {
			if name.Package == e.Package {
				cut = append(cut, name)
			}
		}
		slices.SortFunc(cut, func(a, b testName) int { return strings.Compare(a.Test, b.Test) })
		for _, name := range cut {
			r.output[name] = append(r.output[name], "it did not come to an end; see what the package printed\n")
			r.endTest(name, "fail")
		}
		if r.failed[e.Package] == 0 || len(cut) > 0 {
			text := slices.Concat(r.builds[e.FailedBuild], r.output[own])
			r.fail(own.String(), strings.Join(text, ""))
		}
	}
	delete(r.output, own)
}

// close judges the whole command: an error that no package explains is a
// failure of its own.
func (r *result) close(err error) {
	text := strings.Join(r.output[testName{}], "")
	if err != nil && (len(r.failures) == 0 || len(r.open) > 0) {
		r.fail("go test", fmt.Sprintf("%v\n%s", err, text))
	}
	if err == nil && !r.judged {
		r.fail("go test", "it ended well without a word on any package\n"+text)
	}
}

func keepTail(lines []string) []string {
	if len(lines) > linesKept+linesKept/4 {
		lines = append([]string{"…\n"}, lines[len(lines)-linesKept:]...)
	}
	return lines
}

// report is all results of a run.
type report struct{ results []*result }

func (r *report) add(res *result) { r.results = append(r.results, res) }

// fail adds a suite that consists of one failure.
func (r *report) fail(suite, name, output string) {
	res := newResult(suite)
	res.fail(name, output)
	r.add(res)
}

func (r *report) failed() int {
	n := 0
	for _, res := range r.results {
		n += len(res.failures)
	}
	return n
}

// print writes failures, then the table, then the counts on a line of their
// own.
func (r *report) print(out io.Writer) {
	for _, res := range r.results {
		for _, f := range res.failures {
			fmt.Fprintf(out, "\n--- FAILED %s: %s\n%s\n", res.suite, f.name, strings.TrimRight(f.output, "\n"))
		}
	}
	fmt.Fprintln(out)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "suite\tpassed\tfailed\tskipped\tminutes\t\n")
	passed := 0
	for _, res := range r.results {
		passed += res.passed
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%.1f\t\n", res.suite, res.passed, len(res.failures), len(res.skipped), res.took.Minutes())
	}
	if err := table.Flush(); err != nil {
		fmt.Fprintf(out, "testrun: printing the table: %v\n", err)
	}
	for _, res := range r.results {
		for _, name := range res.skipped {
			fmt.Fprintf(out, "skipped: %s\n", name)
		}
		for _, f := range res.failures {
			fmt.Fprintf(out, "failed: %s: %s\n", res.suite, f.name)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, r.failed())
}
