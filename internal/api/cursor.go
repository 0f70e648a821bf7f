package api

import (
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/store"
)

// A cursor names the list it belongs to and the last id that was seen. Callers
// take it as it is.
const (
	cursorPromotions  = "promotion"
	cursorPayouts     = "payout"
	cursorDeadLetters = "deadletter"
)

func encodeCursor(list string, last int64) string {
	return base64.RawURLEncoding.EncodeToString([]byte(list + ":" + strconv.FormatInt(last, 10)))
}

// decodeCursor refuses whatever encodeCursor would not have made.
func decodeCursor(list, cursor string) (int64, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err == nil {
		if digits, ok := strings.CutPrefix(string(b), list+":"); ok {
			if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n >= 0 && encodeCursor(list, n) == cursor {
				return n, nil
			}
		}
	}
	return 0, malformed("cursor", "is not a cursor of this list; pass on the nextCursor of the page before, or none")
}

// page cuts what was read with pageRead to the limit and says whether more
// follows.
func page[T any](rows []T, limit int) ([]T, bool) {
	if len(rows) > limit {
		return rows[:limit], true
	}
	return rows, len(rows) == limit && limit == store.BatchMax
}

// pageRead is how many rows to read for a page: one more tells whether another
// page follows, as far as the store goes.
func pageRead(limit int) int { return min(limit+1, store.BatchMax) }
