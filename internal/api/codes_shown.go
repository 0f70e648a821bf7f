package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

const (
	// shownWindow is the time in which a caller's reads of the same path are one entry
	// in the audit: the console and clients repeat them.
	shownWindow = time.Minute
	// shownMax limits the entries of an instance within shownWindow that name a path.
	// Beyond it, further paths share one entry for each caller and operation.
	shownMax = 1000
	// shownOthers is the detail of such an entry.
	shownOthers = `{"note":"and others in the same minute"}`
)

// codeFor returns a coupon's or voucher's code as the caller may see it: a code is
// worth money, so viewers see only how it ends. So does a context without a caller.
func codeFor(ctx context.Context, code string) string {
	return withCode(ctx, code, reward.MaskCode(code))
}

// withCode returns a text that has a code if the caller may see it, otherwise the masked
// one.
func withCode(ctx context.Context, whole, masked string) string {
	if !slices.Contains(requesters, callerOf(ctx).Role) {
		return masked
	}
	if shown, ok := ctx.Value(wholeCodesKey{}).(*bool); ok && whole != masked {
		*shown = true
	}
	return whole
}

// wholeCodesKey is the context key of a *bool, which is set when a read shows a whole code.
type wholeCodesKey struct{}

// recordMasked returns what viewers see of a record that became a dead letter, and need
// not be JSON: all of it if it has no voucher's code, or all but the code if that is
// a text where it belongs. Of any other record they see only that there is one.
func recordMasked(source string, record []byte) []byte {
	ofVouchers := strings.Contains(strings.ToLower(source), "voucher")
	var members map[string]any
	d := json.NewDecoder(bytes.NewReader(record))
	d.UseNumber()
	_, err := reward.CheckJSON(record)
	if err == nil && json.Valid(record) && d.Decode(&members) == nil {
		switch masked, all := maskCodes(members); {
		case all && masked > 0:
			var b bytes.Buffer
			e := json.NewEncoder(&b)
			e.SetEscapeHTML(false)
			_ = e.Encode(members) // what was decoded has a JSON form
			return bytes.TrimSpace(b.Bytes())
		case all && !ofVouchers:
			return record
		}
	} else if !ofVouchers && !codeName.Match(record) && !bytes.Contains(record, []byte(`\u`)) {
		return record
	}
	if len(record) == 0 {
		return record
	}
	return []byte("…")
}

// codeName finds what may be the name of a voucher's code.
var codeName = regexp.MustCompile(`(?i)voucher[_ -]?code`)

// maskCodes masks the codes of an object and returns their number. It reports whether
// these are all that it can have: texts of the object itself.
func maskCodes(members map[string]any) (masked int, all bool) {
	for name, value := range members {
		if !codeName.MatchString(name) {
			if text, err := json.Marshal(value); err != nil || codeName.Match(text) {
				return 0, false
			}
			continue
		}
		text, isText := value.(string)
		if !isText {
			return 0, false
		}
		if text != "" {
			members[name] = reward.MaskCode(text)
			masked++
		}
	}
	return masked, true
}

// shownCodes are the reads of codes within a window that the audit has. It is safe for
// concurrent use.
type shownCodes struct {
	mu    sync.Mutex // protects what follows
	since time.Time
	seen  map[shownRead]bool
}

type shownRead struct{ caller, operation, path, detail string }

// add reports whether a read is the first of its kind within the window, and whether it
// stands for reads of other paths, too.
func (s *shownCodes) add(r shownRead, now time.Time) (first, others bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.since) >= shownWindow {
		s.since, s.seen = now, make(map[shownRead]bool)
	}
	if !s.seen[r] && len(s.seen) >= shownMax {
		r.path, others = "", true
	}
	first = !s.seen[r]
	s.seen[r] = true
	return first, others
}

// forget lets the next read of the same kind be recorded.
func (s *shownCodes) forget(r shownRead) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.seen, r)
}

// recordShown records in the audit that a member of the staff reads whole codes. After an
// error they must not be shown. Shoppers read their own codes, and viewers none.
func (a *API) recordShown(ctx context.Context, operation string) error {
	if !slices.Contains(issuers, callerOf(ctx).Role) {
		return nil
	}
	return a.recordRead(ctx, operation, "")
}

// exportDetail is the detail of an export in the audit.
const exportDetail = `{"export":"` + csvType + `"}`

// recordRead records a read in the audit. After an error nothing must be shown.
func (a *API) recordRead(ctx context.Context, operation, detail string) error {
	c := callerOf(ctx)
	read := shownRead{limitName(c.Principal), operation, auditPath(c.url), detail}
	first, others := a.shown.add(read, time.Now())
	if !first {
		return nil
	}
	if others {
		detail = shownOthers
	}
	err := a.audited(ctx, operation, detail, http.StatusOK, func() error { return nil })
	if err != nil {
		a.shown.forget(read)
	}
	return err
}
