package money

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
)

const (
	textMax       = 500            // bytes stored of a message or transaction key
	codeMax       = 100            // bytes stored of a code
	retryAfterMax = 24 * time.Hour // limit of a Retry-After: a longer one is probably a mistake
)

// The codes of Largesse. Most mean that there was no response. A response
// to a charge or a lookup that has no code of its own gets NO_TRANSACTION_KEY if its
// status is 200, and otherwise HTTP_ and its status. A paid response gets no code.
const (
	CodeTimeout      = "TIMEOUT"            // sent, without a complete response in time
	CodeReset        = "RESET"              // sent, and the connection broke
	CodeStopped      = "STOPPED"            // the caller's context ended, or the client was closed
	CodeNoKey        = "NO_TRANSACTION_KEY" // 200 without a transaction key and without a code
	CodeBadPage      = "BAD_PAGE"           // malformed list of charges
	CodeNotConnected = "NOT_CONNECTED"      // not sent: no connection to the provider
	CodeNotAllowed   = "NOT_ALLOWED"        // not sent: the CheckFunc returned an error
)

type reply struct {
	status     int
	retryAfter string // header
	body       []byte
	cut        bool // the body is only the beginning
}

// ParseReasons reads what codes of the provider mean to people: a "CODE: text" per line.
func ParseReasons(text string) (map[string]string, error) {
	reasons := make(map[string]string)
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		code, reason, _ := strings.Cut(line, ": ") // codes may have colons
		code, reason = strings.TrimSpace(code), strings.TrimSpace(reason)
		switch {
		case code == "" || clean(code, codeMax) != code || reason == "" || clean(reason, textMax) != reason:
			return nil, fmt.Errorf("has %s; a line is a code, a colon, a space and up to %d bytes of text, such as LIMIT: over the limit", reward.Quote(line), textMax)
		case reasons[code] != "":
			return nil, fmt.Errorf("has the code %s twice", code)
		}
		reasons[code] = reason
	}
	return reasons, nil
}

// classify classifies the response to a charge. The codes in refusals mean a
// refusal with any 4xx status. now converts a Retry-After date to a duration.
func classify(r reply, refusals map[string]bool, now time.Time) Answer {
	b := readBody(r.body)
	a := Answer{
		Status:     r.status,
		Code:       cmp.Or(string(b.Code), fmt.Sprintf("HTTP_%d", r.status)),
		Message:    r.message(b),
		RetryAfter: parseRetryAfter(r.retryAfter, now),
	}
	client := r.status >= 400 && r.status <= 499
	switch {
	case (r.status == http.StatusOK || r.status == http.StatusConflict) && b.TransactionKey != "":
		return Answer{Class: reward.AnswerPaid, Status: r.status, TransactionKey: string(b.TransactionKey), RetryAfter: a.RetryAfter}
	case client && b.Code != "" && refusals[string(b.Code)]:
		a.Class = reward.AnswerRefused
	case r.status == http.StatusRequestTimeout, r.status == http.StatusConflict, r.status == http.StatusTooEarly:
		a.Class = reward.AnswerUnknown
	case r.status == http.StatusTooManyRequests, r.status == http.StatusServiceUnavailable:
		a.Class = reward.AnswerThrottled
	case r.status >= 500 && r.status <= 599:
		a.Class = reward.AnswerFailed
	case client && (b.Code == "" || aboutSettings(r.status)):
		// A provider that refuses gives a code. A 4xx without a code comes from
		// a proxy, a wrong path or a wrong host. It must not fail a million
		// payouts, so it pauses the promotion like any other wrong setting.
		a.Class = reward.AnswerMisconfigured
		a.OnePayee = r.cut || b.Code != "" && (r.status == http.StatusForbidden || r.status == http.StatusNotFound)
	case client:
		a.Class = reward.AnswerRefused
	case r.status >= 300 && r.status <= 399: // redirects are not followed
		a.Class = reward.AnswerMisconfigured
	default:
		a.Class = reward.AnswerUnknown
		if r.status == http.StatusOK && b.Code == "" {
			a.Code = CodeNoKey
		}
	}
	if a.Class == reward.AnswerUnknown {
		a.Err = fmt.Errorf("status %d does not tell whether the charge was made", r.status)
	}
	return a
}

