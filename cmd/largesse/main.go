// Command largesse runs a Largesse server, and talks to one.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const signalEcho = 200 * time.Millisecond // after the first signal, in which further ones count as the same

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal starts an orderly shutdown. After it, restore the
	// default, so that the second signal exits at once. Wait a moment before: a
	// sender that signals a process and its group delivers the same signal
	// twice.
	context.AfterFunc(ctx, func() { time.AfterFunc(signalEcho, stop) })
	// Without this, writing to a closed pipe, as in "demo | head", kills the
	// process. Now it is an error, and the process can clean up.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(ctx, os.Args[1:], world{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), patience: serverPatience,
	}))
}
