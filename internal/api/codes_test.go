package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

// TestImportCodes checks the way of a file of codes to a template, and that the
// template shows its codes.
func TestImportCodes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.do(t, "POST", "/v1/coupon-templates", strings.NewReader(`{"id":42,"name":"x","totalQuantity":2}`), "Content-Type", "application/json").want(t, http.StatusCreated)
	const path = "/v1/coupon-templates/42/codes"
	for _, tt := range []struct {
		name, path, body string
		headers          []string
		status           int
		code             string
	}{
		{"AnotherType", path, "A\nB", []string{"Content-Type", "application/x-ndjson"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"NoType", path, "A\nB", []string{"Content-Type", ""}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"AnotherCharset", path, "A\nB", []string{"Content-Type", "text/csv; charset=latin1"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"AnotherEncoding", path, "A\nB", []string{"Content-Encoding", "br", "Content-Type", "text/csv"}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"NotZipped", path, "A\nB\nCCCCCCCCCC", []string{"Content-Encoding", "gzip", "Content-Type", "text/csv"}, 400, CodeBadGzip},
		{"Query", path + "?dryRun=true", "A\nB", nil, 422, reward.CodeInvalid},
		{"BadID", "/v1/coupon-templates/x/codes", "A\nB", nil, 400, reward.CodeMalformed},
		{"Unknown", "/v1/coupon-templates/9/codes", "A\nB", nil, 404, reward.CodeTemplateNotFound},
		{"TooFew", path, "A\n", nil, 409, reward.CodeCodesExhausted},
		{"BadLine", path, "A B\n", nil, 422, reward.CodeBadCodes},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b.upload(t, tt.path, tt.body, tt.headers...).wantProblem(t, tt.status, tt.code)
		})
	}
	t.Run("Broken", func(t *testing.T) {
		whole := gzipped(t, "A\nB\nC\n"+strings.Repeat("X", 5000))
		b.upload(t, path, whole[:len(whole)-20], "Content-Encoding", "gzip", "Content-Type", "text/csv").wantProblem(t, http.StatusBadRequest, "BODY_BROKEN")
	})
	if got := b.do(t, "GET", "/v1/coupon-templates/42", nil); strings.Contains(got.body, "importedCodes") {
		t.Errorf("codes of a template without: %s", got.body)
	}
	for n, zipped := range []bool{false, true} {
		body, headers := "A\nB\nC\n", []string(nil)
		if zipped {
			body, headers = gzipped(t, body), []string{"Content-Encoding", "gzip", "Content-Type", "application/octet-stream"}
		}
		a := b.upload(t, path, body, headers...)
		a.want(t, http.StatusOK)
		codes := fmt.Sprintf(`"importedCodes":{"imported":%d,"left":%d,"missing":0}`, 3*(n+1), 3*(n+1))
		if want := `{"accepted":3,"firstCode":"A","lastCode":"C",` + codes + `,"totalQuantity":2}` + "\n"; a.body != want {
			t.Errorf("got %s, want %s", a.body, want)
		}
		if got := b.do(t, "GET", "/v1/coupon-templates/42", nil); !strings.Contains(got.body, codes) {
			t.Errorf("the template shows %s", got.body)
		}
	}
}
