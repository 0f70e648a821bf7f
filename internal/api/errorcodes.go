package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/payout"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

// Codes of the API itself. Those of HTTP are in web, and those of the packages
// below are passed on.
const (
	CodeDraining        = "DRAINING"
	CodeTooManyUploads  = "TOO_MANY_UPLOADS"
	CodeBadGzip         = "BAD_GZIP"
	CodeUnauthenticated = "UNAUTHENTICATED"
	CodeForbidden       = "FORBIDDEN"
	CodeRateLimited     = "RATE_LIMITED"
	CodeKeyReused       = "IDEMPOTENCY_KEY_REUSED"
	CodeInProgress      = "IDEMPOTENCY_IN_PROGRESS"
)

// errorCode is a code that a problem can carry. Codes are for programs and stay.
type errorCode struct {
	Code    string `json:"code"`
	Status  int    `json:"status"`
	Meaning string `json:"meaning"`
	Action  string `json:"action"`
}

// errorCodes are all of them, in the order of their status. docs/errors.md and the description are
// made of this list, and a test produces each one.
var errorCodes = []errorCode{
	{reward.CodeMalformed, http.StatusBadRequest, "A part of the request cannot be read: an id, a cursor, a header, or a body that is no JSON", "Mend what errors[] or detail names; the same request fails again"},
	{CodeBadGzip, http.StatusBadRequest, "The body of an upload is said to be gzip and is not, or not whole", "Send it again; targets taken before that stay, and meet themselves as duplicates"},
	{payout.CodeBodyBroken, http.StatusBadRequest, "The body of an upload broke off before its end", "Send it again; targets taken before that stay, and meet themselves as duplicates"},
	{CodeUnauthenticated, http.StatusUnauthorized, "No API key or token was shown, or it is unknown, expired or revoked", "Send Authorization: Bearer with a key or token that is good"},
	{CodeForbidden, http.StatusForbidden, "Who called may not do this", "Use a key with one of the roles that detail names; a shopper's token asks for its own user only"},
	{web.CodeCrossOrigin, http.StatusForbidden, "A web page of another origin wanted to change something", "Call from a server, or name the page's origin in http.allowed-origins"},
	{web.CodeRouteNotFound, http.StatusNotFound, "There is nothing at this path", "Look the path up in openapi.json"},
	{reward.CodeNotFound, http.StatusNotFound, "No promotion has this id", "Check the id; a deleted DRAFT is gone"},
	{reward.CodePayoutNotFound, http.StatusNotFound, "The promotion has no such target", "Check both ids; the target may not have been uploaded yet"},
	{reward.CodeUploadNotFound, http.StatusNotFound, "The promotion has no such upload", "Take reportUrl as the upload answered it"},
	{reward.CodeTemplateNotFound, http.StatusNotFound, "No coupon template has this id", "Check the id"},
	{reward.CodeCouponNotFound, http.StatusNotFound, "No coupon has this id", "Check the id; it is not the coupon's code"},
	{reward.CodeRequestUnknown, http.StatusNotFound, "The user has no request at this template: it was never made, or it was lost before it was issued", "Ask for the coupon (again); that gives a ticket"},
	{reward.CodeDeadLetterNotFound, http.StatusNotFound, "No dead letter has this id", "Check the id"},
	{reward.CodeReconciliationNotFound, http.StatusNotFound, "No reconciliation has this id", "Check the id"},
	{reward.CodeAPIKeyNotFound, http.StatusNotFound, "No API key has this id", "Check the id; it is not the key itself"},
	{web.CodeMethodNotAllowed, http.StatusMethodNotAllowed, "The path does not take this method", "Use one that the header Allow names"},
	{web.CodeBodyTimeout, http.StatusRequestTimeout, "The body came too slowly, or stood still", "Send it again; of an upload the targets taken before that stay"},
	{reward.CodeIllegalState, http.StatusConflict, "What it is now does not allow this", "Read its state; detail says what is allowed"},
	{reward.CodeExists, http.StatusConflict, "The id is taken", "Take another id, or none to have one made"},
	{reward.CodeTypeMismatch, http.StatusConflict, "The id is a promotion's of the other type", "Take another id, or the type that it has"},
	{reward.CodeConflict, http.StatusConflict, "The template cannot be changed so at the moment: coupons that live and people who wait need what would be taken away", "Do as detail says, or wait until nobody waits"},
	{payout.CodeApprovalNeeded, http.StatusConflict, "The promotion is worth more than approval.above and nobody has approved it", "Let a second person approve it"},
	{payout.CodeSamePerson, http.StatusConflict, "Who made a promotion cannot approve it", "Let somebody else approve it"},
	{payout.CodeNotReplayable, http.StatusConflict, "There is nothing that this dead letter could be replayed to", "Discard it"},
	{reward.CodeNotOpen, http.StatusConflict, "The template is not open yet; opensAt says when", "Ask again then"},
	{reward.CodeClosed, http.StatusConflict, "The template has closed", "Nothing: no more coupons are issued"},
	{reward.CodeSoldOut, http.StatusConflict, "Every coupon is taken or promised", "Ask again later: one that is cancelled becomes free"},
	{reward.CodeUserLimit, http.StatusConflict, "The user has had as many coupons of this template as one may have", "Nothing; GET /v1/users/{userId}/coupons lists them"},
	{reward.ReasonNotDrawn, http.StatusConflict, "The draw has gone to others", "Ask again in case a coupon becomes free"},
	{reward.ReasonError, http.StatusConflict, "The coupon could not be issued, however often it was tried", "Ask again; see the log when it stays so"},
	{reward.CodeCouponUsed, http.StatusConflict, "The coupon was used", "Nothing: a coupon is used once"},
	{reward.CodeCouponCancelled, http.StatusConflict, "The coupon was cancelled", "Nothing: that is for good"},
	{reward.CodeCouponExpired, http.StatusConflict, "The coupon's time is over", "Nothing: that is for good"},
	{CodeInProgress, http.StatusConflict, "A request with this Idempotency-Key is under way", "Send the same again after Retry-After to hear its answer"},
	{web.CodeTooLarge, http.StatusRequestEntityTooLarge, "The body is larger than this call takes", "Send less at once; uploads of targets have no bound"},
	{web.CodeUnsupportedMedia, http.StatusUnsupportedMediaType, "The call does not take this Content-Type or Content-Encoding", "Use one that the description names"},
	{web.CodeWrongHost, http.StatusMisdirectedRequest, "With auth.mode none the server answers under localhost and loopback addresses only", "Call it by such an address, or set auth.mode"},
	{reward.CodeInvalid, http.StatusUnprocessableEntity, "The request can be read, and something in it is wrong", "Mend every field that errors[] names"},
	{payout.CodeEmptyFile, http.StatusUnprocessableEntity, "The file has no line with anything in it", "Send a file with targets"},
	{payout.CodeNoHeader, http.StatusUnprocessableEntity, "The first line of a CSV file is no header with targetId", "Put the header line first"},
	{payout.CodeUnknownColumn, http.StatusUnprocessableEntity, "The header of a CSV file names a column that means nothing", "Name it targetId, userId, amount or voucherCode, or take it out"},
	{payout.CodeDuplicateColumn, http.StatusUnprocessableEntity, "The header of a CSV file names a column twice", "Take one of them out"},
	{payout.CodeInvalidUTF8, http.StatusUnprocessableEntity, "The header of a CSV file is not UTF-8", "Save the file as UTF-8"},
	{payout.CodeAmountOverflow, http.StatusUnprocessableEntity, "The promotion's total would leave the range of 63 bits", "Split the targets over several promotions"},
	{payout.CodeDryRunTooLarge, http.StatusUnprocessableEntity, "The file is too large for a dry run", "Split the file for it; without dryRun any size is taken"},
	{CodeKeyReused, http.StatusUnprocessableEntity, "The Idempotency-Key was used with another request", "Take a new key for each thing that is to be made"},
	{CodeRateLimited, http.StatusTooManyRequests, "The caller, the user, or an address with wrong keys has called too often", "Wait for Retry-After seconds"},
	{web.CodeHeadersTooLarge, http.StatusRequestHeaderFieldsTooLarge, "The line of the request and its headers have too many bytes", "Send fewer and shorter headers, and a shorter address"},
	{web.CodeTooManyHeaders, http.StatusRequestHeaderFieldsTooLarge, "The request has too many headers", "Send fewer headers"},
	{web.CodeInternal, http.StatusInternalServerError, "Something went wrong on our side", "Ask again later; quote requestId when asking for help"},
	{reward.CodeUnavailable, http.StatusServiceUnavailable, "Something that is needed does not answer", "Ask again after Retry-After seconds"},
	{CodeDraining, http.StatusServiceUnavailable, "This instance is stopping", "Send work to another one"},
	{payout.CodeNotPublished, http.StatusServiceUnavailable, "Kafka did not take the records; their dead letters stay OPEN", "Replay them again later"},
	{payout.CodePartlyDone, http.StatusServiceUnavailable, "A part was done, then something failed", "Call it again to go on"},
	{CodeTooManyUploads, http.StatusServiceUnavailable, "This instance reads as many uploads as it may; nothing of this one was taken", "Send it again after Retry-After seconds, or to another instance"},
	{payout.CodeUploadInterrupted, http.StatusServiceUnavailable, "The targets could not be saved to the end", "Send the same file again; what was accepted meets itself as duplicates"},
}

