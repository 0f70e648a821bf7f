package auth

import "context"

// The values of the setting auth.mode: how callers prove who they are. With
// ModeNone nobody has to, so only a loopback address may be listened on.
const (
	ModeNone   = "none"
	ModeAPIKey = "apikey"
	ModeJWT    = "jwt" // or an API key
)

type inProcessKey struct{}

// InProcess returns a context for requests of the program that embeds the instance: its
// caller is an admin. No request from a network has such a context.
func InProcess(ctx context.Context) context.Context {
	return context.WithValue(ctx, inProcessKey{}, true)
}

// IsInProcess reports whether ctx comes from InProcess.
func IsInProcess(ctx context.Context) bool { return ctx.Value(inProcessKey{}) != nil }
