package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/web"
)

// pingTimeout is the timeout for the database to answer.
const pingTimeout = 2 * time.Second

// Health is the body of a successful response of /healthz and /readyz.
type Health struct {
	Status   string        `json:"status" enum:"ok"`
	Degraded []string      `json:"degraded" nullable:"false"`
	Troubles []obs.Trouble `json:"troubles,omitempty" nullable:"false"`
}

type healthOutput struct {
	Body Health
}

func (a *API) addHealth() {
	tags := []string{"health"}
	call(a, huma.Operation{
		OperationID: "alive", Method: http.MethodGet, Path: "/healthz", Tags: tags,
		Summary: "Check that it runs",
	}, a.healthz)
	call(a, huma.Operation{
		OperationID: "ready", Method: http.MethodGet, Path: "/readyz", Tags: tags,
		Summary: "Check that it can serve",
	}, a.ready)
}

func (a *API) healthz(_ context.Context, _ *struct{}) (*healthOutput, error) {
	return &healthOutput{Body: Health{Status: "ok", Degraded: []string{}}}, nil
}

func (a *API) ready(ctx context.Context, _ *struct{}) (*healthOutput, error) {
	if a.IsDraining() {
		return nil, web.NewProblem(http.StatusServiceUnavailable, CodeDraining, "this instance is shutting down")
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := a.cfg.Rows.Ping(ctx); err != nil {
		return nil, web.NewProblem(http.StatusServiceUnavailable, web.CodeUnavailable, "the database does not answer")
	}
	out := Health{Status: "ok", Degraded: []string{}}
	if a.cfg.Degraded != nil {
		out.Degraded = append(out.Degraded, a.cfg.Degraded()...)
	}
	out.Troubles = a.cfg.Troubles.List()
	for _, t := range out.Troubles {
		if !slices.Contains(out.Degraded, t.Part) {
			out.Degraded = append(out.Degraded, t.Part)
		}
	}
	return &healthOutput{Body: out}, nil
}
