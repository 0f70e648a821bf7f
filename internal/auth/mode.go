package auth

// The values of the setting auth.mode: how callers prove who they are. With
// ModeNone nobody has to, so only a loopback address may be listened on.
const (
	ModeNone   = "none"
	ModeAPIKey = "apikey"
	ModeJWT    = "jwt" // or an API key
)
