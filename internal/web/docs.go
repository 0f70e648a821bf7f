package web

import (
	"crypto/sha256"
	_ "embed" // the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// The page at /docs, in three parts.
var (
	//go:embed docs.html
	docsHTML string
	//go:embed docs.css
	docsCSS string
	//go:embed docs.js
	docsJS string
)

// AddDocs adds the operation docs: a page at /docs that shows /openapi.json and the
// error codes to people. Each of codes has the JSON fields code, status, meaning and
// action. The page loads only /openapi.json, and its policy forbids all else: other
// scripts and styles, other servers, and frames.
func AddDocs[T any](a *Router, codes []T) {
	text, err := json.Marshal(codes) // escapes what could end the script
	if err != nil {                  // the codes are constant, so tests would find an error
		panic(err)
	}
	script := strings.Replace(docsJS, "/*errors*/ []", string(text), 1)
	page := []byte(strings.NewReplacer("/*style*/", docsCSS, "/*script*/", script).Replace(docsHTML))
	policy := fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		policyHash(script), policyHash(docsCSS))
	a.Handle("docs", "GET /docs", func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache") // a new version may have another page
		_, _ = w.Write(page)               // the caller may have left
	})
}

func policyHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
