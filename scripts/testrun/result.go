package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// linesKept limits the output that is kept of a test.
const linesKept = 300

// longestKept is the number of tests that the table of the longest shows.
const longestKept = 15

// testName names a test; Test is empty for the output of the package itself.
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
	test   testName // without a Test if it is not the failure of one test
}

// reasonsShown and reasonBytes limit what the end of a report says about a failure.
const (
	reasonsShown = 6
	reasonBytes  = 300
)

// reasonLine matches what a test or a panic says about itself.
var reasonLine = regexp.MustCompile(`\w+_test\.go:\d+: |^panic: |^fatal error: |^WARNING: DATA RACE|Error: `)

// reasons returns the lines of the output that probably say why, one of each line of
// code, and if none looks like that, the last ones.
func (f failure) reasons() []string {
	var all, reasons []string
	seen := map[string]bool{}
	for line := range strings.Lines(f.output) {
		line = strings.TrimSpace(line)
		if len(line) > reasonBytes {
			line = strings.ToValidUTF8(line[:reasonBytes], "") + "…"
		}
		if line == "" {
			continue
		}
		all = append(all, line)
		if by := reasonLine.FindString(line); by != "" && !seen[by] {
			seen[by] = true
			reasons = append(reasons, line)
		}
	}
	if len(reasons) == 0 {
		return all[max(0, len(all)-reasonsShown):]
	}
	return reasons[:min(len(reasons), reasonsShown)]
}

// summarize writes the name of the failure and its reasons.
func (f failure) summarize(out io.Writer, what, suite string) {
	fmt.Fprintf(out, "%s: %s: %s\n", what, suite, f.name)
	for _, line := range f.reasons() {
		fmt.Fprintf(out, "  because: %s\n", line)
	}
}

// result holds the outcome of a suite. Tests count with their subtests.
type result struct {
	suite    string
	passed   int
	skipped  []string
	longest  []timed // tests without their subtests, the longest first
	failures []failure
	flaky    []failure // passed when they ran again
	took     time.Duration
	progress *progress // may be nil

	open   map[testName]bool     // started, not finished
	output map[testName][]string // of tests that have not passed
	failed map[string]int        // failed tests by package
	judged bool                  // a package has finished
}

func newResult(suite string, p *progress) *result {
	return &result{suite: suite, progress: p, open: map[testName]bool{}, output: map[testName][]string{}, failed: map[string]int{}}
}

func (r *result) pass() {
	r.passed++
	r.progress.passed()
}

func (r *result) fail(name, output string) {
	r.failures = append(r.failures, failure{name: name, output: output})
	r.progress.failed(r.suite, name)
}

// failTest adds the failure of one test, which can run again.
func (r *result) failTest(test testName, output string) {
	r.fail(test.String(), output)
	r.failures[len(r.failures)-1].test = test
}

// timed is a test and how long it took.
type timed struct {
	name testName
	took time.Duration
}

// time keeps the longest tests. Subtests are in the time of their test.
func (r *result) time(t timed) {
	if strings.Contains(t.name.Test, "/") {
		return
	}
	r.longest = append(r.longest, t)
	slices.SortStableFunc(r.longest, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	r.longest = r.longest[:min(len(r.longest), longestKept)]
}

// event is one line of `go test -json`.
type event struct {
	Action      string
	Package     string
	Test        string
	ImportPath  string // of build-output
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string
}

// parseEvent parses a line of `go test -json`. The go command itself complains
// outside of JSON.
func parseEvent(line string) event {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil {
		return event{Action: "output", Output: line + "\n"}
	}
	return e
}

// read counts one event. builds is the compiler's output by import path.
func (r *result) read(e event, builds map[string][]string) {
	name := testName{e.Package, e.Test}
	switch e.Action {
	case "run":
		r.open[name] = true
	case "output":
		r.output[name] = keepEnds(append(r.output[name], e.Output))
	case "pass", "skip", "fail":
		if e.Test == "" {
			r.endPackage(e, builds[e.FailedBuild])
		} else {
			r.time(timed{name, time.Duration(e.Elapsed * float64(time.Second))})
			r.endTest(name, e.Action)
		}
	}
}

func (r *result) endTest(name testName, verdict string) {
	delete(r.open, name)
	switch verdict {
	case "pass":
		r.pass()
	case "skip":
		r.skipped = append(r.skipped, name.String())
	case "fail":
		r.failed[name.Package]++
		r.failTest(name, strings.Join(r.output[name], ""))
	}
	delete(r.output, name)
}

// endPackage judges a package. A failed build, a panic, a leak found in TestMain
// and a timeout all show only here. "skip" means that it has no test files.
func (r *result) endPackage(e event, build []string) {
	r.judged = true
	r.took += time.Duration(e.Elapsed * float64(time.Second))
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
			r.fail(name.String(), strings.Join(r.output[name], "")+"it did not finish; see the output of the package\n")
			delete(r.open, name)
			delete(r.output, name)
		}
		if r.failed[e.Package] == 0 || len(cut) > 0 {
			r.fail(own.String(), strings.Join(slices.Concat(build, r.output[own]), ""))
		}
	}
	delete(r.output, own)
}

// closeResults judges a whole call of `go test`. An error that no test explains
// is a failure, and so is a test or a suite without a verdict.
func closeResults(results []*result, err error) {
	failures := 0
	for _, r := range results {
		switch {
		case len(r.open) > 0:
			r.fail("go test", fmt.Sprintf("%d tests did not finish: %v", len(r.open), err))
		case !r.judged && err == nil:
			r.fail("go test", "it succeeded without a verdict on any package")
		}
		failures += len(r.failures)
	}
	if err != nil && failures == 0 {
		results[0].fail("go test", fmt.Sprintf("%v\n%s", err, strings.Join(results[0].output[testName{}], "")))
	}
}

// keepEnds drops lines from the middle, because the first lines often say what is wrong,
// and the last what happened then.
func keepEnds(lines []string) []string {
	const head = linesKept / 4
	if len(lines) > linesKept+head {
		lines = slices.Concat(lines[:head], []string{"…\n"}, lines[len(lines)-linesKept+head:])
	}
	return lines
}

// report holds the results of a run.
type report struct {
	began   time.Time
	results []*result
}

// fail adds a suite that consists of one failure.
func (r *report) fail(suite, name, output string) {
	res := newResult(suite, nil)
	res.fail(name, output)
	r.results = append(r.results, res)
}

func (r *report) failed() int {
	n := 0
	for _, res := range r.results {
		n += len(res.failures)
	}
	return n
}

// print writes the failures, the tables, then each failure again in a few lines,
// because the end of a log is often all that is kept of it, and last a line with the
// counts.
func (r *report) print(out io.Writer) {
	for _, res := range r.results {
		for _, f := range slices.Concat(res.flaky, res.failures) {
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
	}
	all := &result{}
	for _, res := range r.results {
		for _, t := range res.longest {
			all.time(t)
		}
	}
	if len(all.longest) > 0 {
		fmt.Fprintln(out, "The longest tests, in seconds:")
	}
	for _, t := range all.longest {
		fmt.Fprintf(out, "%7.1f  %s\n", t.took.Seconds(), t.name)
	}
	fmt.Fprintf(out, "%.1f minutes in all; packages and suites run at the same time, so theirs can add up to more\n", time.Since(r.began).Minutes())
	for _, res := range r.results {
		for _, f := range res.flaky {
			f.summarize(out, "flaky, failed once and then passed", res.suite)
		}
		for _, f := range res.failures {
			f.summarize(out, "failed", res.suite)
		}
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", passed, r.failed())
}
