//go:build nightly

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestNightlyAReleaseCanBeMadeAgain checks that two clones in different directories give the same
// bytes, and what is in them.
func TestNightlyAReleaseCanBeMadeAgain(t *testing.T) {
	t.Parallel()
	const version = "v0.0.1-rc.1"
	root := fixture.Must(filepath.Abs("../.."))(t)
	made := [2]string{filepath.Join(t.TempDir(), "one"), filepath.Join(t.TempDir(), "another", "and", "deeper")}
	for _, dir := range made {
		call(t, root, "git", "clone", "-q", "--no-hardlinks", root, dir)
		call(t, dir, "go", "run", "./scripts/release", "-version", version, "-targets", "linux/amd64", "-out", "dist")
	}
	name := "largesse-" + version + "-linux-amd64"
	for _, file := range []string{"SHA256SUMS", name + ".tar.gz", name + ".cdx.json"} {
		one, another := read(t, made[0], "dist", file), read(t, made[1], "dist", file)
		if !bytes.Equal(one, another) {
			t.Errorf("%s: the two releases differ", file)
		}
	}
	call(t, filepath.Join(made[0], "dist"), "sha256sum", "--check", "--strict", "SHA256SUMS")

	files := map[string]string{}
	for _, e := range unpack(t, read(t, made[0], "dist", name+".tar.gz")) {
		files[e.Name] = e.Text
	}
	for _, want := range []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "licences/go/LICENSE"} {
		if len(files[path.Join(name, want)]) == 0 {
			t.Errorf("the archive has no %s", want)
		}
	}
	packages := fixture.Must(consolePackages("../.."))(t)
	for _, p := range packages {
		id := p.Name + "@" + p.Version
		if files[path.Join(name, "licences/npm", id, "LICENSE")] != p.Text || !strings.Contains(string(read(t, made[0], "dist", name+".cdx.json")), "pkg:npm/"+id) {
			t.Errorf("the release does not have %s", id)
		}
	}
	program := filepath.Join(t.TempDir(), "largesse")
	fixture.OK(t, os.WriteFile(program, []byte(files[path.Join(name, "largesse")]), 0o700))
	if said := call(t, root, program, "--version"); !strings.Contains(said, version) {
		t.Errorf("--version prints %q, want %s", said, version)
	}
}

// call runs a command in dir and returns what it prints.
func call(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	said, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, said)
	}
	return string(said)
}

func read(t *testing.T, parts ...string) []byte {
	t.Helper()
	return fixture.Must(os.ReadFile(filepath.Join(parts...)))(t)
}
