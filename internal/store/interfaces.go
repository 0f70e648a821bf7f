package store

import (
	"context"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// These interfaces are parts of the store, as rows.Tables implements and documents it. They
// end with the last package that uses them instead of an interface of its own.

// Store is the store; see rows.Tables.
type Store interface {
	Promotions
	Payouts
	Summaries
	DeadLetters
	Uploads
	Leases
	Instances
	Webhooks
	WebhookEndpoints
	Reconciliations
	Coupons
	APIKeys
	Audits
	Idempotencies
	Retention
	Timelines
	Ping(ctx context.Context) error
	Clock(ctx context.Context) (time.Time, error)
	FullAt() time.Time
	Refusal() (at time.Time, reason string)
	Migrate(ctx context.Context) error
	MigrateBack(ctx context.Context, version int64) error
	Close()
}

// Retention is a part of the store; see rows.Tables.
type Retention interface {
	AuditForget(ctx context.Context, before time.Time, limit int) (int, error)
	DeadLetterForget(ctx context.Context, status reward.DeadLetterStatus, before time.Time, limit int) (int, error)
	PromotionEnded(ctx context.Context, before time.Time, after EndedPromotion, limit int) ([]EndedPromotion, error)
	PromotionArchive(ctx context.Context, id reward.PromotionID, before, now time.Time) (bool, error)
	PayoutForget(ctx context.Context, p PayoutForgetParams) (PayoutForgotten, error)
	TemplateEnded(ctx context.Context, before time.Time, after EndedTemplate, limit int) ([]EndedTemplate, error)
	TemplateArchive(ctx context.Context, id reward.TemplateID, before, now time.Time) (bool, error)
	TemplateForget(ctx context.Context, p TemplateForgetParams) (TemplateForgotten, error)
}

// Promotions is a part of the store; see rows.Tables.
type Promotions interface {
	PromotionCreate(ctx context.Context, p reward.Promotion) (reward.Promotion, error)
	PromotionRegister(ctx context.Context, rs []Registration, approvalAbove reward.Limits, now time.Time) ([]reward.Promotion, error)
	PromotionGet(ctx context.Context, id reward.PromotionID) (PromotionView, error)
	PromotionViews(ctx context.Context, ids []reward.PromotionID) ([]PromotionView, error)
	PromotionChange(ctx context.Context, c rules.PromotionChange) (PromotionView, error)
	PromotionList(ctx context.Context, p PromotionListParams) ([]PromotionView, error)
	PromotionActive(ctx context.Context) ([]PromotionView, error)
	PromotionChanges(ctx context.Context, since string) (PromotionChanges, error)
	PromotionMove(ctx context.Context, p PromotionMoveParams) (reward.Promotion, error)
	PromotionComplete(ctx context.Context, id reward.PromotionID, settleAfter time.Duration, now time.Time) (bool, error)
	PromotionStreamDestroyed(ctx context.Context, id reward.PromotionID, lastDispatchedAt time.Time) (bool, error)
	PromotionClose(ctx context.Context, id reward.PromotionID) (reward.Promotion, error)
	PromotionJudge(ctx context.Context, p PromotionJudgeParams) (reward.PromotionStatus, bool, error)
	PromotionApprove(ctx context.Context, p PromotionApproveParams) (PromotionView, error)
	PromotionReject(ctx context.Context, p PromotionRejectParams) (reward.Promotion, error)
	PromotionAwaitApproval(ctx context.Context, p PromotionAwaitApprovalParams) (bool, error)
	PromotionGrant(ctx context.Context, p PromotionGrantParams) (granted bool, err error)
	PromotionAuthorAdd(ctx context.Context, id reward.PromotionID, author string) error
	PromotionAuthors(ctx context.Context, id reward.PromotionID) ([]string, error)
	PromotionDue(ctx context.Context, now time.Time, limit int) ([]PromotionView, error)
	PromotionDelete(ctx context.Context, id reward.PromotionID) error
}

// Payouts is a part of the store; see rows.Tables.
type Payouts interface {
	PayoutSave(ctx context.Context, p PayoutSaveParams) (PayoutSaveResult, error)
	PayoutDispatch(ctx context.Context, p PayoutDispatchParams) ([]reward.Payout, error)
	PayoutReturn(ctx context.Context, p PayoutReturnParams) (int, error)
	PayoutSweep(ctx context.Context, p PayoutSweepParams) (int, error)
	PayoutGetMany(ctx context.Context, ids []PayoutID) ([]reward.Payout, error)
	PayoutFinish(ctx context.Context, p PayoutFinishParams) ([]FinishResult, error)
	PayoutClaimLookups(ctx context.Context, p PayoutClaimLookupsParams) ([]reward.Payout, error)
	PayoutSettle(ctx context.Context, p PayoutSettleParams) ([]SecondCharge, error)
	PayoutCancelStep(ctx context.Context, p PayoutCancelStepParams) (int, error)
	PayoutRetry(ctx context.Context, p PayoutRetryParams) (int, error)
	PayoutResolve(ctx context.Context, p PayoutResolveParams) (reward.Payout, error)
	PayoutGet(ctx context.Context, id PayoutID) (reward.Payout, []reward.Attempt, error)
	PayoutList(ctx context.Context, p PayoutListParams) ([]reward.Payout, error)
	PayoutHistory(ctx context.Context, user string, limit int) ([]UserPayout, error)
	PayoutUnknown(ctx context.Context, p PayoutUnknownParams) ([]reward.Payout, error)
	PayoutOldest(ctx context.Context) (OldestPayouts, error)
	PayoutErrors(ctx context.Context, id reward.PromotionID) ([]PayoutError, error)
	OffsetsGet(ctx context.Context, log string) (map[int32]int64, error)
}

// Summaries is a part of the store; see rows.Tables.
type Summaries interface {
	SummaryList(ctx context.Context, id reward.PromotionID, limit int) ([]reward.Summary, error)
	SummaryRecount(ctx context.Context, id reward.PromotionID) (reward.Counts, error)
	SummaryCompare(ctx context.Context, id reward.PromotionID, repair bool) (Comparison, error)
	SharedKeys(ctx context.Context, id reward.PromotionID) (SharedKeys, error)
}

// DeadLetters is a part of the store; see rows.Tables.
type DeadLetters interface {
	DeadLetterAdd(ctx context.Context, ls []reward.DeadLetter) error
	DeadLetterGet(ctx context.Context, id int64) (reward.DeadLetter, error)
	DeadLetterList(ctx context.Context, p DeadLetterListParams) ([]reward.DeadLetter, error)
	DeadLetterClose(ctx context.Context, ids []int64, to reward.DeadLetterStatus, by string, now time.Time) ([]int64, error)
}

// Uploads is a part of the store; see rows.Tables.
type Uploads interface {
	UploadOpen(ctx context.Context, u Upload) error
	UploadExtend(ctx context.Context, id int64, leasedUntil time.Time) error
	UploadAddErrors(ctx context.Context, id int64, errs []LineError) error
	UploadClose(ctx context.Context, u Upload, now time.Time) error
	UploadGet(ctx context.Context, promotion reward.PromotionID, id int64) (Upload, error)
	UploadList(ctx context.Context, promotion reward.PromotionID, before int64, limit int) ([]Upload, error)
	UploadErrors(ctx context.Context, id int64, after int64, limit int) ([]LineError, error)
}

// Instances is a part of the store; see rows.Tables.
type Instances interface {
	InstanceHeartbeat(ctx context.Context, i Instance, ttl time.Duration) (alive int, err error)
	InstanceRemove(ctx context.Context, name string) error
	InstanceList(ctx context.Context) ([]Instance, error)
	InstanceOtherApprovals(ctx context.Context, approvals string) ([]string, error)
	InstanceReportDead(ctx context.Context) ([]string, error)
	InstanceAlive(ctx context.Context) ([]string, error)
}

// Webhooks is a part of the store; see rows.Tables.
type Webhooks interface {
	WebhookClaim(ctx context.Context, limit int, until, now time.Time) ([]WebhookDelivery, error)
	WebhookDone(ctx context.Context, id int64, status int, detail string, now time.Time) error
	WebhookReschedule(ctx context.Context, id int64, status int, detail string, nextAt time.Time) error
}

// Reconciliations is a part of the store; see rows.Tables.
type Reconciliations interface {
	ReconciliationSave(ctx context.Context, r Reconciliation) error
	ReconciliationGet(ctx context.Context, id int64) (Reconciliation, error)
	ReconciliationList(ctx context.Context, before int64, limit int) ([]Reconciliation, error)
	RestoreMarkSet(ctx context.Context, at time.Time) error
	RestoreMark(ctx context.Context) (time.Time, error)
}

// APIKeys is a part of the store; see rows.Tables.
type APIKeys interface {
	APIKeyCreate(ctx context.Context, k APIKey) error
	APIKeyByHash(ctx context.Context, hash []byte) (APIKey, error)
	APIKeyList(ctx context.Context, before int64, limit int) ([]APIKey, error)
	APIKeyRevoke(ctx context.Context, id int64, by string, now time.Time) (APIKey, error)
	APIKeyMakers(ctx context.Context) ([]APIKeyMaker, error)
	APIKeyUsed(ctx context.Context, used map[int64]time.Time) error
}

// Audits is a part of the store; see rows.Tables.
type Audits interface {
	AuditBegin(ctx context.Context, l AuditLine) error
	AuditEnd(ctx context.Context, id int64, status int, code string, now time.Time) error
	AuditDrop(ctx context.Context, id int64) error
	AuditList(ctx context.Context, p AuditListParams) ([]AuditLine, error)
}

// Idempotencies is a part of the store; see rows.Tables.
type Idempotencies interface {
	IdempotencyBegin(ctx context.Context, p IdempotencyBeginParams) (IdempotencyRecord, error)
	IdempotencyFinish(ctx context.Context, key []byte, begunAt time.Time, answer []byte) (bool, error)
	IdempotencyDrop(ctx context.Context, key []byte, begunAt time.Time) error
	IdempotencyRelease(ctx context.Context, key []byte, begunAt time.Time) error
}

// Timelines is a part of the store; see rows.Tables.
type Timelines interface {
	TimelineWrite(ctx context.Context, instance string, p []PromotionPoint, t []TemplatePoint) error
	TimelineFold(ctx context.Context, p TimelineFoldParams) (int, error)
	PromotionTimeline(ctx context.Context, id reward.PromotionID, s TimelineSpan) ([]PromotionPoint, error)
	TemplateTimeline(ctx context.Context, id reward.TemplateID, s TimelineSpan) ([]TemplatePoint, error)
}

// WebhookEndpoints is a part of the store; see rows.Tables.
type WebhookEndpoints interface {
	WebhookEndpointCreate(ctx context.Context, e WebhookEndpoint) (WebhookEndpoint, error)
	WebhookEndpointList(ctx context.Context, limit int) ([]WebhookEndpoint, error)
	WebhookEndpointGet(ctx context.Context, id int64, limit int) (WebhookEndpoint, error)
	WebhookEndpointChange(ctx context.Context, id int64, p WebhookEndpointChange) (WebhookEndpoint, error)
	WebhookEndpointRotate(ctx context.Context, id int64, secret string, previousFor time.Duration) (WebhookEndpoint, error)
	WebhookEndpointDelete(ctx context.Context, id int64) error
	WebhookEndpointsDue(ctx context.Context) ([]WebhookEndpoint, error)
	WebhookDeliveryClaim(ctx context.Context, endpoint int64, limit int, lease time.Duration) ([]EndpointDelivery, error)
	WebhookDeliveryRecord(ctx context.Context, a WebhookAttemptRecord) (disabled bool, err error)
	WebhookDeliveryList(ctx context.Context, p WebhookDeliveryListParams) ([]EndpointDelivery, error)
	WebhookDeliveryGet(ctx context.Context, endpoint, id int64) (EndpointDelivery, error)
	WebhookDeliveryResend(ctx context.Context, endpoint, id int64) (EndpointDelivery, error)
	WebhookDeliveryTest(ctx context.Context, endpoint int64) (EndpointDelivery, error)
	WebhookDeliveryOwners(ctx context.Context) ([]int64, error)
	WebhookDeliveryTrim(ctx context.Context, p WebhookTrimParams) (WebhookTrimResult, error)
}
