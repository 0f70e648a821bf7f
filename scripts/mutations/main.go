// Command mutations breaks the product on purpose, one promise at a time, and checks
// that a test fails: go run ./scripts/mutations [-run NAME]. The patches in
// testdata/mutations have the mistakes. Above its diff, each says what it breaks and
// which test finds it:
//
//	breaks: A sentence.
//	test: ./internal/payout TestFlow/Subtest
//
// The working tree stays as it is: the go command reads patched copies (-overlay).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

const (
	folder = "testdata/mutations"
	page   = "docs/dev/guarantees.md"
	begin  = "<!-- begin mutations: go run ./scripts/mutations -update -->\n"
	end    = "<!-- end mutations -->\n"
)

// mutation is a patch that breaks a promise.
type mutation struct {
	name, patch  string // the file's base name without .patch, and its absolute path
	breaks       string // what the patch breaks
	pkg, test    string // the test that finds it
	changedFiles []string
}

func main() {
	only := flag.String("run", "", "run only the mutations whose name matches this regular `expression`")
	update := flag.Bool("update", false, "write the table into "+page+" and run nothing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *update); err != nil {
		fmt.Fprintln(os.Stderr, "mutations:", err)
		os.Exit(1)
	}
}

// run runs the mutations from the root of the repository.
func run(ctx context.Context, only string, update bool) error {
	all, err := readMutations()
	if err != nil {
		return err
	}
	if update {
		return updatePage(table(all))
	}
	chosen, err := regexp.Compile(only)
	if err != nil {
		return err
	}
	var found []mutation
	missed := 0
	for _, m := range all {
		if !chosen.MatchString(m.name) {
			continue
		}
		if err := m.try(ctx); err != nil {
			fmt.Printf("%s: %v\n", m.name, err)
			missed++
			continue
		}
		fmt.Printf("%s: found by %s %s\n", m.name, m.pkg, m.test)
		found = append(found, m)
	}
	fmt.Printf("\n%s\n%d passed, %d failed\n", table(found), len(found), missed)
	if missed > 0 {
		return errors.New("a mistake stays unnoticed: write the test that is missing, or correct the patch")
	}
	return nil
}

// readMutations reads all patches, by name.
func readMutations() ([]mutation, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.patch"))
	if err != nil {
		return nil, err
	}
	var all []mutation
	for _, path := range paths {
		m := mutation{name: strings.TrimSuffix(filepath.Base(path), ".patch")}
		if m.patch, err = filepath.Abs(path); err != nil {
			return nil, err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimRight(line, "\n")
			if breaks, ok := strings.CutPrefix(line, "breaks: "); ok {
				m.breaks = breaks
			} else if test, ok := strings.CutPrefix(line, "test: "); ok {
				m.pkg, m.test, _ = strings.Cut(test, " ")
			} else if file, ok := strings.CutPrefix(line, "+++ b/"); ok {
				m.changedFiles = append(m.changedFiles, file)
			}
		}
		if m.breaks == "" || m.test == "" || len(m.changedFiles) == 0 {
			return nil, fmt.Errorf("%s needs the lines breaks: and test: and a diff", path)
		}
		all = append(all, m)
	}
	return all, nil
}

// try checks that the test passes without the patch, and fails with it.
func (m mutation) try(ctx context.Context) error {
	if out, err := m.goTest(ctx, "-v"); err != nil || !bytes.Contains(out, []byte("--- PASS: "+m.test)) {
		return fmt.Errorf("%s %s does not pass without the patch, or does not exist:\n%s", m.pkg, m.test, out)
	}
	dir, err := os.MkdirTemp("", "mutation-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	overlay, err := m.apply(ctx, dir)
	if err != nil {
		return err
	}
	out, err := m.goTest(ctx, "-count=1", "-overlay="+overlay)
	name, _, _ := strings.Cut(m.test, "/")
	switch {
	case err == nil:
		return fmt.Errorf("%s %s passes although the product is broken: %s", m.pkg, m.test, m.breaks)
	case !bytes.Contains(out, []byte("--- FAIL: "+name)):
		return fmt.Errorf("%s %s did not fail as a test does:\n%s", m.pkg, m.test, out)
	}
	return nil
}

// goTest runs the test of a mutation.
func (m mutation) goTest(ctx context.Context, flags ...string) ([]byte, error) {
	name, rest, _ := strings.Cut(m.test, "/")
	args := append([]string{"test", "-tags=synctests", "-vet=off", "-timeout=10m", "-run=^" + name + "$/" + rest}, flags...)
	return exec.CommandContext(ctx, "go", append(args, m.pkg)...).CombinedOutput()
}

// apply applies the patch to copies in dir, and returns the overlay that puts them in
// the place of the originals.
func (m mutation) apply(ctx context.Context, dir string) (overlay string, err error) {
	replace := map[string]string{}
	for _, file := range m.changedFiles {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		patched := filepath.Join(dir, file)
		replace[file] = patched
		if err := errors.Join(os.MkdirAll(filepath.Dir(patched), 0o700), os.WriteFile(patched, text, 0o600)); err != nil {
			return "", err
		}
	}
	git := exec.CommandContext(ctx, "git", "apply", m.patch)
	git.Dir = dir
	git.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := git.CombinedOutput(); err != nil {
		return "", fmt.Errorf("the patch does not apply: %s", out)
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}

// table returns the table of mutations for the page.
func table(all []mutation) string {
	var b strings.Builder
	b.WriteString("| mutation | what it breaks | found by |\n|---|---|---|\n")
	for _, m := range all {
		fmt.Fprintf(&b, "| %s | %s | `%s` %s |\n", m.name, m.breaks, strings.TrimPrefix(m.pkg, "./"), m.test)
	}
	return b.String()
}

func updatePage(table string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, opens := strings.Cut(string(text), begin)
	_, after, closes := strings.Cut(rest, end)
	if !opens || !closes {
		return errors.New(page + " lacks the lines around the table of mutations")
	}
	return os.WriteFile(page, []byte(before+begin+table+end+after), 0o600)
}
