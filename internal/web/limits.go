package web

import (
	"cmp"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Limits protect a Server from slow and greedy clients. A zero field has its
// default.
type Limits struct {
	// Connections limits the open connections; further clients wait. The default
	// is 20,000.
	Connections int
	// Header is the timeout for the request line and headers to arrive. The
	// default is 10 s.
	Header time.Duration
	// Leftover is the timeout for the rest of a body that the operation does not
	// read. The default is 5 s.
	Leftover time.Duration
	// Write is the timeout for a client to read 32 KiB of a response. The default
	// is 30 s.
	Write time.Duration
	// Idle is the maximum time between two requests on a connection. The default
	// is 2 m.
	Idle time.Duration
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Connections: cmp.Or(l.Connections, 20_000), Header: cmp.Or(l.Header, 10*time.Second), Leftover: cmp.Or(l.Leftover, 5*time.Second),
		Write: cmp.Or(l.Write, 30*time.Second), Idle: cmp.Or(l.Idle, 2*time.Minute),
	}
}

// handler returns h with limits on slow clients. h limits the bodies that it
// reads itself. The read deadline is removed once the body is complete: from
// then on net/http reads in order to see the connection end, and a deadline
// would look like an end.
func (l Limits) handler(h http.Handler) http.Handler {
	buffered := new(atomic.Int64)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, ok := r.Context().Value(headConnKey{}).(*headConn); ok {
			conn.headersRead.Store(true)
		}
		one := &struct { // a single allocation
			rc   http.ResponseController
			body watchedBody
			w    pacedWriter
		}{rc: *http.NewResponseController(w)}
		rc, body := &one.rc, &one.body
		if r.Body != nil && r.Body != http.NoBody {
			*body = watchedBody{ReadCloser: r.Body, rc: rc}
			r.Body = body
			// This deadline holds until h sets its own. net/http reads the rest of a
			// body before and after the response. Only test writers have no deadlines.
			_ = rc.SetReadDeadline(time.Now().Add(l.Leftover))
			defer func() {
				if !body.whole {
					_ = rc.SetReadDeadline(time.Now().Add(l.Leftover))
				}
			}()
		}
		one.w = pacedWriter{ResponseWriter: w, rc: rc, wait: l.Write, buffered: buffered}
		h.ServeHTTP(&one.w, r)
	})
}

type watchedBody struct {
	io.ReadCloser
	rc    *http.ResponseController
	whole bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && !b.whole {
		b.whole = true
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

const (
	// writePart is the number of bytes that a client must read within the write
	// timeout.
	writePart = 32 << 10
	// heldMax is the number of response bytes waiting for their clients above which
	// the write timeout is divided by heldDivisor.
	heldMax     = 32 << 20
	heldDivisor = 30
)

// pacedWriter gives each part of a response its own deadline. Reading a response may
// take hours, but the client must not stop reading. After a handler has set a
// write deadline, pacedWriter sets none.
type pacedWriter struct {
	http.ResponseWriter
	rc       *http.ResponseController
	wait     time.Duration
	buffered *atomic.Int64 // bytes of all responses being written
	own      bool          // the handler sets the deadlines
}

func (w *pacedWriter) Write(b []byte) (int, error) {
	w.buffered.Add(int64(len(b)))
	defer w.buffered.Add(-int64(len(b)))
	written := 0
	for {
		part := b[written:min(len(b), written+writePart)]
		w.extend()
		n, err := w.ResponseWriter.Write(part)
		if written += n; err != nil || written == len(b) {
			return written, err
		}
	}
}

// WriteHeader sets a deadline too, for responses without a body.
func (w *pacedWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *pacedWriter) extend() {
	if w.own {
		return
	}
	wait := w.wait
	if w.buffered.Load() > heldMax {
		wait /= heldDivisor
	}
	_ = w.rc.SetWriteDeadline(time.Now().Add(wait)) // only test writers have no deadlines
}

// SetWriteDeadline serves http.ResponseController. From then on the handler is
// responsible for deadlines.
func (w *pacedWriter) SetWriteDeadline(t time.Time) error {
	w.own = true
	return w.rc.SetWriteDeadline(t)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