// lineCode is a code of a line of an upload that was not accepted.
type lineCode struct{ Code, Meaning string }

// lineCodes are all of them; docs/errors.md and the description name them too.
var lineCodes = []lineCode{
	{payout.LineMissingID, "The line has no targetId"},
	{payout.LineBadID, "targetId is not a whole number from 0 to 9223372036854775807 in its shortest form"},
	{payout.LineBadUser, "userId is too long, or holds a control character"},
	{payout.LineMissingAmount, "Neither the line nor the promotion has an amount"},
	{payout.LineBadAmount, "amount is not a whole number of minor units in its range"},
	{payout.LineBadVoucher, "voucherCode is missing, too long, holds a control character, or is for a promotion of points"},
	{payout.LineFormula, "A text begins like a formula of a spreadsheet"},
	{payout.LineWrongColumns, "The line has more or fewer cells than the header"},
	{payout.LineBadQuote, "A quote is not around a whole cell, not doubled, or not closed in its line"},
	{payout.LineInvalidUTF8, "The line is not UTF-8, or holds U+0000 or half a character"},
	{payout.LineTooLong, "The line is longer than any target needs"},
	{payout.LineBadJSON, "The line of NDJSON is not one JSON object with known fields, each once"},
	{payout.LineConflict, "The target is known with another amount, user or voucher code; nothing was changed"},
}

