package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/largesse/largesse/client"
)

func (c *cli) limitFlag(cmd *cobra.Command) *cobra.Command {
	c.limit = 50
	addFlag(cmd.Flags(), &c.limit, "limit", "maximum number of items to show; 0: all", bounded(wholeNumber[int], 0, 0, "; 0 shows all"))
	return cmd
}

func (c *cli) yesFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&c.yes, "yes", false, "no question")
	return cmd
}

// parsed is the value of a flag whose text is parsed, and checked, when it is given.
type parsed struct {
	kind, text string // as the help shows them
	set        func(text string) error
}

func (v *parsed) String() string        { return v.text }
func (v *parsed) Type() string          { return v.kind }
func (v *parsed) Set(text string) error { return v.set(text) }

// addFlag adds a flag whose default to has. The parser's error is either a usageError, which
// continues a sentence that begins with the name of the flag, or any error if the text
// is no value of its type.
func addFlag[T comparable](flags *pflag.FlagSet, to *T, name, usage string, parse func(string) (T, error)) {
	v := newParsed(parse, func(value T) { *to = value })
	if *to != *new(T) {
		v.text = fmt.Sprint(*to)
	}
	flags.Var(v, name, usage)
}

// countFlag adds a flag for a number that is from least to most, or at least least if most
// is 0. byDefault is its value if it is not given.
func countFlag(flags *pflag.FlagSet, to *int, name string, byDefault int, usage string, least, most int) {
	*to = byDefault
	addFlag(flags, to, name, usage, bounded(wholeNumber[int], least, most, ""))
}

// addOptional adds a flag for a value that is nil unless it is given.
func addOptional[T any](flags *pflag.FlagSet, to **T, name, usage string, parse func(string) (T, error)) {
	flags.Var(newParsed(parse, func(value T) { *to = &value }), name, usage)
}

// addClearable adds a flag for a change, in which none clears the value.
func addClearable[T any](flags *pflag.FlagSet, to **client.Clearable[T], name, usage string, parse func(string) (T, error)) {
	v := newParsed(parse, func(value T) { *to = client.Set(value) })
	kind, set := v.kind, v.set
	v.kind, v.set = "string", func(text string) error {
		if text == none {
			*to = client.Clear[T]()
			return nil
		}
		err := set(text)
		if _, explained := errors.AsType[*usageError](err); (err != nil || text == "") && !explained {
			return wrongUse("%q must be %s, or none; see largesse promotion set --help", text, cmp.Or(valueKinds[kind], "a valid value"))
		}
		return err
	}
	flags.Var(v, name, usage)
}

// none is the value of a flag that clears what is set.
const none = "none"

func newParsed[T any](parse func(string) (T, error), keep func(T)) *parsed {
	var kind string
	switch any(*new(T)).(type) {
	case bool, int, int64, float64:
		kind = fmt.Sprintf("%T", *new(T))
	case time.Duration:
		kind = "duration"
	default:
		kind = "string"
	}
	return &parsed{kind: kind, set: func(text string) error {
		value, err := parse(text)
		if err == nil {
			keep(value)
		}
		return err
	}}
}

// bounded is a parser that also checks that a value is from least to most, or at least
// least if most is 0. hint ends the error.
func bounded[T int | int64 | time.Duration](parse func(string) (T, error), least, most T, hint string) func(string) (T, error) {
	return func(text string) (T, error) {
		value, err := parse(text)
		switch {
		case err != nil:
		case most > 0 && (value < least || value > most):
			err = wrongUse("%v must be from %v to %v%s", value, least, most, hint)
		case value < least:
			err = wrongUse("%v must be at least %v%s", value, least, hint)
		}
		return value, err
	}
}

func wholeNumber[T int | int64](text string) (T, error) {
	n, err := strconv.ParseInt(text, 0, 64)
	return T(n), err
}

func fraction(text string) (float64, error) { return strconv.ParseFloat(text, 64) }

func asIs(text string) (string, error) { return text, nil }

