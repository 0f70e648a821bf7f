package netfault_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/largesse/largesse/internal/netfault"
)

func TestReason(t *testing.T) {
	t.Parallel()
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for want, errs := range map[string][]error{
		"the host name of the URL does not exist":                           {dial(&net.DNSError{Server: "10.255.255.53:53", IsNotFound: true})},
		"the host name of the URL could not be looked up":                   {dial(&net.DNSError{Server: "10.255.255.53:53", IsTimeout: true})},
		"the TLS certificate of the bank is for another host name":          {x509.HostnameError{Certificate: &x509.Certificate{}, Host: "10.0.0.1"}},
		"the TLS certificate of the bank is signed by an unknown authority": {x509.UnknownAuthorityError{}},
		"the TLS certificate of the bank has expired or is not valid yet":   {x509.CertificateInvalidError{Reason: x509.Expired}},
		"the TLS certificate of the bank is not valid":                      {x509.CertificateInvalidError{Reason: x509.NotAuthorizedToSign}, &tls.CertificateVerificationError{Err: errors.New("x")}},
		"the bank does not speak TLS at this port":                          {tls.RecordHeaderError{Msg: "x"}},
		"the bank refused the TLS handshake":                                {&net.OpError{Op: "remote error", Err: errors.New("bad certificate")}},
		"the bank refused the connection":                                   {dial(syscall.ECONNREFUSED)},
		"the network of the bank cannot be reached":                         {dial(syscall.EHOSTUNREACH), dial(syscall.ENETUNREACH)},
		"the bank closed the connection without a response":                 {dial(syscall.ECONNRESET), dial(syscall.EPIPE), io.EOF, io.ErrUnexpectedEOF},
		"the bank did not accept a connection in time":                      {dial(context.DeadlineExceeded)},
		"the response of the bank is not HTTP":                              {errors.New(`net/http: malformed HTTP response "SSH"`)},
		"":                                                                  {errors.New("i/o trouble at 10.255.255.53")},
	} {
		for _, err := range errs {
			if got := netfault.Reason(fmt.Errorf("call: %w", err), "the bank"); got != want {
				t.Errorf("%v: %q, want %q", err, got, want)
			}
		}
	}
}
