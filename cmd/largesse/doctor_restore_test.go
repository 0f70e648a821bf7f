package main

import (
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
)

// TestDoctorAfterRestore: the mark is in the database, and a second one is not
// earlier.
func TestDoctorAfterRestore(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	if r := largesseRun(t.Context(), "", nil, "migrate", "--data-dir", data); r.code != exitDone {
		t.Fatalf("%+v", r)
	}
	before := time.Now().Add(-time.Second)
	r := largesseRun(t.Context(), "", nil, "doctor", "--after-restore", "--data-dir", data, "--money-url", "http://127.0.0.1:1", "--listen", "127.0.0.1:0")
	if !strings.Contains(r.stderr, "every payout is looked up before it is charged") {
		t.Errorf("%+v", r)
	}
	cfg := config.Default()
	cfg.Data.Dir = data
	rows := fixture.Must(parts.OpenStore(t.Context(), cfg, "test", nil, obs.Log{}))(t)
	defer rows.Close()
	if at, err := rows.RestoreMark(t.Context()); err != nil || at.Before(before) || at.After(time.Now()) {
		t.Errorf("the mark is %v, %v", at, err)
	}
	r = largesseRun(t.Context(), "", nil, "doctor", "--after-restore", "--database-url", "postgres://127.0.0.1:1/none", "--money-url", "http://127.0.0.1:1")
	if r.code != exitFailed || r.stdout != "" {
		t.Errorf("a mark that could not be written: %+v", r)
	}
}
