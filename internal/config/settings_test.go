package config

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

var update = flag.Bool("update", false, "write docs/settings.md anew")

func TestSettings(t *testing.T) {
	t.Parallel()

	t.Run("AreAllFieldsOfConfig", func(t *testing.T) {
		t.Parallel()
		for _, s := range Settings {
			if s.Kind == "" {
				t.Errorf("%s is a field of a type that no kind has", s.Name)
			}
		}
		untagged(t, reflect.TypeFor[Config]())
		// A tag cannot name constants of other packages.
		s, _ := settingByName("approval.codes-above")
		fixture.Equal(t, strconv.Itoa(reward.TemplateQuantityMax), s.Max)
		s, _ = settingByName("auth.mode")
		fixture.Equal(t, []string{auth.ModeNone, auth.ModeAPIKey, auth.ModeJWT}, s.Words)
	})

	t.Run("HaveADocLineEach", func(t *testing.T) {
		t.Parallel()
		for _, s := range Settings {
			if len(s.Doc) < 10 || strings.ContainsAny(s.Doc, "\n|") {
				t.Errorf("%s needs a doc of one line, without |: %q", s.Name, s.Doc)
			}
		}
	})

	t.Run("HaveNamesOfTheirOwnInTheEnvironmentAndAmongFlags", func(t *testing.T) {
		t.Parallel()
		seen := map[string]string{}
		for _, s := range Settings {
			for _, name := range []string{s.Env(), s.Flag()} {
				if other, ok := seen[name]; ok && other != s.Name {
					t.Errorf("%s and %s are both %s", other, s.Name, name)
				}
				seen[name] = s.Name
			}
		}
		s, _ := settingByName("redis.stream.max-len")
		if s.Env() != "LARGESSE_REDIS_STREAM_MAX_LEN" || s.Flag() != "redis-stream-max-len" {
			t.Errorf("redis.stream.max-len is %s and --%s", s.Env(), s.Flag())
		}
	})

	t.Run("AreAllInTheDocs", func(t *testing.T) {
		t.Parallel()
		const path = "../../docs/settings.md"
		have := fixture.Must(os.ReadFile(path))(t)
		const begin, end = "<!-- settings: begin -->\n", "<!-- settings: end -->"
		before, rest, ok := strings.Cut(string(have), begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has lost its marks %q and %q", path, begin, end)
		}
		want := before + begin + docsTable() + end + after
		if *update {
			fixture.OK(t, os.WriteFile(path, []byte(want), 0o644))
			return
		}
		if diff := cmp.Diff(want, string(have)); diff != "" {
			t.Errorf("%s is not current; run: go test ./internal/config -run TestSettings -update\n%s", path, diff)
		}
	})
}

// untagged finds fields of settings that the tags do not declare.
func untagged(t *testing.T, group reflect.Type) {
	t.Helper()
	for field := range group.Fields() {
		switch _, tagged := field.Tag.Lookup("setting"); {
		case field.IsExported() && !tagged:
			t.Errorf("%s.%s is no setting", group, field.Name)
		case field.Type.Kind() == reflect.Struct:
			untagged(t, field.Type)
		}
	}
}

// docsTable is the table of docs/settings.md.
func docsTable() string {
	var b strings.Builder
	b.WriteString("| setting | default | kind | meaning |\n|---|---|---|---|\n")
	for _, s := range Settings {
		shown := "empty"
		if s.Default != "" {
			shown = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", s.Name, shown, s.Kind, s.Doc)
	}
	return b.String()
}
