package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
	"github.com/largesse/largesse/internal/web"
)

// Codes of the API itself. Package web has the codes that do not depend on the
// operation. Codes of other packages are passed on.
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

// errorCode is a code that a problem can have. Codes are for programs and never
// change.
type errorCode struct {
	Code    string `json:"code"`
	Status  int    `json:"status"`
	Meaning string `json:"meaning"`
	Action  string `json:"action"`
}

// errorCodes lists all codes, ordered by status. docs/errors.md, /docs and the codes
// in /openapi.json come from this list, and a test produces each code.
var errorCodes = []errorCode{
	{reward.CodeMalformed, http.StatusBadRequest, "A part of the request cannot be parsed: an ID, a cursor, a header or the JSON body", "Fix what errors[] or detail names; the same request fails again"},
	{CodeBadGzip, http.StatusBadRequest, "The upload is declared as gzip, but the body is not gzip or is truncated", "Upload it again; accepted targets are kept and count as duplicates, and of a file of codes nothing was imported"},
	{campaign.CodeBodyBroken, http.StatusBadRequest, "The upload ended before its body was complete", "Upload it again; accepted targets are kept and count as duplicates, and of a file of codes nothing was imported"},
	{CodeUnauthenticated, http.StatusUnauthorized, "The API key or token is missing, unknown, expired or revoked", "Send Authorization: Bearer with a valid key or token"},
	{CodeForbidden, http.StatusForbidden, "The caller's role does not allow this operation", "Use a key with a role that detail names; a shopper's token acts for its own user only"},
	{web.CodeCrossOrigin, http.StatusForbidden, "A web page from another origin tried to change something", "Call from a server, or add the origin to http.allowed-origins"},
	{web.CodeRouteNotFound, http.StatusNotFound, "No operation has this path", "Check the path in /openapi.json"},
	{reward.CodeNotFound, http.StatusNotFound, "No promotion has this ID", "Check the ID; a deleted DRAFT is gone"},
	{reward.CodePayoutNotFound, http.StatusNotFound, "The promotion has no such target", "Check both IDs; the target may not have been uploaded yet"},
	{reward.CodeUploadNotFound, http.StatusNotFound, "The promotion has no such upload", "Use the reportUrl that the upload returned"},
	{reward.CodeTemplateNotFound, http.StatusNotFound, "No coupon template has this ID", "Check the ID"},
	{reward.CodeCouponNotFound, http.StatusNotFound, "No coupon has this ID", "Check the ID; it is not the coupon's code"},
	{reward.CodeRequestUnknown, http.StatusNotFound, "The user has no request for this template, or Redis lost it before a coupon was issued", "Request the coupon to get a ticket; after a leave, nothing"},
	{reward.CodeDeadLetterNotFound, http.StatusNotFound, "No dead letter has this ID", "Check the ID"},
	{reward.CodeReconciliationNotFound, http.StatusNotFound, "No reconciliation has this ID", "Check the ID"},
	{reward.CodeAPIKeyNotFound, http.StatusNotFound, "No API key has this ID", "Check the ID; it is not the key itself"},
	{reward.CodeEndpointNotFound, http.StatusNotFound, "No webhook endpoint has this ID", "Check the ID; it may have been deleted"},
	{reward.CodeDeliveryNotFound, http.StatusNotFound, "The webhook endpoint has no delivery with this ID", "Check both IDs; deliveries are deleted a week after their end"},
	{web.CodeMethodNotAllowed, http.StatusMethodNotAllowed, "The path does not support this method", "Use a method that the Allow header names"},
	{web.CodeBodyTimeout, http.StatusRequestTimeout, "The body arrived too slowly or stalled", "Send it again; an upload keeps its accepted targets"},
	{reward.CodeIllegalState, http.StatusConflict, "The current state does not allow this action", "Read the state; detail names the allowed actions"},
	{reward.CodeExists, http.StatusConflict, "The ID is already in use", "Use another ID, or omit it to get a new one"},
	{reward.CodeTypeMismatch, http.StatusConflict, "The ID belongs to a promotion of the other type", "Use another ID, or that type"},
	{reward.CodeArchived, http.StatusConflict, "The promotion or template is archived, and its payouts or coupons are removed (retention.payouts, retention.coupons)", "Use a new one"},
	{reward.CodeConflict, http.StatusConflict, "Issued coupons, waiting users, or what a promotion has spent do not allow this change, or another import of codes began", "Follow detail, or wait until the line is empty"},
	{campaign.CodeApprovalNeeded, http.StatusConflict, "The promotion is worth more than approval.above, or what approval.above-per-day leaves, and than what was approved, has vouchers without an amount, was rejected, or is approved for a later start", "Ask somebody else to approve it"},
	{reward.CodeSamePerson, http.StatusConflict, "Authors of a promotion or template, and API keys that they made, cannot approve it", "Ask another person to approve it"},
	{campaign.CodeNotReplayable, http.StatusConflict, "This dead letter cannot be replayed", "Discard it"},
	{reward.CodeNotOpen, http.StatusConflict, "The template is not open yet; opensAt gives the time", "Request the coupon again then"},
	{reward.CodeClosed, http.StatusConflict, "The template has closed", "Nothing: no more coupons are issued"},
	{reward.CodeSoldOut, http.StatusConflict, "Every coupon is issued or promised", "Try again later; a cancelled coupon becomes available"},
	{reward.CodeHoldLapsed, http.StatusConflict, "The user let holds of this template end without a confirmation", "Ask again after the time in the detail; others come first"},
	{reward.CodeUserLimit, http.StatusConflict, "The user has reached the limit of this template", "List the coupons with GET /v1/users/{userId}/coupons"},
	{reward.ReasonNotDrawn, http.StatusConflict, "The draw selected other users", "Request again in case a coupon becomes available"},
	{reward.ReasonLeft, http.StatusConflict, "The user left the waiting line during the wait for the outcome", "Request the coupon again to wait at the end"},
	{reward.CodeRequestEnded, http.StatusConflict, "The request was served or rejected before it left the waiting line", "Read the request; cancel its coupon instead"},
	{reward.ReasonError, http.StatusConflict, "Issuing the coupon failed repeatedly", "Request it again; if that fails too, read the log"},
	{reward.CodeCodesExhausted, http.StatusConflict, "The template has fewer imported codes than coupons left to issue", "Import more codes, or set a lower quantity"},
	{reward.CodeCouponUsed, http.StatusConflict, "The coupon was used", "Nothing; this is final"},
	{reward.CodeCouponCancelled, http.StatusConflict, "The coupon was cancelled", "Nothing; this is final"},
	{reward.CodeCouponExpired, http.StatusConflict, "The coupon has expired", "Nothing; this is final"},
	{reward.CodeCouponHeld, http.StatusConflict, "The coupon is held and not confirmed yet", "Confirm it first, before heldUntil"},
	{reward.CodeHoldExpired, http.StatusConflict, "The coupon was not confirmed in time", "Request another coupon, unless the template has reissueAfterCancel: false"},
	{reward.CodeEndpointDisabled, http.StatusConflict, "The webhook endpoint is disabled, so nothing is sent to it", "Enable it first"},
	{reward.CodeTooManyEndpoints, http.StatusConflict, "There are as many webhook endpoints as possible", "Delete one that is not used, or let one receive more events"},
	{reward.CodeKeyNameTaken, http.StatusConflict, "An API key that is neither revoked nor expired has this name", "Choose another name, or revoke that key first"},
	{CodeInProgress, http.StatusConflict, "A request with this Idempotency-Key is still in progress", "Repeat it after Retry-After seconds to get its response"},
	{reward.CodePreconditionFailed, http.StatusPreconditionFailed, "What If-Match names has changed since", "Read it again, and repeat the request if it is still right"},
	{web.CodeTooLarge, http.StatusRequestEntityTooLarge, "The body exceeds the limit of this operation", "Send less at once; uploads of targets have no limit"},
	{web.CodeUnsupportedMedia, http.StatusUnsupportedMediaType, "The operation does not accept this Content-Type or Content-Encoding", "Use one that /openapi.json names"},
	{web.CodeWrongHost, http.StatusMisdirectedRequest, "With auth.mode none, the server accepts only localhost and loopback addresses as the host", "Use such an address, or set auth.mode"},
	{reward.CodeInvalid, http.StatusUnprocessableEntity, "The request is well formed, but a value is invalid", "Fix every field that errors[] names"},
	{reward.CodeImmutable, http.StatusUnprocessableEntity, "The field cannot change, or not in the current state", "Remove the fields that errors[] names"},
	{reward.CodeBadCodes, http.StatusUnprocessableEntity, "A file of codes has no codes, or a line that is not a code or repeats one; nothing was imported", "Fix the line that detail names, and send the file again"},
	{campaign.CodeEmptyFile, http.StatusUnprocessableEntity, "The file has no content", "Send a file with targets"},
	{campaign.CodeNoHeader, http.StatusUnprocessableEntity, "The file does not start with a line that names the columns, targetId among them", "Add that line, or name the columns that count with columns"},
	{campaign.CodeUnknownColumn, http.StatusUnprocessableEntity, "The header has an unknown column, or lacks one that columns names", "Say which columns count with columns=targetId=A,userId=B, or rename it"},
	{campaign.CodeDuplicateColumn, http.StatusUnprocessableEntity, "The header has a column twice", "Remove one of them, or name it by its letter"},
	{campaign.CodeInvalidUTF8, http.StatusUnprocessableEntity, "The header of a CSV file is not text in UTF-8, UTF-16 or CP949", "Save the file as UTF-8, or name its encoding"},
	{sheet.CodeBadWorkbook, http.StatusUnprocessableEntity, "The file is no .xlsx file, or is broken or too large", "Save it as .xlsx without a password, or as CSV"},
	{sheet.CodeUnknownSheet, http.StatusUnprocessableEntity, "The workbook has no such sheet", "Name one that detail lists"},
	{reward.CodeAmountOverflow, http.StatusUnprocessableEntity, "The promotion's total would exceed 63 bits", "Split the targets across promotions"},
	{campaign.CodeDryRunTooLarge, http.StatusUnprocessableEntity, "The file is too large for a dry run", "Split the file for the dry run; an upload has no size limit"},
	{CodeKeyReused, http.StatusUnprocessableEntity, "The Idempotency-Key belongs to another request", "Use a new key for each new resource"},
	{CodeRateLimited, http.StatusTooManyRequests, "The caller, the user, or an address with invalid keys sent too many requests", "Wait for Retry-After seconds"},
	{web.CodeHeadersTooLarge, http.StatusRequestHeaderFieldsTooLarge, "The request line and headers are too large", "Send fewer, shorter headers and a shorter URL"},
	{web.CodeTooManyHeaders, http.StatusRequestHeaderFieldsTooLarge, "The request has too many headers", "Send fewer headers"},
	{web.CodeInternal, http.StatusInternalServerError, "The server failed unexpectedly", "Try again later; quote requestId when you ask for help"},
	{reward.CodeUnavailable, http.StatusServiceUnavailable, "A service that the request needs is unavailable", "Try again after Retry-After seconds"},
	{CodeDraining, http.StatusServiceUnavailable, "This instance is shutting down", "Use another instance"},
	{campaign.CodeNotPublished, http.StatusServiceUnavailable, "Kafka did not accept the records; their dead letters stay OPEN", "Replay them again later"},
	{campaign.CodePartlyDone, http.StatusServiceUnavailable, "The operation failed after it had done a part", "Call it again to continue"},
	{CodeTooManyUploads, http.StatusServiceUnavailable, "This instance is at its limit of uploads and accepted nothing of this one", "Try again after Retry-After seconds, or use another instance"},
	{campaign.CodeUploadInterrupted, http.StatusServiceUnavailable, "Saving the targets failed before the end", "Send the file again; accepted targets count as duplicates"},
}

