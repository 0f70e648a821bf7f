package bus

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

// dialWait bounds how long a connection may take to stand, the handshake of
// TLS included.
const dialWait = 10 * time.Second

// TLS is how connections to the brokers are encrypted. The files are PEM and
// read for each connection, so that they can be rotated without a restart. The
// zero value trusts the list of the system and shows no certificate.
type TLS struct {
	// CAFile says who may sign the brokers' certificates; empty: the system's
	// list.
	CAFile string
	// CertFile and KeyFile are our certificate (mTLS) and its key.
	CertFile, KeyFile string
}

// CheckCA says what is wrong with CAFile, as the end of a sentence that names
// the setting; nil = nothing.
func (t *TLS) CheckCA() error {
	_, err := t.roots()
	return err
}

// CheckCert says what is wrong with CertFile and KeyFile, likewise.
func (t *TLS) CheckCert() error {
	_, err := t.pair()
	return err
}

// read reads the files. Sessions are not resumed: a resumed one would go on
// showing the certificate it began with.
func (t *TLS) read() (*tls.Config, error) {
	roots, err := t.roots()
	if err != nil {
		return nil, fmt.Errorf("kafka.ca-file %w", err)
	}
	pair, err := t.pair()
	if err != nil {
		return nil, fmt.Errorf("kafka.client-cert %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Certificates: pair}, nil
}

// roots are who may sign; nil = the system's list.
func (t *TLS) roots() (*x509.CertPool, error) {
	if t.CAFile == "" {
		return nil, nil //nolint:nilnil // nil is an answer
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, errors.New("holds no PEM certificate")
	}
	return roots, nil
}

// pair is our certificate, if there is one.
func (t *TLS) pair() ([]tls.Certificate, error) {
	if t.CertFile == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("cannot be used with kafka.client-key: %w", err)
	}
	return []tls.Certificate{pair}, nil
}

// tlsDialer opens connections, each with the files as they are then.
type tlsDialer struct {
	files *TLS
	wait  time.Duration
	log   obs.Log

	mu   sync.Mutex  // protects last
	last *tls.Config // the last good one
}

// newTLSDialer reads the files once, so that wrong ones are known at the start.
func newTLSDialer(files *TLS, wait time.Duration, log obs.Log) (*tlsDialer, error) {
	last, err := files.read()
	if err != nil {
		return nil, err
	}
	return &tlsDialer{files: files, wait: wait, log: log, last: last}, nil
}

func (d *tlsDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, d.wait)
	defer cancel()
	dialer := tls.Dialer{Config: d.current()} // it fills in the server's name
	return dialer.DialContext(ctx, network, addr)
}

// current reads the files. Those that cannot be used (one of them is just being
// replaced) leave the last good ones in use.
func (d *tlsDialer) current() *tls.Config {
	read, err := d.files.read()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.log.Warn(obs.Unavailable, err)
	} else {
		d.last = read
	}
	return d.last
}
