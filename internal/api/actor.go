package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
)

// ActorHeader names who acts, as long as auth.mode is none: nothing proves it.
const ActorHeader = "Largesse-Actor"

const (
	// actorAnonymous is who acts when nobody is named.
	actorAnonymous = "anonymous"
	actorMax       = 200 // characters
)

type actorKey struct{}

// actor returns who has sent the request that ctx belongs to.
func actor(ctx context.Context) string {
	if name, ok := ctx.Value(actorKey{}).(string); ok {
		return name
	}
	return actorAnonymous
}

// withActor puts who acts into the request's context, and refuses a name that
// could not be kept or shown.
func withActor(r *http.Request) (*http.Request, error) {
	given := r.Header.Values(ActorHeader)
	if len(given) == 0 {
		return r, nil
	}
	name := strings.TrimSpace(given[0])
	if n := utf8.RuneCountInString(name); len(given) > 1 || n < 1 || n > actorMax || !utf8.ValidString(name) ||
		strings.ContainsFunc(name, unicode.IsControl) {
		return r, malformed(ActorHeader, fmt.Sprintf("must be one name of 1 to %d characters in UTF-8", actorMax))
	}
	return r.WithContext(context.WithValue(r.Context(), actorKey{}, name)), nil
}

// actorParam describes the header for calls that change something.
func actorParam() *huma.Param {
	low, high := 1, actorMax
	return &huma.Param{
		Name: ActorHeader, In: "header",
		Description: "Who acts, kept as createdBy, approvedBy, settledBy and in attempts; anonymous when absent. Nothing proves it while auth.mode is none",
		Schema:      &huma.Schema{Type: huma.TypeString, MinLength: &low, MaxLength: &high},
	}
}
