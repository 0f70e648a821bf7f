package api

import (
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// A cursor contains the name of its list and the last ID of a page. It is opaque to
// callers.
const (
	cursorPromotions      = "promotion"
	cursorPayouts         = "payout"
	cursorUploads         = "upload"
	cursorDeadLetters     = "deadletter"
	cursorTemplates       = "template"
	cursorTemplateCoupons = "templatecoupon"
	cursorEntrants        = "entrant"
	cursorUserCoupons     = "usercoupon"
	cursorAPIKeys         = "apikey"
	cursorAudit           = "audit"
	cursorReconciliations = "reconciliation"
	cursorUnknown         = "unknown"
	cursorDeliveries      = "delivery"
)

// encodeCursor returns a cursor of a list that is ordered by ID.
func encodeCursor(list string, last int64) string {
	return encodeUserCursor(list, strconv.FormatInt(last, 10))
}

// encodeUserCursor returns a cursor of a list that is ordered by user ID.
func encodeUserCursor(list, last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(list + ":" + last))
}

// decodeCursor parses a cursor of encodeCursor, and refuses all other texts. It returns 0
// for none.
func decodeCursor(list, cursor string) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(cursorText(list, cursor), 10, 64)
	if err != nil || n < 0 || encodeCursor(list, n) != cursor {
		return 0, noCursor()
	}
	return n, nil
}

// decodeUserCursor parses a cursor of encodeUserCursor, and refuses all other texts. It
// returns "" for none.
func decodeUserCursor(list, cursor string) (string, error) {
	if cursor == "" {
		return "", nil
	}
	user := cursorText(list, cursor)
	if reward.CheckUserID(user) != nil || encodeUserCursor(list, user) != cursor {
		return "", noCursor()
	}
	return user, nil
}

// cursorText returns the text in a cursor of a list, or "" if it is not one.
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
	return web.Malformed("cursor", "is not a cursor of this list; use the nextCursor of the previous page, or omit it")
}

// PageInput selects a page of a list.
type PageInput struct {
	Cursor string `query:"cursor"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

// LongItemsInput selects a page of a list whose items are long.
type LongItemsInput struct {
	Cursor string `query:"cursor"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"50"`
}

// pageByID answers with a page of a list that is ordered by ID. read returns at most limit
// rows that follow an ID, or the first ones for 0.
func pageByID[R, T any](
	in PageInput, list string, read func(last int64, limit int) ([]R, error), show func(R) T, idOf func(R) int64,
) (*output[listOf[T]], error) {
	last, err := decodeCursor(list, in.Cursor)
	if err != nil {
		return nil, err
	}
	rows, err := read(last, pageRead(in.Limit))
	if err != nil {
		return nil, err
	}
	return page(rows, in.Limit, show, func(last R) string { return encodeCursor(list, idOf(last)) }), nil
}

type listOf[T any] struct {
	Items      []T    `json:"items" nullable:"false"`
	NextCursor string `json:"nextCursor,omitempty"`
}

// page answers with a page of rows that were read with pageRead. after returns the cursor of
// the page that follows a row.
func page[R, T any](rows []R, limit int, show func(R) T, after func(last R) string) *output[listOf[T]] {
	shown := rows[:min(len(rows), limit)]
	out := listOf[T]{Items: mapped(shown, show)}
	if len(rows) > limit || len(rows) == limit && limit == store.BatchMax {
		out.NextCursor = after(shown[len(shown)-1])
	}
	return &output[listOf[T]]{Body: out}
}

// mapped returns what show makes of each row; an empty list, not nil, of none.
func mapped[R, T any](rows []R, show func(R) T) []T {
	out := make([]T, len(rows))
	for i, r := range rows {
		out[i] = show(r)
	}
	return out
}

func texts[T ~string](of []T) []string { return mapped(of, func(one T) string { return string(one) }) }

// pageRead returns the number of rows to read for a page: one more than the limit,
// if the store allows it, shows whether another page follows.
func pageRead(limit int) int { return min(limit+1, store.BatchMax) }
