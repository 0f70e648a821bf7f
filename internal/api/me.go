package api

import (
	"context"
	"net/http"
	"time"
)

// Me is the caller of a request.
type Me struct {
	Name      string    `json:"name"`
	Role      string    `json:"role" enum:"viewer,issuer,operator,admin,shopper"`
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
}

type meOutput struct {
	Body Me
}

// Setting is one setting of the instance that answers.
type Setting struct {
	Name   string `json:"name" example:"money.timeout"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

type settingListOutput struct {
	Body struct {
		Items []Setting `json:"items" nullable:"false"`
	}
}

func (a *API) addMe() {
	call(a, operation{
		id: "get-me", method: http.MethodGet, path: "/v1/me", tag: "api-keys", roles: everyRole,
		summary: "Show who the caller is",
	}, func(ctx context.Context, _ *struct{}) (*meOutput, error) {
		c := callerOf(ctx)
		return &meOutput{Body: Me{Name: c.Name, Role: string(c.Role), ExpiresAt: c.ExpiresAt.UTC()}}, nil
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
