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

// ActorHeader names who acts where auth.mode is none: nothing proves it.
const ActorHeader = "Largesse-Actor"

const (
	// actorAnonymous is who acts when nobody is named.
	actorAnonymous = "anonymous"
	actorMax       = 200 // characters
)

// claimedActor reads who says to act, and refuses a name that could not be kept
// or shown.
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

// actorParam describes the header for calls that change something.
func actorParam() *huma.Param {
	low, high := 1, actorMax
	return &huma.Param{
		Name: ActorHeader, In: "header",
		Description: "Who acts, kept as createdBy, approvedBy, settledBy and in attempts; anonymous when absent. It counts only while auth.mode is none, where nothing proves it; otherwise the key or token says who acts",
		Schema:      &huma.Schema{Type: huma.TypeString, MinLength: &low, MaxLength: &high},
	}
}
