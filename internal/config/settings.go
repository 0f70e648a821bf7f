package config

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Setting describes one setting, as the tags of its field in Config declare it. The file,
// the environment, the flags and the docs are derived from it.
type Setting struct {
	Name    string // e.g. redis.stream.max-len
	Default string // in the form of an environment variable
	Doc     string // one line: what it does, unit, special values
	Kind    SettingKind
	Secret  bool // the value may contain a secret, which is masked in all output
	// Min and Max limit a number or a duration, in the form of an environment variable.
	// Empty means no limit. OrZero also allows 0 below Min.
	Min, Max string
	OrZero   bool
	Words    []string // the only values of a text; nil: any
	index    []int    // of the field in Config
}

// SettingKind is the type of a setting's value.
type SettingKind string

// The kinds. The items of a list are separated by commas.
const (
	KindText     SettingKind = "text"
	KindInt      SettingKind = "int"
	KindBool     SettingKind = "bool"
	KindDuration SettingKind = "duration"
	KindList     SettingKind = "list"
)

const boundsMark = "{bounds}" // the limits of a setting in its Doc

// Settings lists every setting, in the order of the docs, which is that of the fields of
// Config.
var Settings = settingsOf(reflect.TypeFor[Config](), "", nil)

// kinds maps the types of fields to the kinds of settings.
var kinds = map[reflect.Type]SettingKind{
	reflect.TypeFor[string]():        KindText,
	reflect.TypeFor[int]():           KindInt,
	reflect.TypeFor[bool]():          KindBool,
	reflect.TypeFor[time.Duration](): KindDuration,
	reflect.TypeFor[[]string]():      KindList,
}

// settingsOf reads the settings from the tags of a struct, whose field of Config has this
// index.
func settingsOf(group reflect.Type, prefix string, index []int) []Setting {
	var settings []Setting
	for field := range group.Fields() {
		key, ok := field.Tag.Lookup("setting")
		if !ok {
			continue // Config.sources
		}
		name, at := prefix+key, slices.Concat(index, field.Index)
		if field.Type.Kind() == reflect.Struct {
			settings = append(settings, settingsOf(field.Type, name+".", at)...)
			continue
		}
		s := Setting{
			Name: name, Default: field.Tag.Get("default"), Kind: kinds[field.Type], Secret: field.Tag.Get("secret") != "",
			Min: field.Tag.Get("min"), Max: field.Tag.Get("max"), OrZero: field.Tag.Get("orzero") != "", index: at,
		}
		if words := field.Tag.Get("words"); words != "" {
			s.Words = strings.Split(words, ",")
		}
		s.Doc = strings.ReplaceAll(field.Tag.Get("doc"), boundsMark, strings.TrimPrefix(s.bounds(), "from "))
		settings = append(settings, s)
	}
	return settings
}

func (s Setting) bounds() string {
	if s.Max != "" {
		return "from " + s.Min + " to " + s.Max
	}
	return "at least " + s.Min
}

// check returns what is wrong with a value by the limits and words of its setting, or "".
func (s Setting) check(value any) string {
	switch {
	case s.Words != nil && !slices.Contains(s.Words, settingText(value)):
		return "must be one of " + strings.Join(s.Words, ", ")
	case s.Min != "" && s.outside(reflect.ValueOf(value).Int()):
		return "must be " + s.bounds()
	}
	return ""
}

func (s Setting) outside(n int64) bool {
	limit := func(text string) int64 {
		v, err := s.parse(text)
		if err != nil {
			panic("config: setting " + s.Name + " has the limit " + text)
		}
		return reflect.ValueOf(v).Int()
	}
	return n < limit(s.Min) && (n != 0 || !s.OrZero) || s.Max != "" && n > limit(s.Max)
}

// Env returns the name of the setting's environment variable.
func (s Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(s.Name))
}

// Flag returns the name of the setting's flag, without leading dashes.
func (s Setting) Flag() string { return strings.ReplaceAll(s.Name, ".", "-") }

// Group returns the part of the name before its first dot.
func (s Setting) Group() string {
	group, _, _ := strings.Cut(s.Name, ".")
	return group
}

// parse parses a value into the type of its field in Config.
func (s Setting) parse(text string) (any, error) {
	switch s.Kind {
	case KindText:
		return text, nil
	case KindInt:
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("must be a whole number such as %s", s.Default)
		}
		return n, nil
	case KindBool:
		word := strings.ToLower(strings.TrimSpace(text))
		if word != "true" && word != "false" {
			return nil, fmt.Errorf("must be true or false")
		}
		return word == "true", nil
	case KindDuration:
		d, err := time.ParseDuration(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("must be a duration with a unit such as 500ms, 5s or 24h")
		}
		return d, nil
	case KindList:
		list := []string{}
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				list = append(list, item)
			}
		}
		return list, nil
	}
	panic("config: setting " + s.Name + " has no kind")
}

// settingByName returns the setting with a name, and reports whether it exists.
func settingByName(name string) (Setting, bool) {
	for _, s := range Settings {
		if s.Name == name {
			return s, true
		}
	}
	return Setting{}, false
}

func (c *Config) value(name string) any { return c.field(name).Interface() }

// field returns the field of a setting, which must exist.
func (c *Config) field(name string) reflect.Value {
	s, _ := settingByName(name)
	return reflect.ValueOf(c).Elem().FieldByIndex(s.index)
}

// Text returns the value of a setting in the form of an environment variable,
// including secrets.
func (c Config) Text(name string) string { return settingText(c.value(name)) }

// settingText formats a value so that parse can read it.
func settingText(value any) string {
	switch v := value.(type) {
	case []string:
		return strings.Join(v, ",")
	case time.Duration:
		return ShortDuration(v)
	}
	return fmt.Sprint(value)
}

// ShortDuration formats a duration without zero units: 24h instead of 24h0m0s.
func ShortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// ClosestName returns the known name that is most similar to name, or "" if none is
// similar enough.
func ClosestName(name string, known []string) string {
	best, bestDistance := "", max(2, len(name)/3)+1
	if len(name) <= 4 {
		bestDistance = 2 // a short word with two other letters is another word
	}
	for _, k := range known {
		if d := editDistance(name, k); d < bestDistance {
			best, bestDistance = k, d
		}
	}
	return best
}

// editDistance returns the number of bytes to insert, delete or replace to turn a
// into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
