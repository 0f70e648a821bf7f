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
	errTimeout   = errors.New("no whole answer within money.timeout")
	errNoCall    = errors.New("a write without a call")
	errCallOver  = errors.New("the call is over")
	errSentTwice = errors.New("the request has been sent before")
	errEarly     = errors.New("the answer came before the request had left")
)

// call is one request on its way. It leaves at most once: the state turns
// under mu, and the check is asked while mu is held, so whoever waits for the
// end of the call knows for certain whether it left.
type call struct {
	check   CheckFunc // nil: a look-up, which may leave and may be repeated freely
	timeout time.Duration
	cancel  context.CancelCauseFunc

	left  atomic.Bool // set once the check has passed
	early atomic.Bool // an answer began before that

	mu      sync.Mutex  // protects the rest
	conn    *gatedConn  // the connection it left by, nil before
	over    bool        // it must not leave any more
	refused error       // what the check said
	timer   *time.Timer // cuts the answer off, runs from leaving
}

// leave is asked before bytes of the call are written to conn.
func (c *call) leave(conn *gatedConn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.over:
		return errCallOver
	case c.conn == conn: // the rest of the same request
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

// answering notes that the first byte of an answer is there.
func (c *call) answering() {
	if !c.left.Load() {
		c.early.Store(true)
	}
}

// end closes the call. It says whether the call left, and what the check said
// if that kept it from leaving. Nothing leaves afterwards.
func (c *call) end() (sent bool, refused error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.timer != nil {
		c.timer.Stop()
	}
	return c.conn != nil, c.refused
}

// gatedConn is a connection that carries one call at a time and asks it before
// each write. This is the last place before the kernel: after the dial, the TLS
// handshake and the wait for a free connection. A check in the request's body
// would come too late, because net/http flushes the headers before it reads a
// body it does not know.
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
