package web

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"
)

// taggedMax limits the responses that get an ETag, in bytes. Longer ones get none.
const taggedMax = 1 << 20

// taggedWriter buffers a JSON response until it is complete, in order to send its
// ETag first. If the handler has set the header ETag, the tag begins with it: a
// version of what the response shows, which If-Match can name. If the caller has the same response, it sends 304 without a body.
type taggedWriter struct {
	http.ResponseWriter
	ifNoneMatch []string
	status      int // set by the handler; 0: none yet
	buffered    []byte
	passing     bool // nothing is buffered any more
}

// WriteHeader delays the status of a successful JSON response until its body is
// complete. It sends all others at once.
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
	if !w.passing && len(w.buffered)+len(b) > taggedMax {
		w.pass()
	}
	if w.passing {
		return w.ResponseWriter.Write(b)
	}
	w.buffered = append(w.buffered, b...)
	return len(b), nil
}

// pass sends the buffered part, and lets all that follows through.
func (w *taggedWriter) pass() {
	w.passing = true
	w.ResponseWriter.WriteHeader(w.status)
	if len(w.buffered) > 0 {
		_, _ = w.ResponseWriter.Write(w.buffered) // the caller may have left
		w.buffered = nil
	}
}

// end sends the buffered response with its ETag. If the operation has set one for
// the part that callers can change, the ETag begins with it.
func (w *taggedWriter) end() {
	if w.passing || w.status == 0 {
		return
	}
	sum := sha256.Sum256(w.buffered)
	h := w.Header()
	tag := hex.EncodeToString(sum[:16])
	if settings := strings.Trim(h.Get("ETag"), `"`); settings != "" {
		tag = settings + tagSeparator + tag
	}
	tag = `"` + tag + `"`
	h.Set("ETag", tag)
	h.Set("Cache-Control", "private, no-cache") // callers must revalidate each time
	h.Add("Vary", "Authorization")
	if matches(w.ifNoneMatch, tag) {
		h.Del("Content-Type")
		h.Del("Content-Length")
		w.status, w.buffered = http.StatusNotModified, nil
	}
	w.pass()
}

// Unwrap lets http.ResponseController reach the connection.
func (w *taggedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// matches reports whether If-None-Match contains a tag (RFC 9110, 13.1.2).
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

// IfNoneMatchHeader carries the ETag of the response that the caller already has.
const IfNoneMatchHeader = "If-None-Match"

// tagSeparator stands between the tag of the part that callers can change and that
// of the whole response.
const tagSeparator = "-"

// IfMatchTags returns the tags of settings that an If-Match header accepts, without the
// rest of the response. It returns nil for any.
func IfMatchTags(header string) ([]string, error) {
	header = strings.TrimSpace(header)
	if header == "" || header == "*" {
		return nil, nil
	}
	tags := []string{}
	for tag := range strings.SplitSeq(header, ",") {
		tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/") // proxies that compress make tags weak
		if len(tag) < 2 || tag[0] != '"' || strings.Index(tag[1:], `"`) != len(tag)-2 {
			return nil, Malformed("If-Match", "must be the ETag of an earlier response, in its quotes, several of them with commas between, or *")
		}
		settings, _, _ := strings.Cut(strings.Trim(tag, `"`), tagSeparator)
		tags = append(tags, settings)
	}
	return tags, nil
}

// ETag adds If-None-Match and status 304 to the description of a read.
func ETag(op *huma.Operation) {
	op.Parameters = append(op.Parameters, &huma.Param{
		Name: IfNoneMatchHeader, In: "header", Description: "ETag of the response that the caller already has; if it has not changed, the status is 304",
		Schema: &huma.Schema{Type: huma.TypeString},
	})
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	op.Responses["304"] = &huma.Response{Description: "The response that the caller has is still current"}
}