// classifyLookup classifies the response to a lookup. Its Answer is PAID only
// if Found and REFUSED only if NotFound.
func classifyLookup(r reply, now time.Time) LookupResult {
	b := readBody(r.body)
	a := classify(r, nil, now)
	switch {
	case r.status == http.StatusOK && b.TransactionKey != "":
		return LookupResult{Found: true, TransactionKey: a.TransactionKey, Answer: a}
	case r.status == http.StatusNotFound && b.Code != "":
		a.Class = reward.AnswerRefused
		return LookupResult{NotFound: true, Answer: a}
	case a.Class == reward.AnswerPaid, a.Class == reward.AnswerRefused:
		// This would mean paid or refused for a charge. For a lookup it proves
		// nothing about the key.
		a = Answer{
			Class: reward.AnswerUnknown, Status: r.status, Code: fmt.Sprintf("HTTP_%d", r.status), Message: a.Message,
			RetryAfter: a.RetryAfter, Err: fmt.Errorf("status %d is no response to a lookup", r.status),
		}
	}
	return LookupResult{Answer: a}
}

// aboutSettings reports whether a status concerns credentials, paths or sizes,
// and therefore every request alike.
func aboutSettings(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusProxyAuthRequired, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		return true
	}
	return false
}

// answerBody holds the known fields of a response. Detail and Title are those
// of application/problem+json.
type answerBody struct {
	TransactionKey word `json:"transactionKey"`
	Code           word `json:"code"`
	Message        word `json:"message"`
	Detail         word `json:"detail"`
	Title          word `json:"title"`
}

// readBody decodes the body of a response. A body that is not a JSON object, or
// gives a field twice, gives empty fields.
func readBody(raw []byte) answerBody {
	var b answerBody
	if reward.DecodeJSON(raw, &b) != nil {
		return answerBody{}
	}
	b.Code = word(clean(string(b.Code), codeMax))
	b.TransactionKey = word(clean(string(b.TransactionKey), textMax))
	return b
}

// message returns the message of a response. It says if the body was cut: then it is
// no JSON, so nothing in it could be read.
func (r reply) message(b answerBody) string {
	if r.cut {
		return clean(fmt.Sprintf("the body is longer than %d KiB and was cut, so no code in it could be read: %s", len(r.body)>>10, b.message(r.body)), textMax)
	}
	return b.message(r.body)
}

func (b answerBody) message(raw []byte) string {
	for _, w := range []word{b.Message, b.Detail, b.Title} {
		if text := clean(string(w), textMax); text != "" {
			return text
		}
	}
	if b != (answerBody{}) {
		return ""
	}
	return clean(string(raw[:min(len(raw), 2*textMax)]), textMax)
}

// word is a JSON string or number. Any other value gives "", so that one odd
// field does not hide the others.
type word string

// UnmarshalJSON does not fail for valid JSON.
func (w *word) UnmarshalJSON(raw []byte) error {
	*w = ""
	switch {
	case raw[0] == '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		*w = word(s)
	case raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9':
		*w = word(raw)
	}
	return nil
}

// clean makes external text safe for a row and a log line: valid UTF-8, one
// line, no control characters, at most limit bytes.
func clean(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	s = strings.TrimSpace(s)
	if len(s) <= limit {
		return s
	}
	cut := limit
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strings.TrimSpace(s[:cut])
}

// parseRetryAfter parses seconds or an HTTP date, and returns at most
// retryAfterMax. It returns 0 if the header is missing or invalid, or names a
// time that has passed.
func parseRetryAfter(header string, now time.Time) time.Duration {
	header = strings.TrimSpace(header)
	if header == "" {
		return 0
	}
	switch seconds, err := strconv.ParseUint(header, 10, 63); {
	case errors.Is(err, strconv.ErrRange), err == nil && seconds >= uint64(retryAfterMax/time.Second):
		return retryAfterMax
	case err == nil:
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(header)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), retryAfterMax)
}
