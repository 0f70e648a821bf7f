//go:build ci

package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// buildExample builds a program of examples/ and returns its path.
func buildExample(t *testing.T, name string) string {
	t.Helper()
	return buildModule(t, filepath.Join("examples", name))
}

// buildModule builds the program of a module in a folder and returns its path.
func buildModule(t *testing.T, folder string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(folder))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", path, ".")
	build.Dir = folder
	build.Env = append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v; when go.mod has changed, run: cd %s && go mod tidy\n%s", err, build.Dir, out)
	}
	return path
}

// TestExamplePrograms builds and runs the programs of examples/. They are
// modules of their own, so they can use nothing of internal/.
func TestExamplePrograms(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"embed": {nil, "payouts: COMPLETED, 1000 of 1000 paid, 25000 in all\n" +
			"bank:    1000 keys, 25000 in all\n" +
			"coupons: 100 issued, 30 sold out\n"},
		"mount": {[]string{"-listen", "127.0.0.1:0", "-check"}, "GET / 200\n" +
			"GET /rewards/v1/promotions 401\n" +
			"POST /rewards/v1/promotions 201\nGET its Location 200\n" +
			"GET /rewards/docs 200\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := buildExample(t, name)
			var said, log strings.Builder
			run := exec.CommandContext(t.Context(), path, tc.args...)
			run.Stdout, run.Stderr = &said, &log
			if err := run.Run(); err != nil {
				t.Fatalf("%v\n%s\n%s", err, said.String(), log.String())
			}
			fixture.Equal(t, tc.want, said.String())
			if !strings.Contains(log.String(), "component=engine") {
				t.Errorf("the logger of the program got: %s", log.String())
			}
		})
	}
}

// TestComparisonBuilds builds bench/: only the nightly tier runs it.
func TestComparisonBuilds(t *testing.T) {
	t.Parallel()
	buildModule(t, "bench")
}
