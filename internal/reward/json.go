package reward

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonDepthMax limits how deep the arrays and objects of a JSON text are nested.
const jsonDepthMax = 64

// ErrJSONTwice means that an object has a name twice. Parsers differ on which of
// the two values counts.
var ErrJSONTwice = errors.New("is given twice")

var errJSONDepth = fmt.Errorf("the JSON is nested more than %d levels deep", jsonDepthMax)

// DecodeJSON decodes an object that another system wrote into the struct that into
// points to. Unlike encoding/json, it takes only the exact names of the fields, and
// refuses a field that is given twice. It ignores all other members, also those
// whose names differ in case only.
func DecodeJSON(data []byte, into any) error { return decodeJSON(data, into, true) }

// decodeJSON is DecodeJSON that refuses other members unless others is set.
func decodeJSON(data []byte, into any, others bool) error {
	names := jsonNames(reflect.TypeOf(into).Elem())
	var seen uint64
	similar := false
	err := scanJSON(data, 1, func(m jsonMember) error {
		i := slices.IndexFunc(names, func(name string) bool { return name == string(m.name) })
		switch {
		case i < 0 && !others:
			return fmt.Errorf("field %s is unknown; the fields are %s", Quote(string(m.name)), strings.Join(names, ", "))
		case i < 0:
			similar = similar || slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, string(m.name)) })
		case seen&(1<<i) != 0:
			return fmt.Errorf("%s %w", names[i], ErrJSONTwice)
		default:
			seen |= 1 << i
		}
		return nil
	})
	if err != nil {
		return err
	}
	if similar && json.Valid(data) {
		data = withNames(data, names)
	}
	return json.Unmarshal(data, into)
}

// withNames returns the members of a valid object that have one of the names.
func withNames(data []byte, names []string) []byte {
	out := []byte{'{'}
	_ = scanJSON(data, 1, func(m jsonMember) error { // the function never fails, and the depth is checked already
		if slices.Contains(names, string(m.name)) {
			if len(out) > 1 {
				out = append(out, ',')
			}
			out = append(out, data[m.start:m.end]...)
		}
		return nil
	})
	return append(out, '}')
}

// namesOf has the result of jsonNames for each type.
var namesOf sync.Map

// jsonNames returns the names of a struct's fields in JSON, at most 64.
func jsonNames(t reflect.Type) []string {
	if names, ok := namesOf.Load(t); ok {
		return names.([]string)
	}
	var names []string
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" && !field.Anonymous {
			name = field.Name
		}
		if name != "" && name != "-" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	namesOf.Store(t, names)
	return names
}

// CheckJSON returns an error for valid JSON that is nested too deep, or ErrJSONTwice
// and the name for an object that has one twice.
func CheckJSON(data []byte) (name string, err error) {
	type key struct {
		object int
		name   string
	}
	seen := make(map[key]bool)
	err = scanJSON(data, jsonDepthMax, func(m jsonMember) error {
		k := key{m.object, string(m.name)}
		if seen[k] {
			name = k.name
			return ErrJSONTwice
		}
		seen[k] = true
		return nil
	})
	return name, err
}

// jsonMember is a member of an object.
type jsonMember struct {
	object     int // offset of the object
	name       []byte
	start, end int // from its name to the end of its value; end is valid in the outermost object only
}

// scanJSON calls each for the members of the objects down to the given depth. Of
// data that is not valid JSON it may call each for anything.
func scanJSON(data []byte, depth int, each func(jsonMember) error) error {
	var open [jsonDepthMax]int // offsets of the arrays and objects around i
	var m jsonMember           // of the outermost object
	level, named := 0, false   // named: the next string is a name
	for i := 0; i < len(data); i++ {
		switch c := data[i]; c {
		case '"':
			start := i
			for i++; i < len(data) && data[i] != '"'; i++ {
				if data[i] == '\\' {
					i++
				}
			}
			if !named || level > depth || i >= len(data) {
				continue
			}
			named = false
			found := jsonMember{object: open[level-1], name: jsonText(data[start : i+1]), start: start}
			if depth == 1 {
				m = found
			} else if err := each(found); err != nil {
				return err
			}
		case '{', '[':
			if level == jsonDepthMax {
				return errJSONDepth
			}
			open[level] = i
			level++
			named = c == '{'
		case '}', ']', ',':
			if level == 0 {
				return nil
			}
			if level == 1 && m.name != nil {
				m.end = i
				if err := each(m); err != nil {
					return err
				}
				m = jsonMember{}
			}
			if c != ',' {
				level--
			}
			named = c == ',' && data[open[level-1]] == '{'
		}
	}
	return nil
}

