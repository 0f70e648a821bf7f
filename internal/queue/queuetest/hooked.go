package queuetest

import (
	"context"

	"github.com/largesse/largesse/internal/queue"
)

// Hooked is a queue whose calls about a stream a test watches, delays or refuses.
type Hooked struct {
	queue.Queue
	// Before runs before each call. If it returns an error, the call returns that error
	// and does nothing else.
	Before func(ctx context.Context, call string, s queue.Stream) error
}

// hooked runs a call after its hook.
func hooked[T any](ctx context.Context, h *Hooked, name string, s queue.Stream, call func() (T, error)) (out T, err error) {
	if err := h.Before(ctx, name, s); err != nil {
		return out, err
	}
	return call()
}

// Add implements queue.Queue.
func (h *Hooked) Add(ctx context.Context, p queue.AddParams) (int, error) {
	return hooked(ctx, h, "Add", p.Stream, func() (int, error) { return h.Queue.Add(ctx, p) })
}

// Create implements queue.Queue.
func (h *Hooked) Create(ctx context.Context, s queue.Stream, consumers []string) (bool, error) {
	return hooked(ctx, h, "Create", s, func() (bool, error) { return h.Queue.Create(ctx, s, consumers) })
}

// Read implements queue.Queue.
func (h *Hooked) Read(ctx context.Context, s queue.Stream, reads []queue.ReadParams) ([]queue.Entry, error) {
	return hooked(ctx, h, "Read", s, func() ([]queue.Entry, error) { return h.Queue.Read(ctx, s, reads) })
}

// Claim implements queue.Queue.
func (h *Hooked) Claim(ctx context.Context, p queue.ClaimParams) (queue.Claimed, error) {
	return hooked(ctx, h, "Claim", p.Stream, func() (queue.Claimed, error) { return h.Queue.Claim(ctx, p) })
}

// Extend implements queue.Queue.
func (h *Hooked) Extend(ctx context.Context, s queue.Stream, consumer string, ids []string) ([]string, error) {
	return hooked(ctx, h, "Extend", s, func() ([]string, error) { return h.Queue.Extend(ctx, s, consumer, ids) })
}

// Ack implements queue.Queue.
func (h *Hooked) Ack(ctx context.Context, s queue.Stream, ids []string) error {
	_, err := hooked(ctx, h, "Ack", s, func() (struct{}, error) { return struct{}{}, h.Queue.Ack(ctx, s, ids) })
	return err
}

// RemoveConsumer implements queue.Queue.
func (h *Hooked) RemoveConsumer(ctx context.Context, s queue.Stream, consumer, heir string) (bool, error) {
	return hooked(ctx, h, "RemoveConsumer", s, func() (bool, error) { return h.Queue.RemoveConsumer(ctx, s, consumer, heir) })
}

// Destroy implements queue.Queue.
func (h *Hooked) Destroy(ctx context.Context, s queue.Stream) (bool, error) {
	return hooked(ctx, h, "Destroy", s, func() (bool, error) { return h.Queue.Destroy(ctx, s) })
}

// Consumers implements queue.Queue.
func (h *Hooked) Consumers(ctx context.Context, s queue.Stream) ([]queue.ConsumerInfo, error) {
	return hooked(ctx, h, "Consumers", s, func() ([]queue.ConsumerInfo, error) { return h.Queue.Consumers(ctx, s) })
}

// Info implements queue.Queue.
func (h *Hooked) Info(ctx context.Context, s queue.Stream) (queue.Info, error) {
	return hooked(ctx, h, "Info", s, func() (queue.Info, error) { return h.Queue.Info(ctx, s) })
}
