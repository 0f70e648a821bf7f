package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const (
	// readsDefault is the default number of reads that run for a caller at a time.
	readsDefault = store.ViewerConnections - 1
	// readsWaitingMax limits the reads of a caller that wait for their turn, and
	// readWait the wait.
	readsWaitingMax = 32
	readWait        = store.ViewerWait
	// refusalPause delays the refusal of further reads. Refusing clients that try
	// again at once would otherwise take the processor from payouts.
	refusalPause = 500 * time.Millisecond
	// shopperReads limits the reads that run for all shoppers together. They have
	// connections of payouts, and leave those for reads to the staff.
	shopperReads = 4
	// exportsMax limits the exports of a caller that are open at a time.
	exportsMax = 8
	// exportTries limits the tries to read a page of an export that has begun.
	exportTries = 10
)

// readLimits limits the reads and exports of each caller, so that one caller
// leaves connections of the database to others. It is safe for concurrent use.
type readLimits struct {
	each int // reads of a caller that run at a time

	mu      sync.Mutex // protects what follows
	callers map[string]*callerReads
}

// callerReads are the reads of one caller. They are dropped when there are none.
type callerReads struct {
	running        chan struct{} // holds a token per read that runs
	reads, exports int           // reads include those that wait
}

func newReadLimits(each int) *readLimits {
	return &readLimits{each: each, callers: make(map[string]*callerReads)}
}

// enter waits until a read of a caller may run. The read calls leave at its end.
// If the caller has too many reads, or the wait is too long, the error says when
// to try again.
func (l *readLimits) enter(ctx context.Context, caller string) (leave func(), err error) {
	c, drop := l.count(caller, func(c *callerReads) *int { return &c.reads }, l.each+readsWaitingMax)
	running, wait := c.running, readWait
	if drop == nil {
		running, wait, drop = nil, refusalPause, func() {}
	}
	release, err := take(ctx, running, wait, func() error {
		return tooMany(time.Second, fmt.Sprintf("the caller has too many reads under way: %d run and %d wait at a time; send fewer at a time", l.each, readsWaitingMax))
	})
	if err != nil {
		drop()
		return nil, err
	}
	return func() { release(); drop() }, nil
}

// take puts a token into slots, and returns a function that takes it out again. If there is
// no space for the time wait, as in nil slots, the error is that of late.
func take(ctx context.Context, slots chan struct{}, wait time.Duration, late func() error) (release func(), err error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	case <-timer.C:
		return nil, late()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// enterExport counts an open export of a caller until leave is called.
func (l *readLimits) enterExport(caller string) (leave func(), err error) {
	if _, leave = l.count(caller, func(c *callerReads) *int { return &c.exports }, exportsMax); leave == nil {
		return nil, tooMany(time.Second, fmt.Sprintf("the caller has %d exports open, which is the limit; wait until one has ended", exportsMax))
	}
	return leave, nil
}

// count adds one to a count of a caller until leave is called. leave is nil if the caller
// has most already.
func (l *readLimits) count(caller string, of func(c *callerReads) *int, most int) (c *callerReads, leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c = l.callers[caller]; c == nil {
		c = &callerReads{running: make(chan struct{}, l.each)}
		l.callers[caller] = c
	}
	n := of(c)
	if *n >= most {
		return c, nil
	}
	*n++
	return c, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if *n--; c.reads == 0 && c.exports == 0 {
			delete(l.callers, caller)
		}
	}
}

// limitName returns the name that limits count a caller by. Without
// authentication it is the name that the caller gives itself.
func limitName(p auth.Principal) string {
	if p.KeyID != 0 {
		return strconv.FormatInt(p.KeyID, 10)
	}
	return string(p.Role) + " " + p.Name
}

// read calls f within the limits of the caller, with the context for its reads.
func (a *API) read(ctx context.Context, f func(ctx context.Context) error) error {
	leave, err := a.reads.enter(ctx, limitName(callerOf(ctx).Principal))
	if err != nil {
		return err
	}
	defer leave()
	if callerOf(ctx).Role == auth.RoleShopper {
		return a.readForShopper(ctx, f)
	}
	return f(store.ForViewer(ctx))
}

// readForShopper calls f when few enough other reads of shoppers run.
func (a *API) readForShopper(ctx context.Context, f func(ctx context.Context) error) error {
	release, err := take(ctx, a.shoppers, readWait, func() error {
		return tooMany(time.Second, "too many shoppers read at this moment; try again")
	})
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, store.ViewerTimeout)
	defer cancel()
	return f(ctx)
}

// readPage is read for a page of an export. An export that has begun cannot
// answer with an error any more, so it tries again for some time.
func (a *API) readPage(ctx context.Context, first bool, f func(ctx context.Context) error) error {
	for n := 1; ; n++ {
		err := a.read(ctx, f)
		if first || err == nil || n == exportTries || !busy(err) || !service.Sleep(ctx, time.Second) {
			return err
		}
	}
}

// busy reports whether a read may succeed a little later.
func busy(err error) bool {
	p, ok := errors.AsType[*web.Problem](err)
	return ok && p.Status == http.StatusTooManyRequests || reward.HasCode(err, reward.CodeUnavailable)
}
