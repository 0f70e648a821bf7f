package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

type unknownListInput struct {
	State     string `query:"state" enum:"UNKNOWN" default:"UNKNOWN"`
	OlderThan string `query:"olderThan" pattern:"^([0-9]{1,5}[smhd])?$" doc:"UNKNOWN for at least so long" example:"15m"`
	UserID    string `query:"userId" maxLength:"255"`
	PageInput
}

type promotionErrorsOutput struct {
	Body []client.PromotionError `nullable:"false"`
}

func (a *API) addUnknown() {
	const tag = "payouts"
	call(a, operation{
		id: "list-unknown-payouts", method: http.MethodGet, path: "/v1/payouts", tag: tag, roles: readers,
		summary: "List UNKNOWN payouts of all promotions, oldest first",
	}, a.listUnknown)
	call(a, operation{
		id: "list-promotion-errors", method: http.MethodGet, path: "/v1/promotions/{id}/errors", tag: tag, roles: readers,
		summary:     "Count the payouts of a promotion by error code, most first",
		description: "FAILED, RETRYING and UNKNOWN payouts.",
		errors:      []string{reward.CodeNotFound},
	}, a.listPromotionErrors)
}

func (a *API) listUnknown(ctx context.Context, in *unknownListInput) (*output[listOf[client.UnknownPayout]], error) {
	p := store.PayoutUnknownParams{Limit: pageRead(in.Limit), OlderThan: olderThan(in.OlderThan), UserID: in.UserID}
	if in.Cursor != "" {
		var err error
		if p.After, err = decodeUnknownCursor(in.Cursor); err != nil {
			return nil, err
		}
	}
	rows, err := a.cfg.Rows.PayoutUnknown(ctx, p)
	if err != nil {
		return nil, err
	}
	currencies, err := a.currencies(ctx, rows)
	if err != nil {
		return nil, err
	}
	show := func(r reward.Payout) client.UnknownPayout {
		return client.UnknownPayout{PromotionID: r.PromotionID.String(), Payout: payoutFor(ctx, r, currencies[r.PromotionID])}
	}
	return page(rows, in.Limit, show, func(last reward.Payout) string { return encodeUnknownCursor(store.PlaceOfUnknown(last)) }), nil
}

// olderThan parses an age of the form that the schema describes. "" is zero.
func olderThan(text string) time.Duration {
	if text == "" {
		return 0
	}
	last := len(text) - 1
	n, _ := strconv.Atoi(text[:last]) // the schema allows digits only
	return time.Duration(n) * map[byte]time.Duration{'s': time.Second, 'm': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}[text[last]]
}

func encodeUnknownCursor(p store.UnknownPlace) string {
	return encodeUserCursor(cursorUnknown, fmt.Sprintf("%d:%d:%d", p.Since.UnixMicro(), p.PromotionID, p.TargetID))
}

func decodeUnknownCursor(cursor string) (store.UnknownPlace, error) {
	var n [3]int64
	parts := strings.Split(cursorText(cursorUnknown, cursor), ":")
	for i := range min(len(parts), len(n)) {
		n[i], _ = strconv.ParseInt(parts[i], 10, 64) // another text does not encode to the same cursor
	}
	p := store.UnknownPlace{Since: time.UnixMicro(n[0]).UTC(), PayoutID: store.PayoutID{PromotionID: reward.PromotionID(n[1]), TargetID: reward.TargetID(n[2])}}
	if encodeUnknownCursor(p) != cursor || p.Since.Year() < 1970 || p.Since.Year() > 9999 {
		return p, noCursor()
	}
	return p, nil
}

func (a *API) listPromotionErrors(ctx context.Context, in *PromotionPath) (*promotionErrorsOutput, error) {
	if _, err := a.cfg.Promotions.Get(ctx, in.id); err != nil {
		return nil, err
	}
	rows, err := a.cfg.Rows.PayoutErrors(ctx, in.id)
	if err != nil {
		return nil, err
	}
	return &promotionErrorsOutput{Body: mapped(rows, func(r store.PayoutError) client.PromotionError {
		return client.PromotionError{
			Code: r.Code, Example: r.Message, ExampleTargetID: r.TargetID.String(), Class: r.Class,
			Failed: r.Failed, Retrying: r.Retrying, Unknown: r.Unknown,
		}
	})}, nil
}
