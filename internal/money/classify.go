package money

import (
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
	textMax       = 500            // bytes of a message or transaction key that are kept
	codeMax       = 100            // bytes of a code that are kept
	retryAfterMax = 24 * time.Hour // a longer Retry-After is a mistake, or means another day's run
)

// Codes of ours, for answers that bring none.
const (
	CodeTimeout      = "TIMEOUT"            // left, and no whole answer in time
	CodeReset        = "RESET"              // left, and the connection broke
	CodeStopped      = "STOPPED"            // the caller's context ended
	CodeNoKey        = "NO_TRANSACTION_KEY" // 200 without a transaction key
	CodeBadPage      = "BAD_PAGE"           // a list of charges that cannot be used
	CodeNotConnected = "NOT_CONNECTED"      // no connection to the provider
	CodeNotAllowed   = "NOT_ALLOWED"        // the check kept it from leaving
)

// reply is an answer as it came.
type reply struct {
	status     int
	retryAfter string // the header
	body       []byte
}

// classify says what an answer to a charge means. refusals names the codes that
// are refusals whatever the 4xx they come with; now turns a Retry-After date
// into a duration.
func classify(r reply, refusals map[string]bool, now time.Time) Answer {
	b := readBody(r.body)
	a := Answer{
		Status:     r.status,
		Code:       string(b.Code),
		Message:    b.message(r.body),
		RetryAfter: parseRetryAfter(r.retryAfter, now),
	}
	if a.Code == "" {
		a.Code = fmt.Sprintf("HTTP_%d", r.status)
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
		// A provider that refuses says why. A 4xx without a code comes from a
		// proxy, a wrong path or a wrong host: failing a million rows for it
		// would be wrong, so it pauses like the other faults of our settings.
		a.Class = reward.AnswerMisset
	case client:
		a.Class = reward.AnswerRefused
	case r.status >= 300 && r.status <= 399: // redirects are not followed
		a.Class = reward.AnswerMisset
	default:
		a.Class = reward.AnswerUnknown
		if r.status == http.StatusOK && b.Code == "" {
			a.Code = CodeNoKey
		}
	}
	if a.Class == reward.AnswerUnknown {
		a.Err = fmt.Errorf("status %d does not say whether the charge was made", r.status)
	}
	return a
}

// classifyLookup says what an answer to a look-up means. Its Answer is PAID
// only when found and REFUSED only when not found.
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
		// Right for a charge; it says nothing about the key that was asked for.
		a = Answer{
			Class: reward.AnswerUnknown, Status: r.status, Code: fmt.Sprintf("HTTP_%d", r.status), Message: a.Message,
			RetryAfter: a.RetryAfter, Err: fmt.Errorf("status %d does not answer a look-up", r.status),
		}
	}
	return LookupResult{Answer: a}
}

// aboutSettings says that a status speaks of credentials, paths or sizes, so of
// every request alike.
func aboutSettings(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusProxyAuthRequired, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType:
		return true
	}
	return false
}

// answerBody holds what we understand of an answer's body. Detail and Title are
// those of application/problem+json.
type answerBody struct {
	TransactionKey word `json:"transactionKey"`
	Code           word `json:"code"`
	Message        word `json:"message"`
	Detail         word `json:"detail"`
	Title          word `json:"title"`
}

// readBody reads an answer's body; one that is not a JSON object reads as empty.
func readBody(raw []byte) answerBody {
	var b answerBody
	if json.Unmarshal(raw, &b) != nil {
		return answerBody{}
	}
	b.Code = word(clean(string(b.Code), codeMax))
	b.TransactionKey = word(clean(string(b.TransactionKey), textMax))
	return b
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

// word is a JSON string or number; anything else reads as empty, so that an odd
// field does not hide the others.
type word string

// UnmarshalJSON never fails.
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

// clean makes text from outside fit for a row and a log line: valid UTF-8, no
// control characters (NUL among them), one line, at most limit bytes.
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

// parseRetryAfter reads seconds or an HTTP date; 0 when there is nothing to
// wait for.
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
