package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

const csvType = "text/csv"

// promotionsOf returns the promotions that exist of some IDs, which may repeat.
func (a *API) promotionsOf(ctx context.Context, ids []reward.PromotionID) (map[reward.PromotionID]reward.Promotion, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	slices.Sort(ids)
	views, err := a.cfg.Rows.PromotionViews(ctx, slices.Compact(ids))
	found := make(map[reward.PromotionID]reward.Promotion, len(views))
	for _, v := range views {
		found[v.ID] = v.Promotion
	}
	return found, err
}

func attemptsOf(list []reward.Attempt) []client.Attempt {
	return mapped(list, func(t reward.Attempt) client.Attempt {
		return client.Attempt{Dispatch: int64(t.Dispatch), At: t.At.UTC(), Class: string(t.Class), Code: t.Code, Message: t.Message}
	})
}

func payoutFor(ctx context.Context, p reward.Payout, currency string) client.Payout {
	out := client.Payout{
		TargetID: p.TargetID.String(), UserID: p.UserID, Amount: int64(p.Amount), Currency: currency, VoucherCode: codeFor(ctx, p.VoucherCode),
		State: p.State.String(), AttemptCount: int64(p.Attempts), TransactionKey: p.TransactionKey,
		ErrorCode: p.ErrorCode, ErrorMessage: p.ErrorMessage, UpdatedAt: p.UpdatedAt.UTC(),
	}
	if p.SummaryID != 0 {
		out.SummaryID = p.SummaryID.String()
	}
	return out
}

var payoutColumns = []string{
	"targetId", "userId", "amount", "voucherCode", "state", "attempts", "transactionKey", "errorCode", "errorMessage", "updatedAt",
}

type payoutListInput struct {
	PromotionPath
	State string `query:"state"`
	Code  string `query:"code" doc:"errorCode"`
	ListWords
	PageInput
}

func (in *payoutListInput) params() (store.PayoutListParams, error) {
	p := store.PayoutListParams{PromotionID: in.id, Code: in.Code, Limit: pageRead(in.Limit)}
	if in.State != "" {
		s, err := reward.ParseState(in.State)
		if err != nil {
			return p, web.Invalid("state", err.Error())
		}
		p.State = &s
	}
	if in.Cursor != "" {
		n, err := decodeCursor(cursorPayouts, in.Cursor)
		if err != nil {
			return p, err
		}
		p.After = new(reward.TargetID(n))
	}
	return p, nil
}

// PayoutPath is the path of a payout.
type PayoutPath struct {
	PromotionPath
	TargetID string `path:"targetId"`

	payout store.PayoutID
}

func (p *PayoutPath) parsePath(ctx context.Context) error {
	if err := p.PromotionPath.parsePath(ctx); err != nil {
		return err
	}
	target, err := reward.ParseTargetID(p.TargetID)
	if err != nil {
		return web.Malformed("targetId", err.Error())
	}
	p.payout = store.PayoutID{PromotionID: p.id, TargetID: target}
	return nil
}

// RetryPayouts is the body of POST /v1/promotions/{id}/payouts/retry.
type RetryPayouts struct {
	State string `json:"state" enum:"FAILED"`
	Code  string `json:"code,omitempty" doc:"errorCode"`
}

type payoutRetryInput struct {
	PromotionPath
	Body RetryPayouts
}

type payoutRetryOutput struct {
	Body struct {
		Requeued int `json:"requeued"`
	}
}

// ResolvePayout is the body of POST …/payouts/{targetId}/resolve.
type ResolvePayout struct{ client.Resolution }

// Resolve checks what the schema cannot express.
func (b *ResolvePayout) Resolve(huma.Context) []error {
	return fieldErrors(b.command().Check())
}

func (b *ResolvePayout) command() campaign.ResolveCommand {
	return campaign.ResolveCommand{Outcome: b.Outcome, TransactionKey: b.TransactionKey, Note: b.Note}
}

type payoutResolveInput struct {
	PayoutPath
	Body ResolvePayout
}

