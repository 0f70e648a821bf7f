package money

import (
	"context"
	"encoding/json"
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
	chargesLimit = 1000    // charges that are asked for on a page
	chargesMax   = 10_000  // charges that are taken from one
	pageMax      = 8 << 20 // bytes of a page
	cursorMax    = 1 << 10 // bytes of a cursor
)

// ErrNoCharges says that this provider cannot list its charges, which it need
// not (404, 405 or 501).
var ErrNoCharges = errors.New("the provider does not list its charges")

// ChargesPage is a page of what the provider has charged for a promotion. It
// may be empty and have a next one.
type ChargesPage struct {
	Charges    []ListedCharge // in the provider's order, which does not change
	NextCursor string         // "" = the last page for now
}

// ListedCharge is a charge as the provider has it. One key may stand in the
// list twice: that is what a balance sheet looks for.
type ListedCharge struct {
	PromotionID    reward.PromotionID
	TargetID       reward.TargetID
	Amount         reward.Amount // from 0
	TransactionKey string        // "" when the provider names none
}

// ChargesError says why there is no page. Answer is that of the call, for its
// class and RetryAfter; what could not be used is UNKNOWN.
type ChargesError struct {
	Answer Answer
}

// Error tells the class, the status and what was said.
func (e *ChargesError) Error() string {
	a := e.Answer
	if a.Err != nil {
		return fmt.Sprintf("list the provider's charges: %v", a.Err)
	}
	return fmt.Sprintf("list the provider's charges: %s, status %d, code %s %s", a.Class, a.Status, a.Code, a.Message)
}

// Unwrap returns the cause, if there is one beside the answer.
func (e *ChargesError) Unwrap() error { return e.Answer.Err }

// Charges asks the provider for a page of its charges of a promotion; cursor is
// "" at first and then the NextCursor of the page before. The error is
// ErrNoCharges or a *ChargesError.
func (c *Client) Charges(ctx context.Context, p reward.PromotionID, cursor string) (ChargesPage, error) {
	query := url.Values{"promotionId": {p.String()}, "limit": {strconv.Itoa(chargesLimit)}}
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
		if a.Class == reward.AnswerPaid { // right for a charge only
			a = badPage(r.status, errors.New("the answer is one to a charge"))
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

// wirePage is a page as the provider sends it. Fields that we do not know are
// left alone.
type wirePage struct {
	Charges *[]struct {
		IdempotencyKey string         `json:"idempotencyKey"`
		Amount         *reward.Amount `json:"amount"`
		TransactionKey word           `json:"transactionKey"`
	} `json:"charges"`
	NextCursor word `json:"nextCursor"`
}

// readCharges reads a page of p's charges. A page with anything odd in it is
// none: a balance sheet must not be drawn up from a part of it.
func readCharges(raw []byte, p reward.PromotionID, cursor string) (ChargesPage, error) {
	if len(raw) > pageMax {
		return ChargesPage{}, fmt.Errorf("the page is above %d bytes", pageMax)
	}
	var wire wirePage
	if err := json.Unmarshal(raw, &wire); err != nil {
		return ChargesPage{}, fmt.Errorf("the page is not JSON of the agreed form: %w", err)
	}
	switch {
	case wire.Charges == nil:
		return ChargesPage{}, errors.New("the page has no charges, not even an empty list")
	case len(*wire.Charges) > chargesMax:
		return ChargesPage{}, fmt.Errorf("the page has %d charges, more than %d", len(*wire.Charges), chargesMax)
	case len(wire.NextCursor) > cursorMax:
		return ChargesPage{}, fmt.Errorf("the page's nextCursor is above %d bytes", cursorMax)
	case wire.NextCursor != "" && string(wire.NextCursor) == cursor:
		return ChargesPage{}, errors.New("the page names itself as the next one")
	}
	page := ChargesPage{Charges: make([]ListedCharge, 0, len(*wire.Charges)), NextCursor: string(wire.NextCursor)}
	for i, item := range *wire.Charges {
		promotion, target, err := parseKey(item.IdempotencyKey)
		switch {
		case err != nil:
			return ChargesPage{}, fmt.Errorf("charge %d of the page: %w", i+1, err)
		case promotion != p:
			return ChargesPage{}, fmt.Errorf("charge %d of the page is one of promotion %v, not of %v", i+1, promotion, p)
		case item.Amount == nil || *item.Amount < 0:
			return ChargesPage{}, fmt.Errorf("charge %d of the page has no amount from 0", i+1)
		}
		page.Charges = append(page.Charges, ListedCharge{
			PromotionID: promotion, TargetID: target, Amount: *item.Amount,
			TransactionKey: clean(string(item.TransactionKey), textMax),
		})
	}
	return page, nil
}

// parseKey reads what reward.IdempotencyKey writes.
func parseKey(key string) (reward.PromotionID, reward.TargetID, error) {
	before, after, found := strings.Cut(key, ":")
	p, err := reward.ParsePromotionID(before)
	if err != nil || !found {
		return 0, 0, fmt.Errorf("idempotencyKey %s is not promotionId:targetId", reward.Quote(key))
	}
	t, err := reward.ParseTargetID(after)
	if err != nil {
		return 0, 0, fmt.Errorf("idempotencyKey %s is not promotionId:targetId", reward.Quote(key))
	}
	return p, t, nil
}