type lineCode struct{ Code, Meaning string }

// lineCodes lists all line codes. docs/errors.md and /openapi.json contain them too.
var lineCodes = []lineCode{
	{reward.LineMissingID, "targetId is missing"},
	{reward.LineMissingUser, "The user is missing in a file whose columns are not named targetId and userId"},
	{reward.LineBadID, "targetId is not a whole number from 0 to 9223372036854775807 in its shortest form"},
	{reward.LineBadUser, "userId is too long, or looks like another one: with control or invisible characters, spaces at its ends, or characters that are not composed (NFC); or a spreadsheet has broken it, as in #N/A, ######## or 4.9E+12"},
	{reward.LineMissingAmount, "Neither the line nor the promotion has an amount"},
	{reward.LineBadAmount, "amount is not a whole number of minor units in its range, in digits after an optional sign; with amounts=major, not an amount with at most as many digits as the currency has"},
	{reward.LineBadVoucher, "voucherCode is missing, too long, holds a control character, was broken by a spreadsheet (as in #N/A, ######## or 4.9E+12), or is for a promotion of points"},
	{campaign.LineFormula, "voucherCode in a CSV file starts like a spreadsheet formula; if it is none, write an apostrophe before it"},
	{campaign.LineWrongColumns, "The line has more or fewer cells than the header"},
	{campaign.LineHiddenRow, "The row of the sheet is hidden, by a filter or by hand"},
	{campaign.LineBadQuote, "A quote is not around a whole cell, not doubled, or not closed in its line"},
	{reward.LineInvalidUTF8, "The line or record is not valid UTF-8, or contains U+0000 or a lone surrogate"},
	{reward.LineTooLong, "The line or record is longer than 64 KiB"},
	{reward.LineBadJSON, "The line of NDJSON is not one JSON object with known fields, each once, or a Kafka record is no JSON object with each known field once"},
	{campaign.LineConflict, "The target exists with another amount, user or voucher code and was not changed"},
}