func jsonText(quoted []byte) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	var name string
	if json.Unmarshal(quoted, &name) != nil {
		return quoted
	}
	return []byte(name)
}

// MessageMax limits a message, in bytes.
const MessageMax = 64 << 10

// decode decodes a message, or a line of a file. It ignores other members if others is
// set, and refuses them otherwise. The error has the code of the line.
func decode(value []byte, into any, others bool) *Error {
	switch {
	case len(bytes.TrimSpace(value)) == 0:
		return RefuseLine(LineBadJSON, "the value is empty")
	case len(value) > MessageMax:
		return RefuseLine(LineTooLong, "the value has %d bytes, more than %d", len(value), MessageMax)
	}
	if err := CheckJSONText(value); err != nil {
		return RefuseLine(LineInvalidUTF8, "the value %v", err)
	}
	if bytes.IndexByte(value, 0) >= 0 {
		return RefuseLine(LineInvalidUTF8, "the value contains U+0000")
	}
	if !bytes.HasPrefix(bytes.TrimSpace(value), []byte("{")) {
		return RefuseLine(LineBadJSON, "the value is not a JSON object")
	}
	if err := decodeJSON(value, into, others); err != nil {
		if errors.Is(err, ErrJSONTwice) || errors.Is(err, errJSONDepth) {
			return RefuseLine(LineBadJSON, "%v", err)
		}
		field, err := JSONError(err)
		if field != "" {
			field += " "
		}
		return RefuseLine(LineBadJSON, "the value is not the expected JSON: %s%v", field, err)
	}
	return nil
}

// CheckJSONText returns an error for JSON with invalid strings: bytes that are
// not UTF-8, or escapes of a lone surrogate. The parser would replace each with
// the same character, and so make one user of several.
func CheckJSONText(b []byte) error {
	if !utf8.Valid(b) {
		return fmt.Errorf("is not valid UTF-8")
	}
	for rest := b; ; {
		i := bytes.IndexByte(rest, '\\')
		if i < 0 || i+1 == len(rest) {
			return nil
		}
		rest = rest[i:]
		high, n := escaped(rest)
		low, m := escaped(rest[n:])
		switch {
		case !utf16.IsSurrogate(high):
			rest = rest[2:]
		case utf16.DecodeRune(high, low) == utf8.RuneError:
			return fmt.Errorf("has the escape %s, which is a lone surrogate", rest[:n])
		default:
			rest = rest[n+m:]
		}
	}
}

// escaped decodes an escape of four hexadecimal digits at the start of b.
func escaped(b []byte) (rune, int) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, 0
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return 0, 0
	}
	return rune(n), 6
}

// JSONError rewrites an error of encoding/json without Go types, and names the field
// ("" if it is not known). It returns any other error unchanged.
func JSONError(err error) (field string, out error) {
	if e, ok := errors.AsType[*time.ParseError](err); ok {
		return "", fmt.Errorf("%s is not a time as in RFC 3339, for example 2026-11-21T10:00:00Z", Quote(e.Value))
	}
	e, ok := errors.AsType[*json.UnmarshalTypeError](err)
	if !ok {
		return "", err
	}
	got := e.Value
	if digits, isNumber := strings.CutPrefix(got, "number "); isNumber {
		got = Quote(digits)
	}
	want := "a string"
	switch e.Type.Kind() {
	case reflect.Struct, reflect.Map:
		want = "an object"
	case reflect.Slice, reflect.Array:
		want = "an array"
	case reflect.Float64:
		want = "a number that is not so large"
	case reflect.Bool:
		want = "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64:
		want = "a whole number in digits, within its range"
	default:
	}
	// The path may begin with an embedded struct; these messages have no nested objects.
	return e.Field[strings.LastIndexByte(e.Field, '.')+1:], fmt.Errorf("must be %s, not %s", want, got)
}
