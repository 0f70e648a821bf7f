package coupon

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Store is what coupons need of the database.
type Store interface {
	gatekeeper.Store
	CodesBegin(ctx context.Context, id reward.TemplateID, importID int64, now time.Time) error
	CodesDiscard(ctx context.Context, importID int64) error
	CodesPublish(ctx context.Context, id reward.TemplateID, importID, codes, above int64) (store.CouponChange, error)
	CodesStage(ctx context.Context, p store.CodesStageParams) (store.TakenCode, error)
	CodesSweep(ctx context.Context, before time.Time, limit int) (int, error)
	CouponCancel(ctx context.Context, p store.CouponCancelParams) (store.CouponCancelResult, error)
	CouponConfirm(ctx context.Context, id reward.CouponID) (reward.Coupon, bool, error)
	CouponEndHolds(ctx context.Context, id reward.TemplateID, limit int) (store.CouponChange, int, error)
	CouponExpire(ctx context.Context, now time.Time, limit int) (int, error)
	CouponGet(ctx context.Context, id reward.CouponID) (reward.Coupon, error)
	CouponLeave(ctx context.Context, p store.CouponLeaveParams) (store.CouponLeaveResult, error)
	CouponList(ctx context.Context, p store.CouponListParams) ([]reward.Coupon, error)
	CouponSettle(ctx context.Context, p store.CouponSettleParams) (store.CouponSettleResult, error)
	CouponUse(ctx context.Context, id reward.CouponID, now time.Time) (reward.Coupon, error)
	CouponsByCode(ctx context.Context, code string, limit int) ([]reward.Coupon, error)
	DrawClose(ctx context.Context, id reward.TemplateID, epoch int64) (reward.CouponTemplate, error)
	DrawDone(ctx context.Context, id reward.TemplateID, epoch int64, list []byte) (bool, error)
	DrawsEntered(ctx context.Context, user string, limit int) ([]store.DrawEntered, error)
	EntrantHas(ctx context.Context, id reward.TemplateID, users []string) (map[string]bool, error)
	EntrantList(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error)
	EntrantSave(ctx context.Context, id reward.TemplateID, users []string) (added map[string]bool, takes bool, err error)
	ExpiredHolds(ctx context.Context, id reward.TemplateID, users []string, holds int) (map[string]time.Duration, error)
	HoldsEnded(ctx context.Context, after reward.TemplateID, limit int) ([]reward.TemplateID, error)
	IssueHistory(ctx context.Context, user string, limit int) ([]reward.IssueOutcome, error)
	PayoutSave(ctx context.Context, p store.PayoutSaveParams) (store.PayoutSaveResult, error)
	RefusalList(ctx context.Context, id reward.TemplateID, limit int) ([]store.Refusal, error)
	TemplateAssign(ctx context.Context, ids []reward.TemplateID, owner string) (map[reward.TemplateID]int64, error)
	TemplateCreate(ctx context.Context, t reward.CouponTemplate) (reward.CouponTemplate, error)
	TemplateList(ctx context.Context, before reward.TemplateID, limit int) ([]reward.CouponTemplate, error)
	TemplateReleasePlaces(ctx context.Context, id reward.TemplateID) (reward.CouponTemplate, bool, error)
}
