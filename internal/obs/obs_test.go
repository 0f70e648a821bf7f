package obs

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLog(t *testing.T) {
	t.Parallel()

	t.Run("WritesComponentStageAndIds", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		log, err := NewLog(&out, "info", "json")
		if err != nil {
			t.Fatal(err)
		}
		log.For(Sweeper).Warn(Swept, errors.New("gone"), "promotion_id", 7, "count", 2)
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
			var out bytes.Buffer
			log, err := NewLog(&out, level, "text")
			if err != nil {
				t.Fatal(err)
			}
			log.Debug(Received)
			log.Info(Received)
			log.Warn(Received, errors.New("x"))
			log.Error(Received, errors.New("x"))
			if got, want := strings.Count(out.String(), "msg=received"), len(all)-i; got != want {
				t.Errorf("level %s wrote %d lines, want %d:\n%s", level, got, want, out.String())
			}
		}
	})

	t.Run("LeavesTheCallersAttributesAlone", func(t *testing.T) {
		t.Parallel()
		log, err := NewLog(&bytes.Buffer{}, "info", "text")
		if err != nil {
			t.Fatal(err)
		}
		// With room behind, an append in place would write into an array that
		// other goroutines may log from as well.
		attrs := append(make([]any, 0, 4), "promotion_id", 7)
		log.Warn(Failed, errors.New("first"), attrs...)
		log.Error(Failed, errors.New("second"), attrs...)
		if behind := attrs[2:4]; behind[0] != nil || behind[1] != nil {
			t.Errorf("the caller's array holds %v behind its attributes", behind)
		}
	})

	t.Run("TheZeroLogWritesNothing", func(t *testing.T) {
		t.Parallel()
		var log Log
		log.For(Engine).Info(Started)
		log.Error(Failed, errors.New("x"))
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

func TestStd(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := NewLog(&out, "info", "json")
	if err != nil {
		t.Fatal(err)
	}
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
