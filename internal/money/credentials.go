package money

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// Credentials identify Largesse to the provider. Files are reread at runtime,
// so that an operator can rotate them without a restart. The zero value sends
// no credentials.
type Credentials struct {
	// Header is "Name: value", sent with each request; empty: none. If TokenFile
	// is set, it may also be a bare name: the token is then sent in that header.
	Header string
	// TokenFile holds one line, the token; empty: none. It is sent as
	// "Authorization: Bearer …", or bare in the header that Header names.
	TokenFile string
	// CAFile holds the CAs, as PEM, that may sign the provider's certificate;
	// empty: the system's.
	CAFile string
	// CertFile and KeyFile hold the client certificate (mTLS) and its private
	// key, as PEM; empty: none.
	CertFile, KeyFile string
}

// tokenMaxAge is the age at which TokenFile is read again.
const tokenMaxAge = time.Second

type signer struct {
	name, value string // of the fixed header; empty: none
	tokenName   string // header of the token
	tokenPrefix string
	token       *service.Reloaded[string] // nil: none
	tlsConfig   *service.Reloaded[*tls.Config]
}

// newSigner fails if the credentials are unusable now.
func newSigner(cfg Credentials, log obs.Log) (*signer, error) {
	s := &signer{tokenName: tokenHeader, tokenPrefix: "Bearer "}
	if err := cfg.CheckHeader(); err != nil {
		return nil, fmt.Errorf("money.auth-header %w", err)
	}
	switch name, value, fixed := cfg.header(); {
	case fixed:
		s.name, s.value = name, value
	case name != "":
		s.tokenName, s.tokenPrefix = name, ""
	}
	var err error
	if cfg.TokenFile != "" {
		report := log.Streak("token file unusable, keeping the last one", "token file usable again")
		s.token, err = service.NewReloaded(tokenMaxAge, func() (string, error) { return readToken(cfg.TokenFile) },
			func(err error) { report(err) })
		if err != nil {
			return nil, err
		}
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("money.client-cert and money.client-key belong together: set both or none")
	}
	files := service.TLSFiles{Setting: "money", CA: cfg.CAFile, Cert: cfg.CertFile, Key: cfg.KeyFile}
	report := log.Streak("Money API TLS files unusable, keeping the last ones", "Money API TLS files usable again")
	s.tlsConfig, err = service.NewReloaded(0, files.Config, func(err error) { report(err) })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// CheckHeader returns an error if Header is malformed or conflicts with
// TokenFile. The error continues a sentence that begins with the name of the
// setting, and never contains the value.
func (c Credentials) CheckHeader() error {
	if c.Header == "" {
		return nil
	}
	name, value, fixed := c.header()
	switch {
	case !headerName.MatchString(name), !fixed && c.TokenFile == "", fixed && value == "", strings.ContainsFunc(value, unicode.IsControl):
		return errors.New(`must be of the form "Name: value", or "Name" with money.token-file`)
	case slices.Contains(ourHeaders, name):
		return fmt.Errorf("must not be %s, which each call sets itself", name)
	case fixed && name == tokenHeader && c.TokenFile != "":
		return fmt.Errorf("must not be %s while money.token-file is set: keep one of them", name)
	}
	return nil
}

// header splits Header; fixed reports whether it has a value.
func (c Credentials) header() (name, value string, fixed bool) {
	name, value, fixed = strings.Cut(c.Header, ":")
	return http.CanonicalHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value), fixed
}

const tokenHeader = "Authorization"

// headerName matches a valid header name (RFC 9110).
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// ourHeaders are the headers that a call sets itself.
var ourHeaders = []string{"Accept", "Connection", "Content-Length", "Content-Type", "Host", "Idempotency-Key", "Transfer-Encoding", "User-Agent"}

func (s *signer) sign(h http.Header) {
	if s.name != "" {
		h.Set(s.name, s.value)
	}
	if s.token != nil {
		h.Set(s.tokenName, s.tokenPrefix+s.token.Get())
	}
}

func (s *signer) tls(serverName string) *tls.Config {
	cfg := s.tlsConfig.Get().Clone()
	cfg.ServerName = serverName
	return cfg
}

// readToken reads a file of one line. Its errors never contain the token.
func readToken(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("money.token-file cannot be read: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || strings.ContainsFunc(token, unicode.IsControl) {
		return "", fmt.Errorf("money.token-file %s is empty or holds more than one line", file)
	}
	return token, nil
}
