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

// couponFor returns a coupon as the caller may see it.
func couponFor(ctx context.Context, c *reward.Coupon) *client.Coupon {
	return &client.Coupon{
		ID: c.ID.String(), Code: codeFor(ctx, c.Code), TemplateID: c.TemplateID.String(), UserID: c.UserID, Ticket: c.Ticket, Status: c.Status.String(),
		IssuedAt: c.IssuedAt.UTC(), UsedAt: timeOf(c.UsedAt), CancelledAt: timeOf(c.CancelledAt), ExpiresAt: timeOf(c.ExpiresAt),
		HeldUntil: timeOf(c.HeldUntil), Reason: c.CancelReason,
	}
}

type couponIDInput struct {
	ID string `path:"couponId" doc:"Coupon ID"`
}

type couponOutput struct {
	Body *client.Coupon
}

func (out *couponOutput) holdsCodes() bool { return out.Body.Code != "" }

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
	ID string `path:"id" doc:"Template ID"`
	PageInput
}

type userCouponsInput struct {
	UserID string `path:"userId"`
	PageInput
}

type couponListOutput struct {
	Body listOf[*client.Coupon]
}

func (out *couponListOutput) holdsCodes() bool {
	return slices.ContainsFunc(out.Body.Items, func(c *client.Coupon) bool { return c.Code != "" })
}

func (a *API) addCoupons() {
	const path = "/v1/coupons/{couponId}"
	const tag = "coupons"
	call(a, operation{
		id: "get-coupon", method: http.MethodGet, path: path, tag: tag, roles: everyRole,
		summary: "Get a coupon",
		errors:  []string{reward.CodeCouponNotFound},
	}, a.couponCall(func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
		return a.cfg.Coupons.Coupon(ctx, id)
	}))
	for _, act := range []struct {
		name, summary string
		errors        []string
		do            func(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	}{
		{
			"confirm", "Confirm a HELD coupon, which becomes ISSUED",
			[]string{reward.CodeHoldExpired},
			func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
				return a.cfg.Coupons.Confirm(ctx, id)
			},
		},
		{
			"use", "Use a coupon",
			[]string{reward.CodeCouponHeld},
			func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
				return a.cfg.Coupons.Use(ctx, id)
			},
		},
		{
			"cancel", "Cancel a HELD or ISSUED coupon", nil,
			func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
				return a.cfg.Coupons.Cancel(ctx, id)
			},
		},
	} {
		call(a, operation{
			id: act.name + "-coupon", method: http.MethodPost, path: path + "/" + act.name, tag: tag, roles: issuers,
			summary: act.summary,
			errors:  slices.Concat(act.errors, couponMoves),
		}, a.couponCall(act.do))
	}
	call(a, operation{
		id: "find-coupons", method: http.MethodGet, path: "/v1/coupons", tag: tag, roles: staff,
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
func (a *API) couponCall(do func(ctx context.Context, id reward.CouponID) (reward.Coupon, error)) func(context.Context, *couponIDInput) (*couponOutput, error) {
	return func(ctx context.Context, in *couponIDInput) (*couponOutput, error) {
		id, err := reward.ParseCouponID(in.ID)
		if err != nil {
			return nil, web.Malformed("couponId", err.Error())
		}
		c, err := do(ctx, id)
		if err == nil && checkOwnUser(ctx, c.UserID) != nil {
			// Other users must not learn that the coupon exists.
			err = reward.NewError(reward.KindNotFound, reward.CodeCouponNotFound, "coupon %s does not exist", id)
		}
		if err != nil {
			return nil, err
		}
		return &couponOutput{Body: couponFor(ctx, &c)}, nil
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
	out.Body.Items = make([]*client.Coupon, len(rows))
	for i := range rows {
		out.Body.Items[i] = couponFor(ctx, &rows[i])
	}
	return out, nil
}

func (a *API) listTemplateCoupons(ctx context.Context, in *templateCouponsInput) (*couponListOutput, error) {
	id, err := templateID("id", in.ID)
	if err != nil {
		return nil, err
	}
	p := store.CouponListParams{TemplateID: id}
	if p.AfterTicket, err = decodeCursor(cursorTemplateCoupons, in.Cursor); err != nil {
		return nil, err
	}
	return a.couponPage(ctx, p, in.Limit, func(last reward.Coupon) string { return encodeCursor(cursorTemplateCoupons, last.Ticket) })
}

func (a *API) listUserCoupons(ctx context.Context, in *userCouponsInput) (*couponListOutput, error) {
	if err := checkUser(in.UserID); err != nil {
		return nil, err
	}
	if err := checkOwnUser(ctx, in.UserID); err != nil {
		return nil, err
	}
	before, err := decodeCursor(cursorUserCoupons, in.Cursor)
	if err != nil {
		return nil, err
	}
	p := store.CouponListParams{UserID: in.UserID, Before: reward.CouponID(before)}
	return a.couponPage(ctx, p, in.Limit, func(last reward.Coupon) string { return encodeCursor(cursorUserCoupons, int64(last.ID)) })
}

func (a *API) couponPage(ctx context.Context, p store.CouponListParams, limit int, cursor func(last reward.Coupon) string) (*couponListOutput, error) {
	p.Limit = pageRead(limit)
	rows, err := a.cfg.Coupons.Coupons(ctx, p)
	if err != nil {
		return nil, err
	}
	show := func(c reward.Coupon) *client.Coupon { return couponFor(ctx, &c) }
	return &couponListOutput{Body: page(rows, limit, show, cursor)}, nil
}

// checkUser refuses an invalid user ID in a path.
func checkUser(user string) error {
	if err := reward.CheckUserID(user); err != nil {
		return web.Malformed("userId", err.Error())
	}
	return nil
}
