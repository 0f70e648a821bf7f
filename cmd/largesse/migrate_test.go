package main

import (
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
)

// TestMigrateBack: the schema goes back, not further than to the oldest version that
// is promised, and forward again with what it held.
func TestMigrateBack(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	migrate := func(args ...string) result {
		return largesseRun(t.Context(), "", nil, append([]string{"migrate", "--data-dir", data}, args...)...)
	}
	if r := migrate(); r.code != exitDone {
		t.Fatalf("%+v", r)
	}
	if r := migrate("--to", "5"); r.code != exitFailed || !strings.Contains(r.stderr, "the oldest is 6") {
		t.Errorf("%+v", r)
	}
	if r := migrate("--to", "14"); r.code != exitDone || r.stdout != "the schema of the database has version 14\n" {
		t.Errorf("%+v", r)
	}
	if r := migrate("--to", "6", "--output", "json"); r.code != exitDone || !strings.Contains(r.stdout, `"version": 6`) {
		t.Errorf("%+v", r)
	}
	if r := migrate(); r.code != exitDone {
		t.Errorf("%+v", r)
	}
	cfg := config.Default()
	cfg.Data.Dir = data
	rows := fixture.Must(parts.OpenStore(t.Context(), cfg, "test", nil, obs.Log{}))(t)
	defer rows.Close()
	if err := rows.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
