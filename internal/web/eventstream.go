package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

const (
	// StreamType is the media type of a stream of events.
	StreamType = "text/event-stream"
	// eventTimeout is the timeout for a client to read what was sent.
	eventTimeout = 10 * time.Second
	// HeartbeatInterval separates the comments of a stream without events. They
	// keep proxies from closing it.
	HeartbeatInterval = 15 * time.Second
	// retryAfter is the time after which a client should connect again.
	retryAfter = 2 * time.Second
	// sendBuffer limits what the kernel buffers for a client that does not read,
	// in bytes. The default is megabytes, which is minutes of events.
	sendBuffer = 32 << 10
	// inputMax limits what a client may send after its request, in bytes. The
	// server ignores it.
	inputMax = 4 << 10
)

// Stream writes server-sent events. Each write has its own deadline, so that a
// client that does not read cannot block a goroutine forever. A Stream is not safe
// for concurrent use.
type Stream struct {
	w     io.Writer
	until interface{ SetWriteDeadline(t time.Time) error }
	flush func() error
	err   error // the first error; nothing is written after it
}

// Alive starts to watch whether the caller of a stream may still read it, and
// calls end when that is no longer so. It returns at once, and stops watching when
// ctx ends.
type Alive func(ctx context.Context, end context.CancelFunc)

// StreamEvents answers with a stream of events. send writes the events until the
// stream fails or its context ends. end is always called afterwards. alive ends
// the stream early; nil means never. A HEAD request gets only the headers.
//
// Thousands of clients may follow events at the same time. Inside net/http each
// costs about 60 kB: a deep stack, three buffers and garbage. If possible, the
// stream therefore takes over the connection, which reduces that to 20 kB. It then
// keeps nothing of the request, and send must not either. Such a response ends with
// its connection.
func (a *Router) StreamEvents(ctx context.Context, hc huma.Context, alive Alive, send func(ctx context.Context, out *Stream), end func()) {
	r, w := humago.Unwrap(hc)
	h := w.Header()
	h.Set("Content-Type", StreamType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // otherwise nginx delays events
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		end()
		return
	}
	rc := http.NewResponseController(w)
	a.streams.begin()
	conn, _, err := rc.Hijack()
	if err != nil {
		a.streams.end(nil)
		defer end()
		out := &Stream{w: w, until: rc, flush: rc.Flush}
		out.begin(nil)
		send(ctx, out)
		return
	}
	a.streams.hold(conn)
	recordStatus(w, http.StatusOK)
	shrinkSendBuffer(conn)
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	h.Set("Connection", "close")
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 200 OK\r\n")
	_ = h.Write(&head) // writing to a buffer never fails
	head.WriteString("\r\n")
	go a.runStream(conn, alive, head.Bytes(), send, end)
}

// recordStatus records the status of a response that w did not write.
func recordStatus(w http.ResponseWriter, status int) {
	for {
		switch x := w.(type) {
		case *trackedWriter:
			x.status = status
			return
		case interface{ Unwrap() http.ResponseWriter }:
			w = x.Unwrap()
		default:
			return
		}
	}
}

// shrinkSendBuffer limits the send buffer of a connection to sendBuffer bytes.
func shrinkSendBuffer(conn net.Conn) {
	for {
		switch x := conn.(type) {
		case *net.TCPConn:
			_ = x.SetWriteBuffer(sendBuffer) // if it fails, the buffer is only larger
			return
		case *headConn:
			conn = x.Conn
		case *slotConn:
			conn = x.Conn
		case interface{ NetConn() net.Conn }: // TLS
			conn = x.NetConn()
		default:
			return
		}
	}
}

// runStream runs a stream over its own connection. It ends when send returns, when
// the client leaves, or when alive ends it.
func (a *Router) runStream(conn net.Conn, alive Alive, head []byte, send func(ctx context.Context, out *Stream), end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer cancel()
		skipInput(conn)
	}()
	defer func() {
		if v := recover(); v != nil { // as net/http does: one stream must not end the program
			a.log.Error("event stream panicked", fmt.Errorf("panic: %v", v), "stack", string(debug.Stack()))
		}
		end()
		cancel()
		_ = conn.Close() // nothing more is sent even if it returns an error
		<-gone
		a.streams.end(conn)
	}()
	if alive != nil {
		alive(ctx, cancel)
	}
	out := &Stream{w: conn, until: conn}
	out.begin(head)
	send(ctx, out)
}

// skipInput reads until the client has left or has sent too much.
func skipInput(conn net.Conn) {
	input := make([]byte, 64)
	for read := 0; read < inputMax; {
		n, err := conn.Read(input)
		if err != nil {
			return
		}
		read += n
	}
}

// openStreams are the open event streams. net/http does not know the connections
// that they took over, so a stop has to wait for them here.
type openStreams struct {
	mu    sync.Mutex // protects what follows
	open  int        // streams, and requests that may become streams
	conns map[net.Conn]bool
	none  chan struct{} // closed when open is 0; nil while close does not wait
}

func (o *openStreams) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open++
}

func (o *openStreams) hold(c net.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conns == nil {
		o.conns = make(map[net.Conn]bool)
	}
	o.conns[c] = true
}

// end reverts begin, and hold if c is not nil.
func (o *openStreams) end(c net.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.conns, c)
	if o.open--; o.open == 0 && o.none != nil {
		close(o.none)
		o.none = nil
	}
}

// close waits until all streams have ended, which they do while the Router drains.
// When ctx ends, it closes the connections of the remaining ones.
func (o *openStreams) close(ctx context.Context) {
	o.mu.Lock()
	if o.open == 0 {
		o.mu.Unlock()
		return
	}
	if o.none == nil {
		o.none = make(chan struct{})
	}
	none := o.none
	o.mu.Unlock()
	select {
	case <-none:
		return
	case <-ctx.Done():
	}
	o.mu.Lock()
	for c := range o.conns {
		_ = c.Close() // this ends a write that waits
	}
	o.mu.Unlock()
	<-none
}

// Err returns the error that ended the stream, or nil.
func (s *Stream) Err() error { return s.err }

// begin writes head, and the retry time that every stream starts with.
func (s *Stream) begin(head []byte) {
	s.Write(fmt.Appendf(head, "retry: %d\n\n", retryAfter.Milliseconds()))
}

// Send writes an event.
func (s *Stream) Send(event, id string, data any) {
	s.Write(EventText(event, id, EncodeEvent(data)))
}

// Heartbeat writes a comment.
func (s *Stream) Heartbeat() { s.Write([]byte(": beat\n\n")) }

// Write writes an event that EventText returned.
func (s *Stream) Write(text []byte) {
	if s.err != nil {
		return
	}
	// If a writer has no deadlines, the limit of the server holds.
	_ = s.until.SetWriteDeadline(time.Now().Add(eventTimeout))
	if _, s.err = s.w.Write(text); s.err == nil && s.flush != nil {
		s.err = s.flush()
	}
}

// EventText returns an event as it is sent.
func EventText(event, id string, data []byte) []byte {
	return fmt.Appendf(nil, "event: %s\nid: %s\ndata: %s\n\n", event, id, data)
}

// EncodeEvent returns the data of an event as JSON.
func EncodeEvent(data any) []byte {
	text, err := json.Marshal(data)
	if err != nil { // structs of strings, numbers and times always have a JSON form
		panic(err)
	}
	return text
}
