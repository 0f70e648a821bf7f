package service

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Reloaded is a value that is made of files, which an operator may replace while the
// process runs. While the files are unusable, for example because one of two has been
// replaced, the last usable value stays. It is safe for concurrent use.
type Reloaded[T any] struct {
	maxAge time.Duration
	read   func() (T, error)
	report func(error)

	mu     sync.Mutex // protects value, readAt; and no two reads overlap
	value  T
	readAt time.Time
}

// NewReloaded reads the value, and fails if that fails. Get reads it again when the last
// read is maxAge old, 0: always. Reads never overlap. report, if not nil, gets the result
// of each later read, and must not call Get.
func NewReloaded[T any](maxAge time.Duration, read func() (T, error), report func(error)) (*Reloaded[T], error) {
	readAt := time.Now()
	value, err := read()
	if err != nil {
		return nil, err
	}
	return &Reloaded[T]{maxAge: maxAge, read: read, report: report, value: value, readAt: readAt}, nil
}

// Get returns the current value. Callers share it and must not change it.
func (r *Reloaded[T]) Get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.readAt) < r.maxAge {
		return r.value
	}
	r.readAt = now
	value, err := r.read()
	if err == nil {
		r.value = value
	}
	if r.report != nil {
		r.report(err)
	}
	return r.value
}

// TLSFiles names the PEM files of a TLS client. The zero value trusts the
// system's CAs and shows no certificate.
type TLSFiles struct {
	Setting   string // begins the names of settings in errors: "kafka" for kafka.ca-file
	CA        string // CAs that may sign the server's certificate; empty: the system's
	Cert, Key string // client certificate (mTLS) and its private key; empty: none
}

// Config reads the files. Its errors begin with the setting. A caller reads them for each
// connection, so that files can be rotated. So the config has no session cache: a resumed
// session would keep the certificate it began with.
func (f TLSFiles) Config() (*tls.Config, error) {
	roots, err := f.Roots()
	if err != nil {
		return nil, fmt.Errorf("%s.ca-file %w", f.Setting, err)
	}
	pair, err := f.Certificates()
	if err != nil {
		return nil, fmt.Errorf("%s.client-cert %w", f.Setting, err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: pair}, nil
}

// Roots reads CA. The error continues a sentence that begins with the setting.
func (f TLSFiles) Roots() (*x509.CertPool, error) {
	if f.CA == "" {
		return nil, nil //nolint:nilnil // nil is what crypto/tls takes for the system's CAs
	}
	pem, err := os.ReadFile(f.CA)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("holds no PEM certificate")
	}
	return roots, nil
}

// Certificates reads Cert and Key, if they are set. The error is like that of Roots.
func (f TLSFiles) Certificates() ([]tls.Certificate, error) {
	if f.Cert == "" && f.Key == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot be used with %s.client-key: %w", f.Setting, err)
	}
	return []tls.Certificate{pair}, nil
}
