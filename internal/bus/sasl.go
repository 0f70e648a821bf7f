package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unicode"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/largesse/largesse/internal/obs"
)

// SASLMechanisms are the ways to authenticate with the brokers.
var SASLMechanisms = []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}

// SASL is how to authenticate with the brokers.
type SASL struct {
	Mechanism string // one of SASLMechanisms
	User      string
	// PasswordFile holds one line. It is read for each connection, so that a
	// rotated password is used without a restart.
	PasswordFile string
}

// CheckPassword says what is wrong with PasswordFile, as the end of a sentence
// that names the setting; nil = nothing.
func (s *SASL) CheckPassword() error {
	_, err := readPassword(s.PasswordFile)
	return err
}

// mechanism reads the password once, so that a missing one is known at the
// start.
func (s *SASL) mechanism(log obs.Log) (sasl.Mechanism, error) {
	password, err := readPassword(s.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("kafka.sasl-password-file %w", err)
	}
	p := &passwords{file: s.PasswordFile, log: log, last: password}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			return plain.Auth{User: s.User, Pass: p.current()}, nil
		}), nil
	case "SCRAM-SHA-256":
		return scram.Sha256(p.scram(s.User)), nil
	case "SCRAM-SHA-512":
		return scram.Sha512(p.scram(s.User)), nil
	}
	return nil, fmt.Errorf("SASL mechanism %q is none of %s", s.Mechanism, strings.Join(SASLMechanisms, ", "))
}

// passwords gives each connection the password that its file holds then.
type passwords struct {
	file string
	log  obs.Log

	mu   sync.Mutex // protects last
	last string     // the last good one
}

func (p *passwords) scram(user string) func(context.Context) (scram.Auth, error) {
	return func(context.Context) (scram.Auth, error) {
		return scram.Auth{User: user, Pass: p.current()}, nil
	}
}

// current reads the file. One that cannot be used (it is just being replaced)
// leaves the last good password in use.
func (p *passwords) current() string {
	password, err := readPassword(p.file)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.log.Warn(obs.Unavailable, fmt.Errorf("kafka.sasl-password-file %w", err))
		return p.last
	}
	p.last = password
	return password
}

// readPassword reads one line; the error is the end of a sentence that begins
// with the setting's name.
func readPassword(file string) (string, error) {
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
