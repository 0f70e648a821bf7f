package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
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
	call(a, huma.Operation{
		OperationID: "get-me", Method: http.MethodGet, Path: "/v1/me", Tags: []string{"api-keys"},
		Summary: "Show who the caller is",
	}, func(ctx context.Context, _ *struct{}) (*meOutput, error) {
		c := callerOf(ctx)
		return &meOutput{Body: Me{Name: c.Name, Role: string(c.Role), ExpiresAt: c.ExpiresAt.UTC()}}, nil
	})
	call(a, huma.Operation{
		OperationID: "list-settings", Method: http.MethodGet, Path: "/v1/settings", Tags: []string{"instances"},
		Summary: "List settings",
	}, func(context.Context, *struct{}) (*settingListOutput, error) {
		out := &settingListOutput{}
		out.Body.Items = a.cfg.Settings
		return out, nil
	})
}
