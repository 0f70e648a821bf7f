package client

import (
	"cmp"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Problem is an error response of the API.
type Problem struct {
	Status int // HTTP status
	// Code is stable and meant for programs, e.g. ILLEGAL_STATE. It is empty if
	// the response comes from something in front of the API, such as a proxy.
	Code       string
	Title      string
	Detail     string // for people: what is wrong, where, and the remedy
	Errors     []FieldError
	RequestID  string        // request_id in the server's log
	OpensAt    time.Time     // when the template opens, with the code NOT_OPEN; zero: unknown
	RetryAfter time.Duration // time to wait before a retry; 0: the server named none
}

// FieldError describes an invalid field of a request.
type FieldError struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// Error returns the problem as one line.
func (p *Problem) Error() string {
	text := cmp.Or(p.Detail, p.Title, http.StatusText(p.Status))
	separator := ": "
	for _, e := range p.Errors {
		if strings.Contains(text, e.Detail) {
			continue // Detail already describes a single invalid field
		}
		text += separator + strings.TrimSpace(e.Field+" "+e.Detail)
		separator = ", "
	}
	if p.Code != "" {
		return fmt.Sprintf("%s (%s)", text, p.Code)
	}
	return fmt.Sprintf("%s (HTTP %d)", text, p.Status)
}

// readProblem parses an error response. If it is not a problem document, such
// as the error page of a proxy, the Problem quotes its beginning.
func readProblem(res *http.Response, body []byte) *Problem {
	p := &Problem{Status: res.StatusCode, Title: http.StatusText(res.StatusCode), RequestID: res.Header.Get("X-Request-Id")}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 && seconds < 1<<30 {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if kind == "application/problem+json" {
		var document struct {
			Code, Title, Detail string
			RequestID           string    `json:"requestId"`
			OpensAt             time.Time `json:"opensAt"`
			Errors              []FieldError
		}
		if json.Unmarshal(body, &document) == nil {
			p.Code, p.Detail, p.Errors, p.OpensAt = document.Code, document.Detail, document.Errors, document.OpensAt
			p.Title, p.RequestID = cmp.Or(document.Title, p.Title), cmp.Or(document.RequestID, p.RequestID)
			return p
		}
	}
	const shown = 200
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(body[:min(len(body), shown)]), "")), " ")
	if text != "" {
		p.Detail = fmt.Sprintf("the server responded with %d: %s", res.StatusCode, text)
	}
	return p
}
