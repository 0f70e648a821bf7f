// Package webhook delivers events to webhook endpoints. It also holds what every webhook
// needs to leave: the check of the address that is dialled, calls to receivers, and
// signatures. Receivers are named by people, and
// resolved by name servers of others, so nothing about them is trusted.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/service"
)

const (
	// Timeout limits one call, including the dial.
	Timeout = 10 * time.Second
	// RowsTimeout limits one read or write of rows.
	RowsTimeout = 2 * time.Second
	// AttemptMax limits an attempt: reads of rows, the call and the write of its result.
	AttemptMax = Timeout + 3*RowsTimeout
	// LookInterval is between looks for deliveries that are due.
	LookInterval = time.Second

	stopTimeout = 3 * time.Second // of calls in flight during a stop

	responseMax = 64 << 10 // bytes read of a response's headers, and of its body
)

// NewTransport returns a transport for calls to receivers. It follows no redirect, and
// uses no proxy: the address is checked when this process dials.
func NewTransport(allowPrivate bool) *http.Transport {
	return newTransport(&net.Dialer{Control: control(allowPrivate)})
}

func newTransport(dialer *net.Dialer) *http.Transport {
	dialer.Timeout = Timeout
	return &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: Timeout,
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: responseMax,
	}
}

// CheckReachable connects to a receiver and sends nothing.
func CheckReachable(ctx context.Context, address string, allowPrivate bool) error {
	u, err := url.Parse(address)
	if err != nil {
		return errNoURL
	}
	port := "80"
	if u.Scheme == "https" {
		port = "443"
	}
	dialer := &net.Dialer{Timeout: Timeout, Control: control(allowPrivate)}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port)))
	if err != nil {
		return &callError{reasonFor(err), err}
	}
	return conn.Close()
}

// Post sends a body once and returns the status of the response, 0 without one, and why
// the receiver has not accepted it. It reads a limited part of the response, so that a
// receiver can finish writing it. The error shows neither the path nor the query of the
// address; Reason returns its text for callers of the API.
func Post(ctx context.Context, transport http.RoundTripper, address string, header http.Header, body []byte) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return 0, errors.New("the webhook's URL cannot be parsed") // without the cause, which contains the URL and its secrets
	}
	maps.Copy(req.Header, header)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "largesse")
	// Use the transport directly: an http.Client would follow redirects.
	resp, err := transport.RoundTrip(req)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return 0, fmt.Errorf("no response within %v", Timeout)
		}
		return 0, &callError{reasonFor(err), err}
	}
	_, _ = io.CopyN(io.Discard, resp.Body, responseMax)
	_ = resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		err = fmt.Errorf("the receiver responded with status %d", resp.StatusCode)
	}
	return resp.StatusCode, err
}

// Rounds calls round at an interval until ctx ends, and at once while there is more to do.
// Goroutines that round starts in working call receivers with the context calls, which
// ends stopTimeout later.
func Rounds(ctx context.Context, interval time.Duration, report func(error, ...any), round func(ctx, calls context.Context, working *sync.WaitGroup) (more bool, err error)) {
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var working sync.WaitGroup
	for ctx.Err() == nil {
		more, err := round(ctx, calls, &working)
		if err == nil || ctx.Err() == nil {
			report(err)
		}
		if !more {
			service.Sleep(ctx, service.Jitter(interval, 0.2))
		}
	}
	late := time.AfterFunc(stopTimeout, cancel)
	defer late.Stop()
	working.Wait()
}
