package api

import (
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/web"
)

// ActorHeader names the actor if auth.mode is none. Nothing verifies it.
const ActorHeader = "Largesse-Actor"

const (
	// actorAnonymous is the actor if the header is absent.
	actorAnonymous = "anonymous"
	actorMax       = 200 // characters
)

// claimedActor returns the actor that the header names. It refuses a name that
// cannot be stored or shown.
func claimedActor(r *http.Request) (string, error) {
	given := r.Header.Values(ActorHeader)
	if len(given) == 0 {
		return actorAnonymous, nil
	}
	name := strings.TrimSpace(given[0])
	if n := utf8.RuneCountInString(name); len(given) > 1 || n < 1 || n > actorMax || !utf8.ValidString(name) ||
		strings.ContainsFunc(name, unicode.IsControl) {
		return "", web.Malformed(ActorHeader, fmt.Sprintf("must be one name of 1 to %d characters in UTF-8", actorMax))
	}
	return name, nil
}

// actorParam describes the header for operations that change something.
func actorParam() *huma.Param {
	low, high := 1, actorMax
	return &huma.Param{
		Name: ActorHeader, In: "header",
		Description: "Name of the actor, recorded as createdBy, approvedBy, settledBy and in attempts; anonymous if absent. It counts only if auth.mode is none, and nothing verifies it; otherwise the API key or token names the actor",
		Schema:      &huma.Schema{Type: huma.TypeString, MinLength: &low, MaxLength: &high},
	}
}
