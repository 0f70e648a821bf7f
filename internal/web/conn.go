package web

import (
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
	// headBytesMost bounds a request's line and headers, and headLinesMost their
	// lines: on each connection a line takes some 200 bytes more than its length,
	// for as long as its sender makes the rest last.
	headBytesMost = 16 << 10
	headLinesMost = 100
	// unsentMost is how much of an answer the system takes before the reader has:
	// what it takes by itself is some megabytes a connection.
	unsentMost = 128 << 10
	// lingerWait is how long somebody who still sends has to see why he was cut.
	lingerWait = 500 * time.Millisecond
	lingerMost = 256 << 10 // bytes that he may send meanwhile
)

// listenConfig bounds what the system keeps for readers who stand still.
func listenConfig() *net.ListenConfig {
	const tcpNotSentLowat = 25 // of Linux; syscall does not name it
	return &net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		if runtime.GOOS != "linux" {
			return nil
		}
		// Connections have it from their listener. A system that does not know it
		// keeps more, which is its own affair.
		return raw.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpNotSentLowat, unsentMost) })
	}}
}

var errAllTaken = errors.New("all connections are taken: who comes now waits; raise http.max-connections, or see who holds them")

// saidEvery is how often it is logged that all connections are taken.
const saidEvery = time.Minute

// boundedListener lets in so many connections at once; who comes then waits in
// the system's queue until one has ended.
type boundedListener struct {
	net.Listener
	tls    *tls.Config // nil = plain HTTP
	log    obs.Log
	places chan struct{} // one token per open connection
	closed chan struct{}
	end    func() // closes closed, once
	saidAt time.Time
}

func newBoundedListener(ln net.Listener, most int, tls *tls.Config, log obs.Log) *boundedListener {
	l := &boundedListener{Listener: ln, tls: tls, log: log, places: make(chan struct{}, most), closed: make(chan struct{})}
	l.end = sync.OnceFunc(func() { close(l.closed) })
	return l
}

// Accept waits for a place and for somebody to take it.
func (l *boundedListener) Accept() (net.Conn, error) {
	if len(l.places) == cap(l.places) && time.Since(l.saidAt) > saidEvery {
		l.saidAt = time.Now()
		l.log.Warn(obs.Unavailable, errAllTaken, "connections", cap(l.places))
	}
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	conn = &placedConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.places })}
	if l.tls != nil {
		conn = tls.Server(conn, l.tls)
	}
	return &headConn{Conn: conn}, nil
}

// Close ends an Accept that waits.
func (l *boundedListener) Close() error {
	l.end()
	return l.Listener.Close()
}

// closeWriter is a connection that can say that nothing more comes, so that who
// still sends sees the answer to what he has sent before he sees an end.
type closeWriter interface{ CloseWrite() error }

// placedConn gives its place back at its end.
type placedConn struct {
	net.Conn
	leave func()
}

// Write sends bytes. When the reader has not taken them in time, the system is
// told not to go on offering them after the end, for which it would keep them
// for minutes.
func (c *placedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if tcp, ok := c.Conn.(*net.TCPConn); ok && errors.Is(err, os.ErrDeadlineExceeded) {
		_ = tcp.SetLinger(0) // it may have ended
	}
	return n, err
}

// Close ends the connection.
func (c *placedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// CloseWrite says that nothing more comes.
func (c *placedConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(conn net.Conn) error {
	if w, ok := conn.(closeWriter); ok {
		return w.CloseWrite()
	}
	return nil
}

// headConnKey finds the connection of a request in its context.
type headConnKey struct{}

// headConn refuses requests whose line and headers are too much, while they
// come. net/http bounds their bytes only. With TLS, the handshake comes with the
// first read.
type headConn struct {
	net.Conn
	// headIsRead says that what comes is of no head; net/http may read on while
	// the request is answered.
	headIsRead atomic.Bool

	// Of the head that is being read.
	bytes, lines int
	inLine       bool // something of the present line has come
	refused      bool
}

// again begins with the next request.
func (c *headConn) again() {
	c.bytes, c.lines, c.inLine = 0, 0, false
	c.headIsRead.Store(false)
}

// Read reads, and looks at what came while it is of a head.
func (c *headConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if e, ok := errors.AsType[tls.RecordHeaderError](err); ok && e.Conn != nil && strings.Contains("GET HEAD POST PUT PATCH DELETE OPTIONS ", string(e.RecordHeader[:3])) {
		_, _ = fmt.Fprint(e.Conn, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\r\nThis is an HTTPS server: the address begins with https://\n")
	}
	if c.headIsRead.Load() {
		return n, err
	}
	for _, b := range p[:n] {
		if c.bytes++; c.bytes > headBytesMost {
			return 0, c.refuse(CodeHeadersTooLarge, fmt.Sprintf("the line of a request and its headers may have %d bytes", headBytesMost))
		}
		switch {
		case b == '\n' && !c.inLine:
			c.headIsRead.Store(true)
			return n, err
		case b == '\n':
			if c.lines++; c.lines > headLinesMost {
				return 0, c.refuse(CodeTooManyHeaders, fmt.Sprintf("a request may have %d lines of headers", headLinesMost-1))
			}
			c.inLine = false
		case b != '\r':
			c.inLine = true
		}
	}
	return n, err
}

// refuse answers for net/http and returns what ends the connection there.
func (c *headConn) refuse(code, detail string) error {
	p := NewProblem(http.StatusRequestHeaderFieldsTooLarge, code, detail)
	body, err := json.Marshal(p)
	if err != nil { // strings and integers always have a JSON form
		panic(err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(lingerWait))
	_, _ = fmt.Fprintf(c.Conn, "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		p.Status, p.Title, ProblemType, len(body), body)
	c.refused = true
	_ = c.CloseWrite()
	// What still comes is read for a moment: an end with bytes that nobody has
	// read would take the answer back.
	_ = c.SetReadDeadline(time.Now().Add(lingerWait))
	_, _ = io.CopyN(io.Discard, c.Conn, lingerMost)
	return &net.OpError{Op: "read", Net: "tcp", Err: errors.New(code)}
}

// Write sends bytes, unless the request has its answer.
func (c *headConn) Write(b []byte) (int, error) {
	if c.refused {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// CloseWrite says that nothing more comes.
func (c *headConn) CloseWrite() error { return closeWrite(c.Conn) }

// watchConns tells connections where a request begins and ends.
func watchConns(srv *http.Server) {
	srv.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, headConnKey{}, conn)
	}
	srv.ConnState = func(conn net.Conn, state http.ConnState) {
		if c, ok := conn.(*headConn); ok && state == http.StateIdle {
			c.again()
		}
	}
}
