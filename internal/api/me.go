package api

import (
	"context"
	"net/http"

	"github.com/largesse/largesse/client"
)

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
