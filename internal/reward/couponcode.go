package reward

import (
	"crypto/rand"
	"fmt"
	"math"
	"strings"
)

// The limits of generated codes.
const (
	CodePrefixMax   = 20
	CodeLengthMax   = 64
	CodeAlphabetMin = 2
	// codeSpace is how many codes a style must have per coupon of the quantity. So
	// fewer than one of a million new codes is taken already, and nobody guesses
	// codes of others.
	codeSpace = 1_000_000
)

// The style of codes if only a part of it is given. The alphabet has no
// characters that look alike.
const (
	CodeLengthDefault = 12
	AlphabetDefault   = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
)

// CodeStyle is how the codes of a template are generated: a prefix, and then as
// many random characters of the alphabet as Length says. The zero style is that
// of NewCouponCode.
type CodeStyle struct {
	Prefix   string
	Length   int
	Alphabet string
}

// IgnoresCase reports whether all letters of the codes have the same case, so that the
// case in which somebody types a code does not matter.
func (s *CodeStyle) IgnoresCase() bool {
	chars := s.Prefix + s.Alphabet
	return chars == strings.ToUpper(chars) || chars == strings.ToLower(chars)
}

// NewCode returns a random code.
func (s *CodeStyle) NewCode() string {
	if s.Length == 0 {
		return NewCouponCode()
	}
	code := make([]byte, 0, len(s.Prefix)+s.Length)
	code = append(code, s.Prefix...)
	// Bytes at or above the greatest multiple of the length would favor the first
	// characters.
	fair := 256 - 256%len(s.Alphabet)
	var random [CodeLengthMax]byte
	for len(code) < cap(code) {
		_, _ = rand.Read(random[:]) // never fails
		for _, b := range random {
			if int(b) < fair && len(code) < cap(code) {
				code = append(code, s.Alphabet[int(b)%len(s.Alphabet)])
			}
		}
	}
	return string(code)
}

// CodeMax is the greatest length of a code, in bytes.
const CodeMax = CodePrefixMax + CodeLengthMax

// codeTail is how many characters of a masked code are shown.
const codeTail = 4

// MaskCode returns … and the last characters of a code, for people who may not use it.
// Of a code that is not longer than these it shows nothing.
func MaskCode(code string) string {
	all := []rune(code)
	switch n := len(all) - codeTail; {
	case code == "":
		return ""
	case n <= 0:
		return "…"
	default:
		return "…" + string(all[n:])
	}
}

// CheckCode returns what is wrong with a code from elsewhere, or "". A code has
// visible ASCII characters, so that people can type it. It has none that separate
// columns or quote them, and does not begin like a formula, because codes are
// exported to spreadsheets.
func CheckCode(code string) string {
	switch {
	case len(code) > CodeMax:
		return fmt.Sprintf("has %d bytes; at most %d are allowed", len(code), CodeMax)
	case strings.ContainsAny(code, ",;\t"):
		return "has more than one column; the file must have one code per line"
	case strings.ContainsFunc(code, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"'`\\", r) }):
		return "has a character that codes cannot have: use ASCII letters, digits and signs, without spaces, quotes and backslashes"
	case StartsFormula(code):
		return "begins like a spreadsheet formula, with =, +, - or @"
	}
	return ""
}

// checkCodes returns what is wrong with the style of a template of a quantity.
func checkCodes(s *CodeStyle, quantity int64) []FieldError {
	if *s == (CodeStyle{}) {
		return nil
	}
	var errs []FieldError
	wrong := func(field, format string, args ...any) {
		errs = append(errs, FieldError{Field: "codes." + field, Detail: fmt.Sprintf(format, args...)})
	}
	if len(s.Prefix) > CodePrefixMax || !plain(s.Prefix, "-_") {
		wrong("prefix", "is not at most %d letters, digits, - and _ of ASCII", CodePrefixMax)
	}
	if s.Length < 1 || s.Length > CodeLengthMax {
		wrong("length", "%d is not from 1 to %d", s.Length, CodeLengthMax)
	}
	if len(s.Alphabet) < CodeAlphabetMin || !plain(s.Alphabet, "") || repeats(s.Alphabet) {
		wrong("alphabet", "is not at least %d different letters and digits of ASCII", CodeAlphabetMin)
	}
	if len(errs) > 0 {
		return errs
	}
	need := math.Log(float64(max(quantity, 1))*codeSpace) / math.Log(float64(len(s.Alphabet)))
	if least := int(math.Ceil(need - 1e-9)); s.Length < least {
		wrong("length", "%d is too short for %d coupons: with %d characters in the alphabet, it must be at least %d, so that codes can be neither used up nor guessed",
			s.Length, quantity, len(s.Alphabet), least)
	}
	return errs
}

// plain reports whether a text has only ASCII letters, digits and the characters
// of more.
func plain(text, more string) bool {
	for i := range len(text) {
		c := text[i]
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && !strings.Contains(more, string(rune(c))) {
			return false
		}
	}
	return true
}

// repeats reports whether a byte occurs twice.
func repeats(text string) bool {
	for i := range len(text) {
		if strings.IndexByte(text[i+1:], text[i]) >= 0 {
			return true
		}
	}
	return false
}
