package bus

import (
	"context"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// SASLMechanisms lists the supported SASL mechanisms.
var SASLMechanisms = []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}

// SASL configures authentication with the brokers.
type SASL struct {
	Mechanism string // one of SASLMechanisms
	User      string
	// PasswordFile holds one line, the password. It is read for each
	// connection, so that an operator can rotate it without a restart.
	PasswordFile string
	// Password replaces PasswordFile, unless it is empty.
	Password string
}

// password returns the password as it is now. The error continues a sentence that
// begins with the name of the setting.
func (s *SASL) password() (string, error) {
	if s.Password != "" {
		return s.Password, nil
	}
	return service.ReadPassword(s.PasswordFile)
}

// CheckPassword returns an error if PasswordFile is unusable. The error
// continues a sentence that begins with the name of the setting.
func (s *SASL) CheckPassword() error {
	_, err := s.password()
	return err
}

// mechanism returns the mechanism, which uses the current password for each
// connection. It fails if the file is unusable now.
func (s *SASL) mechanism(log obs.Log) (sasl.Mechanism, error) {
	current := func() string { return s.Password }
	if s.Password == "" {
		password, err := service.NewPassword("kafka.sasl-password-file", s.PasswordFile,
			log.Streak("SASL password file unusable, keeping the last one", "SASL password file usable again"))
		if err != nil {
			return nil, err
		}
		current = password.Get
	}
	scramAuth := func(context.Context) (scram.Auth, error) {
		return scram.Auth{User: s.User, Pass: current()}, nil
	}
	switch s.Mechanism {
	case "PLAIN":
		return plain.Plain(func(context.Context) (plain.Auth, error) {
			return plain.Auth{User: s.User, Pass: current()}, nil
		}), nil
	case "SCRAM-SHA-256":
		return scram.Sha256(scramAuth), nil
	case "SCRAM-SHA-512":
		return scram.Sha512(scramAuth), nil
	}
	return nil, fmt.Errorf("SASL mechanism %q is none of %s", s.Mechanism, strings.Join(SASLMechanisms, ", "))
}
