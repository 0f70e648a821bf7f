package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

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

// Coupon is a coupon in JSON.
type Coupon struct {
	ID          string    `json:"id"`
	Code        string    `json:"code" doc:"Code that the user shows; it cannot be guessed"`
	TemplateID  string    `json:"templateId"`
	UserID      string    `json:"userId"`
	Ticket      int64     `json:"ticket" doc:"Ticket number; coupons are issued in the order of their tickets"`
	Status      string    `json:"status" enum:"HELD,ISSUED,USED,CANCELLED,EXPIRED" doc:"HELD: it must be confirmed before heldUntil. Only a CANCELLED coupon becomes available again"`
	HeldUntil   time.Time `json:"heldUntil,omitzero" doc:"End of the hold, by the clock of the database; absent: the coupon was not held, or it is confirmed"`
	IssuedAt    time.Time `json:"issuedAt"`
	UsedAt      time.Time `json:"usedAt,omitzero"`
	CancelledAt time.Time `json:"cancelledAt,omitzero"`
	Reason      string    `json:"reason,omitempty" doc:"Why it is CANCELLED: HOLD_EXPIRED if it was not confirmed in time; absent: by a request" example:"HOLD_EXPIRED"`
	ExpiresAt   time.Time `json:"expiresAt,omitzero" doc:"Absent: the coupon does not expire"`
}

func couponOf(c *reward.Coupon) *Coupon {
	return &Coupon{
		ID: c.ID.String(), Code: c.Code, TemplateID: c.TemplateID.String(), UserID: c.UserID, Ticket: c.Ticket, Status: c.Status.String(),
		IssuedAt: c.IssuedAt.UTC(), UsedAt: c.UsedAt.UTC(), CancelledAt: c.CancelledAt.UTC(), ExpiresAt: c.ExpiresAt.UTC(),
		HeldUntil: c.HeldUntil.UTC(), Reason: c.CancelReason,
	}
}

type couponIDInput struct {
	ID string `path:"couponId" doc:"Coupon ID"`
}

type couponOutput struct {
	Body *Coupon
}

// codeLengthMax limits the code in a query, in bytes.
const codeLengthMax = reward.CodePrefixMax + reward.CodeLengthMax

// sameCodeMax limits the coupons with the same code in a response.
const sameCodeMax = 100

type couponsByCodeInput struct {
	Code string `query:"code" required:"true" minLength:"1" doc:"Code of the coupon, exactly as issued"`
}

type couponsByCodeOutput struct {
	Body struct {
		Items []*Coupon `json:"items" nullable:"false"`
	}
}

type templateCouponsInput struct {
	ID     string `path:"id" doc:"Template ID"`
	Cursor string `query:"cursor" doc:"nextCursor of the previous page"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type userCouponsInput struct {
	UserID string `path:"userId" doc:"User ID, percent-encoded"`
	Cursor string `query:"cursor" doc:"nextCursor of the previous page"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type couponListOutput struct {
	Body struct {
		Items      []*Coupon `json:"items" nullable:"false"`
		NextCursor string    `json:"nextCursor,omitempty"`
	}
}

func (a *API) addCoupons() {
	const path = "/v1/coupons/{couponId}"
	tags := []string{"coupons"}
	call(a, huma.Operation{
		OperationID: "get-coupon", Method: http.MethodGet, Path: path, Tags: tags,
		Summary: "Show a coupon",
	}, a.couponCall(func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
		return a.cfg.Coupons.Coupon(ctx, id)
	}))
	for _, act := range []struct {
		name, summary string
		do            func(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	}{
		{
			"confirm", "Confirm a HELD coupon, which makes it ISSUED; an ISSUED coupon stays as it is",
			func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
				return a.cfg.Coupons.Confirm(ctx, id)
			},
		},
		{
			"use", "Use an ISSUED coupon that has not expired",
			func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
				return a.cfg.Coupons.Use(ctx, id)
			},
		},
		{
			"cancel", "Cancel a HELD coupon, or an ISSUED one that has not expired; it becomes available again",
			func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
				return a.cfg.Coupons.Cancel(ctx, id)
			},
		},
	} {
		call(a, huma.Operation{
			OperationID: act.name + "-coupon", Method: http.MethodPost, Path: path + "/" + act.name, Tags: tags, Summary: act.summary,
		}, a.couponCall(act.do))
	}
	call(a, huma.Operation{
		OperationID: "find-coupons", Method: http.MethodGet, Path: "/v1/coupons", Tags: tags,
		Summary:     "Find a coupon by its code, as a till does",
		Description: "A code is unique within its template. At most 100 coupons of different templates are returned, lowest template ID first; none: items is empty.",
	}, a.findCoupons)
	call(a, huma.Operation{
		OperationID: "list-template-coupons", Method: http.MethodGet, Path: "/v1/coupon-templates/{id}/coupons", Tags: tags,
		Summary: "List the coupons of a template in the order of their tickets",
	}, a.listTemplateCoupons)
	call(a, huma.Operation{
		OperationID: "list-user-coupons", Method: http.MethodGet, Path: "/v1/users/{userId}/coupons", Tags: tags,
		Summary: "List the coupons of a user, newest first",
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
		return &couponOutput{Body: couponOf(&c)}, nil
	}
}

