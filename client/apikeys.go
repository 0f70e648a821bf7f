package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// APIKey is an API key. Only the result of CreateAPIKey has its secret.
type APIKey struct {
	ID         string     `json:"id"`
	Name       string     `json:"name" doc:"Recorded as the actor"`
	Prefix     string     `json:"prefix"` // first characters of the secret
	Role       string     `json:"role" enum:"viewer,issuer,campaigner,approver,operator,admin"`
	Key        string     `json:"key,omitempty" doc:"Only in the response that creates it"`
	Notice     string     `json:"notice,omitempty" doc:"In a repeated response: why it has no key"`
	CreatedAt  time.Time  `json:"createdAt"`
	CreatedBy  string     `json:"createdBy"`
	ExpiresAt  *time.Time `json:"expiresAt,omitempty"`  // nil: never
	LastUsedAt *time.Time `json:"lastUsedAt,omitempty"` // precise to a minute; nil: never
	RevokedAt  *time.Time `json:"revokedAt,omitempty"`  // nil: not revoked
	RevokedBy  string     `json:"revokedBy,omitempty"`
}

// NewAPIKey describes an API key to create.
type NewAPIKey struct {
	Name      string     `json:"name" minLength:"1" maxLength:"200"`
	Role      string     `json:"role" enum:"viewer,issuer,campaigner,approver,operator,admin"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"` // nil: never
}

// CreateAPIKey creates an API key. Only this result has the secret.
func (c *Client) CreateAPIKey(ctx context.Context, k NewAPIKey) (APIKey, error) {
	return post[APIKey](ctx, c, k, "v1", "api-keys")
}

// APIKeys iterates over the API keys, newest first.
func (c *Client) APIKeys(ctx context.Context) iter.Seq2[APIKey, error] {
	return pages[APIKey](ctx, c, []string{"v1", "api-keys"}, url.Values{})
}

// RevokeAPIKey revokes an API key permanently. Every instance refuses it within
// a second.
func (c *Client) RevokeAPIKey(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: []string{"v1", "api-keys", id}}, nil)
}
