package client

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Problem is an answer of the API that is no success.
type Problem struct {
	Status int // HTTP status
	// Code is stable and for programs, e.g. ILLEGAL_STATE; empty when the
	// answer did not come from the API but from something in front of it.
	Code      string
	Title     string
	Detail    string // for people: what, where, what to do
	Errors    []FieldError
	RequestID string // to be found in the server's log
	// OpensAt is when a template opens, with the code NOT_OPEN; zero: it did not
	// say.
	OpensAt time.Time
	// RetryAfter is how long the server asks to wait; 0: it did not say.
	RetryAfter time.Duration
}

// FieldError says which field of a request is wrong.
type FieldError struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// Error tells it in one line.
func (p *Problem) Error() string {
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	if text == "" {
		text = http.StatusText(p.Status)
	}
	separator := ": "
	for _, e := range p.Errors {
		if strings.Contains(text, e.Detail) {
			continue // a single wrong field is the detail already
		}
		text += separator + strings.TrimSpace(e.Field+" "+e.Detail)
		separator = ", "
	}
	if p.Code != "" {
		return fmt.Sprintf("%s (%s)", text, p.Code)
	}
	return fmt.Sprintf("%s (HTTP %d)", text, p.Status)
}

// readProblem understands an answer that is no success. What is no problem
// document, such as the page of a proxy, is shown in part.
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
			if document.Title != "" {
				p.Title = document.Title
			}
			if document.RequestID != "" {
				p.RequestID = document.RequestID
			}
			return p
		}
	}
	const shown = 200
	text := strings.Join(strings.Fields(strings.ToValidUTF8(string(body[:min(len(body), shown)]), "")), " ")
	if text != "" {
		p.Detail = fmt.Sprintf("the server answered %d: %s", res.StatusCode, text)
	}
	return p
}
