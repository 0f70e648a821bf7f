package reward

import (
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// CheckNewUserID returns an error for a user ID that must not come in: two IDs that look
// the same would be two people, each with a limit of their own. An ID may have come in
// before there was this rule, so whatever names an existing user takes CheckUserID.
func CheckNewUserID(user string) error {
	if err := CheckUserID(user); err != nil {
		return err
	}
	if err := CheckSeen(user); err != nil {
		return fmt.Errorf("userId %w", err)
	}
	return nil
}

// CheckSeen returns an error for valid text that looks like another one: with control
// characters, invisible ones, spaces at its ends, or parts that Unicode composes.
func CheckSeen(s string) error {
	ascii := true
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ' || c == 0x7f:
			return errors.New("contains a control character")
		case c >= utf8.RuneSelf:
			ascii = false
		}
	}
	first, _ := utf8.DecodeRuneInString(s)
	last, _ := utf8.DecodeLastRuneInString(s)
	if unicode.IsSpace(first) || unicode.IsSpace(last) {
		return errors.New("has a space at its beginning or end")
	}
	if ascii {
		return nil
	}
	for _, c := range s {
		switch {
		case unicode.IsControl(c):
			return errors.New("contains a control character")
		case !unicode.Is(unicode.Prepended_Concatenation_Mark, c) && unicode.In(c, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point):
			return fmt.Errorf("contains U+%04X, a character that cannot be seen", c)
		}
	}
	if !norm.NFC.IsNormalString(s) {
		return errors.New("has characters that are not composed: bring it into the form NFC of Unicode")
	}
	return nil
}
