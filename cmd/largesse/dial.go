package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"
)

// serverPatience is how long client commands wait for a server that was
// started right before them.
const serverPatience = 3 * time.Second

// redialAfter is the pause between two tries to connect.
const redialAfter = 50 * time.Millisecond

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// patientTransport connects again for a while when nobody listens. Only the
// connecting is repeated, so no request is ever sent twice.
func patientTransport(patience time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone() //nolint:forcetypeassert // nobody here replaces it
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
