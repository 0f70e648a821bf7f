package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Coupons is what people do with coupons that were issued.
type Coupons interface {
	Coupon(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	Coupons(ctx context.Context, p store.CouponListParams) ([]reward.Coupon, error)
	Use(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	Cancel(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	History(ctx context.Context, user string, more ...reward.TemplateID) (coupon.History, error)
}

// Coupon is a coupon on the wire.
type Coupon struct {
	ID          string    `json:"id" doc:"A whole number as a string"`
	Code        string    `json:"code" doc:"What its user shows; nobody can guess it"`
	TemplateID  string    `json:"templateId"`
	UserID      string    `json:"userId"`
	Ticket      int64     `json:"ticket" doc:"Place in the order of issue"`
	Status      string    `json:"status" enum:"ISSUED,USED,CANCELLED,EXPIRED" doc:"Only CANCELLED frees a place"`
	IssuedAt    time.Time `json:"issuedAt"`
	UsedAt      time.Time `json:"usedAt,omitzero"`
	CancelledAt time.Time `json:"cancelledAt,omitzero"`
	ExpiresAt   time.Time `json:"expiresAt,omitzero" doc:"Absent: never"`
}

func couponOf(c *reward.Coupon) *Coupon {
	return &Coupon{
		ID: c.ID.String(), Code: c.Code, TemplateID: c.TemplateID.String(), UserID: c.UserID, Ticket: c.Ticket, Status: c.Status.String(),
		IssuedAt: c.IssuedAt.UTC(), UsedAt: c.UsedAt.UTC(), CancelledAt: c.CancelledAt.UTC(), ExpiresAt: c.ExpiresAt.UTC(),
	}
}

type couponIDInput struct {
	ID string `path:"couponId" doc:"Coupon id"`
}

type couponOutput struct {
	Body *Coupon
}

type templateCouponsInput struct {
	ID     string `path:"id" doc:"Template id"`
	Cursor string `query:"cursor" doc:"nextCursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type userCouponsInput struct {
	UserID string `path:"userId" doc:"Percent-encoded"`
	Cursor string `query:"cursor" doc:"nextCursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

type couponListOutput struct {
	Body struct {
		Items      []*Coupon `json:"items" nullable:"false"`
		NextCursor string    `json:"nextCursor,omitempty" doc:"Absent on the last page"`
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
			"use", "Use a coupon that is ISSUED and valid",
			func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
				return a.cfg.Coupons.Use(ctx, id)
			},
		},
		{
			"cancel", "Cancel a coupon that is ISSUED and valid; its place is free then",
			func(ctx context.Context, id reward.CouponID) (reward.Coupon, error) {
				return a.cfg.Coupons.Cancel(ctx, id)
			},
		},
	} {
		call(a, huma.Operation{
			OperationID: act.name + "-coupon", Method: http.MethodPost, Path: path + "/" + act.name, Tags: tags, Summary: act.summary,
			Description: "409: COUPON_USED, COUPON_CANCELLED, COUPON_EXPIRED.",
		}, a.couponCall(act.do))
	}
	call(a, huma.Operation{
		OperationID: "list-template-coupons", Method: http.MethodGet, Path: "/v1/coupon-templates/{id}/coupons", Tags: tags,
		Summary: "List the coupons of a template, in the order of issue",
	}, a.listTemplateCoupons)
	call(a, huma.Operation{
		OperationID: "list-user-coupons", Method: http.MethodGet, Path: "/v1/users/{userId}/coupons", Tags: tags,
		Summary: "List the coupons of a user, the newest first",
	}, a.listUserCoupons)
}

// couponCall makes a call that names a coupon and answers with it.
func (a *API) couponCall(do func(ctx context.Context, id reward.CouponID) (reward.Coupon, error)) func(context.Context, *couponIDInput) (*couponOutput, error) {
	return func(ctx context.Context, in *couponIDInput) (*couponOutput, error) {
		id, err := reward.ParseCouponID(in.ID)
		if err != nil {
			return nil, web.Malformed("couponId", err.Error())
		}
		c, err := do(ctx, id)
		if err == nil && onlyOwn(ctx, c.UserID) != nil {
			// Whose it is, or that there is one, is nobody else's business.
			err = reward.NewError(reward.KindNotFound, reward.CodeCouponNotFound, "there is no coupon %s", id)
		}
		if err != nil {
			return nil, err
		}
		return &couponOutput{Body: couponOf(&c)}, nil
	}
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
	if err := onlyOwn(ctx, in.UserID); err != nil {
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

// checkUser refuses a user of a path that nobody can be.
func checkUser(user string) error {
	if err := reward.CheckUserID(user); err != nil {
		return web.Malformed("userId", err.Error())
	}
	return nil
}
