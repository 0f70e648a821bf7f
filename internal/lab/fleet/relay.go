package fleet

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// Relay is a TCP relay on loopback in front of one server. It lets a test cut one
// client off from a server that others still reach.
type Relay struct {
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex // protects the fields below
	state  relayState
	moved  chan struct{} // closed at the next change of state
	closed bool
	conns  map[net.Conn]struct{}
}

type relayState int

const (
	relayOpen relayState = iota // forwards everything
	relayHung                   // accepts everything and forwards nothing
)

// NewRelay starts a relay to target, a host:port. Close it after use.
func NewRelay(ctx context.Context, target string) (*Relay, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for a relay: %w", err)
	}
	r := &Relay{target: target, listener: listener, moved: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	r.running.Go(r.accept)
	return r, nil
}

// Addr returns the host:port that clients connect to.
func (r *Relay) Addr() string { return r.listener.Addr().String() }

// Hang makes the relay forward nothing: connections stay open, and new ones are
// accepted, but no byte arrives.
func (r *Relay) Hang() { r.move(relayHung) }

// Resume makes the relay forward again, beginning with what it withheld.
func (r *Relay) Resume() { r.move(relayOpen) }

// Close ends all connections and waits until the relay has ended.
func (r *Relay) Close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	for c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.move(relayOpen)
	r.running.Wait()
}

func (r *Relay) move(to relayState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state = to
	close(r.moved)
	r.moved = make(chan struct{})
}

// pass waits until the relay forwards. It reports whether the relay still runs.
func (r *Relay) pass() bool {
	for {
		r.mu.Lock()
		state, moved, closed := r.state, r.moved, r.closed
		r.mu.Unlock()
		if closed || state == relayOpen {
			return !closed
		}
		<-moved
	}
}

// own registers a connection, or closes it if the relay has ended.
func (r *Relay) own(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = c.Close()
		return false
	}
	r.conns[c] = struct{}{}
	return true
}

func (r *Relay) drop(c net.Conn) {
	_ = c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.conns, c)
}

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		if r.own(client) {
			r.running.Go(func() { r.serve(client) })
		}
	}
}

// serve forwards one connection until either side ends.
func (r *Relay) serve(client net.Conn) {
	defer r.drop(client)
	if !r.pass() {
		return
	}
	server, err := new(net.Dialer).DialContext(context.Background(), "tcp", r.target)
	if err != nil || !r.own(server) {
		return
	}
	defer r.drop(server)
	var back sync.WaitGroup
	back.Go(func() {
		r.forward(client, server)
		_ = client.Close()
	})
	r.forward(server, client)
	_ = server.Close()
	back.Wait()
}

// forward copies from one connection to another.
func (r *Relay) forward(to io.Writer, from io.Reader) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !r.pass() {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
