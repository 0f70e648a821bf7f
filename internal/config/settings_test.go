package config

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
)

var update = flag.Bool("update", false, "write docs/settings.md anew")

func TestSettings(t *testing.T) {
	t.Parallel()

	t.Run("NameEveryFieldOfConfigOnceWithTheRightKind", func(t *testing.T) {
		t.Parallel()
		want := map[string]SettingKind{}
		fieldKinds("", reflect.TypeFor[Config](), want)
		got := map[string]SettingKind{}
		for _, s := range Settings {
			if _, twice := got[s.Name]; twice {
				t.Errorf("%s is twice in Settings", s.Name)
			}
			got[s.Name] = s.Kind
		}
		fixture.Equal(t, want, got)
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

// fieldKinds walks the fields of Config by their tags.
func fieldKinds(prefix string, typ reflect.Type, into map[string]SettingKind) {
	for field := range typ.Fields() {
		if !field.IsExported() {
			continue
		}
		name := prefix + field.Tag.Get("setting")
		switch {
		case field.Type.Kind() == reflect.Struct:
			fieldKinds(name+".", field.Type, into)
		case field.Type.String() == "time.Duration":
			into[name] = KindDuration
		case field.Type.Kind() == reflect.Int:
			into[name] = KindInt
		case field.Type.Kind() == reflect.Bool:
			into[name] = KindBool
		case field.Type.Kind() == reflect.Slice:
			into[name] = KindList
		default:
			into[name] = KindText
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
