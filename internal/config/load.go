package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/v2"
	"go.yaml.in/yaml/v3"
)

// LoadParams says where settings are read from. A later source wins: file,
// environment, flags, program.
type LoadParams struct {
	File    string                  // path of a YAML file; empty: none
	Environ []string                // NAME=value, as os.Environ gives it
	Flags   map[string]string       // values by setting name, e.g. redis.stream.max-len
	Program map[string]ProgramValue // values by setting name
}

// ProgramValue is a setting as a program that embeds an instance gives it.
type ProgramValue struct {
	Text   string // as it would be written in the environment
	Source string // where the program wrote it, for messages
}

// Error says everything that is wrong with the settings, at once.
type Error struct {
	Problems []Problem
}

// Problem is one thing that is wrong.
type Problem struct {
	Name   string // the setting, or what was taken for one
	Value  string // as given, secrets masked; empty for unknown names
	Source string // where it came from
	Detail string // what is allowed
}

// Error tells all problems in one line.
func (e *Error) Error() string {
	parts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		parts[i] = p.String()
	}
	return "settings: " + strings.Join(parts, "; ")
}

func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.Name)
	if p.Value != "" {
		fmt.Fprintf(&b, " = %q", p.Value)
	}
	if p.Source != "" {
		fmt.Fprintf(&b, " (%s)", p.Source)
	}
	b.WriteString(" " + p.Detail)
	return b.String()
}

// notSettings are names with our prefix that mean something else.
var notSettings = []string{"LARGESSE_SERVER", "LARGESSE_API_KEY", "LARGESSE_ACTOR"}

const (
	envPrefix  = "LARGESSE_"
	testPrefix = "LARGESSE_TEST_"
)

// seeDocs is said where no name is near.
const seeDocs = "; the settings are listed in docs/settings.md"

// SourceDefault is the source of what nobody has set; sourceFlag begins that of
// what a flag has set.
const (
	SourceDefault = "default"
	sourceFlag    = "flag --"
)

// rawValue is a setting as one source gives it.
type rawValue struct {
	text   string
	source string
}

// Load reads the settings and checks them. Warnings are for people and
// never stop a start: unknown names in the environment, and values that are
// safe but probably not meant. The error is a *Error, unless the file
// cannot be read.
func Load(p LoadParams) (Config, []string, error) {
	c, warnings, problems, err := Examine(p)
	if err == nil && len(problems) > 0 {
		err = &Error{Problems: problems}
	}
	if err != nil {
		return Config{}, warnings, err
	}
	return c, warnings, nil
}

// Examine is Load for those who go on with what is right. Settings that
// could not be read hold their defaults. err says that the file could not be
// read at all.
func Examine(p LoadParams) (c Config, warnings []string, problems []Problem, err error) {
	layers := []map[string]rawValue{}
	if p.File != "" {
		layer, found, err := readFile(p.File)
		if err != nil {
			return Config{}, nil, nil, err
		}
		layers, problems = append(layers, layer), append(problems, found...)
	}
	layer, warnings := readEnviron(p.Environ)
	layers = append(layers, layer)
	layer, found := readFlags(p.Flags)
	layers, problems = append(layers, layer), append(problems, found...)
	layer, found = readProgram(p.Program)
	layers, problems = append(layers, layer), append(problems, found...)

	c, found, err = merge(layers)
	if err != nil {
		return Config{}, warnings, nil, err
	}
	problems = append(problems, found...)
	// Fields that could not be read hold their defaults here, so that whatever
	// else is wrong is told in the same go.
	var invalid *Error
	if errors.As(c.Validate(), &invalid) {
		problems = append(problems, invalid.Problems...)
	}
	if len(problems) == 0 {
		warnings = append(warnings, c.warnings()...)
	}
	return c, warnings, problems, nil
}

// Default is what runs when nothing is set.
func Default() Config {
	c, problems, err := merge(nil)
	if err != nil || len(problems) > 0 {
		panic(fmt.Sprintf("config: the defaults cannot be read: %v %v", problems, err))
	}
	return c
}

// merge lays the sources over the defaults.
func merge(layers []map[string]rawValue) (Config, []Problem, error) {
	var problems []Problem
	k := koanf.New(".")
	sources := map[string]string{}
	defaults := map[string]any{}
	for _, s := range Settings {
		if s.Default == "" && s.Kind != KindList {
			continue
		}
		v, err := s.parse(s.Default)
		if err != nil {
			return Config{}, nil, fmt.Errorf("reading the default of %s: %w", s.Name, err)
		}
		defaults[s.Name] = v
	}
	if err := k.Load(confmap.Provider(defaults, "."), nil); err != nil {
		return Config{}, nil, fmt.Errorf("laying out the default settings: %w", err)
	}
	for _, layer := range layers {
		values := map[string]any{}
		for _, s := range Settings {
			raw, ok := layer[s.Name]
			if !ok {
				continue
			}
			v, err := s.parse(raw.text)
			if err != nil {
				problems = append(problems, Problem{Name: s.Name, Value: s.Shown(raw.text), Source: raw.source, Detail: err.Error()})
				continue
			}
			values[s.Name], sources[s.Name] = v, raw.source
		}
		if err := k.Load(confmap.Provider(values, "."), nil); err != nil {
			return Config{}, nil, fmt.Errorf("laying settings over each other: %w", err)
		}
	}
	var c Config
	if err := k.Unmarshal("", &c); err != nil {
		return Config{}, nil, fmt.Errorf("filling in the settings: %w", err)
	}
	c.sources = sources
	return c, problems, nil
}

