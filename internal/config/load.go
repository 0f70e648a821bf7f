package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// LoadParams contains the sources of settings. Later sources override earlier ones:
// file, environment, flags, program.
type LoadParams struct {
	File    string            // path of a YAML file; "": none
	Environ []string          // NAME=value, as returned by os.Environ
	Flags   map[string]string // values by setting name, e.g. redis.stream.max-len
	Program map[string]Value  // values by setting name
}

// Value is the value of a setting in one source.
type Value struct {
	Text   string // in the form of an environment variable
	Source string // origin of the value, for messages
}

// Error reports all invalid settings at once.
type Error struct {
	Problems []Problem
}

// Problem is one invalid setting.
type Problem struct {
	Name   string // the setting, or an unknown name
	Value  string // with secrets masked; "" for an unknown name
	Source string // origin of the value
	Detail string // what is wrong, and which values are allowed
}

// Error returns all problems in one line.
func (e *Error) Error() string {
	var parts []string
	for _, p := range e.Problems {
		parts = append(parts, p.String())
	}
	return "settings: " + strings.Join(parts, "; ")
}

func (p Problem) String() string {
	text := p.Name
	if p.Value != "" {
		text += fmt.Sprintf(" = %q", p.Value)
	}
	if p.Source != "" {
		text += " (" + p.Source + ")"
	}
	return text + " " + p.Detail
}

// notSettings are variables of the command line.
var notSettings = []string{"LARGESSE_SERVER", "LARGESSE_PROFILE", "LARGESSE_API_KEY", "LARGESSE_API_KEY_FILE", "LARGESSE_CA_FILE", "LARGESSE_ACTOR"}

const (
	envPrefix  = "LARGESSE_"
	testPrefix = "LARGESSE_TEST_"
)

// seeDocs is the hint for names that are similar to no known name.
const seeDocs = "; the settings are listed in docs/settings.md"

// SourceDefault is the source of values that were not set. The sources of flags
// start with sourceFlag.
const (
	SourceDefault = "default"
	sourceFlag    = "flag --"
)

// Load reads and checks the settings. Warnings do not prevent a start: they report
// unknown names in the environment, and values that are safe but probably a
// mistake. The error is an *Error, unless the file cannot be read.
func Load(p LoadParams) (Config, []string, error) {
	c, warnings, problems, err := Examine(p)
	if err == nil && len(problems) > 0 {
		c, err = Config{}, &Error{Problems: problems}
	}
	return c, warnings, err
}

// Examine is like Load, but returns problems instead of an *Error, together with the
// Config. Settings that could not be parsed have their defaults. err reports that
// the file could not be read at all.
func Examine(p LoadParams) (c Config, warnings []string, problems []Problem, err error) {
	var file map[string]Value
	if p.File != "" {
		if file, problems, err = readFile(p.File); err != nil {
			return Config{}, nil, nil, err
		}
	}
	environ, warnings := readEnviron(p.Environ)
	flags := readFlags(p.Flags)
	problems = slices.Concat(problems, unknown(flags), unknown(p.Program))
	c, found := merge(file, environ, flags, p.Program)
	problems = append(problems, found...)
	// Settings that could not be parsed have their defaults here, so that all other
	// problems are reported in the same run.
	var invalid *Error
	if errors.As(c.Validate(), &invalid) {
		problems = append(problems, invalid.Problems...)
	}
	if len(problems) == 0 {
		warnings = append(warnings, c.warnings()...)
	}
	return c, warnings, problems, nil
}

// Default returns the Config in which nothing is set.
func Default() Config {
	c, _ := merge()
	return c
}

// merge applies the sources to the defaults, in order.
func merge(layers ...map[string]Value) (Config, []Problem) {
	c := Config{sources: map[string]string{}}
	var problems []Problem
	for _, s := range Settings {
		v, err := s.parse(s.Default)
		if err != nil {
			panic("config: reading the default of " + s.Name + " failed: " + err.Error())
		}
		for _, layer := range layers {
			given, ok := layer[s.Name]
			if !ok {
				continue
			}
			parsed, err := s.parse(given.Text)
			if err != nil {
				problems = append(problems, Problem{Name: s.Name, Value: s.Shown(given.Text), Source: given.Source, Detail: err.Error()})
				continue
			}
			v, c.sources[s.Name] = parsed, given.Source
		}
		c.field(s.Name).Set(reflect.ValueOf(v))
	}
	return c, problems
}

// readEnviron reads settings from the environment. An empty variable counts as not
// set. Unknown names are only warnings, because Kubernetes injects such variables.
func readEnviron(environ []string) (map[string]Value, []string) {
	byEnv := map[string]Setting{}
	known := []string{}
	for _, s := range Settings {
		byEnv[s.Env()] = s
		known = append(known, strings.TrimPrefix(s.Env(), envPrefix))
	}
	values := map[string]Value{}
	var warnings []string
	for _, pair := range environ {
		name, text, _ := strings.Cut(pair, "=")
		short, ours := strings.CutPrefix(name, envPrefix)
		if !ours || strings.HasPrefix(name, testPrefix) || slices.Contains(notSettings, name) {
			continue
		}
		s, ok := byEnv[name]
		switch {
		case !ok:
			// Every name has the prefix, so it must not count as similarity.
			hint := seeDocs
			if near := ClosestName(short, known); near != "" {
				hint = "; did you mean " + envPrefix + near + "?"
			}
			warnings = append(warnings, fmt.Sprintf("environment variable %s is not a setting%s", name, hint))
		case text != "":
			values[s.Name] = Value{Text: text, Source: "environment " + name}
		}
	}
	slices.Sort(warnings)
	return values, warnings
}

