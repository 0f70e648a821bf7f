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

	"github.com/largesse/largesse/internal/obs"
)

const (
	// StreamType is the media type of a stream of events.
	StreamType = "text/event-stream"
	// eventWait bounds how long a reader of events may stand still.
	eventWait = 10 * time.Second
	// HeartbeatInterval is how often a stream without news shows that it is alive, before
	// anything in between takes it for dead.
	HeartbeatInterval = 15 * time.Second
	// eventRetry is how long a reader that was cut off should wait.
	eventRetry = 2 * time.Second
	// eventBuffer bounds what the kernel holds for a reader of events who stands
	// still, in bytes. Left alone it would be megabytes, and minutes of events.
	eventBuffer = 32 << 10
	// eventInputMax is how much a reader of events may send after its request,
	// which is nothing that anybody reads, in bytes.
	eventInputMax = 4 << 10
)

// Stream writes server-sent events. Each write has its own deadline, so
// that a reader who stands still does not hold a goroutine for ever.
type Stream struct {
	w     io.Writer
	until interface{ SetWriteDeadline(t time.Time) error }
	flush func() error
	err   error // the first; nothing is written after it
}

// Alive calls end when the caller of a stream may not read it any more. It
// returns at once, and stops watching when ctx ends.
type Alive func(ctx context.Context, end context.CancelFunc)

// StreamEvents answers with a stream of events, which send writes until the
// stream fails or its context ends; end is called after it in any case. A HEAD
// gets no more than the header.
//
// Thousands of readers may wait for events at a time. Within net/http each takes
// some 60 kB: a deep stack, three buffers, and the garbage that goes with them.
// So the stream takes the connection over where that can be done, which leaves 20
// kB, and keeps nothing of the request: send must not either. The answer then ends
// with the connection.
func (a *Router) StreamEvents(ctx context.Context, hc huma.Context, alive Alive, send func(ctx context.Context, out *Stream), end func()) {
	r, w := humago.Unwrap(hc)
	h := w.Header()
	h.Set("Content-Type", StreamType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
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
	noteStatus(w, http.StatusOK)
	bufferLittle(conn)
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	h.Set("Connection", "close")
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 200 OK\r\n")
	_ = h.Write(&head) // a buffer takes everything
	head.WriteString("\r\n")
	go a.runStream(conn, alive, head.Bytes(), send, end)
}

// noteStatus tells the log of requests how one was answered past it.
func noteStatus(w http.ResponseWriter, status int) {
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

// bufferLittle makes the kernel hold no more than eventBuffer for the other end.
func bufferLittle(conn net.Conn) {
	for {
		switch x := conn.(type) {
		case *net.TCPConn:
			_ = x.SetWriteBuffer(eventBuffer) // without it more is held, that is all
			return
		case *headConn:
			conn = x.Conn
		case *placedConn:
			conn = x.Conn
		case interface{ NetConn() net.Conn }: // TLS
			conn = x.NetConn()
		default:
			return
		}
	}
}

// runStream runs a stream over a connection of its own. It ends when its reader
// goes, or may not read any more by the token that he has shown.
func (a *Router) runStream(conn net.Conn, alive Alive, head []byte, send func(ctx context.Context, out *Stream), end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer cancel()
		skipInput(conn)
	}()
	defer func() {
		if v := recover(); v != nil { // as net/http does; a stream is not worth the program
			a.log.Error(obs.Failed, fmt.Errorf("panic: %v", v), "stack", string(debug.Stack()))
		}
		end()
		cancel()
		_ = conn.Close() // whatever it says, nothing more is sent
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

// skipInput reads until the other end has gone, or has sent too much.
func skipInput(conn net.Conn) {
	input := make([]byte, 64)
	for read := 0; read < eventInputMax; {
		n, err := conn.Read(input)
		if err != nil {
			return
		}
		read += n
	}
}

// openStreams are the streams of events that have taken their connection over,
// of which net/http knows nothing any more.
type openStreams struct {
	mu    sync.Mutex // protects what follows
	open  int        // streams, and requests that may become one
	conns map[net.Conn]bool
	none  chan struct{} // closed when open is 0; nil while nobody waits for that
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

// end takes begin back, and hold if there was one; c is nil otherwise.
func (o *openStreams) end(c net.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.conns, c)
	if o.open--; o.open == 0 && o.none != nil {
		close(o.none)
		o.none = nil
	}
}

// close waits for the streams to end, which they do while the API is draining,
// and cuts those that are left when ctx ends.
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
		_ = c.Close() // it wakes whoever writes there
	}
	o.mu.Unlock()
	<-none
}

// Err returns the error that ended the stream; nil = none yet.
func (s *Stream) Err() error { return s.err }

// begin writes head and what every stream begins with.
func (s *Stream) begin(head []byte) {
	s.Write(fmt.Appendf(head, "retry: %d\n\n", eventRetry.Milliseconds()))
}

// Send writes an event.
func (s *Stream) Send(event, id string, data any) {
	s.Write(EventText(event, id, EncodeEvent(data)))
}

// Beat writes a comment.
func (s *Stream) Beat() { s.Write([]byte(": beat\n\n")) }

// Write writes an event, as EventText makes it.
func (s *Stream) Write(text []byte) {
	if s.err != nil {
		return
	}
	// Not every writer has deadlines; without one the server's own bound holds.
	_ = s.until.SetWriteDeadline(time.Now().Add(eventWait))
	if _, s.err = s.w.Write(text); s.err == nil && s.flush != nil {
		s.err = s.flush()
	}
}

// EventText is an event as it is sent.
func EventText(event, id string, data []byte) []byte {
	return fmt.Appendf(nil, "event: %s\nid: %s\ndata: %s\n\n", event, id, data)
}

// EncodeEvent makes JSON of what is sent.
func EncodeEvent(data any) []byte {
	text, err := json.Marshal(data)
	if err != nil { // it is structs of texts, numbers and times
		panic(err)
	}
	return text
}
