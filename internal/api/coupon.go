package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
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
	Cancel(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	History(ctx context.Context, user string, more ...reward.TemplateID) (coupon.History, error)
}

func couponFor(ctx context.Context, c reward.Coupon) *client.Coupon {
	return &client.Coupon{
		ID: c.ID.String(), Code: codeFor(ctx, c.Code), TemplateID: c.TemplateID.String(), UserID: c.UserID, Ticket: c.Ticket, Status: c.Status.String(),
		IssuedAt: c.IssuedAt.UTC(), UsedAt: timeOf(c.UsedAt), CancelledAt: timeOf(c.CancelledAt), ExpiresAt: timeOf(c.ExpiresAt),
		HeldUntil: timeOf(c.HeldUntil), Reason: c.CancelReason,
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
	PageInput
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
		{"cancel", "Cancel a HELD or ISSUED coupon", nil, Coupons.Cancel},
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
	call(a, operation{
		id: "list-template-coupons", method: http.MethodGet, path: "/v1/coupon-templates/{id}/coupons", tag: tag, roles: staff,
		summary: "List the coupons of a template by ticket",
		errors:  []string{reward.CodeTemplateNotFound},
	}, a.listTemplateCoupons)
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
	in.Code = strings.TrimSpace(in.Code)
	if in.Code == "" {
		return nil, web.Invalid("code", "is empty")
	}
	if len(in.Code) > codeLengthMax {
		return nil, web.Invalid("code", fmt.Sprintf("is longer than %d bytes", codeLengthMax))
	}
	rows, err := a.cfg.Coupons.CouponsByCode(ctx, in.Code, sameCodeMax)
	if err != nil {
		return nil, err
	}
	out := &couponsByCodeOutput{}
	out.Body.Items = mapped(rows, func(c reward.Coupon) *client.Coupon { return couponFor(ctx, c) })
	return out, nil
}

func (a *API) listTemplateCoupons(ctx context.Context, in *templateCouponsInput) (*output[listOf[*client.Coupon]], error) {
	return a.couponPage(ctx, in.PageInput, cursorTemplateCoupons, func(last int64) store.CouponListParams {
		return store.CouponListParams{TemplateID: in.id, AfterTicket: last}
	}, func(c reward.Coupon) int64 { return c.Ticket })
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