func (a *API) addPayouts() {
	const path, tag = "/v1/promotions/{id}/payouts", "payouts"
	call(a, operation{
		id: "list-payouts", method: http.MethodGet, path: path, tag: tag, roles: readers, long: true,
		summary:     "List payouts by target ID; all of them as text/csv",
		middlewares: orCSV(a.exportPayouts),
		errors:      []string{reward.CodeNotFound},
	}, a.listPayouts)
	a.describeCSV(path, payoutColumns)
	call(a, operation{
		id: "get-payout", method: http.MethodGet, path: path + "/{targetId}", tag: tag, roles: readers,
		summary: "Get a payout",
		errors:  []string{reward.CodePayoutNotFound},
	}, a.getPayout)
	call(a, operation{
		id: "retry-payouts", method: http.MethodPost, path: path + "/retry", tag: tag, roles: operators,
		summary: "Retry payouts", status: http.StatusAccepted,
		description: "Charges them again with the same idempotency keys; looks up first what the provider may have forgotten. After an error, call it again.",
		errors:      append([]string{reward.CodeArchived}, promotionMoves...),
		example:     tree{"state": "FAILED"},
	}, a.retryPayouts)
	call(a, operation{
		id: "resolve-payout", method: http.MethodPost, path: path + "/{targetId}/resolve", tag: tag, roles: operators,
		summary: "Settle an UNKNOWN payout manually",
		errors:  []string{reward.CodeNotFound, reward.CodePayoutNotFound, reward.CodeIllegalState},
		example: tree{"outcome": "SUCCEEDED", "transactionKey": "MS-0000000001", "note": "it is on the provider's list"},
	}, a.resolvePayout)
}

// orCSV answers a request that prefers CSV with an export. An export has no limit, so huma
// cannot buffer it.
func orCSV(export http.HandlerFunc) huma.Middlewares {
	return huma.Middlewares{func(ctx huma.Context, next func(huma.Context)) {
		if preferred(ctx.Header("Accept"), csvType) == "" {
			next(ctx)
			return
		}
		r, w := humago.Unwrap(ctx)
		export(w, r)
	}}
}

func (a *API) describeCSV(path string, columns []string) {
	a.OpenAPI().Paths[path].Get.Responses["200"].Content[csvType] = &huma.MediaType{
		Schema: &huma.Schema{Type: huma.TypeString, Description: "Columns " + strings.Join(columns, ", ")},
	}
}

func (a *API) listPayouts(ctx context.Context, in *payoutListInput) (*output[listOf[client.Payout]], error) {
	p, err := in.params()
	if err != nil {
		return nil, err
	}
	promotion, err := a.cfg.Rows.PromotionGet(ctx, p.PromotionID)
	if err != nil {
		return nil, err
	}
	rows, err := a.cfg.Rows.PayoutList(ctx, p)
	if err != nil {
		return nil, err
	}
	show := func(r reward.Payout) client.Payout { return payoutFor(ctx, r, promotion.Currency) }
	return page(rows, in.Limit, show, func(last reward.Payout) string { return encodeCursor(cursorPayouts, int64(last.TargetID)) }), nil
}

const exportPageRows = 100

func (a *API) exportPayouts(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	in := payoutListInput{
		PromotionPath: PromotionPath{ID: r.PathValue("id")}, State: q.Get("state"), Code: q.Get("code"),
		PageInput: PageInput{Cursor: q.Get("cursor"), Limit: exportPageRows},
	}
	a.exportList(w, r, "payouts-"+in.ID, payoutColumns, koreanPayouts, func(out *web.CSV, words *words) error {
		return a.export(r.Context(), out, in, words)
	})
}

