package client

import "context"

type idempotencyKey struct{}

// WithIdempotencyKey makes the calls under ctx that create something safe to
// repeat: for 24 hours the same call under the same key answers the same and
// makes nothing new. Take a new key, 1 to 255 ASCII characters such as a UUID,
// for each thing that is to be made.
func WithIdempotencyKey(ctx context.Context, key string) context.Context {
	return context.WithValue(ctx, idempotencyKey{}, key)
}
