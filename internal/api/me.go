package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// Me is the caller of a request.
type Me struct {
	Name      string    `json:"name" doc:"Name in the audit: that of the API key, the token's subject, or the caller's own claim if auth.mode is none"`
	Role      string    `json:"role" enum:"viewer,issuer,operator,admin,shopper"`
	ExpiresAt time.Time `json:"expiresAt,omitzero" doc:"When the API key or token expires; absent: never"`
}

type meOutput struct {
	Body Me
}

// Setting is one setting of the instance that answers.
type Setting struct {
	Name   string `json:"name" example:"money.timeout"`
	Value  string `json:"value" doc:"As in an environment variable; secrets are masked"`
	Source string `json:"source" doc:"default, or the file with its line, the environment variable or the flag that set it"`
}

type settingListOutput struct {
	Body struct {
		Items []Setting `json:"items" nullable:"false" doc:"All settings, in the order of docs/settings.md"`
	}
}

func (a *API) addMe() {
	call(a, huma.Operation{
		OperationID: "get-me", Method: http.MethodGet, Path: "/v1/me", Tags: []string{"api-keys"},
		Summary: "Show who the caller is, and what the caller may do",
	}, func(ctx context.Context, _ *struct{}) (*meOutput, error) {
		c := callerOf(ctx)
		return &meOutput{Body: Me{Name: c.Name, Role: string(c.Role), ExpiresAt: c.ExpiresAt.UTC()}}, nil
	})
	call(a, huma.Operation{
		OperationID: "list-settings", Method: http.MethodGet, Path: "/v1/settings", Tags: []string{"instances"},
		Summary: "List the settings of the instance that answers, with secrets masked",
	}, func(context.Context, *struct{}) (*settingListOutput, error) {
		out := &settingListOutput{}
		out.Body.Items = a.cfg.Settings
		return out, nil
	})
}
