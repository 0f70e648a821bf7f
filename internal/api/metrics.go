package api

import (
	"net/http"

	"github.com/danielgtaylor/huma/v2"
)

// addMetrics shows the metrics of this instance. They have a text format of
// their own, so they are no answer of huma's.
func (a *API) addMetrics() {
	a.Handle("metrics", "GET /metrics", a.cfg.Metrics.Handler().ServeHTTP)
	a.describe(huma.Operation{
		OperationID: "metrics", Method: http.MethodGet, Path: "/metrics", Tags: []string{"health"},
		Summary: "What this instance counts, in the text format of Prometheus",
		Responses: map[string]*huma.Response{
			"200": {Description: http.StatusText(http.StatusOK), Content: map[string]*huma.MediaType{
				"text/plain": {Schema: &huma.Schema{Type: huma.TypeString}},
			}},
		},
	})
}
