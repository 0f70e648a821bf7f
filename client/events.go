package client

import (
	"bufio"
	"bytes"
	"io"
	"iter"
	"strconv"
	"time"
)

const (
	eventStreamType = "text/event-stream"
	// eventLineMax limits one line of an event stream, in bytes.
	eventLineMax = 1 << 20
	// eventRetryMin is the shortest interval that a server can request.
	eventRetryMin = 100 * time.Millisecond
)

// event is one server-sent event.
type event struct {
	name string
	id   string // latest ID that the stream named; empty: none
	data []byte
}

// eventStream reads server-sent events.
type eventStream struct {
	body io.Reader
	// line is called for each line that arrives, including comments.
	line func()
	// retry is the interval before a reconnect that the server named last.
	retry time.Duration
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