// readEnviron finds settings in the environment. An empty variable counts as
// not set. Unknown names are warnings, because Kubernetes injects some.
func readEnviron(environ []string) (map[string]rawValue, []string) {
	byEnv := map[string]Setting{}
	known := []string{}
	for _, s := range Settings {
		byEnv[s.Env()] = s
		known = append(known, strings.TrimPrefix(s.Env(), envPrefix))
	}
	values := map[string]rawValue{}
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
			// The prefix is what all have in common, so it makes nothing near.
			hint := seeDocs
			if near := ClosestName(short, known); near != "" {
				hint = "; did you mean " + envPrefix + near + "?"
			}
			warnings = append(warnings, fmt.Sprintf("environment variable %s is not a setting%s", name, hint))
		case text != "":
			values[s.Name] = rawValue{text: text, source: "environment " + name}
		}
	}
	slices.Sort(warnings)
	return values, warnings
}

func readFlags(flags map[string]string) (map[string]rawValue, []Problem) {
	values := map[string]rawValue{}
	var problems []Problem
	for name, text := range flags {
		s, ok := settingByName(name)
		if !ok {
			problems = append(problems, Problem{Name: name, Source: "flag", Detail: "is not a setting" + didYouMean(name, settingNames())})
			continue
		}
		values[name] = rawValue{text: text, source: sourceFlag + s.Flag()}
	}
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Name, b.Name) })
	return values, problems
}

func readProgram(given map[string]ProgramValue) (map[string]rawValue, []Problem) {
	values := map[string]rawValue{}
	var problems []Problem
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if _, ok := settingByName(name); !ok {
			problems = append(problems, Problem{Name: name, Source: given[name].Source, Detail: "is not a setting" + didYouMean(name, settingNames())})
			continue
		}
		values[name] = rawValue{text: given[name].Text, source: given[name].Source}
	}
	return values, problems
}

// readFile finds settings in a YAML file. It walks the document itself, so
// that values reach the same readers as those of the environment and every
// complaint has a line number.
func readFile(path string) (map[string]rawValue, []Problem, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the settings file: %w", err)
	}
	values, problems, err := readYAML(path, text)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the settings file %s: %w", path, err)
	}
	return values, problems, nil
}

func readYAML(path string, text []byte) (map[string]rawValue, []Problem, error) {
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
		return nil, nil, errors.New("it holds more than one YAML document; keep one")
	}
	w := yamlWalk{path: path, values: map[string]rawValue{}}
	for _, root := range document.Content {
		w.node("", root)
	}
	return w.values, w.problems, nil
}

// yamlWalk collects settings from a document.
type yamlWalk struct {
	path     string
	values   map[string]rawValue
	problems []Problem
}

func (w *yamlWalk) node(name string, n *yaml.Node) {
	source := fmt.Sprintf("file %s line %d", w.path, n.Line)
	s, isSetting := settingByName(name)
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null" && (isSetting || isGroup(name)):
		// "redis:" with everything under it commented out sets nothing.
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
		w.complain(name, source, "is not a setting"+w.meant(name, n.Kind))
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

// meant says what an unknown name was probably meant to be: a group for what
// holds others, a setting for what holds a value.
func (w *yamlWalk) meant(name string, kind yaml.Kind) string {
	if kind == yaml.MappingNode {
		return didYouMean(name, groupNames())
	}
	best := ClosestName(name, slices.Concat(settingNames(), groupNames()))
	if best == "" {
		return seeDocs
	}
	if isGroup(best) {
		under := slices.DeleteFunc(settingNames(), func(s string) bool { return !strings.HasPrefix(s, best+".") })
		best = slices.MinFunc(under, func(a, b string) int { return cmp.Compare(editDistance(name, a), editDistance(name, b)) })
	}
	return "; did you mean " + best + "?"
}

func (w *yamlWalk) set(s Setting, text, source string) {
	if _, twice := w.values[s.Name]; twice {
		w.complain(s.Name, source, "is set twice; keep one")
		return
	}
	w.values[s.Name] = rawValue{text: text, source: source}
}

func (w *yamlWalk) complain(name, source, detail string) {
	if name == "" {
		name = "the document"
	}
	w.problems = append(w.problems, Problem{Name: name, Source: source, Detail: detail})
}

// isGroup says whether settings stand under the name; "" is the whole.
func isGroup(name string) bool {
	if name == "" {
		return true
	}
	for _, s := range Settings {
		if strings.HasPrefix(s.Name, name+".") {
			return true
		}
	}
	return false
}

// groupNames are the names that settings stand under.
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

func settingNames() []string {
	names := make([]string, len(Settings))
	for i, s := range Settings {
		names[i] = s.Name
	}
	return names
}

func didYouMean(name string, known []string) string {
	if best := ClosestName(name, known); best != "" {
		return "; did you mean " + best + "?"
	}
	return seeDocs
}