// Codes that several operations have in common.
var (
	promotionMoves = []string{reward.CodeNotFound, reward.CodeIllegalState}
	couponMoves    = []string{reward.CodeCouponNotFound, reward.CodeCouponUsed, reward.CodeCouponCancelled, reward.CodeCouponExpired}
	letterMoves    = []string{reward.CodeDeadLetterNotFound, reward.CodeIllegalState}
	lettersMoves   = []string{payout.CodePartlyDone}
	health         = []string{reward.CodeUnavailable, reward.CodeInvalid}
)

// operationCodes are the codes of each operation that come of what it does;
// commonCodes adds those that come of how it is called.
var operationCodes = map[string][]string{
	"alive": health, "ready": append([]string{CodeDraining}, health...), "metrics": nil,

	"create-promotion": {reward.CodeExists, reward.CodeTypeMismatch}, "list-promotions": nil, "get-promotion": {reward.CodeNotFound},
	"delete-promotion": promotionMoves, "pause-promotion": promotionMoves, "cancel-promotion": promotionMoves, "close-promotion": promotionMoves,
	"start-promotion":      append([]string{payout.CodeApprovalNeeded}, promotionMoves...),
	"resume-promotion":     append([]string{payout.CodeApprovalNeeded}, promotionMoves...),
	"approve-promotion":    append([]string{payout.CodeSamePerson}, promotionMoves...),
	"get-promotion-stream": {reward.CodeNotFound}, "watch-promotion": {reward.CodeNotFound},

	"upload-targets": {
		reward.CodeNotFound, CodeBadGzip, payout.CodeBodyBroken, payout.CodeEmptyFile, payout.CodeNoHeader, payout.CodeUnknownColumn,
		payout.CodeDuplicateColumn, payout.CodeInvalidUTF8, payout.CodeAmountOverflow, payout.CodeDryRunTooLarge, payout.CodeUploadInterrupted,
		CodeTooManyUploads,
	},
	"get-upload-report": {reward.CodeUploadNotFound},
	"list-payouts":      {reward.CodeNotFound}, "get-payout": {reward.CodePayoutNotFound},
	"retry-payouts":  promotionMoves,
	"resolve-payout": {reward.CodeNotFound, reward.CodePayoutNotFound, reward.CodeIllegalState},

	"create-template": {reward.CodeExists}, "list-templates": nil, "get-template": {reward.CodeTemplateNotFound},
	"change-template": {reward.CodeTemplateNotFound, reward.CodeConflict}, "close-template": {reward.CodeTemplateNotFound, reward.CodeIllegalState, reward.CodeConflict},
	"list-template-entrants": {reward.CodeTemplateNotFound, reward.CodeIllegalState}, "list-template-coupons": {reward.CodeTemplateNotFound},

	"issue-coupon": {
		reward.CodeTemplateNotFound, reward.CodeNotOpen, reward.CodeClosed, reward.CodeSoldOut, reward.CodeUserLimit, reward.ReasonNotDrawn, reward.ReasonError,
	},
	"get-issue-request":   {reward.CodeTemplateNotFound, reward.CodeRequestUnknown},
	"watch-issue-request": {reward.CodeTemplateNotFound, reward.CodeRequestUnknown},
	"get-coupon":          {reward.CodeCouponNotFound}, "use-coupon": couponMoves, "cancel-coupon": couponMoves,
	"list-user-coupons": nil, "get-user-history": {reward.CodeTemplateNotFound},

	"list-dead-letters": nil, "get-dead-letter": {reward.CodeDeadLetterNotFound}, "discard-dead-letter": letterMoves,
	"replay-dead-letter":  append([]string{payout.CodeNotReplayable, payout.CodeNotPublished}, letterMoves...),
	"replay-dead-letters": append([]string{payout.CodeNotPublished}, lettersMoves...), "discard-dead-letters": lettersMoves,

	"reconcile": {reward.CodeNotFound, reward.CodeTemplateNotFound}, "get-reconciliation": {reward.CodeReconciliationNotFound},
	"list-instances": nil, "list-audit": nil,
	"create-api-key": nil, "list-api-keys": nil, "revoke-api-key": {reward.CodeAPIKeyNotFound},
}