func (a *API) findCoupons(ctx context.Context, in *couponsByCodeInput) (*couponsByCodeOutput, error) {
	if len(in.Code) > codeLengthMax {
		return nil, web.Invalid("code", fmt.Sprintf("is longer than %d bytes", codeLengthMax))
	}
	rows, err := a.cfg.Coupons.CouponsByCode(ctx, in.Code, sameCodeMax)
	if err != nil {
		return nil, err
	}
	out := &couponsByCodeOutput{}
	out.Body.Items = make([]*Coupon, len(rows))
	for i := range rows {
		out.Body.Items[i] = couponOf(&rows[i])
	}
	return out, nil
}

func (a *API) listTemplateCoupons(ctx context.Context, in *templateCouponsInput) (*couponListOutput, error) {
	id, err := templateID("id", in.ID)
	if err != nil {
		return nil, err
	}
	p := store.CouponListParams{TemplateID: id}
	if in.Cursor != "" {
		if p.AfterTicket, err = decodeCursor(cursorTemplateCoupons, in.Cursor); err != nil {
			return nil, err
		}
	}
	return a.couponPage(ctx, p, in.Limit, func(last *reward.Coupon) string { return encodeCursor(cursorTemplateCoupons, last.Ticket) })
}

func (a *API) listUserCoupons(ctx context.Context, in *userCouponsInput) (*couponListOutput, error) {
	if err := checkUser(in.UserID); err != nil {
		return nil, err
	}
	if err := checkOwnUser(ctx, in.UserID); err != nil {
		return nil, err
	}
	p := store.CouponListParams{UserID: in.UserID}
	if in.Cursor != "" {
		before, err := decodeCursor(cursorUserCoupons, in.Cursor)
		if err != nil {
			return nil, err
		}
		p.Before = reward.CouponID(before)
	}
	return a.couponPage(ctx, p, in.Limit, func(last *reward.Coupon) string { return encodeCursor(cursorUserCoupons, int64(last.ID)) })
}

func (a *API) couponPage(ctx context.Context, p store.CouponListParams, limit int, cursor func(last *reward.Coupon) string) (*couponListOutput, error) {
	p.Limit = pageRead(limit)
	rows, err := a.cfg.Coupons.Coupons(ctx, p)
	if err != nil {
		return nil, err
	}
	rows, more := page(rows, limit)
	out := &couponListOutput{}
	out.Body.Items = make([]*Coupon, len(rows))
	for i := range rows {
		out.Body.Items[i] = couponOf(&rows[i])
	}
	if more {
		out.Body.NextCursor = cursor(&rows[len(rows)-1])
	}
	return out, nil
}

// checkUser refuses an invalid user ID in a path.
func checkUser(user string) error {
	if err := reward.CheckUserID(user); err != nil {
		return web.Malformed("userId", err.Error())
	}
	return nil
}
