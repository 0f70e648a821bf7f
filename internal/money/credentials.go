package money

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/largesse/largesse/internal/obs"
)

// Credentials are how we show the provider who we are. Files are read again
// while we run, so that they can be rotated without a restart. The zero value
// shows nothing.
type Credentials struct {
	// Header is "Name: value", sent with each request. With TokenFile it may be
	// a name alone: the token is sent in that header then. [money.auth-header]
	Header string
	// TokenFile holds one line, which is sent as Authorization: Bearer …, or
	// bare in the header that Header names. [money.token-file]
	TokenFile string
	// CAFile is PEM: who may sign the provider's certificate; empty: the
	// system's list. [money.ca-file]
	CAFile string
	// CertFile and KeyFile are PEM: our certificate (mTLS) and its key.
	// [money.client-cert, money.client-key]
	CertFile, KeyFile string
}

// tokenFor is how long a token is used before its file is read again.
const tokenFor = time.Second

// signer puts the credentials into requests and connections.
type signer struct {
	cfg         Credentials
	log         obs.Log
	name, value string // of the fixed header; "" = none
	tokenName   string // the header of the token
	tokenPrefix string

	mu     sync.Mutex // protects the rest
	token  string
	readAt time.Time
	last   *tls.Config // the last good one
}

func newSigner(cfg Credentials, log obs.Log) (*signer, error) {
	s := &signer{cfg: cfg, log: log}
	if err := cfg.CheckHeader(); err != nil {
		return nil, fmt.Errorf("money.auth-header %w", err)
	}
	s.tokenName, s.tokenPrefix = tokenHeader, "Bearer "
	switch name, value, fixed := cfg.header(); {
	case fixed:
		s.name, s.value = name, value
	case name != "":
		s.tokenName, s.tokenPrefix = name, ""
	}
	if cfg.TokenFile != "" {
		token, err := readToken(cfg.TokenFile)
		if err != nil {
			return nil, err
		}
		s.token, s.readAt = token, time.Now()
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("money.client-cert and money.client-key go together: one of the two is not set")
	}
	last, err := s.readTLS()
	if err != nil {
		return nil, err
	}
	s.last = last
	return s, nil
}

// CheckHeader says what is wrong with Header beside TokenFile, as the end of a
// sentence that names the setting; nil = nothing. It never repeats the value.
func (c Credentials) CheckHeader() error {
	if c.Header == "" {
		return nil
	}
	name, value, fixed := c.header()
	switch {
	case !headerName.MatchString(name), !fixed && c.TokenFile == "", fixed && value == "", strings.ContainsFunc(value, unicode.IsControl):
		return errors.New(`must be of the form "Name: value", or "Name" with money.token-file`)
	case slices.Contains(ourHeaders, name):
		return fmt.Errorf("must not be %s, which each call sets by itself", name)
	case fixed && name == tokenHeader && c.TokenFile != "":
		return fmt.Errorf("must not be %s while money.token-file is set: keep one of them", name)
	}
	return nil
}

// header takes Header apart; fixed says that it has a value of its own.
func (c Credentials) header() (name, value string, fixed bool) {
	name, value, fixed = strings.Cut(c.Header, ":")
	return http.CanonicalHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value), fixed
}

// tokenHeader is the header of a token when nothing else is said.
const tokenHeader = "Authorization"

// headerName is what may stand before the colon of a header (RFC 9110).
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// ourHeaders are what a call is made of.
var ourHeaders = []string{"Accept", "Connection", "Content-Length", "Content-Type", "Host", "Idempotency-Key", "Transfer-Encoding", "User-Agent"}

// sign adds the credentials to a request's headers.
func (s *signer) sign(h http.Header) {
	if s.name != "" {
		h.Set(s.name, s.value)
	}
	if s.cfg.TokenFile != "" {
		h.Set(s.tokenName, s.tokenPrefix+s.currentToken())
	}
}

// currentToken reads the file at most once a second. One that cannot be read
// (it is just being replaced) leaves the last good token in use.
func (s *signer) currentToken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.readAt) < tokenFor {
		return s.token
	}
	s.readAt = time.Now()
	token, err := readToken(s.cfg.TokenFile)
	if err != nil {
		s.log.Warn(obs.Unavailable, err)
		return s.token
	}
	s.token = token
	return token
}

// tls returns the settings of one new connection, with the files as they are
// now. Files that cannot be used (one of them is just being replaced) leave the
// last good ones in use.
func (s *signer) tls(serverName string) *tls.Config {
	read, err := s.readTLS()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.log.Warn(obs.Unavailable, err)
	} else {
		s.last = read
	}
	cfg := s.last.Clone()
	cfg.ServerName = serverName
	return cfg
}

// readTLS reads the files. Sessions are not resumed: a resumed one would go on
// showing the certificate it began with.
func (s *signer) readTLS() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if s.cfg.CAFile != "" {
		pem, err := os.ReadFile(s.cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("money.ca-file cannot be read: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("money.ca-file %s holds no PEM certificate", s.cfg.CAFile)
		}
	}
	if s.cfg.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(s.cfg.CertFile, s.cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("money.client-cert and money.client-key cannot be used: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

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