// commonCodes are the codes that come of how an operation is called.
func commonCodes(op *huma.Operation) []string {
	codes := []string{web.CodeWrongHost, web.CodeHeadersTooLarge, web.CodeTooManyHeaders, web.CodeInternal}
	if permissions[op.OperationID] != nil {
		codes = append(codes, CodeUnauthenticated, CodeForbidden, CodeRateLimited, reward.CodeUnavailable)
	}
	if strings.HasPrefix(op.Path, "/v1/") {
		codes = append(codes, reward.CodeInvalid) // an unknown query parameter
	}
	if len(op.Parameters) > 0 || op.RequestBody != nil {
		codes = append(codes, reward.CodeMalformed)
	}
	if op.Method != http.MethodGet {
		codes = append(codes, web.CodeCrossOrigin)
	}
	if op.RequestBody != nil {
		codes = append(codes, web.CodeUnsupportedMedia, web.CodeBodyTimeout)
	}
	if op.RequestBody != nil && op.RequestBody.Content["application/json"] != nil {
		codes = append(codes, web.CodeTooLarge)
	}
	if creating[op.OperationID] {
		codes = append(codes, CodeKeyReused, CodeInProgress)
	}
	return codes
}

// codesOf are the codes of an operation by status.
func codesOf(op *huma.Operation) map[int][]string {
	own := slices.Concat(operationCodes[op.OperationID], commonCodes(op))
	out := make(map[int][]string)
	for _, c := range errorCodes {
		if slices.Contains(own, c.Code) {
			out[c.Status] = append(out[c.Status], c.Code)
		}
	}
	return out
}
