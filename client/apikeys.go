package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// APIKey is an API key, without its secret but in the answer that makes it.
type APIKey struct {
	ID     string `json:"id"`
	Name   string `json:"name"`   // whose it is, or what for
	Prefix string `json:"prefix"` // how it begins
	Role   string `json:"role"`   // viewer, issuer, operator or admin
	// Key is the key itself: only what CreateAPIKey returns has it.
	Key        string     `json:"key,omitempty"`
	CreatedAt  time.Time  `json:"createdAt"`
	CreatedBy  string     `json:"createdBy"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`  // nil: never
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty"` // to the minute; nil: never
	RevokedAt  *time.Time `json:"revokedAt,omitempty"`  // nil: it is not
	RevokedBy  string     `json:"revokedBy,omitempty"`
}

// NewAPIKey is an API key to be made.
type NewAPIKey struct {
	Name      string     `json:"name"`
	Role      string     `json:"role"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"` // nil: never
}

// CreateAPIKey makes an API key. Its text is in the answer, and never again.
func (c *Client) CreateAPIKey(ctx context.Context, k NewAPIKey) (APIKey, error) {
	var out APIKey
	body, header, err := jsonBody(k)
	if err != nil {
		return out, err
	}
	err = c.call(ctx, request{method: http.MethodPost, path: []string{"v1", "api-keys"}, header: header, body: body}, &out)
	return out, err
}

// APIKeys walks over the API keys, the newest first. It ends after the first
// error.
func (c *Client) APIKeys(ctx context.Context) iter.Seq2[APIKey, error] {
	return pages[APIKey](ctx, c, []string{"v1", "api-keys"}, url.Values{})
}

// RevokeAPIKey revokes an API key for good: every instance refuses it within a
// second.
func (c *Client) RevokeAPIKey(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: []string{"v1", "api-keys", id}}, nil)
}
