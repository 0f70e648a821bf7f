package money

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/largesse/largesse/internal/obs"
)

// Credentials are how we show the provider who we are. Files are read again
// when they change, so they can be rotated without a restart. The zero value
// shows nothing.
type Credentials struct {
	Header    string // "Name: value", sent with each request
	TokenFile string // its text is sent as Authorization: Bearer …
	CAFile    string // PEM; who may sign the provider's certificate, empty: the system's list
	CertFile  string // PEM; our certificate (mTLS), with KeyFile
	KeyFile   string // PEM
}

// tokenFor is how long a token is used before its file is read again.
const tokenFor = time.Second

// signer puts the credentials into requests and connections.
type signer struct {
	cfg         Credentials
	log         obs.Log
	name, value string

	mu     sync.Mutex // protects token, readAt
	token  string
	readAt time.Time
}

func newSigner(cfg Credentials, log obs.Log) (*signer, error) {
	s := &signer{cfg: cfg, log: log}
	if cfg.Header != "" {
		name, value, ok := strings.Cut(cfg.Header, ":")
		s.name, s.value = http.CanonicalHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value)
		if !ok || s.name == "" || strings.ContainsFunc(s.name, unicode.IsSpace) || strings.ContainsFunc(s.value, unicode.IsControl) {
			return nil, errors.New(`the Money API's credentials header is not of the form "Name: value"`)
		}
	}
	if cfg.TokenFile != "" {
		token, err := readToken(cfg.TokenFile)
		if err != nil {
			return nil, err
		}
		s.token, s.readAt = token, time.Now()
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, errors.New("the Money API's client certificate and its key go together: one of the two files is not set")
	}
	if _, err := s.tls(""); err != nil {
		return nil, err
	}
	return s, nil
}

// sign adds the credentials to a request's headers.
func (s *signer) sign(h http.Header) {
	if s.name != "" {
		h.Set(s.name, s.value)
	}
	if s.cfg.TokenFile != "" {
		h.Set("Authorization", "Bearer "+s.currentToken())
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
// now. Sessions are not resumed: a resumed one would go on showing the
// certificate it began with.
func (s *signer) tls(serverName string) (*tls.Config, error) {
	cfg := &tls.Config{ServerName: serverName, MinVersion: tls.VersionTLS12}
	if s.cfg.CAFile != "" {
		pem, err := os.ReadFile(s.cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the Money API's CA file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("the Money API's CA file %s holds no PEM certificate", s.cfg.CAFile)
		}
	}
	if s.cfg.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(s.cfg.CertFile, s.cfg.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the Money API's client certificate: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}

func readToken(file string) (string, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the Money API's token file: %w", err)
	}
	token := strings.TrimSpace(string(raw))
	if token == "" || strings.ContainsFunc(token, unicode.IsControl) {
		return "", fmt.Errorf("the Money API's token file %s is empty or holds more than one line", file)
	}
	return token, nil
}
