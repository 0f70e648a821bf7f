package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// addMetrics adds the metrics of this instance. Their text format is not one of
// huma's formats.
func (a *API) addMetrics() {
	a.Handle("metrics", "GET /metrics", a.cfg.Metrics.Handler().ServeHTTP)
	a.describe(huma.Operation{
		OperationID: "metrics", Method: http.MethodGet, Path: "/metrics", Tags: []string{"health"},
		Summary: "Show metrics for Prometheus",
		Responses: map[string]*huma.Response{
			"200": {Description: http.StatusText(http.StatusOK), Content: map[string]*huma.MediaType{
				"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}},
			}},
		},
	})
}
