package service

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unicode"
)

// ReadPassword reads a file of one line. The error continues a sentence that begins with
// the name of the setting, and never contains the password.
func ReadPassword(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("cannot be read: %w", err)
	}
	password := strings.TrimRight(string(raw), "\r\n")
	if password == "" || strings.ContainsFunc(password, unicode.IsControl) {
		return "", errors.New("must hold one line, the password, and nothing else")
	}
	return password, nil
}

// NewPassword returns the password in a file that a setting names. Each Get reads it, so
// that an operator can change it without a restart. report receives the result of each
// later read.
func NewPassword(setting, file string, report func(err error, attrs ...any)) (*Reloaded[string], error) {
	return NewReloaded(0, func() (string, error) {
		password, err := ReadPassword(file)
		if err != nil {
			return "", fmt.Errorf("%s %w", setting, err)
		}
		return password, nil
	}, func(err error) { report(err) })
}