// Codes that several operations share.
var (
	promotionMoves = []string{reward.CodeNotFound, reward.CodeIllegalState}
	couponMoves    = []string{reward.CodeCouponNotFound, reward.CodeCouponUsed, reward.CodeCouponCancelled, reward.CodeCouponExpired}
	healthErrors   = []string{reward.CodeUnavailable, reward.CodeInvalid}
)

// commonCodes returns the codes that depend on how an operation is called.
func (a *API) commonCodes(op *huma.Operation) []string {
	codes := []string{web.CodeWrongHost, web.CodeHeadersTooLarge, web.CodeTooManyHeaders, web.CodeInternal}
	if len(a.declared[op.OperationID].roles) > 0 {
		codes = append(codes, CodeUnauthenticated, CodeForbidden, CodeRateLimited, reward.CodeUnavailable)
	}
	if strings.HasPrefix(op.Path, "/v1/") {
		codes = append(codes, reward.CodeInvalid) // an unknown query parameter
	}
	if len(op.Parameters) > 0 || op.RequestBody != nil {
		codes = append(codes, reward.CodeMalformed)
	}
	if op.Method != http.MethodGet {
		codes = append(codes, web.CodeCrossOrigin, web.CodeBodyTimeout)
	}
	if op.RequestBody != nil {
		codes = append(codes, web.CodeUnsupportedMedia)
	}
	if op.RequestBody != nil && op.RequestBody.Content["application/json"] != nil {
		codes = append(codes, web.CodeTooLarge)
	}
	if a.declared[op.OperationID].creates {
		codes = append(codes, CodeKeyReused, CodeInProgress)
	}
	return codes
}

func (a *API) codesOf(op *huma.Operation) map[int][]string {
	own := slices.Concat(a.declared[op.OperationID].errors, a.commonCodes(op))
	out := make(map[int][]string)
	for _, c := range errorCodes {
		if slices.Contains(own, c.Code) {
			out[c.Status] = append(out[c.Status], c.Code)
		}
	}
	return out
}
