package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

func apiKeyOf(k store.APIKey) *client.APIKey {
	return &client.APIKey{
		ID: strconv.FormatInt(k.ID, 10), Name: k.Name, Prefix: k.Prefix, Role: k.Role, CreatedAt: k.CreatedAt.UTC(), CreatedBy: k.CreatedBy,
		ExpiresAt: timeOf(k.ExpiresAt), LastUsedAt: timeOf(k.LastUsedAt), RevokedAt: timeOf(k.RevokedAt), RevokedBy: k.RevokedBy,
	}
}

// CreateAPIKey is the body of POST /v1/api-keys.
type CreateAPIKey struct{ client.NewAPIKey }

// Resolve checks what the schema cannot express.
func (b *CreateAPIKey) Resolve(huma.Context) []error {
	// createAPIKey checks that expiresAt is in the future: a later repeat under the
	// same idempotency key must get the same response.
	return fieldErrors(auth.CheckNewKey(b.Name, b.Role, b.ExpiresAt, time.Time{}))
}

type apiKeyCreateInput struct {
	Body CreateAPIKey
}

type apiKeyOutput struct {
	Body *client.APIKey
}

func (o *apiKeyOutput) withoutSecret() any {
	k := *o.Body
	k.Key, k.Notice = "", "only the first response to this request had the key, which is kept nowhere: if you have lost it, revoke this key and create another"
	return &apiKeyOutput{Body: &k}
}

type apiKeyIDInput struct {
	ID string `path:"id"`
}

func (a *API) addAPIKeys() {
	const path = "/v1/api-keys"
	const tag = "api-keys"
	call(a, operation{
		id: "create-api-key", method: http.MethodPost, path: path, tag: tag, roles: admins, creates: true,
		summary: "Create an API key", status: http.StatusCreated,
		description: "No other key that is in use may have the name.",
		errors:      []string{reward.CodeKeyNameTaken},
		example:     tree{"name": "till 4", "role": "issuer"},
	}, a.createAPIKey)
	call(a, operation{
		id: "list-api-keys", method: http.MethodGet, path: path, tag: tag, roles: admins,
		summary: "List API keys",
	}, a.listAPIKeys)
	call(a, operation{
		id: "revoke-api-key", method: http.MethodDelete, path: path + "/{id}", tag: tag, roles: admins,
		summary: "Revoke an API key", status: http.StatusNoContent,
		errors: []string{reward.CodeAPIKeyNotFound},
	}, a.revokeAPIKey)
}

func (a *API) createAPIKey(ctx context.Context, in *apiKeyCreateInput) (*apiKeyOutput, error) {
	now := time.Now()
	if wrong := auth.CheckNewKey(in.Body.Name, in.Body.Role, in.Body.ExpiresAt, now); len(wrong) > 0 {
		return nil, web.Invalid(wrong[0].Field, wrong[0].Detail)
	}
	id, err := a.secretID(ctx, func(crashed int64) error {
		_, err := a.cfg.Rows.APIKeyRevoke(ctx, crashed, actor(ctx), time.Now())
		return err
	})
	if err != nil {
		return nil, err
	}
	known, err := a.cfg.Rows.APIKeyMakers(ctx)
	if err == nil {
		err = auth.CheckNameFree(in.Body.Name, known, now)
	}
	if err != nil {
		return nil, err
	}
	key, text := auth.NewKey(id, in.Body.Name, auth.Role(in.Body.Role), actor(ctx), in.Body.ExpiresAt, now)
	if err := a.cfg.Rows.APIKeyCreate(ctx, key); err != nil {
		return nil, err
	}
	a.log.Info("API key created", "api_key", key.Prefix, "role", key.Role, "actor", key.CreatedBy)
	out := &apiKeyOutput{Body: apiKeyOf(key)}
	out.Body.Key = string(text)
	return out, nil
}

func (a *API) listAPIKeys(ctx context.Context, in *PageInput) (*output[listOf[*client.APIKey]], error) {
	read := func(before int64, limit int) ([]store.APIKey, error) {
		return a.cfg.Rows.APIKeyList(ctx, before, limit)
	}
	return pageByID(*in, cursorAPIKeys, read, apiKeyOf, func(k store.APIKey) int64 { return k.ID })
}

func (a *API) revokeAPIKey(ctx context.Context, in *apiKeyIDInput) (*struct{}, error) {
	id, err := web.IDOf("API key", in.ID)
	if err != nil {
		return nil, web.Malformed("id", err.Error())
	}
	key, err := a.cfg.Rows.APIKeyRevoke(ctx, id, actor(ctx), time.Now())
	if err != nil {
		return nil, err
	}
	a.log.Info("API key revoked", "api_key", key.Prefix, "role", key.Role, "actor", key.RevokedBy)
	return nil, nil //nolint:nilnil // the response has no body
}

type settingListOutput struct {
	Body struct {
		Items []client.Setting `json:"items" nullable:"false"`
	}
}

func (a *API) addMe() {
	call(a, operation{
		id: "get-me", method: http.MethodGet, path: "/v1/me", tag: "api-keys", roles: everyRole,
		summary: "Show who the caller is",
	}, func(ctx context.Context, _ *struct{}) (*output[client.Me], error) {
		c := callerOf(ctx)
		return &output[client.Me]{Body: client.Me{Name: c.Name, Role: string(c.Role), ExpiresAt: timeOf(c.ExpiresAt)}}, nil
	})
	call(a, operation{
		id: "list-settings", method: http.MethodGet, path: "/v1/settings", tag: "instances", roles: admins,
		summary: "List settings",
	}, func(context.Context, *struct{}) (*settingListOutput, error) {
		out := &settingListOutput{}
		out.Body.Items = a.cfg.Settings
		return out, nil
	})
}
