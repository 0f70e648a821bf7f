// Largesse issues rewards at scale: one binary that serves, and that talks to
// a server.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// signalEcho is how long after the first signal another one is taken for the
// same.
const signalEcho = 200 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for an orderly end. From then on signals do what
	// they do by default, so the second one leaves at once; but for a moment, as
	// whoever signals a process and its group sends the same one twice.
	context.AfterFunc(ctx, func() { time.AfterFunc(signalEcho, stop) })
	// Without this a write to a closed pipe, as in "demo | head", would end the
	// process at once; so it is an error, and whatever has to be tidied is.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(ctx, os.Args[1:], world{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), patience: serverPatience,
	}))
}
