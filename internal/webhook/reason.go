package webhook

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
)

// callError is a call without a response. Its text is for the log of the operator: it
// may name addresses inside the network of this process, such as the name server.
type callError struct {
	reason string // in the words of the product, without addresses
	cause  error
}

func (e *callError) Error() string { return e.reason + ": " + e.cause.Error() }
func (e *callError) Unwrap() error { return e.cause }

// Reason returns what callers of the API may read about a failed attempt: no address,
// and nothing of the network in which this process runs. The text of the error itself is
// for the log.
func Reason(err error) string {
	var e *callError
	if errors.As(err, &e) {
		return e.reason
	}
	return err.Error()
}

// noResponse is the reason of a call whose cause has no words of its own.
const noResponse = "no response"

// ShownReason returns a stored reason. Earlier versions stored the text of the error.
func ShownReason(stored string) string {
	if strings.HasPrefix(stored, noResponse+": ") {
		return noResponse
	}
	return stored
}

// reasonFor returns the reason of a call without a response.
func reasonFor(err error) string {
	for _, refused := range []error{errMetadata, errNobody, errPrivate} {
		if errors.Is(err, refused) {
			return refused.Error()
		}
	}
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
		return "the TLS certificate of the receiver is for another host name"
	case errors.As(err, &unknown):
		return "the TLS certificate of the receiver is signed by an unknown authority"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the TLS certificate of the receiver has expired or is not valid yet"
	case errors.As(err, &invalid), errors.As(err, &handshake):
		return "the TLS certificate of the receiver is not valid"
	case errors.As(err, &plain):
		return "the receiver does not speak TLS at this port"
	case errors.As(err, &remote) && remote.Op == "remote error": // so package tls reports an alert
		return "the receiver refused the TLS handshake"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the receiver refused the connection"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "the network of the receiver cannot be reached"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the receiver closed the connection without a response"
	case errors.As(err, &network) && network.Timeout():
		return "the receiver did not accept a connection in time"
	case strings.Contains(err.Error(), "malformed HTTP"):
		return "the response of the receiver is not HTTP"
	}
	return noResponse
}
