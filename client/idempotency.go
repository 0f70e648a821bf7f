package client

import "context"

type idempotencyKey struct{}

// WithIdempotencyKey returns a context whose creating calls are safe to repeat:
// for 24 hours, the same call with the same key gets the same response and
// creates nothing new. Use a new key, 1 to 255 ASCII characters such as a UUID,
// for each object to create.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, key)
}
