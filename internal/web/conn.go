package web

import (
	"container/list"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/largesse/largesse/internal/obs"
)

const (
	// headerBytesMax limits the bytes of a request line and its headers, and
	// headerLinesMax their lines. Each line costs about 200 bytes more than its
	// length until the request ends, and a slow sender can delay that.
	headerBytesMax = 16 << 10
	headerLinesMax = 100
	// unsentMax limits the unsent bytes that the system buffers for a
	// connection. Its own limit is several megabytes.
	unsentMax = 128 << 10
	// lingerTimeout is the time that a client that still sends has to read why the
	// request was refused, before the connection is closed.
	lingerTimeout = 500 * time.Millisecond
	lingerMax     = 256 << 10 // bytes that the client may send in this time
	// idleMin is the time without a request after which a connection may be closed for
	// another client, and idleRetry separates the searches for one.
	idleMin   = time.Second
	idleRetry = 20 * time.Millisecond
)

// newListenConfig limits what the system buffers for clients that do not read.
func newListenConfig() *net.ListenConfig {
	const tcpNotSentLowat = 25 // of Linux; syscall does not name it
	return &net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		if runtime.GOOS != "linux" {
			return nil
		}
		// Connections inherit the option from their listener. A kernel that does
		// not know it buffers more, which does no harm.
		return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowat, unsentMax) })
	}}
}

var errConnectionLimit = errors.New("all connections are in use, idle ones are closed, and new clients may wait: raise http.max-connections, or find the clients that hold them")

const warnInterval = time.Minute

// limitedListener limits the open connections. Further clients wait in the
// system's queue until a connection closes.
type limitedListener struct {
	net.Listener
	tls      *tls.Config // nil = plain HTTP
	log      obs.Log
	slots    chan struct{} // holds one token per open connection
	closed   chan struct{}
	end      func() // closes closed, once
	warnedAt time.Time
	idle     idleConns
}

// idleConns holds the connections without a request, longest idle first. It is safe for
// concurrent use.
type idleConns struct {
	mu    sync.Mutex // protects what follows
	conns list.List  // of *headConn
	place map[*headConn]*list.Element
}

func (i *idleConns) set(c *headConn, idle bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if at, known := i.place[c]; known {
		i.conns.Remove(at)
		delete(i.place, c)
	}
	if idle {
		c.idleSince = time.Now()
		i.place[c] = i.conns.PushBack(c)
	}
}

// closeOldest closes the connection that has had no request for the longest time, if
// that is at least idleMin.
func (i *idleConns) closeOldest() {
	i.mu.Lock()
	var oldest *headConn
	if front := i.conns.Front(); front != nil {
		if c, _ := front.Value.(*headConn); time.Since(c.idleSince) >= idleMin {
			oldest = c
			i.conns.Remove(front)
			delete(i.place, c)
		}
	}
	i.mu.Unlock()
	if oldest != nil {
		_ = oldest.slot.Close() // the client sees the end, and connects again
	}
}

