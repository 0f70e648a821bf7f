// Package obs is how Largesse is seen from outside: one log format, always
// with a component, a stage and the ids that matter.
package obs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
)

// Component names the part of Largesse that a line comes from.
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
)

// Stage says what has just happened.
type Stage = string

// The stages.
const (
	Started       Stage = "started"
	Stopped       Stage = "stopped"
	Stopping      Stage = "stopping"
	GroupCreated  Stage = "group-created"
	AlreadyActive Stage = "already-active"
	Enqueued      Stage = "enqueued"
	Received      Stage = "received"
	Saved         Stage = "saved"
	Processed     Stage = "processed"
	Retried       Stage = "retried"
	Failed        Stage = "failed"
	Claimed       Stage = "claimed"
	GivenBack     Stage = "given-back"
	Swept         Stage = "swept"
	Settled       Stage = "settled"
	IdleStop      Stage = "idle-stop"
	Completed     Stage = "completed"
	Paused        Stage = "paused"
	Judged        Stage = "judged"
	CleanedUp     Stage = "cleaned-up"
	CleanupFailed Stage = "cleanup-failed"
	DeadLettered  Stage = "dead-lettered"
	Unbalanced    Stage = "unbalanced"
	Balanced      Stage = "balanced"
	Told          Stage = "told"
	GivenUp       Stage = "given-up"
	Unavailable   Stage = "unavailable"
	Recovered     Stage = "recovered"
	Loaded        Stage = "loaded"
)

// Log writes lines of one component. The zero Log writes nothing.
// [CampaignPromotionLogFormat]
type Log struct {
	slog *slog.Logger
}

// NewLog makes a Log that writes to w. level is debug, info, warn or error;
// format is text or json.
func NewLog(w io.Writer, level, format string) (Log, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return Log{}, fmt.Errorf("log.level %q is none of debug, info, warn, error", level)
	}
	opts := &slog.HandlerOptions{Level: l}
	switch strings.ToLower(format) {
	case "text":
		return Log{slog.New(slog.NewTextHandler(w, opts))}, nil
	case "json":
		return Log{slog.New(slog.NewJSONHandler(w, opts))}, nil
	}
	return Log{}, fmt.Errorf("log.format %q is neither text nor json", format)
}

// For returns the Log of a component.
func (l Log) For(c Component) Log {
	if l.slog == nil {
		return l
	}
	return Log{l.slog.With("component", string(c))}
}

// Info tells of the normal course. attrs are pairs: promotion_id,
// target_id, consumer, count, …
func (l Log) Info(s Stage, attrs ...any) { l.write(slog.LevelInfo, s, attrs) }

// Debug tells of single items.
func (l Log) Debug(s Stage, attrs ...any) { l.write(slog.LevelDebug, s, attrs) }

// Warn tells of something that heals by itself but should be known.
func (l Log) Warn(s Stage, err error, attrs ...any) {
	l.write(slog.LevelWarn, s, append(slices.Clip(attrs), "error", err))
}

// Error tells of something that a person has to look at.
func (l Log) Error(s Stage, err error, attrs ...any) {
	l.write(slog.LevelError, s, append(slices.Clip(attrs), "error", err))
}

func (l Log) write(level slog.Level, s Stage, attrs []any) {
	if l.slog == nil {
		return
	}
	l.slog.Log(context.Background(), level, s, attrs...)
}