func readFlags(flags map[string]string) map[string]Value {
	values := map[string]Value{}
	for name, text := range flags {
		values[name] = Value{Text: text, Source: sourceFlag + Setting{Name: name}.Flag()}
	}
	return values
}

// unknown returns a problem for each name that is not a setting.
func unknown(given map[string]Value) []Problem {
	var problems []Problem
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, ok := settingByName(name); !ok {
			problems = append(problems, Problem{Name: name, Source: given[name].Source, Detail: "is not a setting" + didYouMean(name, false)})
		}
	}
	return problems
}

// readFile reads settings from a YAML file. It walks the nodes of the document, so
// that values are parsed like those of the environment, and every problem has a
// line number.
func readFile(path string) (map[string]Value, []Problem, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the settings file failed: %w", err)
	}
	values, problems, err := readYAML(path, text)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the settings file %s failed: %w", path, err)
	}
	return values, problems, nil
}

func readYAML(path string, text []byte) (map[string]Value, []Problem, error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil, nil, nil // empty, or comments only
	case err != nil:
		return nil, nil, fmt.Errorf("it is not YAML: %w", err)
	}
	var second yaml.Node
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, nil, errors.New("it contains more than one YAML document; keep one")
	}
	w := yamlWalk{path: path, values: map[string]Value{}}
	for _, root := range document.Content {
		w.node("", root)
	}
	return w.values, w.problems, nil
}

type yamlWalk struct {
	path     string
	values   map[string]Value
	problems []Problem
}

func (w *yamlWalk) node(name string, n *yaml.Node) {
	source := fmt.Sprintf("file %s line %d", w.path, n.Line)
	s, isSetting := settingByName(name)
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null" && (isSetting || isGroup(name)):
		// "redis:" with only comments below it sets nothing.
	case n.Kind == yaml.MappingNode && isGroup(name):
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if name != "" {
				key = name + "." + key
			}
			w.node(key, n.Content[i+1])
		}
	case !isSetting && isGroup(name):
		w.complain(name, source, "must be a group of settings, not a single value")
	case !isSetting:
		w.complain(name, source, "is not a setting"+didYouMean(name, n.Kind == yaml.MappingNode))
	case n.Kind == yaml.ScalarNode:
		w.set(s, n.Value, source)
	case n.Kind == yaml.SequenceNode && s.Kind == KindList:
		items := make([]string, len(n.Content))
		for i, item := range n.Content {
			if item.Kind != yaml.ScalarNode || strings.Contains(item.Value, ",") {
				w.complain(name, source, "must be a list of plain values without commas")
				return
			}
			items[i] = item.Value
		}
		w.set(s, strings.Join(items, ","), source)
	default:
		w.complain(name, source, fmt.Sprintf("must be one plain value (%s)", s.Kind))
	}
}

func (w *yamlWalk) set(s Setting, text, source string) {
	if _, twice := w.values[s.Name]; twice {
		w.complain(s.Name, source, "is set twice; keep one")
		return
	}
	w.values[s.Name] = Value{Text: text, Source: source}
}

func (w *yamlWalk) complain(name, source, detail string) {
	if name == "" {
		name = "the document"
	}
	w.problems = append(w.problems, Problem{Name: name, Source: source, Detail: detail})
}

// isGroup reports whether name is a group of settings; "" is that of all.
func isGroup(name string) bool { return name == "" || slices.Contains(groupNames(), name) }

// groupNames returns the names of all groups, such as "redis.stream".
func groupNames() []string {
	var names []string
	for _, s := range Settings {
		for i, r := range s.Name {
			if r == '.' && !slices.Contains(names, s.Name[:i]) {
				names = append(names, s.Name[:i])
			}
		}
	}
	return names
}

// didYouMean returns a hint to what an unknown name was probably meant to be: a group if it
// has settings below it, otherwise a setting. It compares what follows the group that name
// is in, so that the name of the group does not count as similarity.
func didYouMean(name string, hasSettings bool) string {
	parent, rest := "", name
	for i, r := range name {
		if r == '.' && isGroup(name[:i]) {
			parent, rest = name[:i+1], name[i+1:]
		}
	}
	below := func(prefix string, names []string) (rests []string) {
		for _, n := range names {
			if r, ok := strings.CutPrefix(n, prefix); ok {
				rests = append(rests, r)
			}
		}
		return rests
	}
	var names []string
	for _, s := range Settings {
		names = append(names, s.Name)
	}
	settings, groups := below(parent, names), below(parent, groupNames())
	known := groups
	if !hasSettings {
		known = slices.Concat(settings, groups)
	}
	best := ClosestName(rest, known)
	if !hasSettings && slices.Contains(groups, best) {
		best += "." + slices.MinFunc(below(best+".", settings), func(a, b string) int { return cmp.Compare(editDistance(rest, a), editDistance(rest, b)) })
	}
	if best != "" {
		return "; did you mean " + parent + best + "?"
	}
	words := func(text string) string { return "." + strings.ReplaceAll(text, "-", ".") + "." }
	for _, is := range []func(string) bool{
		func(s string) bool { return strings.HasSuffix(s, "."+rest) },
		func(s string) bool { return strings.Contains(words(s), words(rest)) },
	} {
		if same := slices.DeleteFunc(slices.Clone(settings), func(s string) bool { return !is(s) }); len(same) > 0 && len(same) <= 5 {
			return "; did you mean " + parent + strings.Join(same, " or "+parent) + "?"
		}
	}
	if parent == "" {
		return seeDocs
	}
	return "; " + strings.TrimSuffix(parent, ".") + " has " + strings.Join(settings, ", ")
}
