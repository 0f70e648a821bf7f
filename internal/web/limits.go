package web

import (
	"cmp"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Limits keep slow and greedy callers from holding on to the server. A field
// that is 0 has its default.
type Limits struct {
	Connections int           // open at once, and who comes then waits; 20000
	Header      time.Duration // for a request's line and headers to come; 10 s
	Leftover    time.Duration // for the rest of a body that nobody wants; 5 s
	Write       time.Duration // for a reader to take 32 KiB of an answer; 30 s
	Idle        time.Duration // between two requests on a connection; 2 m
}

func (l Limits) withDefaults() Limits {
	return Limits{
		Connections: cmp.Or(l.Connections, 20_000), Header: cmp.Or(l.Header, 10*time.Second), Leftover: cmp.Or(l.Leftover, 5*time.Second),
		Write: cmp.Or(l.Write, 30*time.Second), Idle: cmp.Or(l.Idle, 2*time.Minute),
	}
}

// handler bounds how long h can be kept waiting by who reads or writes slowly.
// h bounds how long it reads a body it wants; a deadline for reading that it has
// set is taken back when the body is whole, because the connection is watched
// for its end from then on, and a deadline would look like one.
func (l Limits) handler(h http.Handler) http.Handler {
	held := new(atomic.Int64)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn, ok := r.Context().Value(headConnKey{}).(*headConn); ok {
			conn.headIsRead.Store(true)
		}
		rc := http.NewResponseController(w)
		if r.Body != nil && r.Body != http.NoBody {
			body := &watchedBody{ReadCloser: r.Body, rc: rc}
			r.Body = body
			// Until h sets its own: net/http reads what h leaves of a body, before
			// the answer and after it. Writers without deadlines are a test's own.
			_ = rc.SetReadDeadline(time.Now().Add(l.Leftover))
			defer func() {
				if !body.whole {
					_ = rc.SetReadDeadline(time.Now().Add(l.Leftover))
				}
			}()
		}
		h.ServeHTTP(&pacedWriter{ResponseWriter: w, rc: rc, wait: l.Write, held: held}, r)
	})
}

// watchedBody notes when a body is whole.
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
	// pacePart is what a reader has to take within the time for it, in bytes.
	pacePart = 32 << 10
	// heldMost is how many bytes of answers may wait for their readers before
	// those have less time: one part in heldHurry of what they have otherwise.
	heldMost  = 32 << 20
	heldHurry = 30
)

// pacedWriter gives each part of an answer a deadline of its own: an answer may
// take hours to read, but its reader may not stand still. Who sets deadlines for
// writing himself is left alone.
type pacedWriter struct {
	http.ResponseWriter
	rc   *http.ResponseController
	wait time.Duration
	held *atomic.Int64 // bytes of all answers that are being written
	own  bool          // the handler sets them
}

func (w *pacedWriter) Write(b []byte) (int, error) {
	w.held.Add(int64(len(b)))
	defer w.held.Add(-int64(len(b)))
	written := 0
	for {
		part := b[written:min(len(b), written+pacePart)]
		w.extend()
		n, err := w.ResponseWriter.Write(part)
		if written += n; err != nil || written == len(b) {
			return written, err
		}
	}
}

// WriteHeader is for answers without a body.
func (w *pacedWriter) WriteHeader(status int) {
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *pacedWriter) extend() {
	if w.own {
		return
	}
	wait := w.wait
	if w.held.Load() > heldMost {
		wait /= heldHurry
	}
	_ = w.rc.SetWriteDeadline(time.Now().Add(wait)) // a test's writer may have none
}

// SetWriteDeadline is for http.ResponseController.
func (w *pacedWriter) SetWriteDeadline(t time.Time) error {
	w.own = true
	return w.rc.SetWriteDeadline(t)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