func (a *API) export(ctx context.Context, out *web.CSV, in payoutListInput, words *words) error {
	if err := in.parsePath(ctx); err != nil {
		return err
	}
	p, err := in.params()
	if err != nil {
		return err
	}
	var promotion store.PromotionView
	return a.exportPages(ctx, out, "list-payouts", func(ctx context.Context) (rows [][]string, more bool, err error) {
		if promotion.ID == 0 {
			// An empty file for an unknown promotion would look like success.
			if promotion, err = a.cfg.Rows.PromotionGet(ctx, p.PromotionID); err != nil {
				return nil, false, err
			}
		}
		payouts, err := a.cfg.Rows.PayoutList(ctx, p)
		if err == nil && len(payouts) > 0 {
			p.After = new(payouts[len(payouts)-1].TargetID)
		}
		return mapped(payouts, func(p reward.Payout) []string { return words.payout(payoutFor(ctx, p, promotion.Currency)) }), len(payouts) == p.Limit, err
	})
}

// exportPages writes the pages that read returns, while it reports that there are more, and
// records the export in the audit.
func (a *API) exportPages(ctx context.Context, out *web.CSV, operation string, read func(ctx context.Context) (rows [][]string, more bool, err error)) error {
	leave, err := a.reads.enterExport(limitName(callerOf(ctx).Principal))
	if err != nil {
		return err
	}
	defer leave()
	for first := true; ; first = false {
		var rows [][]string
		var more bool
		err := a.readPage(ctx, first, func(ctx context.Context) (err error) {
			rows, more, err = read(ctx)
			return err
		})
		if err == nil && first {
			err = a.recordRead(ctx, operation, exportDetail)
		}
		if err != nil {
			return err
		}
		page := rows
		rows = nil // a slow client does not hold them
		if err := out.Page(page); err != nil || !more {
			return err
		}
	}
}

func (a *API) retryPayouts(ctx context.Context, in *payoutRetryInput) (*payoutRetryOutput, error) {
	n, err := a.cfg.Promotions.RetryFailed(ctx, in.id, in.Body.Code)
	switch {
	case err != nil && n > 0:
		return nil, partly{err}
	case err != nil:
		return nil, err
	}
	out := &payoutRetryOutput{}
	out.Body.Requeued = n
	return out, nil
}

func (a *API) resolvePayout(ctx context.Context, in *payoutResolveInput) (*output[client.PayoutDetail], error) {
	cmd := in.Body.command()
	cmd.PayoutID, cmd.By = in.payout, actor(ctx)
	if _, err := a.cfg.Promotions.Resolve(ctx, cmd); err != nil {
		return nil, err
	}
	return a.getPayout(ctx, &in.PayoutPath)
}

func (a *API) getPayout(ctx context.Context, in *PayoutPath) (*output[client.PayoutDetail], error) {
	p, attempts, err := a.cfg.Rows.PayoutGet(ctx, in.payout)
	if err != nil {
		return nil, err
	}
	promotions, err := a.promotionsOf(ctx, []reward.PromotionID{p.PromotionID})
	return outputOf(client.PayoutDetail{Payout: payoutFor(ctx, p, promotions[p.PromotionID].Currency), Log: attemptsOf(attempts)}, err)
}

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
	promotions, err := a.promotionsOf(ctx, mapped(rows, func(r reward.Payout) reward.PromotionID { return r.PromotionID }))
	if err != nil {
		return nil, err
	}
	show := func(r reward.Payout) client.UnknownPayout {
		return client.UnknownPayout{PromotionID: r.PromotionID.String(), Payout: payoutFor(ctx, r, promotions[r.PromotionID].Currency)}
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
	if _, err := a.cfg.Rows.PromotionGet(ctx, in.id); err != nil {
		return nil, err
	}
	rows, err := a.cfg.Rows.PayoutErrors(ctx, in.id)
	if err != nil {
		return nil, err
	}
	return &promotionErrorsOutput{Body: mapped(rows, errorFor)}, nil
}

func errorFor(r store.PayoutError) client.PromotionError {
	return client.PromotionError{
		Code: r.Code, Example: r.Message, ExampleTargetID: r.TargetID.String(), Class: r.Class,
		Failed: r.Failed, Retrying: r.Retrying, Unknown: r.Unknown,
	}
}
