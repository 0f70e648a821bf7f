package client

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"time"
)

// WatchOptions are the optional parts of a watch.
type WatchOptions struct {
	// Every is the pause between two looks where the server's events do not get
	// through, such as behind a proxy that holds them back; 0: 1 second.
	Every time.Duration
	// Patience is how long a watch goes on without hearing from the server, once
	// it has; 0: 30 seconds.
	Patience time.Duration
	// Waiting, when set, is told why the server is not heard, each time before it
	// is tried again, and nil once it is heard again. It is called by who ranges
	// over the watch.
	Waiting func(err error)
}

const (
	watchEvery    = time.Second
	watchPatience = 30 * time.Second
	// firstLineWait is how long a stream of events may be silent at first: a server
	// says something at once.
	firstLineWait = 10 * time.Second
	// nextLineWait is how long it may be silent afterwards, three times as long as
	// a server is.
	nextLineWait = 45 * time.Second
	// streamTries is how many streams in a row may fail while looks do not.
	streamTries = 3
	// retryDefault is the pause after a stream was cut off, unless the server has
	// named one.
	retryDefault = 2 * time.Second
	// againFirst and againMost are the pauses while the server does not answer.
	againFirst = 100 * time.Millisecond
	againMost  = 5 * time.Second
)

var (
	// errNoEvents is what an older server answers, or something in between that
	// does not let events through.
	errNoEvents = errors.New("the server's events do not get through")
	// errBadEvent is an event that cannot be understood.
	errBadEvent = errors.New("understanding the server's events")
)

// watching is one watch of a T.
type watching[T any] struct {
	WatchOptions
	client *Client
	path   []string     // of what is watched; its events are below
	last   string       // name of the event after which there are no more
	ended  func(T) bool // whether a look has shown that there will be no more
	yield  func(T, error) bool

	told    *T            // the latest
	enough  bool          // nothing more is to be told
	seen    string        // id of the latest event
	retry   time.Duration // pause after a cut
	heard   time.Time     // when the server was last heard; zero: never
	waiting bool          // it was told that the server is not heard
}

// watch follows something by the server's events, and by looking again and again
// where those do not get through.
func watch[T any](ctx context.Context, c *Client, path []string, last string, ended func(T) bool, o WatchOptions) iter.Seq2[T, error] {
	if o.Every <= 0 {
		o.Every = watchEvery
	}
	if o.Patience <= 0 {
		o.Patience = watchPatience
	}
	return func(yield func(T, error) bool) {
		w := &watching[T]{WatchOptions: o, client: c, path: path, last: last, ended: ended, yield: yield, retry: retryDefault}
		if err := w.run(ctx); err != nil {
			var none T
			yield(none, err)
		}
	}
}

