package web

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
)

func TestAPanicEndsTheStreamAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text fixture.Buffer
		log := fixture.Must(obs.NewLog(&text, "error", "text"))(t)
		a := newRouter(log)
		local, remote := net.Pipe()
		ended := false
		a.streams.begin()
		a.streams.hold(local)
		go a.runStream(local, nil, nil, func(context.Context, *Stream) { panic("oops") }, func() { ended = true })
		if rest, err := io.ReadAll(remote); err != nil || string(rest) != "retry: 2000\n\n" {
			t.Errorf("%q, %v", rest, err)
		}
		synctest.Wait()
		if !ended || !strings.Contains(text.String(), "panic: oops") {
			t.Errorf("ended %v: %s", ended, text.String())
		}
		if streams, conns := a.OpenStreams(); streams != 0 || conns != 0 {
			t.Errorf("%d streams, %d connections", streams, conns)
		}
	})
}
