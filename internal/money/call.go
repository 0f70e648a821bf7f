package money

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errTimeout   = errors.New("no complete response within money.timeout")
	errNoCall    = errors.New("a connection was written to without a call")
	errCallOver  = errors.New("the call has ended")
	errSentTwice = errors.New("the request was already sent")
	errEarly     = errors.New("the response came before the request was sent")
)

// call is a request that may be sent. It is sent at most once: the state
// changes under mu, and the check runs while mu is held, so end knows for
// certain whether the request was sent.
type call struct {
	check   CheckFunc // nil: a lookup, which needs no check and may be repeated
	timeout time.Duration
	cancel  context.CancelCauseFunc

	left  atomic.Bool // set once the check has passed
	early atomic.Bool // a response began before that

	mu      sync.Mutex  // protects the fields below
	conn    *gatedConn  // the connection that carried it; nil before
	over    bool        // it must no longer be sent
	refused error       // the error of the check
	timer   *time.Timer // ends the wait for the response, runs once it is sent
}

// leave is called before bytes of the call are written to conn.
func (c *call) leave(conn *gatedConn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over:
		return errCallOver
	case c.conn == conn: // more bytes of the same request
		return nil
	case c.conn != nil && c.check != nil:
		return errSentTwice
	case c.conn == nil:
		if c.check != nil {
			if err := c.check(); err != nil {
				c.refused, c.over = err, true
				return err
			}
		}
		c.left.Store(true)
		c.timer = time.AfterFunc(c.timeout, func() { c.cancel(errTimeout) })
	}
	c.conn = conn
	return nil
}

func (c *call) answering() {
	if !c.left.Load() {
		c.early.Store(true)
	}
}

// end closes the call: nothing is sent afterwards. It reports whether the
// request was sent, and returns the error of a check that stopped it.
func (c *call) end() (sent bool, refused error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.timer != nil {
		c.timer.Stop()
	}
	return c.conn != nil, c.refused
}

// gatedConn is a connection that carries one call at a time and calls its check
// before the first write. This is the last step before the kernel: after the
// dial, the TLS handshake and the wait for a free connection. A check in the
// request's body would be too late, because net/http flushes the headers before
// it reads a body of unknown type.
type gatedConn struct {
	net.Conn
	call atomic.Pointer[call]
}

func (c *gatedConn) Write(b []byte) (int, error) {
	call := c.call.Load()
	if call == nil {
		return 0, errNoCall
	}
	if err := call.leave(c); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}
