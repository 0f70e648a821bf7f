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

// dialTLS returns a function that opens connections, each with the current
// files. It fails if the files are unusable now.
func dialTLS(files service.TLSFiles, timeout time.Duration, log obs.Log) (func(ctx context.Context, network, addr string) (net.Conn, error), error) {
	report := log.Streak("Kafka TLS files unusable, keeping the last ones", "Kafka TLS files usable again")
	config, err := service.NewReloaded(0, files.Config, func(err error) { report(err) })
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
