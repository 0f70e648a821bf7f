package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// keyServer answers every request, and sends on the Authorization header.
func keyServer(t *testing.T) (url string, keys <-chan string) {
	t.Helper()
	sent := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent <- r.Header.Get("Authorization")
		_, _ = io.WriteString(w, draftJSON)
	}))
	t.Cleanup(server.Close)
	return server.URL, sent
}

func TestProfiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := []string{"XDG_CONFIG_HOME=" + dir}
	key := filepath.Join(t.TempDir(), "key")
	fixture.OK(t, os.WriteFile(key, []byte("lgs_file\n"), 0o600))
	must := func(stdin string, args ...string) string {
		t.Helper()
		r := largesseRun(t.Context(), stdin, env, append([]string{"profile"}, args...)...)
		if r.code != exitDone {
			t.Fatalf("%v: %+v", args, r)
		}
		return r.stdout
	}
	must("lgs_one\n", "add", "one", "--server", "http://one.example", "--api-key-file", "-")
	must("", "add", "two", "--server", "http://u:hunter2@two.example", "--api-key-file", key, "--use")
	path := filepath.Join(dir, "largesse", "profiles.json")
	for name, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700 | os.ModeDir} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	want := "NAME  CURRENT  SERVER                      API KEY\none   no       http://one.example          stored\ntwo   yes      http://u:xxxxx@two.example  " + key + "\n"
	fixture.Equal(t, want, must("", "list"))
	for _, args := range [][]string{{"list", "--output", "json"}, {"show", "one"}, {"show", "one", "--output", "json"}} {
		if text := must("", args...); strings.Contains(text, "lgs_") || strings.Contains(text, "hunter2") {
			t.Errorf("%v shows a secret: %s", args, text)
		}
	}
	if got := must("", "use", "one"); got != "commands use http://one.example\n" {
		t.Error(got)
	}
	if got := offers(t, env, "promotion", "list", "--profile", "t"); len(got) != 2 || !strings.HasPrefix(got[0], "two\t") {
		t.Errorf("%q", got)
	}
	if got := offers(t, env, "profile", "use", ""); len(got) != 3 {
		t.Errorf("%q", got)
	}
	wantWrongUse(t, env, "profile", []wrongRun{
		{[]string{"add", "one", "--server", "http://x"}, "there is a profile one; add --replace"},
		{[]string{"add", "three"}, "--server is missing"},
		{[]string{"add", "three", "--server", "x"}, `the server address "x" must look like`},
		{[]string{"add", "three", "--server", "http://x", "--api-key-file", "-"}, "stdin has no API key"},
		{[]string{"add", "three", "--server", "http://x", "--api-key-file", key + "x"}, "no such file"},
		{[]string{"add", "three", "--server", "http://x", "--ca-file", key}, "has no PEM certificate"},
		{[]string{"add", "a/b", "--server", "http://x"}, `"a/b" is not a profile name`},
		{[]string{"add", "none", "--server", "http://x"}, `"none" is not a profile name`},
		{[]string{"use", "three"}, `there is no profile "three"; see largesse profile list`},
		{[]string{"show", "three"}, `there is no profile "three"`},
		{[]string{"remove", "three"}, `there is no profile "three"`},
		{[]string{"remove", "one"}, "this would remove profile one with its stored key; add --yes"},
	})
	must("lgs_new\n", "add", "one", "--server", "http://other.example", "--api-key-file", "-", "--replace")
	must("", "remove", "one", "--yes")
	text, err := os.ReadFile(path)
	var left profiles
	if err != nil || json.Unmarshal(text, &left) != nil || left.Current != "" || len(left.Profiles) != 1 || strings.Contains(string(text), "lgs_") {
		t.Errorf("%s, %v", text, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%v, %v", entries, err)
	}
	fixture.OK(t, os.Chmod(path, 0o640))
	if r := largesseRun(t.Context(), "", env, "promotion", "list"); r.code != exitWrongUse || !strings.Contains(r.stderr, "run chmod 600 "+path) {
		t.Errorf("%+v", r)
	}
	fixture.OK(t, os.WriteFile(path, []byte(`{"current":"x","color":1}`), 0o600))
	fixture.OK(t, os.Chmod(path, 0o600))
	if r := largesseRun(t.Context(), "", env, "profile", "list"); r.code != exitWrongUse || !strings.Contains(r.stderr, "correct or remove the file") {
		t.Errorf("%+v", r)
	}
	if r := largesseRun(t.Context(), "", nil, "profile", "list"); r.code != exitWrongUse || !strings.Contains(r.stderr, "set HOME or XDG_CONFIG_HOME") {
		t.Errorf("%+v", r)
	}
}

