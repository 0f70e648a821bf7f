package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

const (
	eventStreamType = "text/event-stream"
	// eventWait bounds how long a reader of events may stand still.
	eventWait = 10 * time.Second
	// eventBeat is how often a stream without news shows that it is alive, before
	// anything in between takes it for dead.
	eventBeat = 15 * time.Second
	// eventRetry is how long a reader that was cut off should wait.
	eventRetry = 2 * time.Second
)

// eventStream writes server-sent events. Each write has its own deadline, so
// that a reader who stands still does not hold a goroutine for ever.
type eventStream struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	err error // the first; nothing is written after it
}

// newEventStream begins a stream.
func newEventStream(w http.ResponseWriter) *eventStream {
	h := w.Header()
	h.Set("Content-Type", eventStreamType)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	s := &eventStream{w: w, rc: http.NewResponseController(w)}
	s.write(fmt.Sprintf("retry: %d\n\n", eventRetry.Milliseconds()))
	return s
}

// send writes an event.
func (s *eventStream) send(event, id string, data any) {
	text, err := json.Marshal(data)
	if err != nil { // what is sent are structs of texts, numbers and times
		panic(err)
	}
	s.write(fmt.Sprintf("event: %s\nid: %s\ndata: %s\n\n", event, id, text))
}

// beat writes a comment.
func (s *eventStream) beat() { s.write(": beat\n\n") }

func (s *eventStream) write(text string) {
	if s.err != nil {
		return
	}
	// Not every writer has deadlines; without one the server's own bound holds.
	_ = s.rc.SetWriteDeadline(time.Now().Add(eventWait))
	if _, s.err = s.w.Write([]byte(text)); s.err == nil {
		s.err = s.rc.Flush()
	}
}
