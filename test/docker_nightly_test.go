//go:build nightly

package test

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestNightlyDockerfile builds the binary with the command of deploy/Dockerfile and compares
// what the image promises: one static binary, a user without rights, no shell.
func TestNightlyDockerfile(t *testing.T) {
	t.Parallel()
	text := fixture.Must(os.ReadFile(filepath.Join("deploy", "Dockerfile")))(t)
	_, final, found := strings.Cut(string(text), "\nFROM scratch\n")
	if !found || strings.Contains(final, "\nRUN ") {
		t.Error("the last stage has more than the copied files")
	}
	for _, line := range []string{"USER 65532:65532", `ENTRYPOINT ["/usr/local/bin/largesse"]`, "STOPSIGNAL SIGTERM"} {
		if !strings.Contains(final, "\n"+line+"\n") {
			t.Errorf("the last stage has no line %s", line)
		}
	}
	build := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*)$`).FindStringSubmatch(string(text))
	if build == nil {
		t.Fatal("no line builds the program")
	}
	out := filepath.Join(t.TempDir(), "largesse")
	shell := exec.CommandContext(t.Context(), "sh", "-c", strings.Replace(build[1], "/out/largesse", out, 1))
	shell.Env = append(os.Environ(), "VERSION=v9.8.7")
	if text, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	program := fixture.Must(elf.Open(out))(t)
	defer program.Close()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the program is not static")
		}
	}
	said, err := exec.CommandContext(t.Context(), out, "version").Output()
	if err != nil || !strings.HasPrefix(string(said), "largesse v9.8.7 ") {
		t.Errorf("the program says %s %v", said, err)
	}
}
