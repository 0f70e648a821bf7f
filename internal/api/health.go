package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/web"
)

// pingWait bounds how long a store may take to count as there.
const pingWait = 2 * time.Second

// Health is the body of a good answer of /healthz and /readyz.
type Health struct {
	Status   string   `json:"status" enum:"ok"`
	Degraded []string `json:"degraded" nullable:"false" doc:"Parts that work less well than they should"`
}

type healthOutput struct {
	Body Health
}

func (a *API) addHealth() {
	tags := []string{"health"}
	call(a, huma.Operation{
		OperationID: "alive", Method: http.MethodGet, Path: "/healthz", Tags: tags,
		Summary: "Whether this instance's own loops run; no other server is asked",
	}, a.healthz)
	call(a, huma.Operation{
		OperationID: "ready", Method: http.MethodGet, Path: "/readyz", Tags: tags,
		Summary: "Whether this instance can do its work",
	}, a.ready)
}

func (a *API) healthz(_ context.Context, _ *struct{}) (*healthOutput, error) {
	if a.cfg.Alive != nil {
		if err := a.cfg.Alive(); err != nil {
			a.log.Error(obs.Failed, err)
			return nil, web.NewProblem(http.StatusServiceUnavailable, web.CodeUnavailable, err.Error())
		}
	}
	return &healthOutput{Body: Health{Status: "ok", Degraded: []string{}}}, nil
}

func (a *API) ready(ctx context.Context, _ *struct{}) (*healthOutput, error) {
	if a.IsDraining() {
		return nil, web.NewProblem(http.StatusServiceUnavailable, CodeDraining, "this instance is stopping")
	}
	ctx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	if err := a.cfg.Rows.Ping(ctx); err != nil {
		a.log.Warn(obs.Unavailable, err)
		return nil, web.NewProblem(http.StatusServiceUnavailable, web.CodeUnavailable, "the store does not answer")
	}
	out := Health{Status: "ok", Degraded: []string{}}
	if a.cfg.Degraded != nil {
		out.Degraded = append(out.Degraded, a.cfg.Degraded()...)
	}
	return &healthOutput{Body: out}, nil
}
