package webhook

import (
	"cmp"
	"errors"
	"strings"

	"github.com/largesse/largesse/internal/netfault"
)

// callError is a call without a response. Its text is for the log of the operator: it
// may name addresses inside the network of this process, such as the name server.
type callError struct {
	reason string // in the words of the product, without addresses
	cause  error
}

func (e *callError) Error() string { return e.reason + ": " + e.cause.Error() }
func (e *callError) Unwrap() error { return e.cause }

// Reason returns what callers of the API may read about a failed attempt, without
// addresses. The text of the error itself is for the log.
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

func reasonFor(err error) string {
	for _, refused := range []error{errMetadata, errNobody, errPrivate} {
		if errors.Is(err, refused) {
			return refused.Error()
		}
	}
	return cmp.Or(netfault.Reason(err, "the receiver"), noResponse)
}
