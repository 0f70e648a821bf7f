package web

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// etagMost bounds the answers that get an ETag, in bytes; longer ones pass.
const etagMost = 1 << 20

// taggedWriter holds a JSON answer back until it is whole, to send its ETag
// before it, or only that when the caller has it.
type taggedWriter struct {
	http.ResponseWriter
	ifNoneMatch []string
	status      int // that was asked for; 0 = none yet
	held        []byte
	passing     bool // no more is held back
}

// WriteHeader waits for the body of a good JSON answer; all others pass.
func (w *taggedWriter) WriteHeader(status int) {
	if w.passing || status < http.StatusOK {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	if w.status != 0 {
		return
	}
	w.status = status
	if status != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		w.pass()
	}
}

func (w *taggedWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !w.passing && len(w.held)+len(b) > etagMost {
		w.pass()
	}
	if w.passing {
		return w.ResponseWriter.Write(b)
	}
	w.held = append(w.held, b...)
	return len(b), nil
}

// pass sends what was held back, and all that follows.
func (w *taggedWriter) pass() {
	w.passing = true
	w.ResponseWriter.WriteHeader(w.status)
	if len(w.held) > 0 {
		_, _ = w.ResponseWriter.Write(w.held) // the caller may have gone
		w.held = nil
	}
}

// end sends what was held back, with its ETag.
func (w *taggedWriter) end() {
	if w.passing || w.status == 0 {
		return
	}
	sum := sha256.Sum256(w.held)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	h := w.Header()
	h.Set("ETag", tag)
	h.Set("Cache-Control", "private, no-cache") // ask again each time
	h.Add("Vary", "Authorization")
	if matches(w.ifNoneMatch, tag) {
		h.Del("Content-Type")
		h.Del("Content-Length")
		w.status, w.held = http.StatusNotModified, nil
	}
	w.pass()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *taggedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// matches says whether If-None-Match names a tag (RFC 9110, 13.1.2).
func matches(headers []string, tag string) bool {
	for _, header := range headers {
		for given := range strings.SplitSeq(header, ",") {
			given = strings.TrimPrefix(strings.TrimSpace(given), "W/")
			if given == tag || given == "*" {
				return true
			}
		}
	}
	return false
}

// ETag describes ETag and 304 of a read.
func ETag(op *huma.Operation) {
	op.Parameters = append(op.Parameters, &huma.Param{
		Name: "If-None-Match", In: "header", Description: "ETag of the answer that the caller has: 304 when it is still the same",
		Schema: &huma.Schema{Type: huma.TypeString},
	})
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["304"] = &huma.Response{Description: "The answer that the caller has is still the same"}
}
