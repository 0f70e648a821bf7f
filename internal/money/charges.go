package money

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

const (
	chargesLimit = 1000    // charges requested per page
	chargesMax   = 10_000  // charges accepted per page
	pageMax      = 8 << 20 // bytes of a page
	cursorMax    = 1 << 10 // bytes of a cursor
)

// ErrNoCharges means that this provider has no list of charges, which is
// optional (404, 405 or 501).
var ErrNoCharges = errors.New("the provider does not list its charges")

// ChargesPage is a page of the charges that the provider lists for a promotion.
// An empty page may have a next one.
type ChargesPage struct {
	Charges    []ListedCharge // in the provider's order, which never changes
	NextCursor string         // "": the last page so far
}

// ListedCharge is a charge in the provider's list. A key may appear twice: the
// reconciliation looks for that.
type ListedCharge struct {
	PromotionID    reward.PromotionID
	TargetID       reward.TargetID
	Amount         reward.Amount // at least 0
	TransactionKey string        // "" if the provider gives none
}

// ChargesError is the reason why there is no page. Answer is that of the call,
// for its class and RetryAfter; a malformed page is UNKNOWN.
type ChargesError struct {
	Answer Answer
}

// Error returns the class, the status and the message.
func (e *ChargesError) Error() string {
	a := e.Answer
	if a.Err != nil {
		return fmt.Sprintf("list the provider's charges: %v", a.Err)
	}
	return fmt.Sprintf("list the provider's charges: %s, status %d, code %s %s", a.Class, a.Status, a.Code, a.Message)
}

// Unwrap returns the cause; nil if there is none.
func (e *ChargesError) Unwrap() error { return e.Answer.Err }

// Charges requests a page of the provider's charges of a promotion. The first
// cursor is "", the next one is the NextCursor of the page. The error is
// ErrNoCharges or a *ChargesError.
func (c *Client) Charges(ctx context.Context, p reward.PromotionID, cursor string) (ChargesPage, error) {
	return c.ChargesUpTo(ctx, p, cursor, chargesLimit)
}

// ChargesUpTo is like Charges, but asks for pages of at most limit charges. The
// provider may send more.
func (c *Client) ChargesUpTo(ctx context.Context, p reward.PromotionID, cursor string, limit int) (ChargesPage, error) {
	if c.custom != nil {
		return ChargesPage{}, ErrNoCharges
	}
	query := url.Values{"promotionId": {p.String()}, "limit": {strconv.Itoa(limit)}}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	r, failure := c.do(ctx, request{method: http.MethodGet, path: "/v1/charges?" + query.Encode(), answerMax: pageMax + 1, page: true})
	if failure != nil {
		return ChargesPage{}, &ChargesError{Answer: *failure}
	}
	switch r.status {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return ChargesPage{}, ErrNoCharges
	default:
		a := classify(r, nil, time.Now())
		if a.Class == reward.AnswerPaid { // valid for a charge only
			a = badPage(r.status, errors.New("the response belongs to a charge"))
		}
		return ChargesPage{}, &ChargesError{Answer: a}
	}
	page, err := readCharges(r.body, p, cursor)
	if err != nil {
		return ChargesPage{}, &ChargesError{Answer: badPage(r.status, err)}
	}
	return page, nil
}

func badPage(status int, err error) Answer {
	return Answer{Class: reward.AnswerUnknown, Status: status, Code: CodeBadPage, Message: clean(err.Error(), textMax), Err: err}
}

type wirePage struct {
	Charges    *[]wireCharge `json:"charges"`
	NextCursor word          `json:"nextCursor"`
}

type wireCharge struct {
	IdempotencyKey string         `json:"idempotencyKey"`
	Amount         *reward.Amount `json:"amount"`
	TransactionKey word           `json:"transactionKey"`
}

// UnmarshalJSON takes exact names, each once.
func (c *wireCharge) UnmarshalJSON(raw []byte) error {
	type fields wireCharge
	return reward.DecodeJSON(raw, (*fields)(c))
}

// readCharges decodes a page of p's charges. It rejects a page with any invalid
// charge: a reconciliation must not use a part of it.
func readCharges(raw []byte, p reward.PromotionID, cursor string) (ChargesPage, error) {
	if len(raw) > pageMax {
		return ChargesPage{}, fmt.Errorf("the page is longer than %d bytes", pageMax)
	}
	var wire wirePage
	if err := reward.DecodeJSON(raw, &wire); err != nil {
		return ChargesPage{}, fmt.Errorf("the page is not JSON of the expected form: %w", err)
	}
	switch {
	case wire.Charges == nil:
		return ChargesPage{}, errors.New("the page has no field charges")
	case len(*wire.Charges) > chargesMax:
		return ChargesPage{}, fmt.Errorf("the page has %d charges, more than %d", len(*wire.Charges), chargesMax)
	case len(wire.NextCursor) > cursorMax:
		return ChargesPage{}, fmt.Errorf("the page's nextCursor is longer than %d bytes", cursorMax)
	case wire.NextCursor != "" && string(wire.NextCursor) == cursor:
		return ChargesPage{}, errors.New("the page's nextCursor is its own cursor")
	}
	page := ChargesPage{Charges: make([]ListedCharge, 0, len(*wire.Charges)), NextCursor: string(wire.NextCursor)}
	for i, item := range *wire.Charges {
		promotion, target, err := parseKey(item.IdempotencyKey)
		switch {
		case err != nil:
			return ChargesPage{}, fmt.Errorf("charge %d of the page: %w", i+1, err)
		case promotion != p:
			return ChargesPage{}, fmt.Errorf("charge %d of the page belongs to promotion %v, not to %v", i+1, promotion, p)
		case item.Amount == nil || *item.Amount < 0:
			return ChargesPage{}, fmt.Errorf("charge %d of the page has no amount, or one below 0", i+1)
		}
		page.Charges = append(page.Charges, ListedCharge{
			PromotionID: promotion, TargetID: target, Amount: *item.Amount,
			TransactionKey: clean(string(item.TransactionKey), textMax),
		})
	}
	return page, nil
}

func parseKey(key string) (reward.PromotionID, reward.TargetID, error) {
	before, after, found := strings.Cut(key, ":")
	p, wrongPromotion := reward.ParsePromotionID(before)
	t, wrongTarget := reward.ParseTargetID(after)
	if !found || wrongPromotion != nil || wrongTarget != nil {
		return 0, 0, fmt.Errorf("idempotencyKey %s is not promotionId:targetId", reward.Quote(key))
	}
	return p, t, nil
}
