package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"
)

// serverPatience is how long client commands wait for a server that was started
// just before them.
const serverPatience = 3 * time.Second

const redialAfter = 50 * time.Millisecond

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// patientTransport returns a transport that retries refused connections for a
// while. It repeats only connecting, so no request is sent twice.
func patientTransport(patience time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // this program does not replace it
	t.DialContext = patientDial(t.DialContext, patience)
	return t
}

func patientDial(dial dialFunc, patience time.Duration) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		began := time.Now()
		for {
			conn, err := dial(ctx, network, address)
			if err == nil || !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began)+redialAfter > patience {
				return conn, err
			}
			select {
			case <-time.After(redialAfter):
			case <-ctx.Done():
				return nil, err
			}
		}
	}
}
