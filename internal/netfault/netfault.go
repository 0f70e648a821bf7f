// Package netfault says why a call over the network failed, in words that name no
// address: not the one that was called, and none of the network of this process.
package netfault

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
)

// Reason returns why a call to peer, such as "the provider", failed, or "" if err is of
// no kind that it knows.
func Reason(err error, peer string) string {
	var (
		lookup    *net.DNSError
		unknown   x509.UnknownAuthorityError
		other     x509.HostnameError
		invalid   x509.CertificateInvalidError
		handshake *tls.CertificateVerificationError
		remote    *net.OpError
		plain     tls.RecordHeaderError
		network   net.Error
	)
	switch {
	case errors.As(err, &lookup) && lookup.IsNotFound:
		return "the host name of the URL does not exist"
	case errors.As(err, &lookup):
		return "the host name of the URL could not be looked up"
	case errors.As(err, &other):
		return "the TLS certificate of " + peer + " is for another host name"
	case errors.As(err, &unknown):
		return "the TLS certificate of " + peer + " is signed by an unknown authority"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the TLS certificate of " + peer + " has expired or is not valid yet"
	case errors.As(err, &invalid), errors.As(err, &handshake):
		return "the TLS certificate of " + peer + " is not valid"
	case errors.As(err, &plain):
		return peer + " does not speak TLS at this port"
	case errors.As(err, &remote) && remote.Op == "remote error": // so package tls reports an alert
		return peer + " refused the TLS handshake"
	case errors.Is(err, syscall.ECONNREFUSED):
		return peer + " refused the connection"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "the network of " + peer + " cannot be reached"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return peer + " closed the connection without a response"
	case errors.As(err, &network) && network.Timeout():
		return peer + " did not accept a connection in time"
	case strings.Contains(err.Error(), "malformed HTTP"):
		return "the response of " + peer + " is not HTTP"
	}
	return ""
}
