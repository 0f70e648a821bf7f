package client

import (
	"bufio"
	"bytes"
	"io"
	"iter"
)

const (
	eventStreamType = "text/event-stream"
	// eventLineMax bounds one line of a stream of events, in bytes.
	eventLineMax = 1 << 20
)

// event is one server-sent event.
type event struct {
	name string
	data []byte
}

// events reads server-sent events until the stream ends. What is neither a name
// nor data is for readers that connect again by themselves.
func events(stream io.Reader) iter.Seq2[event, error] {
	return func(yield func(event, error) bool) {
		lines := bufio.NewScanner(stream)
		lines.Buffer(nil, eventLineMax)
		var e event
		for lines.Scan() {
			name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
			value = bytes.TrimPrefix(value, []byte(" "))
			switch string(name) {
			case "event":
				e.name = string(value)
			case "data":
				e.data = append(e.data, value...)
			case "": // an empty line ends an event; a comment looks the same here
				if len(lines.Bytes()) > 0 {
					continue
				}
				if len(e.data) > 0 && !yield(e, nil) {
					return
				}
				e = event{}
			}
		}
		if err := lines.Err(); err != nil {
			yield(event{}, err)
		}
	}
}
