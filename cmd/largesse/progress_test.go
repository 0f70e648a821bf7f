package main

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/client"
)

func TestStackedBar(t *testing.T) {
	t.Parallel()

	t.Run("ShowsEachState", func(t *testing.T) {
		t.Parallel()
		s := snapshot{Promotion: client.Promotion{TotalCount: 1_000_000, Counts: client.Counts{Ready: 400_000, Queued: 100_000, Succeeded: 499_998, Failed: 1, Unknown: 1}}}
		if got, want := stackedBar(s.layers(), 20, false), "███████x?▒▒·········"; len([]rune(got)) != 20 || strings.Count(got, "x") != 1 || strings.Count(got, "?") != 1 || !strings.HasPrefix(got, "██") {
			t.Errorf("bar %q, for example %q", got, want)
		}
	})

	t.Run("HasNoColoursUnlessAskedTo", func(t *testing.T) {
		t.Parallel()
		layers := []layer{{"x", "31", 1}, {"·", "90", 1}}
		if got := stackedBar(layers, 4, false); got != "xx··" {
			t.Errorf("bar %q", got)
		}
		if got := stackedBar(layers, 4, true); got != "\x1b[31mxx\x1b[0m\x1b[90m··\x1b[0m" {
			t.Errorf("bar %q", got)
		}
	})

	t.Run("FillsItsWidthWhateverTheCounts", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(t *rapid.T) {
			layers := make([]layer, 7)
			var total int64
			for i := range layers {
				layers[i] = layer{mark: "x", count: rapid.Int64Range(-1, 1<<40).Draw(t, "count")}
				total += max(0, layers[i].count)
			}
			width := rapid.IntRange(-1, 60).Draw(t, "width")
			want := max(0, width)
			if total == 0 {
				want = 0
			}
			if got := len(stackedBar(layers, width, false)); got != want {
				t.Fatalf("%d cells of %d: %v", got, width, layers)
			}
		})
	})
}

func TestRateMeter(t *testing.T) {
	t.Parallel()
	var m rateMeter
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	look := func(after time.Duration, status string, done int64) *snapshot {
		return m.look(client.Promotion{Status: status, TotalCount: 1000, Counts: client.Counts{Succeeded: done, Ready: 1000 - done}}, at.Add(after))
	}
	if s := look(0, "RUNNING", 0); s.rate != 0 || s.left != 0 {
		t.Errorf("at first: %v/s, %s left", s.rate, s.left)
	}
	if s := look(2*time.Second, "RUNNING", 200); s.rate != 100 || s.left != 0 || s.pace() != "100/s" {
		t.Errorf("after 2 s: %v/s, %s left", s.rate, s.left)
	}
	// Only the last ten seconds count. The server tells the time left.
	look(30*time.Second, "RUNNING", 200)
	if s := look(40*time.Second, "RUNNING", 300); s.rate != 10 || s.left != 0 {
		t.Errorf("after 40 s: %v/s, %s left", s.rate, s.left)
	}
	if s := look(41*time.Second, "PAUSED", 300); s.left != 0 {
		t.Errorf("paused: %s left", s.left)
	}
}

// TestRateMeterStill: what makes no progress has no rate and no end, and what comes
// after is not slowed down by it.
func TestRateMeterStill(t *testing.T) {
	t.Parallel()
	var m rateMeter
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	eta := int64(7)
	for _, tc := range []struct {
		after  time.Duration
		status string
		done   int64
		pace   string
	}{
		{0, "RUNNING", 0, "7s left"},
		{time.Second, "RUNNING", 200, "200/s 7s left"},
		{3900 * time.Millisecond, "RUNNING", 200, "51/s 7s left"},
		{4 * time.Second, "RUNNING", 200, "nothing paid for 3s"},
		{13900 * time.Millisecond, "RUNNING", 200, "nothing paid for 12s"},
		{14900 * time.Millisecond, "RUNNING", 300, "100/s 7s left"},
		{30 * time.Second, "PAUSED", 300, ""},
		{31 * time.Second, "RUNNING", 300, "7s left"},
		{40 * time.Second, "RUNNING", 1000, "78/s 7s left"},
		{60 * time.Second, "RUNNING", 1000, "7s left"}, // there is nothing to pay
	} {
		s := m.look(client.Promotion{Status: tc.status, TotalCount: 1000, ETASeconds: &eta, Counts: client.Counts{Succeeded: tc.done}}, at.Add(tc.after))
		if got := s.pace(); got != tc.pace {
			t.Errorf("after %s: %q, want %q", tc.after, got, tc.pace)
		}
	}
}

func TestSnapshotNamesParts(t *testing.T) {
	t.Parallel()
	s := snapshot{still: 12900 * time.Millisecond, parts: []string{"the work queue does not answer", "gate\x1b"}}
	if got, want := s.pace(), "nothing paid for 12s, the work queue does not answer, gate\uFFFD"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSnapshot(t *testing.T) {
	t.Parallel()
	expected, finished := int64(2000), time.Now()
	s := snapshot{Promotion: client.Promotion{Status: "CANCELLED", TotalCount: 1000, ExpectedCount: &expected, Counts: client.Counts{Succeeded: 999}}}
	if s.total() != 2000 || s.percent() != 49 || s.Ended() {
		t.Errorf("total %d, %d%%, ended %v", s.total(), s.percent(), s.Ended())
	}
	if s.FinishedAt = &finished; !s.Ended() {
		t.Error("a cancelled promotion that is finished goes on")
	}
	if (&snapshot{}).percent() != 0 {
		t.Error("an empty promotion has a share done")
	}
}