func newLimitedListener(ln net.Listener, most int, tls *tls.Config, log obs.Log) *limitedListener {
	l := &limitedListener{Listener: ln, tls: tls, log: log, slots: make(chan struct{}, most), closed: make(chan struct{})}
	l.idle.place = make(map[*headConn]*list.Element)
	l.end = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Accept waits until there is a free slot and a client takes it.
func (l *limitedListener) Accept() (net.Conn, error) {
	if len(l.slots) == cap(l.slots) && time.Since(l.warnedAt) > warnInterval {
		l.warnedAt = time.Now()
		l.log.Warn("connection limit reached", errConnectionLimit, "connections", cap(l.slots))
	}
	if err := l.takeSlot(); err != nil {
		return nil, err
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	slot := &slotConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}
	if conn = slot; l.tls != nil {
		conn = tls.Server(conn, l.tls)
	}
	return &headConn{Conn: conn, slot: slot, idle: &l.idle}, nil
}

// takeSlot waits for a free slot. While there is none, it closes idle connections.
func (l *limitedListener) takeSlot() error {
	for {
		select {
		case l.slots <- struct{}{}:
			return nil
		default:
		}
		l.idle.closeOldest()
		retry := time.NewTimer(idleRetry)
		select {
		case l.slots <- struct{}{}:
			retry.Stop()
			return nil
		case <-l.closed:
			retry.Stop()
			return net.ErrClosed
		case <-retry.C:
		}
	}
}

// Close closes the listener and ends a waiting Accept.
func (l *limitedListener) Close() error {
	l.end()
	return l.Listener.Close()
}

// closeWriter is a connection that can be closed for writing only. A client that
// still sends then reads the response before it sees the end.
type closeWriter interface{ CloseWrite() error }

type slotConn struct {
	net.Conn
	release func()
}

// Write sends bytes. If the client did not read them in time, Write makes the
// system drop them on close. Otherwise it would buffer them for minutes.
func (c *slotConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if tcp, ok := c.Conn.(*net.TCPConn); ok && errors.Is(err, os.ErrDeadlineExceeded) {
		_ = tcp.SetLinger(0) // it fails if the connection is closed already
	}
	return n, err
}

// Close closes the connection and releases its slot.
func (c *slotConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// CloseWrite closes the connection for writing.
func (c *slotConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(conn net.Conn) error {
	if w, ok := conn.(closeWriter); ok {
		return w.CloseWrite()
	}
	return nil
}

type headConnKey struct{}

// headConn refuses a request whose request line and headers are too large, while
// they arrive. net/http limits only their bytes. With TLS, the first read does
// the handshake.
type headConn struct {
	net.Conn
	slot      *slotConn // the connection below TLS
	idle      *idleConns
	idleSince time.Time // protected by idle.mu
	// headersRead reports whether the headers are complete. net/http may read on
	// while the request is answered.
	headersRead atomic.Bool

	// These describe the headers read so far.
	bytes, lines int
	inLine       bool // the current line is not empty
	refused      bool
}

func (c *headConn) reset() {
	c.bytes, c.lines, c.inLine = 0, 0, false
	c.headersRead.Store(false)
}

// Read reads, and checks the limits until the headers are complete.
func (c *headConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if e, ok := errors.AsType[tls.RecordHeaderError](err); ok && e.Conn != nil && strings.Contains("GET HEAD POST PUT PATCH DELETE OPTIONS ", string(e.RecordHeader[:3])) {
		_, _ = fmt.Fprint(e.Conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\nThis is an HTTPS server: use an address that starts with https://\n")
	}
	if c.headersRead.Load() {
		return n, err
	}
	for _, b := range p[:n] {
		if c.bytes++; c.bytes > headerBytesMax {
			return 0, c.refuse(CodeHeadersTooLarge, fmt.Sprintf("the request line and headers exceed %d bytes", headerBytesMax))
		}
		switch {
		case b == '\n' && !c.inLine:
			c.headersRead.Store(true)
			return n, err
		case b == '\n':
			if c.lines++; c.lines > headerLinesMax {
				return 0, c.refuse(CodeTooManyHeaders, fmt.Sprintf("the request has more than %d headers", headerLinesMax-1))
			}
			c.inLine = false
		case b != '\r':
			c.inLine = true
		}
	}
	return n, err
}

// refuse answers instead of net/http. It returns an error that makes net/http
// close the connection.
func (c *headConn) refuse(code, detail string) error {
	p := NewProblem(http.StatusRequestHeaderFieldsTooLarge, code, detail)
	body, err := json.Marshal(p)
	if err != nil { // strings and integers always have a JSON form
		panic(err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(lingerTimeout))
	_, _ = fmt.Fprintf(c.Conn, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		p.Status, p.Title, ProblemType, len(body), body)
	c.refused = true
	_ = c.CloseWrite()
	// Read what still arrives for a moment. Closing with unread bytes would reset
	// the connection, and the client would lose the response.
	_ = c.SetReadDeadline(time.Now().Add(lingerTimeout))
	_, _ = io.CopyN(io.Discard, c.Conn, lingerMax)
	return &net.OpError{Op: "read", Net: "tcp", Err: errors.New(code)}
}

// Write sends bytes. It drops them if the request was refused.
func (c *headConn) Write(b []byte) (int, error) {
	if c.refused {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// CloseWrite closes the connection for writing.
func (c *headConn) CloseWrite() error { return closeWrite(c.Conn) }

// trackRequests makes srv tell its connections when a request ends.
func trackRequests(srv *http.Server) {
	srv.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, headConnKey{}, conn)
	}
	srv.ConnState = func(conn net.Conn, state http.ConnState) {
		c, ok := conn.(*headConn)
		if !ok {
			return
		}
		if state == http.StateIdle {
			c.reset()
		}
		c.idle.set(c, state == http.StateNew || state == http.StateIdle)
	}
}
