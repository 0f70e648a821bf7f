package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

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
