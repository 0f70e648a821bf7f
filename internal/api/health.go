package api

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/web"
)

const pingTimeout = 2 * time.Second

// Health is the body of a successful response of /healthz and /readyz.
type Health struct {
	Status string `json:"status" enum:"ok"`
	client.Readiness
}

func (a *API) addHealth() {
	const tag = "health"
	call(a, operation{
		id: "alive", method: http.MethodGet, path: "/healthz", tag: tag, roles: public, unlimited: true,
		summary: "Check that it runs",
		errors:  healthErrors,
	}, func(context.Context, *struct{}) (*output[Health], error) {
		return &output[Health]{Body: healthy()}, nil
	})
	call(a, operation{
		id: "ready", method: http.MethodGet, path: "/readyz", tag: tag, roles: public, unlimited: true,
		summary: "Check that it can serve",
		errors:  append([]string{CodeDraining}, healthErrors...),
	}, a.ready)
}

func healthy() Health {
	return Health{Status: "ok", Readiness: client.Readiness{Degraded: []string{}}}
}

// troublesOf returns nil without any.
func troublesOf(list []obs.Trouble) []client.Trouble {
	var out []client.Trouble
	for _, t := range list {
		out = append(out, client.Trouble(t))
	}
	return out
}

func (a *API) ready(ctx context.Context, _ *struct{}) (*output[Health], error) {
	if a.IsDraining() {
		return nil, web.NewProblem(http.StatusServiceUnavailable, CodeDraining, "this instance is shutting down")
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := a.cfg.Rows.Ping(ctx); err != nil {
		return nil, web.NewProblem(http.StatusServiceUnavailable, web.CodeUnavailable, "the database does not answer")
	}
	out := healthy()
	if a.cfg.Degraded != nil {
		out.Degraded = append(out.Degraded, a.cfg.Degraded()...)
	}
	out.Troubles = troublesOf(a.cfg.Troubles.List())
	for _, t := range out.Troubles {
		if !slices.Contains(out.Degraded, t.Part) {
			out.Degraded = append(out.Degraded, t.Part)
		}
	}
	return &output[Health]{Body: out}, nil
}

// addMetrics adds the metrics of this instance. Their text format is not one of
// huma's formats.
func (a *API) addMetrics() {
	a.handle(operation{
		id: "metrics", method: http.MethodGet, path: "/metrics", tag: "health", roles: public,
		summary: "Show metrics for Prometheus",
		responses: map[string]*huma.Response{
			"200": {Description: http.StatusText(http.StatusOK), Content: map[string]*huma.MediaType{
				"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}},
			}},
		},
	}, a.cfg.Metrics.Handler().ServeHTTP)
}
