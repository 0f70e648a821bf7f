package reward

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The limits of metadata.
const (
	MetadataEntriesMax = 20
	MetadataTextMax    = 200 // characters of a key and of a value
)

// Metadata is what callers store with a promotion or a template: a JSON object of
// strings, with sorted keys. It is empty if there is none.
type Metadata string

// NewMetadata returns the entries as Metadata.
func NewMetadata(entries map[string]string) Metadata {
	if len(entries) == 0 {
		return ""
	}
	text, _ := json.Marshal(entries) // strings always have a JSON form
	return Metadata(text)
}

// Map returns the entries; nil if there are none.
func (m Metadata) Map() map[string]string {
	var entries map[string]string
	if m != "" {
		// Only NewMetadata makes Metadata, so it is JSON.
		_ = json.Unmarshal([]byte(m), &entries)
	}
	return entries
}

// MetadataChange sets entries, or removes those that are nil. Nil removes all.
type MetadataChange map[string]*string

// Apply returns m with the change.
func (c MetadataChange) Apply(m Metadata) Metadata {
	if c == nil {
		return ""
	}
	entries := m.Map()
	if entries == nil {
		entries = make(map[string]string, len(c))
	}
	for key, value := range c {
		if value == nil {
			delete(entries, key)
		} else {
			entries[key] = *value
		}
	}
	return NewMetadata(entries)
}

// CheckMetadata returns the first thing that is invalid in metadata, or nil.
func CheckMetadata(m Metadata) []FieldError {
	entries := m.Map()
	if n := len(entries); n > MetadataEntriesMax {
		return refuseMetadata("must have at most %d entries, not %d", MetadataEntriesMax, n)
	}
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		value := entries[key]
		if n := utf8.RuneCountInString(key); n == 0 || n > MetadataTextMax {
			return refuseMetadata("key %s must have 1 to %d characters, not %d", Quote(key), MetadataTextMax, n)
		} else if err := CheckLabel(key); err != nil {
			return refuseMetadata("key %s %v", Quote(key), err)
		}
		if n := utf8.RuneCountInString(value); n > MetadataTextMax {
			return refuseMetadata("value of %s must have at most %d characters, not %d", Quote(key), MetadataTextMax, n)
		} else if err := CheckLabel(value); err != nil {
			return refuseMetadata("value of %s %v", Quote(key), err)
		}
	}
	return nil
}

func refuseMetadata(format string, args ...any) []FieldError {
	return []FieldError{{Field: "metadata", Detail: fmt.Sprintf(format, args...)}}
}

// NotesMax limits notes about a promotion or a template, in characters.
const NotesMax = 4000

// inOneLine leaves the line breaks and tabs out of notes.
var inOneLine = strings.NewReplacer("\r", "", "\n", "", "\t", "")

// CheckNotes returns what is wrong with notes, or nil. They may have several lines.
func CheckNotes(s string) []FieldError {
	if n := utf8.RuneCountInString(s); n > NotesMax {
		return []FieldError{{Field: "notes", Detail: fmt.Sprintf("must have at most %d characters, not %d", NotesMax, n)}}
	}
	if err := CheckLabel(inOneLine.Replace(s)); err != nil {
		return []FieldError{{Field: "notes", Detail: err.Error()}}
	}
	return nil
}

// CopyName returns the name of the copy of a promotion or template, cut if it is too long.
func CopyName(name string) string {
	const suffix = " (copy)"
	text := []rune(name)
	return string(text[:min(len(text), PromotionNameMax-len(suffix))]) + suffix
}

// FileNameMax limits the name of a file of targets, in characters.
const FileNameMax = 200

// CheckFileName returns what is wrong with the name of a file of targets, or nil.
func CheckFileName(s string) error {
	if n := utf8.RuneCountInString(s); n == 0 || n > FileNameMax {
		return fmt.Errorf("must have 1 to %d characters, not %d", FileNameMax, n)
	}
	return CheckLabel(s)
}

// CheckLabel returns an error for a name, description or value of metadata that
// people could misread: with a control character such as a line break or ESC, a
// line separator, or a character that changes the direction of the text.
func CheckLabel(s string) error {
	if err := CheckText(s); err != nil {
		return err
	}
	if i := strings.IndexFunc(s, isMisleading); i >= 0 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		return fmt.Errorf("contains %U, which is a control character; remove it", r)
	}
	return nil
}

func isMisleading(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// SearchText returns the lower-case text in which a search finds a promotion.
func SearchText(p *Promotion) string { return searchText(p.Name, p.ID.String(), p.Metadata) }

// SearchText returns the lower-case text in which a search finds a template.
func (t *CouponTemplate) SearchText() string { return searchText(t.Name, t.ID.String(), t.Metadata) }

func searchText(name, id string, metadata Metadata) string {
	lines := []string{name, id}
	entries := metadata.Map()
	for _, key := range slices.Sorted(maps.Keys(entries)) {
		lines = append(lines, key+"="+entries[key])
	}
	return strings.ToLower(strings.Join(lines, "\n"))
}
