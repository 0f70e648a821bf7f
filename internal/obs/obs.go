// Package obs provides the logs and metrics of Largesse. Each log line has a
// component, a message and the IDs that it concerns.
package obs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Component names the part of Largesse that writes a log line.
type Component string

// The components.
const (
	Engine    Component = "engine"
	Manager   Component = "manager"
	Registry  Component = "registry"
	Producer  Component = "producer"
	Consumer  Component = "consumer"
	Poller    Component = "poller"
	Processor Component = "processor"
	Retry     Component = "retry"
	Feeder    Component = "feeder"
	Sweeper   Component = "sweeper"
	Settler   Component = "settler"
	Guard     Component = "guard"
	Listener  Component = "listener"
	Broker    Component = "broker"
	Money     Component = "money"
	Governor  Component = "governor"
	Balance   Component = "balance"
	Webhook   Component = "webhook"
	Coupons   Component = "coupons"
	Gate      Component = "gate"
	Issuer    Component = "issuer"
	API       Component = "api"
	Traces    Component = "traces"
)

// Log writes structured log lines. The zero Log discards them. A Log is safe
// for concurrent use.
type Log struct {
	slog    *slog.Logger // nil discards
	metrics *Metrics     // counts warnings and errors
}

// NewLog returns a Log that writes to w. The level is debug, info, warn or
// error; the format is text or json.
func NewLog(w io.Writer, level, format string) (Log, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return Log{}, fmt.Errorf("log.level %q is none of debug, info, warn, error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch strings.ToLower(format) {
	case "text":
		return FromSlog(slog.New(slog.NewTextHandler(w, opts))), nil
	case "json":
		return FromSlog(slog.New(slog.NewJSONHandler(w, opts))), nil
	}
	return Log{}, fmt.Errorf("log.format %q is neither text nor json", format)
}

// FromSlog returns a Log that writes to l. A nil logger discards every line.
func FromSlog(l *slog.Logger) Log { return Log{slog: l} }

// Counted returns a Log that counts its warnings and errors.
func (l Log) Counted(m *Metrics) Log { return Log{l.slog, m} }

// For returns a Log that adds the component to each line.
func (l Log) For(c Component) Log {
	if l.slog == nil {
		return l
	}
	return Log{l.slog.With("component", string(c)), l.metrics}
}

// Info reports normal operation. attrs are pairs of a snake_case name and a
// value: promotion_id, target_id, consumer, count.
func (l Log) Info(msg string, attrs ...any) { l.write(slog.LevelInfo, msg, attrs) }

// Debugs reports whether lines of Debug are written.
func (l Log) Debugs() bool {
	return l.slog != nil && l.slog.Enabled(context.Background(), slog.LevelDebug)
}

// Debug reports single items.
func (l Log) Debug(msg string, attrs ...any) { l.write(slog.LevelDebug, msg, attrs) }

// Warn reports a failure that Largesse recovers from automatically.
func (l Log) Warn(msg string, err error, attrs ...any) {
	l.write(slog.LevelWarn, msg, append(slices.Clip(attrs), "error", err))
}

// Error reports a failure that an operator must act on.
func (l Log) Error(msg string, err error, attrs ...any) {
	l.write(slog.LevelError, msg, append(slices.Clip(attrs), "error", err))
}

// Streak returns a function that logs consecutive failures of one activity,
// with an attribute for their number. Call it with the result of each attempt.
// It warns with the message failing at failure 1, 2, 4, 8 and so on. The first
// success after a failure ends the streak, and is logged with the message
// recovered unless that is empty. The function is safe for concurrent use.
func (l Log) Streak(failing, recovered string) func(err error, attrs ...any) {
	var failures atomic.Int64
	return func(err error, attrs ...any) {
		if err != nil {
			if n := failures.Add(1); n&(n-1) == 0 {
				l.write(slog.LevelWarn, failing, append(slices.Clip(attrs), "failures", n, "error", err))
			}
			return
		}
		if failures.Load() == 0 {
			return // the usual case takes no write
		}
		if n := failures.Swap(0); n > 0 && recovered != "" {
			l.write(slog.LevelInfo, recovered, append(slices.Clip(attrs), "failures", n))
		}
	}
}

// write logs a line for the caller of its caller.
func (l Log) write(level slog.Level, msg string, attrs []any) {
	ctx := context.Background()
	l.metrics.logged(level)
	if l.slog == nil || !l.slog.Enabled(ctx, level) {
		return
	}
	// Skip runtime.Callers, write and the method that called it, so that a
	// handler with AddSource names the line that logs.
	var pcs [1]uintptr
	runtime.Callers(3, pcs[:])
	record := slog.NewRecord(time.Now(), level, msg, pcs[0])
	record.Add(attrs...)
	_ = l.slog.Handler().Handle(ctx, record) // there is nowhere to report a failed log line
}
