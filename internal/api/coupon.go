package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Coupons manages issued coupons.
type Coupons interface {
	Coupon(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	Coupons(ctx context.Context, p store.CouponListParams) ([]reward.Coupon, error)
	CouponsByCode(ctx context.Context, code string, limit int) ([]reward.Coupon, error)
	Confirm(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	Use(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	Cancel(ctx context.Context, id reward.CouponID, by string) (reward.Coupon, error)
	CancelMany(ctx context.Context, id reward.TemplateID, coupons []reward.CouponID, by string) (store.CouponCancelResult, error)
	History(ctx context.Context, user string, more ...reward.TemplateID) (coupon.History, error)
}

// couponFor returns a coupon as it is now, and as the caller may see it: shoppers do not see
// who cancelled it.
func couponFor(ctx context.Context, c reward.Coupon) *client.Coupon {
	c = rules.CouponAt(c, time.Now(), clockSkewMax)
	if callerOf(ctx).Role == auth.RoleShopper {
		c.CancelledBy = ""
	}
	return &client.Coupon{
		ID: c.ID.String(), Code: codeFor(ctx, c.Code), TemplateID: c.TemplateID.String(), UserID: c.UserID, Ticket: c.Ticket, Status: c.Status.String(),
		IssuedAt: c.IssuedAt.UTC(), UsedAt: timeOf(c.UsedAt), CancelledAt: timeOf(c.CancelledAt), ExpiresAt: timeOf(c.ExpiresAt),
		HeldUntil: timeOf(c.HeldUntil), Reason: c.CancelReason, CancelledBy: c.CancelledBy,
	}
}

type couponIDInput struct {
	ID string `path:"couponId" doc:"Coupon ID"`
}

// codeLengthMax limits the code in a query, in bytes.
const codeLengthMax = reward.CodePrefixMax + reward.CodeLengthMax

// sameCodeMax limits the coupons with the same code in a response.
const sameCodeMax = 100

type couponsByCodeInput struct {
	Code string `query:"code" required:"true" minLength:"1" doc:"Case matters only for imported codes"`
}

type couponsByCodeOutput struct {
	Body struct {
		Items []*client.Coupon `json:"items" nullable:"false"`
	}
}

type templateCouponsInput struct {
	TemplatePath
	Status string `query:"status" enum:"HELD,ISSUED,USED,CANCELLED,EXPIRED"`
	UserID string `query:"userId"`
	Code   string `query:"code" doc:"As in find-coupons"`
	Sort   string `query:"sort" enum:"ticket,-ticket" default:"ticket"`
	ListWords
	PageInput
}

func (in *templateCouponsInput) params() (store.CouponListParams, error) {
	p := store.CouponListParams{TemplateID: in.id, UserID: in.UserID, Newest: in.Sort == "-ticket", Limit: pageRead(in.Limit)}
	var err error
	if p.Code, err = codeIn(in.Code); err != nil {
		return p, err
	}
	if in.Sort != "ticket" && !p.Newest {
		return p, web.Invalid("sort", "must be ticket or -ticket")
	}
	if in.UserID != "" {
		if err := reward.CheckUserID(in.UserID); err != nil {
			return p, web.Invalid("userId", err.Error())
		}
	}
	if in.Status != "" {
		status, err := reward.ParseCouponStatus(in.Status)
		if err != nil {
			return p, web.Invalid("status", err.Error())
		}
		p.Status = &status
	}
	if in.Cursor != "" {
		p.After, err = decodePlace(in.Sort, in.Cursor)
	}
	return p, err
}

func encodePlace(sort string, c reward.Coupon) string {
	return encodeUserCursor(cursorTemplateCoupons+sort, fmt.Sprintf("%d:%d", c.Ticket, c.Generation))
}

func decodePlace(sort, cursor string) (store.CouponPlace, error) {
	ticket, generation, _ := strings.Cut(cursorText(cursorTemplateCoupons+sort, cursor), ":")
	var c reward.Coupon
	c.Ticket, _ = strconv.ParseInt(ticket, 10, 64) // another text does not encode to the same cursor
	c.Generation, _ = strconv.ParseInt(generation, 10, 64)
	if encodePlace(sort, c) != cursor || c.Ticket < 1 {
		return store.CouponPlace{}, noCursor()
	}
	return store.CouponPlace{Ticket: c.Ticket, Generation: c.Generation}, nil
}

// CancelCoupons is the body of POST /v1/coupon-templates/{id}/coupons/cancel.
type CancelCoupons struct {
	IDs []string `json:"ids" minItems:"1" maxItems:"1000" nullable:"false" doc:"Coupon IDs; one that repeats counts once"`
}

// forAudit returns the body with the number of its IDs, which may be cut.
func (b CancelCoupons) forAudit() any {
	return struct {
		Count int      `json:"count"`
		IDs   []string `json:"ids"`
	}{len(b.IDs), b.IDs}
}

type cancelCouponsInput struct {
	TemplatePath
	Body CancelCoupons
}

type userCouponsInput struct {
	UserPath
	PageInput
}

// UserPath is the path of what belongs to a user.
type UserPath struct {
	UserID string `path:"userId"`
}

func (p *UserPath) parsePath(ctx context.Context) error {
	if err := reward.CheckUserID(p.UserID); err != nil {
		return web.Malformed("userId", err.Error())
	}
	return checkOwnUser(ctx, p.UserID)
}

func (a *API) addCoupons() {
	const path = "/v1/coupons/{couponId}"
	const tag = "coupons"
	call(a, operation{
		id: "get-coupon", method: http.MethodGet, path: path, tag: tag, roles: everyRole,
		summary: "Get a coupon",
		errors:  []string{reward.CodeCouponNotFound},
	}, a.couponCall(Coupons.Coupon))
	for _, act := range []struct {
		name, summary string
		errors        []string
		do            func(c Coupons, ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	}{
		{"confirm", "Confirm a HELD coupon, which becomes ISSUED", []string{reward.CodeHoldExpired}, Coupons.Confirm},
		{"use", "Use a coupon", []string{reward.CodeCouponHeld}, Coupons.Use},
		{"cancel", "Cancel a HELD or ISSUED coupon", nil, func(c Coupons, ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
			return c.Cancel(ctx, id, actor(ctx))
		}},
	} {
		call(a, operation{
			id: act.name + "-coupon", method: http.MethodPost, path: path + "/" + act.name, tag: tag, roles: issuers,
			summary: act.summary,
			errors:  slices.Concat(act.errors, couponMoves),
		}, a.couponCall(act.do))
	}
	call(a, operation{
		id: "find-coupons", method: http.MethodGet, path: "/v1/coupons", tag: tag, roles: staff, unaudited: true,
		summary:     "Find coupons by code",
		description: "At most 100, lowest template ID first.",
	}, a.findCoupons)
	const ofTemplate = "/v1/coupon-templates/{id}/coupons"
	call(a, operation{
		id: "list-template-coupons", method: http.MethodGet, path: ofTemplate, tag: tag, roles: staff, long: true,
		summary:     "List the coupons of a template by ticket; all of them as text/csv",
		description: "After a draw they are its winners.",
		middlewares: orCSV(a.exportCoupons),
		errors:      []string{reward.CodeTemplateNotFound},
	}, a.listTemplateCoupons)
	a.describeCSV(ofTemplate, couponColumns)
	call(a, operation{
		id: "cancel-coupons", method: http.MethodPost, path: ofTemplate + "/cancel", tag: tag, roles: issuers,
		summary:     "Cancel coupons of a template, all in one transaction",
		description: "Those that cannot be cancelled stay as they are, and are counted. A repeat finds them cancelled.",
		errors:      []string{reward.CodeTemplateNotFound, reward.CodeArchived},
		example:     tree{"ids": []any{"7319283746592837465"}},
	}, a.cancelCoupons)
	call(a, operation{
		id: "list-user-coupons", method: http.MethodGet, path: "/v1/users/{userId}/coupons", tag: tag, roles: everyRole,
		summary: "List user coupons",
	}, a.listUserCoupons)
}

// couponCall returns an operation that takes a coupon ID and answers with the coupon.
func (a *API) couponCall(do func(c Coupons, ctx context.Context, id reward.CouponID) (reward.Coupon, error)) func(context.Context, *couponIDInput) (*output[*client.Coupon], error) {
	return func(ctx context.Context, in *couponIDInput) (*output[*client.Coupon], error) {
		id, err := reward.ParseCouponID(in.ID)
		if err != nil {
			return nil, web.Malformed("couponId", err.Error())
		}
		c, err := do(a.cfg.Coupons, ctx, id)
		if err == nil && checkOwnUser(ctx, c.UserID) != nil {
			// Other users must not learn that the coupon exists.
			err = reward.NewError(reward.KindNotFound, reward.CodeCouponNotFound, "coupon %s does not exist", id)
		}
		return outputOf(couponFor(ctx, c), err)
	}
}

func (a *API) findCoupons(ctx context.Context, in *couponsByCodeInput) (*couponsByCodeOutput, error) {
	code, err := codeIn(in.Code)
	if err == nil && code == "" {
		err = web.Invalid("code", "is empty")
	}
	if err != nil {
		return nil, err
	}
	rows, err := a.cfg.Coupons.CouponsByCode(ctx, code, sameCodeMax)
	if err != nil {
		return nil, err
	}
	out := &couponsByCodeOutput{}
	out.Body.Items = mapped(rows, func(c reward.Coupon) *client.Coupon { return couponFor(ctx, c) })
	return out, nil
}

// codeIn returns the code in a query, without spaces around it.
func codeIn(text string) (string, error) {
	code := strings.TrimSpace(text)
	if len(code) > codeLengthMax {
		return "", web.Invalid("code", fmt.Sprintf("is longer than %d bytes", codeLengthMax))
	}
	return code, nil
}

func (a *API) listTemplateCoupons(ctx context.Context, in *templateCouponsInput) (*output[listOf[*client.Coupon]], error) {
	p, err := in.params()
	if err != nil {
		return nil, err
	}
	rows, err := a.cfg.Coupons.Coupons(ctx, p)
	if err != nil {
		return nil, err
	}
	out := page(rows, in.Limit, func(c reward.Coupon) *client.Coupon { return couponFor(ctx, c) }, func(last reward.Coupon) string { return encodePlace(in.Sort, last) })
	out.Body.Items = inStatus(out.Body.Items, in.Status)
	return out, nil
}

// inStatus leaves out coupons that have left a status since their rows say so; an empty status
// is any.
func inStatus(list []*client.Coupon, status string) []*client.Coupon {
	return slices.DeleteFunc(list, func(c *client.Coupon) bool { return status != "" && c.Status != status })
}

var couponColumns = []string{"id", "ticket", "userId", "code", "status", "issuedAt", "heldUntil", "usedAt", "cancelledAt", "reason", "cancelledBy", "expiresAt"}

func (a *API) exportCoupons(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	in := templateCouponsInput{
		TemplatePath: TemplatePath{ID: r.PathValue("id")}, Status: q.Get("status"), UserID: q.Get("userId"), Code: q.Get("code"),
		Sort: cmp.Or(q.Get("sort"), "ticket"), PageInput: PageInput{Cursor: q.Get("cursor")},
	}
	a.exportList(w, r, "coupons-"+in.ID, couponColumns, koreanCoupons, func(out *web.CSV, words *words) error {
		return a.exportCouponsOf(r.Context(), out, in, words)
	})
}

func (a *API) exportCouponsOf(ctx context.Context, out *web.CSV, in templateCouponsInput, words *words) error {
	if err := in.parsePath(ctx); err != nil {
		return err
	}
	p, err := in.params()
	if err != nil {
		return err
	}
	p.Limit = exportPageRows
	return a.exportPages(ctx, out, "list-template-coupons", func(ctx context.Context) ([][]string, bool, error) {
		list, err := a.cfg.Coupons.Coupons(ctx, p)
		if err == nil && len(list) > 0 {
			last := list[len(list)-1]
			p.After = store.CouponPlace{Ticket: last.Ticket, Generation: last.Generation}
		}
		shown := mapped(list, func(c reward.Coupon) *client.Coupon { return couponFor(ctx, c) })
		return mapped(inStatus(shown, in.Status), words.coupon), len(list) == p.Limit, err
	})
}

// cancelCoupons cancels coupons and returns how many of them were cancelled.
func (a *API) cancelCoupons(ctx context.Context, in *cancelCouponsInput) (*output[client.CancelledCoupons], error) {
	ids := make([]reward.CouponID, len(in.Body.IDs))
	for i, text := range in.Body.IDs {
		var err error
		if ids[i], err = reward.ParseCouponID(text); err != nil {
			return nil, web.Invalid(fmt.Sprintf("ids[%d]", i), err.Error())
		}
	}
	r, err := a.cfg.Coupons.CancelMany(ctx, in.id, ids, actor(ctx))
	out := client.CancelledCoupons{Cancelled: len(r.Cancelled), NotFound: []string{}}
	for id, why := range r.Refused {
		switch {
		case reward.HasCode(why, reward.CodeCouponCancelled):
			out.AlreadyCancelled++
		case reward.HasCode(why, reward.CodeCouponUsed):
			out.Used++
		case reward.HasCode(why, reward.CodeCouponExpired):
			out.Expired++
		default:
			out.NotFound = append(out.NotFound, id.String())
		}
	}
	slices.Sort(out.NotFound)
	if err == nil && out.Cancelled > 0 {
		a.log.Info("coupons cancelled", "template_id", in.id, "count", out.Cancelled, "actor", actor(ctx))
	}
	return outputOf(out, err)
}

func (a *API) listUserCoupons(ctx context.Context, in *userCouponsInput) (*output[listOf[*client.Coupon]], error) {
	return a.couponPage(ctx, in.PageInput, cursorUserCoupons, func(last int64) store.CouponListParams {
		return store.CouponListParams{UserID: in.UserID, Before: reward.CouponID(last)}
	}, func(c reward.Coupon) int64 { return int64(c.ID) })
}

func (a *API) couponPage(
	ctx context.Context, in PageInput, list string, params func(last int64) store.CouponListParams, idOf func(reward.Coupon) int64,
) (*output[listOf[*client.Coupon]], error) {
	read := func(last int64, limit int) ([]reward.Coupon, error) {
		p := params(last)
		p.Limit = limit
		return a.cfg.Coupons.Coupons(ctx, p)
	}
	return pageByID(in, list, read, func(c reward.Coupon) *client.Coupon { return couponFor(ctx, c) }, idOf)
}
