package obs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// newTestLog returns a log that writes to a buffer.
func newTestLog(t *testing.T, level, format string) (Log, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	log, err := NewLog(&out, level, format)
	if err != nil {
		t.Fatal(err)
	}
	return log, &out
}

func TestLog(t *testing.T) {
	t.Parallel()

	t.Run("WritesComponentMessageAndIDs", func(t *testing.T) {
		t.Parallel()
		log, out := newTestLog(t, "info", "json")
		log.For(Sweeper).Warn("swept", errors.New("gone"), "promotion_id", 7, "count", 2)
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%q is no JSON: %v", out.String(), err)
		}
		delete(line, "time")
		want := map[string]any{
			"level": "WARN", "msg": "swept", "component": "sweeper",
			"promotion_id": 7.0, "count": 2.0, "error": "gone",
		}
		if diff := cmp.Diff(want, line); diff != "" {
			t.Errorf("line differs (-want +got):\n%s", diff)
		}
	})

	t.Run("KeepsTheLevel", func(t *testing.T) {
		t.Parallel()
		all := []string{"debug", "info", "warn", "error"}
		for i, level := range all {
			log, out := newTestLog(t, level, "text")
			log.Debug("received")
			log.Info("received")
			log.Warn("received", errors.New("x"))
			log.Error("received", errors.New("x"))
			if got, want := strings.Count(out.String(), "msg=received"), len(all)-i; got != want {
				t.Errorf("level %s wrote %d lines, want %d:\n%s", level, got, want, out.String())
			}
		}
	})

	t.Run("LeavesTheCallersAttributesAlone", func(t *testing.T) {
		t.Parallel()
		log, _ := newTestLog(t, "info", "text")
		// With room behind, an append in place would write into an array that
		// other goroutines may log from as well.
		attrs := append(make([]any, 0, 4), "promotion_id", 7)
		log.Warn("failed", errors.New("first"), attrs...)
		log.Error("failed", errors.New("second"), attrs...)
		if behind := attrs[2:4]; behind[0] != nil || behind[1] != nil {
			t.Errorf("the caller's array holds %v behind its attributes", behind)
		}
	})

	t.Run("TheZeroLogWritesNothing", func(t *testing.T) {
		t.Parallel()
		var log Log
		log.For(Engine).Info("instance started")
		log.Error("failed", errors.New("x"))
	})

	t.Run("RefusesUnknownSettings", func(t *testing.T) {
		t.Parallel()
		if _, err := NewLog(&bytes.Buffer{}, "loud", "text"); err == nil || !strings.Contains(err.Error(), `log.level "loud"`) {
			t.Errorf("level loud: %v", err)
		}
		if _, err := NewLog(&bytes.Buffer{}, "info", "xml"); err == nil || !strings.Contains(err.Error(), `log.format "xml"`) {
			t.Errorf("format xml: %v", err)
		}
	})
}

func TestFromSlog(t *testing.T) {
	t.Parallel()

	t.Run("WritesToTheGivenLogger", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		given := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{AddSource: true})).With("app", "shop")
		FromSlog(given).For(API).Info("API server started", "address", "here")
		var line struct {
			Msg, App, Component, Address string
			Source                       struct{ Function string }
		}
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatalf("%q: %v", out.String(), err)
		}
		if line.Msg != "API server started" || line.App != "shop" || line.Component != "api" || line.Address != "here" {
			t.Errorf("line %+v", line)
		}
		if !strings.Contains(line.Source.Function, "TestFromSlog") {
			t.Errorf("the source is %s, want the function that logs", line.Source.Function)
		}
	})

	t.Run("KeepsTheLevelOfTheGivenLogger", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		FromSlog(slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))).Info("not logged")
		if out.Len() > 0 {
			t.Errorf("logged %s", out.String())
		}
	})

	t.Run("NilDiscards", func(t *testing.T) {
		t.Parallel()
		log := FromSlog(nil).For(API)
		log.Info("not logged")
		log.Streak("database unavailable", "database available again")(errors.New("away"))
	})
}

func TestStreak(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	for name, tc := range map[string]struct {
		recovered string
		results   []error // of attempts
		want      []string
	}{
		"WarnsEachTimeTheFailuresHaveDoubled": {"queue available again", slices.Repeat([]error{away}, 15), []string{
			"WARN queue unavailable attempt 1 failures 1 away",
			"WARN queue unavailable attempt 2 failures 2 away",
			"WARN queue unavailable attempt 4 failures 4 away",
			"WARN queue unavailable attempt 8 failures 8 away",
		}},
		"ReportsTheRecoveryOnceAndStartsOver": {"queue available again", []error{nil, away, away, away, nil, nil, away}, []string{
			"WARN queue unavailable attempt 2 failures 1 away",
			"WARN queue unavailable attempt 3 failures 2 away",
			"INFO queue available again attempt 5 failures 3 ",
			"WARN queue unavailable attempt 7 failures 1 away",
		}},
		"RecoversSilentlyWithoutAMessage": {"", []error{away, nil, away}, []string{
			"WARN queue unavailable attempt 1 failures 1 away",
			"WARN queue unavailable attempt 3 failures 1 away",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, out := newTestLog(t, "info", "json")
			report := log.Streak("queue unavailable", tc.recovered)
			for i, result := range tc.results {
				report(result, "attempt", i+1)
			}
			var got []string
			for text := range strings.Lines(out.String()) {
				var line struct {
					Level, Msg, Error string
					Attempt, Failures int
				}
				if err := json.Unmarshal([]byte(text), &line); err != nil {
					t.Fatal(err)
				}
				got = append(got, fmt.Sprint(line.Level, " ", line.Msg, " attempt ", line.Attempt, " failures ", line.Failures, " ", line.Error))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}

	t.Run("LeavesTheCallersAttributesAlone", func(t *testing.T) {
		t.Parallel()
		log, _ := newTestLog(t, "info", "text")
		attrs := append(make([]any, 0, 8), "promotion_id", 7)
		report := log.Streak("queue unavailable", "queue available again")
		report(away, attrs...)
		report(nil, attrs...)
		if behind := attrs[2:4]; behind[0] != nil || behind[1] != nil {
			t.Errorf("the caller's array holds %v behind its attributes", behind)
		}
	})

	t.Run("CountsEachFailureOfManyGoroutines", func(t *testing.T) {
		t.Parallel()
		log, out := newTestLog(t, "info", "text")
		report := log.Streak("queue unavailable", "queue available again")
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				for range 128 {
					report(away)
				}
			})
		}
		group.Wait()
		report(nil)
		if got := strings.Count(out.String(), "\n"); got != 12 {
			t.Errorf("%d lines, want 11 warnings and the recovery:\n%s", got, out.String())
		}
		if !strings.Contains(out.String(), `msg="queue available again" failures=1024`) {
			t.Errorf("the recovery does not count 1024 failures:\n%s", out.String())
		}
	})
}

func TestStd(t *testing.T) {
	t.Parallel()
	log, out := newTestLog(t, "info", "json")
	std := log.For(API).Std("http: URL query")
	std.Print("http: URL query contains semicolon")
	std.Print("http: Accept error: too many open files")
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil { // one line alone
		t.Fatalf("%q: %v", out.String(), err)
	}
	if line["level"] != "WARN" || line["component"] != "api" || line["error"] != "http: Accept error: too many open files" {
		t.Errorf("%v", line)
	}
}
