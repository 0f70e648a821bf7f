package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestMain also serves as the program of the workers.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "worker" {
		if err := workerMain(context.Background(), os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestEngines pays a few targets with each engine, and loses replies to those that retry. It
// needs an empty Redis: go run ./scripts/up -- go -C bench test .
func TestEngines(t *testing.T) {
	o := options{
		postgres: os.Getenv("LARGESSE_TEST_POSTGRES"), redis: os.Getenv("LARGESSE_TEST_REDIS"),
		scenarios: "fast,slow,lost", targets: 200, turns: 1, limit: 5 * time.Minute,
	}
	if o.postgres == "" || o.redis == "" {
		t.Skip("LARGESSE_TEST_POSTGRES and LARGESSE_TEST_REDIS name the servers: run it with go run ./scripts/up")
	}
	report, err := o.measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range report.Results {
		turn := one.Turns[0]
		wantDoubled := 0
		if one.Scenario == "lost" && one.Engine != "largesse" { // which looks a charge up
			wantDoubled = 2
		}
		if turn.Lost != 0 || turn.Unknown != 0 || turn.Doubled != wantDoubled {
			t.Errorf("%s, %s: %d lost, %d unknown, %d doubled; want 0, 0, %d", one.Scenario, one.Engine, turn.Lost, turn.Unknown, turn.Doubled, wantDoubled)
		}
		if turn.PostgresCPU < 0 || turn.Memory == 0 || turn.WAL <= 0 || turn.Stored <= 0 {
			t.Errorf("%s, %s: a cost is missing: %+v", one.Scenario, one.Engine, turn)
		}
	}
	if len(report.Results) != 14 { // the bare pipeline loses no replies
		t.Errorf("%d results, want 14", len(report.Results))
	}
}

func testReport(t *testing.T, largesseRate, riverRate float64) *Report {
	r := newReport(t.Context(), 100)
	for _, slower := range []float64{1, 3, 2} {
		r.add("river", "fast", Turn{Rate: riverRate / slower, Doubled: int(slower)})
		r.add("largesse", "fast", Turn{Rate: largesseRate / slower})
	}
	r.sort()
	return r
}

func TestReportHasMediansAndTheWorstCounts(t *testing.T) {
	var text strings.Builder
	testReport(t, 60000, 30000).write(&text)
	for _, want := range []string{"| largesse | 30,000 (20,000 to 60,000) |", "| river | 15,000 (10,000 to 30,000) |", "| 0 | 3 | 0 |"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in:\n%s", want, text.String())
		}
	}
}

func TestFallenRatiosAreNamed(t *testing.T) {
	for now, want := range map[float64]string{
		55000: "no ratio fell by more than 10 %",
		50000: "FELL by more than 10 %: fast: largesse ÷ river was 2.00",
	} {
		var text strings.Builder
		testReport(t, now, 30000).writeFallen(&text, testReport(t, 60000, 30000))
		if !strings.Contains(text.String(), want) {
			t.Errorf("at %.0f per second: %q, want %q", now, text.String(), want)
		}
	}
}

func TestKeptReportIsReadAgainAndShownOnThePage(t *testing.T) {
	folder := t.TempDir()
	page := filepath.Join(folder, "page.md")
	if err := os.WriteFile(page, []byte("before\n"+beginFigures+"old\n"+endFigures+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := testReport(t, 60000, 30000)
	path, err := r.keep(folder, "bench-peers")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.rewritePage(page, path+".svg"); err != nil {
		t.Fatal(err)
	}
	last, err := lastKept(folder, "bench-peers")
	if err != nil || last.ratios()["fast: largesse ÷ river"] != 2 {
		t.Errorf("the last kept report is %+v, %v", last, err)
	}
	if other, err := lastKept(folder, "bench-peers-quick"); other != nil || err != nil {
		t.Errorf("a report of another name was found: %+v, %v", other, err)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before\n", "| largesse | 30,000 ", "](" + filepath.Base(path) + ".svg)", "after\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q on the page:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), "old\n") {
		t.Error("the old figures are still on the page")
	}
}