// ofLength is a parser of a text that is not empty and has at most so many characters.
func ofLength(most int) func(string) (string, error) { //nolint:unparam // promotions and templates have limits of their own
	return func(text string) (string, error) {
		if n := utf8.RuneCountInString(text); strings.TrimSpace(text) == "" || n > most {
			return "", wrongUse("must have 1 to %d characters, not %d", most, n)
		}
		return text, nil
	}
}

// matching is a parser of a text that is empty or passes a check. must says what it must be.
func matching(check func(string) bool, must string) func(string) (string, error) {
	return func(text string) (string, error) {
		if text != "" && !check(text) {
			return "", wrongUse("%q must be %s", text, must)
		}
		return text, nil
	}
}

func timeOf(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, wrongUse("%q must look like 2026-12-24T18:00:00Z", text)
	}
	return at, nil
}

// given returns a value, or nil if it is zero.
func given[T comparable](value *T) *T {
	if orZero(value) == *new(T) {
		return nil
	}
	return value
}

// orZero returns a value, or zero if it is nil.
func orZero[T any](value *T) T {
	if value == nil {
		return *new(T)
	}
	return *value
}

// timeOrNone is timeOf, in which the empty text is the zero time.
func timeOrNone(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	return timeOf(text)
}

// choiceFlag adds a flag that takes one of some words, in lower or upper case, and offers
// them to the shell. to gets it in upper case, as in the API.
func choiceFlag(cmd *cobra.Command, to *string, name, usage string, words ...string) {
	known := matching(func(text string) bool { return slices.Contains(words, strings.ToLower(text)) }, "one of "+strings.Join(words, ", "))
	addFlag(cmd.Flags(), to, name, usage, func(text string) (string, error) {
		word, err := known(text)
		return strings.ToUpper(word), err
	})
	complete(cmd, name, words...)
}

// filterFlag is choiceFlag with a usage that ends with the words.
func filterFlag(cmd *cobra.Command, to *string, name, usage string, words ...string) {
	choiceFlag(cmd, to, name, usage+": "+strings.Join(words, ", "), words...)
}

func unitsFlag(cmd *cobra.Command, major *bool, what string) {
	const minorUnits, majorUnits = "minor", "major"
	cmd.Flags().Var(&parsed{kind: "string", text: minorUnits, set: func(text string) error {
		if *major = text == majorUnits; !*major && text != minorUnits {
			return wrongUse("%q must be %s or %s", text, minorUnits, majorUnits)
		}
		return nil
	}}, "amounts", "units of "+what+": minor (1050 is 10.50 EUR) or major (10.50)")
	complete(cmd, "amounts", minorUnits, majorUnits)
}

const metadataUsage = "KEY=VALUE to store with it, at most 20 of up to 200 characters; repeat the flag for more"

// metadataFlag adds --metadata, in which every key has a value.
func metadataFlag(cmd *cobra.Command, to *map[string]string, usage string) {
	addMetadata(cmd, usage, func(key string, value *string) error {
		if value == nil {
			return wrongUse("%s needs a value: --metadata %s=VALUE", key, key)
		}
		if *to == nil {
			*to = make(map[string]string)
		}
		(*to)[key] = *value
		return nil
	})
}

// changedMetadataFlag adds --metadata to a change, which removes a key without a value.
func changedMetadataFlag(cmd *cobra.Command, to **client.Clearable[map[string]*string]) {
	entries := make(map[string]*string)
	addMetadata(cmd, metadataUsage, func(key string, value *string) error {
		entries[key] = value
		*to = client.Set(entries)
		return nil
	})
}

func addMetadata(cmd *cobra.Command, usage string, keep func(key string, value *string) error) {
	cmd.Flags().Var(&parsed{kind: "stringArray", set: func(entry string) error {
		key, value, ok := strings.Cut(entry, "=")
		switch {
		case key == "":
			return wrongUse("%q must be KEY=VALUE", entry)
		case ok:
			return keep(key, &value)
		}
		return keep(key, nil)
	}}, "metadata", usage)
}