// run returns why there is nothing more to tell; nil: it has ended, or nobody
// listens any more.
func (w *watching[T]) run(ctx context.Context) error {
	streams, failed := true, 0 // streams in a row that failed while looks did not
	again := againFirst
	for {
		var err error
		pause := w.Every
		if streams {
			if err = w.stream(ctx); err == nil {
				failed = 0
				pause = w.retry/2 + rand.N(w.retry) //nolint:gosec // spreads who was cut off with others, keeps no secret
			}
		}
		if !w.enough && (!streams || mayBeEvents(err)) {
			instead := w.look(ctx)
			if streams && instead == nil {
				failed++
				streams = failed < streamTries && !errors.Is(err, errNoEvents)
			}
			err = instead
		}
		switch {
		case w.enough:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			again = againFirst
		case final(err), w.heard.IsZero(), time.Since(w.heard) >= w.Patience:
			return err
		default:
			w.tellWaiting(err)
			pause = max(again/2+rand.N(again), retryAfter(err)) //nolint:gosec // as above
			again = min(2*again, againMost)
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// final says that an error does not go away by itself.
func final(err error) bool {
	var p *Problem
	if !errors.As(err, &p) {
		return false
	}
	switch p.Status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return p.Status < http.StatusInternalServerError
}

// retryAfter is how long the server asks to wait.
func retryAfter(err error) time.Duration {
	var p *Problem
	if !errors.As(err, &p) {
		return 0
	}
	return min(p.RetryAfter, watchPatience)
}

// mayBeEvents says that an error of a stream could be of streams alone, so that a
// look may succeed all the same. What the server itself says is not.
func mayBeEvents(err error) bool {
	var p *Problem
	return errors.Is(err, errNoEvents) || errors.Is(err, errBadEvent) || errors.As(err, &p) && p.Code == "" && p.Status >= http.StatusInternalServerError
}

// hear notes that the server was heard.
func (w *watching[T]) hear() {
	w.heard = time.Now()
	if w.waiting {
		w.waiting = false
		w.Waiting(nil)
	}
}

// tellWaiting says that the server was not heard.
func (w *watching[T]) tellWaiting(err error) {
	if w.Waiting != nil {
		w.waiting = true
		w.Waiting(err)
	}
}

// tell passes on what was not told yet. last says that there will be no more.
func (w *watching[T]) tell(v T, last bool) {
	if w.told == nil || !reflect.DeepEqual(*w.told, v) {
		w.told = &v
		w.enough = !w.yield(v, nil)
	}
	w.enough = w.enough || last
}

// look asks how it stands.
func (w *watching[T]) look(ctx context.Context) error {
	var v T
	if err := w.client.call(ctx, request{method: http.MethodGet, path: w.path}, &v); err != nil {
		return err
	}
	w.hear()
	w.tell(v, w.ended(v))
	return nil
}

// stream tells what events come, until they end; nil: they have been cut off.
func (w *watching[T]) stream(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(firstLineWait, func() { cancel(errNoEvents) })
	defer silence.Stop()
	r := request{method: http.MethodGet, path: slices.Concat(w.path, []string{"events"}), accept: eventStreamType, unbounded: true}
	if w.seen != "" {
		r.header = http.Header{"Last-Event-Id": {w.seen}}
	}
	res, err := w.client.send(ctx, r)
	if err != nil {
		return cmp.Or(silent(ctx), err)
	}
	defer res.Body.Close()
	if !success(res) {
		_, err := r.read(res)
		var p *Problem
		if errors.As(err, &p) && final(p) && (p.Code == "" || p.Code == "ROUTE_NOT_FOUND" || p.Code == "METHOD_NOT_ALLOWED") {
			return fmt.Errorf("%w: %w", errNoEvents, err) // a look tells what it is
		}
		return cmp.Or(silent(ctx), err)
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != eventStreamType {
		return errNoEvents
	}
	lines := 0
	s := &eventStream{body: res.Body, retry: w.retry, line: func() {
		lines++
		silence.Reset(nextLineWait)
		w.hear()
	}}
	for e, err := range s.events() {
		var v T
		if err == nil {
			if err = json.Unmarshal(e.data, &v); err != nil {
				return fmt.Errorf("%w (%s): %w", errBadEvent, r.what(), err)
			}
		}
		switch {
		case errors.Is(err, bufio.ErrTooLong):
			return fmt.Errorf("%w (%s): %w", errBadEvent, r.what(), err)
		case err != nil && lines == 0:
			return cmp.Or(silent(ctx), err)
		case err != nil:
			return nil
		}
		w.retry = s.retry
		silence.Stop() // whoever listens may take his time
		w.seen = e.id
		if w.tell(v, e.name == w.last); w.enough {
			return nil
		}
		silence.Reset(nextLineWait)
	}
	if lines == 0 {
		return cmp.Or(silent(ctx), errNoEvents)
	}
	return nil
}

// silent is errNoEvents when a stream was given up because nothing came of it.
func silent(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errNoEvents) {
		return errNoEvents
	}
	return nil
}