// TestProfilePrecedence checks which server gets which key.
func TestProfilePrecedence(t *testing.T) {
	t.Parallel()
	one, toOne := keyServer(t)
	two, toTwo := keyServer(t)
	home := t.TempDir()
	configs := world{environ: []string{"HOME=" + home}}
	fixture.OK(t, configs.saveProfiles(profiles{Current: "one", Profiles: map[string]profile{
		"one": {Server: one, APIKey: "key-of-one"}, "two": {Server: two, APIKey: "key-of-two"}, "bare": {Server: two},
	}}))
	for _, tt := range []struct {
		env, args []string
		to        <-chan string
		want      string
	}{
		{nil, nil, toOne, "Bearer key-of-one"},
		{[]string{"LARGESSE_PROFILE=two"}, nil, toTwo, "Bearer key-of-two"},
		{[]string{"LARGESSE_PROFILE=two"}, []string{"--profile", "one"}, toOne, "Bearer key-of-one"},
		{nil, []string{"--profile", "two"}, toTwo, "Bearer key-of-two"},
		{[]string{"LARGESSE_API_KEY=k"}, nil, toOne, "Bearer k"},
		{[]string{"LARGESSE_API_KEY=k"}, []string{"--profile", "two"}, toTwo, "Bearer key-of-two"},
		{[]string{"LARGESSE_API_KEY=k"}, []string{"--profile", "bare"}, toTwo, "Bearer k"},
		{nil, []string{"--profile", "two", "--api-key", "f"}, toTwo, "Bearer f"},
		{[]string{"LARGESSE_SERVER=" + two}, []string{"--profile", "one"}, toOne, "Bearer key-of-one"},
		// The key of a profile goes to no other server.
		{[]string{"LARGESSE_SERVER=" + two}, nil, toTwo, ""},
		{[]string{"LARGESSE_SERVER=" + two, "LARGESSE_PROFILE=one"}, nil, toTwo, ""},
		{nil, []string{"--server", two}, toTwo, ""},
		{nil, []string{"--server", two, "--profile", "one"}, toTwo, ""},
		{nil, []string{"--server", two, "--profile", "two"}, toTwo, "Bearer key-of-two"},
	} {
		r := largesseRun(t.Context(), "", append(configs.environ, tt.env...), append([]string{"promotion", "show", "7"}, tt.args...)...)
		if r.code != exitDone {
			t.Errorf("%v %v: %+v", tt.env, tt.args, r)
			continue
		}
		select {
		case got := <-tt.to:
			if got != tt.want {
				t.Errorf("%v %v: %q, want %q", tt.env, tt.args, got, tt.want)
			}
		default:
			t.Fatalf("%v %v: the other server was called", tt.env, tt.args)
		}
	}
	for _, unknown := range []result{
		largesseRun(t.Context(), "", configs.environ, "promotion", "show", "7", "--profile", "three"),
		largesseRun(t.Context(), "", append(configs.environ, "LARGESSE_PROFILE=three"), "promotion", "show", "7"),
	} {
		if unknown.code != exitWrongUse || !strings.Contains(unknown.stderr, `there is no profile "three"`) {
			t.Errorf("%+v", unknown)
		}
	}
}

// TestProfileAsksForAKey checks that a terminal shows nothing of a key.
func TestProfileAsksForAKey(t *testing.T) {
	t.Parallel()
	env := []string{"XDG_CONFIG_HOME=" + t.TempDir()}
	terminal := openTerminal(t, 80, 24)
	asked, question := io.Pipe()
	code := make(chan int)
	go func() {
		code <- run(t.Context(), []string{"profile", "add", "one", "--server", "http://one.example"},
			world{stdin: terminal.File, stdout: terminal.File, stderr: io.MultiWriter(terminal.File, question), environ: env})
		question.Close()
	}()
	begun := make([]byte, 200)
	if n, err := asked.Read(begun); err != nil || !strings.HasPrefix(string(begun[:n]), "API key for http://one.example (not shown; Enter: none): ") {
		t.Fatalf("%q, %v", begun, err)
	}
	go func() { _, _ = io.Copy(io.Discard, asked) }()
	fixture.Until(t, "the terminal shows nothing that is typed", func() bool {
		mode, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
		return err == nil && mode.Lflag&unix.ECHO == 0
	})
	fixture.Must(terminal.person.WriteString("lgs_typed\n"))(t)
	if got := <-code; got != exitDone {
		t.Errorf("it ends with %d", got)
	}
	seen := terminal.end(t)
	all, err := (world{environ: env}).loadProfiles()
	if err != nil || all.Profiles["one"].APIKey != "lgs_typed" {
		t.Errorf("%+v, %v", all, err)
	}
	if strings.Contains(seen, "lgs_typed") || !strings.Contains(seen, "profile one is stored") {
		t.Errorf("%q", seen)
	}
}
