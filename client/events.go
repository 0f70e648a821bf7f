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
	// eventLineMax bounds one line of a stream of events, in bytes.
	eventLineMax = 1 << 20
	// eventRetryLeast is the least pause that a server can ask for.
	eventRetryLeast = 100 * time.Millisecond
)

// event is one server-sent event.
type event struct {
	name string
	id   string // the latest that the stream has named; empty: none
	data []byte
}

// eventStream reads server-sent events.
type eventStream struct {
	body io.Reader
	// line is called for each line that comes, comments among them.
	line func()
	// retry is how long to wait after a cut, as the server has said last.
	retry time.Duration
}

// events reads until the stream ends.
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
					s.retry = max(time.Duration(millis)*time.Millisecond, eventRetryLeast)
				}
			case "": // an empty line ends an event; a comment looks the same here
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
