package api

import (
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// A cursor names the list it belongs to and the last id that was seen. Callers
// take it as it is.
const (
	cursorPromotions      = "promotion"
	cursorPayouts         = "payout"
	cursorDeadLetters     = "deadletter"
	cursorTemplates       = "template"
	cursorTemplateCoupons = "templatecoupon"
	cursorEntrants        = "entrant"
	cursorUserCoupons     = "usercoupon"
	cursorAPIKeys         = "apikey"
	cursorAudit           = "audit"
)

func encodeCursor(list string, last int64) string {
	return encodeUserCursor(list, strconv.FormatInt(last, 10))
}

// encodeUserCursor is for a list in the order of user ids.
func encodeUserCursor(list, last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(list + ":" + last))
}

// decodeCursor refuses whatever encodeCursor would not have made.
func decodeCursor(list, cursor string) (int64, error) {
	n, err := strconv.ParseInt(cursorText(list, cursor), 10, 64)
	if err != nil || n < 0 || encodeCursor(list, n) != cursor {
		return 0, noCursor()
	}
	return n, nil
}

// decodeUserCursor refuses whatever encodeUserCursor would not have made of a
// user id.
func decodeUserCursor(list, cursor string) (string, error) {
	user := cursorText(list, cursor)
	if reward.CheckUserID(user) != nil || encodeUserCursor(list, user) != cursor {
		return "", noCursor()
	}
	return user, nil
}

// cursorText is what a cursor of a list says; "" when it is none.
func cursorText(list, cursor string) string {
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil {
		return ""
	}
	text, ok := strings.CutPrefix(string(b), list+":")
	if !ok {
		return ""
	}
	return text
}

func noCursor() error {
	return web.Malformed("cursor", "is not a cursor of this list; pass on the nextCursor of the page before, or none")
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
