package fleet

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// TestRelay sends lines through a relay to a server that echoes them.
func TestRelay(t *testing.T) {
	t.Parallel()
	echo, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	relay, err := NewRelay(t.Context(), echo.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(relay.Close)
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := new(net.Dialer).DialContext(context.Background(), "tcp", relay.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c, bufio.NewReader(c)
	}
	send := func(c net.Conn, line string) {
		t.Helper()
		if _, err := io.WriteString(c, line); err != nil {
			t.Fatal(err)
		}
	}
	want := func(r *bufio.Reader, line string) {
		t.Helper()
		if got, err := r.ReadString('\n'); err != nil || got != line {
			t.Fatalf("%q, %v; want %q", got, err, line)
		}
	}
	first, answers := dial()
	send(first, "one\n")
	want(answers, "one\n")

	relay.Hang()
	send(first, "two\n")
	second, others := dial()
	send(second, "three\n")
	for _, c := range []net.Conn{first, second} {
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%d bytes, %v from a relay that hangs", n, err)
		}
		_ = c.SetReadDeadline(time.Time{})
	}
	relay.Resume()
	want(answers, "two\n")
	want(others, "three\n")

	relay.Close()
	if _, err := answers.ReadString('\n'); err == nil {
		t.Error("a connection survived Close")
	}
}
