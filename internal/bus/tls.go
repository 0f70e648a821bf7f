package bus

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// dialTimeout limits the time to connect to a broker, including the TLS
// handshake.
const dialTimeout = 10 * time.Second

// TLS configures encrypted connections to the brokers. The PEM files are read
// for each connection, so that an operator can rotate them without a restart.
// The zero value trusts the system's CAs and shows no certificate.
type TLS struct {
	// CAFile holds the CAs that may sign the brokers' certificates; empty: the
	// system's.
	CAFile string
	// CertFile and KeyFile hold the client certificate (mTLS) and its private
	// key; empty: none.
	CertFile, KeyFile string
}

func (t *TLS) files() service.TLSFiles {
	return service.TLSFiles{Setting: "kafka", CA: t.CAFile, Cert: t.CertFile, Key: t.KeyFile}
}

// CheckCA returns an error if CAFile is unusable. The error continues a
// sentence that begins with the name of the setting.
func (t *TLS) CheckCA() error {
	_, err := t.files().Roots()
	return err
}

// CheckCert returns an error if CertFile or KeyFile is unusable. The error
// continues a sentence that begins with the name of CertFile's setting.
func (t *TLS) CheckCert() error {
	_, err := t.files().Certificates()
	return err
}

// dialer returns a function that opens connections, each with the current
// files. It fails if the files are unusable now.
func (t *TLS) dialer(timeout time.Duration, log obs.Log) (func(ctx context.Context, network, addr string) (net.Conn, error), error) {
	report := log.Streak("Kafka TLS files unusable, keeping the last ones", "Kafka TLS files usable again")
	config, err := service.NewReloaded(0, t.files().Config, func(err error) { report(err) })
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		dialer := tls.Dialer{Config: config.Get()} // it sets the server's name in a copy
		return dialer.DialContext(ctx, network, addr)
	}, nil
}
