package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"
)

// WatchOptions holds the optional settings of a watch.
type WatchOptions struct {
	// Every is the interval between two reads where the server's events do not
	// arrive, for example behind a proxy that buffers them; 0: 1 second.
	Every    time.Duration
	Patience time.Duration // time without a response, after the first one; 0: 30 seconds
	// Waiting, if set, is called with the reason each time the server does not
	// answer, before the next attempt, and with nil when it answers again. The
	// goroutine that ranges over the watch calls it.
	Waiting func(err error)
}

const (
	watchEvery    = time.Second
	watchPatience = 30 * time.Second
	firstLineWait = 10 * time.Second       // silence at the start of an event stream: a server sends its first event at once
	nextLineWait  = 45 * time.Second       // silence afterwards: three times the longest one of a server
	streamTries   = 3                      // streams that may fail in a row while reads succeed
	retryDefault  = 2 * time.Second        // before a reconnect, unless the server named an interval
	againFirst    = 100 * time.Millisecond // backoff while the server does not answer
	againMax      = 5 * time.Second
)

var (
	errNoEvents = errors.New("the server's events do not arrive") // the server is older, or something in between blocks them
	errBadEvent = errors.New("parsing the server's events")
)

// watching is one watch of a T.
type watching[T any] struct {
	WatchOptions
	client *Client
	path   []string     // path of the object; its events are below it
	last   string       // name of the last event
	ended  func(T) bool // reports whether the object changes no more
	yield  func(T, error) bool

	told    *T            // latest yielded value
	enough  bool          // whether the caller has stopped the iteration, or it is complete
	seen    string        // ID of the latest event
	retry   time.Duration // interval before a reconnect
	heard   time.Time     // time of the latest response; zero: none
	waiting bool          // whether Waiting was called with an error
}

// watch follows an object through the server's events, and reads it at an
// interval where the events do not arrive.
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

// run watches until the end and returns why. Nil: the object has reached its
// end, or the caller has stopped.
func (w *watching[T]) run(ctx context.Context) error {
	streams, failed := true, 0 // streams in a row that failed while reads succeeded
	again := againFirst
	for {
		var err error
		pause := w.Every
		if streams {
			if err = w.stream(ctx); err == nil {
				failed = 0
				pause = w.retry/2 + rand.N(w.retry) //nolint:gosec // spreads the reconnects of many clients; not a secret
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
			again = min(2*again, againMax)
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

// final reports whether an error is permanent.
func final(err error) bool {
	p, ok := errors.AsType[*Problem](err)
	again := []int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}
	return ok && p.Status < http.StatusInternalServerError && !slices.Contains(again, p.Status)
}

// retryAfter returns the time that the server asks to wait.
func retryAfter(err error) time.Duration {
	if p, ok := errors.AsType[*Problem](err); ok {
		return min(p.RetryAfter, watchPatience)
	}
	return 0
}

// mayBeEvents reports whether only event streams may fail in this way, so that
// a read may succeed. Errors of the server itself are excluded.
func mayBeEvents(err error) bool {
	var p *Problem
	return errors.Is(err, errNoEvents) || errors.Is(err, errBadEvent) || errors.As(err, &p) && p.Code == "" && p.Status >= http.StatusInternalServerError
}

// hear records a response of the server.
func (w *watching[T]) hear() {
	w.heard = time.Now()
	if w.waiting {
		w.waiting = false
		w.Waiting(nil)
	}
}

// tellWaiting calls Waiting because the server does not answer.
func (w *watching[T]) tellWaiting(err error) {
	if w.Waiting != nil {
		w.waiting = true
		w.Waiting(err)
	}
}

// tell yields a value that was not yielded yet. last reports that it is the
// final one.
func (w *watching[T]) tell(v T, last bool) {
	if w.told == nil || !reflect.DeepEqual(*w.told, v) {
		w.told = &v
		w.enough = !w.yield(v, nil)
	}
	w.enough = w.enough || last
}

func (w *watching[T]) look(ctx context.Context) error {
	v, err := get[T](ctx, w.client, w.path...)
	if err == nil {
		w.hear()
		w.tell(v, w.ended(v))
	}
	return err
}

// stream yields the events of a stream until it ends. Nil: the connection was
// lost.
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
			return fmt.Errorf("%w: %w", errNoEvents, err) // a read shows which
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
		silence.Stop() // the caller may take its time
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

// silent returns errNoEvents if the stream was abandoned because it was silent.
func silent(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), errNoEvents) {
		return errNoEvents
	}
	return nil
}

const (
	eventStreamType = "text/event-stream"
	eventLineMax    = 1 << 20                // bytes of one line
	eventRetryMin   = 100 * time.Millisecond // the shortest interval that a server can request
)

// event is one server-sent event.
type event struct {
	name string
	id   string // latest ID that the stream named; empty: none
	data []byte
}

// eventStream reads server-sent events.
type eventStream struct {
	body  io.Reader
	line  func()        // called for each line that arrives, including comments
	retry time.Duration // before a reconnect, as the server named it last
}

// events iterates over the events until the stream ends.
func (s *eventStream) events() iter.Seq2[event, error] {
	return func(yield func(event, error) bool) {
		lines := bufio.NewScanner(s.body)
		lines.Buffer(nil, eventLineMax)
		var e event
		for lines.Scan() {
			s.line()
			name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch string(name) {
			case "event":
				e.name = string(value)
			case "data":
				e.data = append(e.data, value...)
			case "id":
				e.id = string(value)
			case "retry":
				if millis, err := strconv.ParseUint(string(value), 10, 16); err == nil {
					s.retry = max(time.Duration(millis)*time.Millisecond, eventRetryMin)
				}
			case "": // an empty line ends an event; a comment has no name either
				if len(lines.Bytes()) > 0 {
					continue
				}
				if len(e.data) > 0 && !yield(e, nil) {
					return
				}
				e = event{id: e.id}
			}
		}
		if err := lines.Err(); err != nil {
			yield(event{}, err)
		}
	}
}
