package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// promotionTag returns the ETag of a promotion without that of the response: the tag of
// its settings, then what an approval is about.
func promotionTag(v store.PromotionView) string {
	s := campaign.SeenOf(v)
	return fmt.Sprintf(`"%s-%d-%d-%d"`, rules.PromotionTag(v.Promotion), s.Revision, s.Count, s.Amount)
}

type promotionApproveInput struct {
	PromotionPath
	IfMatch string `header:"If-Match" maxLength:"2000" doc:"ETag of an earlier response; 412 if it has changed since, except for progress"`
}

// RejectPromotion is the body of POST /v1/promotions/{id}/reject.
type RejectPromotion struct {
	Reason string `json:"reason" minLength:"1" maxLength:"1000"`
}

type promotionRejectInput struct {
	PromotionPath
	Body RejectPromotion
}

type uploadListInput struct {
	PromotionPath
	PageInput
}

func (a *API) addApprovals() {
	const path = "/v1/promotions/{id}"
	call(a, operation{
		id: "approve-promotion", method: http.MethodPost, path: path + "/approve", tag: "promotions", roles: approvers,
		summary: "Approve the present targets as another person",
		status:  http.StatusAccepted,
		errors:  append([]string{reward.CodeSamePerson, reward.CodePreconditionFailed}, promotionMoves...),
	}, a.approve)
	call(a, operation{
		id: "reject-promotion", method: http.MethodPost, path: path + "/reject", tag: "promotions", roles: approvers,
		summary: "Refuse or withdraw an approval; a RUNNING promotion becomes PAUSED",
		status:  http.StatusAccepted,
		errors:  promotionMoves,
		example: tree{"reason": "the budget of this month is used up"},
	}, a.reject)
	call(a, operation{
		id: "ask-approval", method: http.MethodPost, path: path + "/ask-approval", tag: "promotions", roles: campaigners,
		summary: "Tell those who may approve that it waits for them",
		status:  http.StatusAccepted,
		errors:  promotionMoves,
	}, a.askApproval)
	call(a, operation{
		id: "list-uploads", method: http.MethodGet, path: path + "/uploads", tag: "targets", roles: readers,
		summary: "List uploads",
		errors:  []string{reward.CodeNotFound},
	}, a.listUploads)
	call(a, operation{
		id: "get-already-paid", method: http.MethodGet, path: path + "/already-paid", tag: "targets", roles: readers,
		summary:     "Get who was paid before",
		description: "Which other promotions have paid people of this one. At most its first 10,000 targets count.",
		errors:      []string{reward.CodeNotFound},
	}, a.alreadyPaid)
}

func (a *API) approve(ctx context.Context, in *promotionApproveInput) (*promotionOutput, error) {
	persons, err := a.persons(ctx)
	if err != nil {
		return nil, err
	}
	cmd := campaign.ApproveCommand{ID: in.id, Persons: persons}
	if in.IfMatch != "" {
		v, err := a.cfg.Rows.PromotionGet(ctx, in.id)
		if err != nil {
			return nil, err
		}
		seen := campaign.SeenOf(v)
		if !matchesPromotion(in.IfMatch, v) {
			return nil, rules.NotAsSeen(in.id)
		}
		cmd.Seen = &seen
	}
	v, err := a.cfg.Promotions.Approve(ctx, cmd)
	return a.withSummaries(ctx, v, err)
}

// matchesPromotion reports whether If-Match names a promotion as it is. The rest of
// an ETag names the response, which changes with each payout.
func matchesPromotion(header string, v store.PromotionView) bool {
	want := strings.Trim(promotionTag(v), `"`)
	for tag := range strings.SplitSeq(header, ",") {
		tag = strings.Trim(strings.TrimPrefix(strings.TrimSpace(tag), "W/"), `"`)
		if tag == "*" || tag == want || strings.HasPrefix(tag, want+"-") {
			return true
		}
	}
	return false
}

// persons returns the names that the caller can act under.
func (a *API) persons(ctx context.Context) ([]string, error) {
	p := callerOf(ctx).Principal
	if p.KeyID == 0 {
		return auth.Persons(p, nil), nil
	}
	keys, err := a.cfg.Rows.APIKeyMakers(ctx)
	return auth.Persons(p, keys), err
}

func (a *API) reject(ctx context.Context, in *promotionRejectInput) (*promotionOutput, error) {
	v, err := a.cfg.Promotions.Reject(ctx, in.id, actor(ctx), in.Body.Reason)
	return a.withSummaries(ctx, v, err)
}

func (a *API) askApproval(ctx context.Context, in *PromotionPath) (*promotionOutput, error) {
	v, err := a.cfg.Promotions.AskApproval(ctx, in.id)
	return a.withSummaries(ctx, v, err)
}

func (a *API) listUploads(ctx context.Context, in *uploadListInput) (*output[listOf[client.Upload]], error) {
	var promotion store.PromotionView
	read := func(before int64, limit int) (_ []store.Upload, err error) {
		// An empty page for an unknown promotion would look like success.
		if promotion, err = a.cfg.Rows.PromotionGet(ctx, in.id); err != nil {
			return nil, err
		}
		return a.cfg.Rows.UploadList(ctx, in.id, before, limit)
	}
	show := func(u store.Upload) client.Upload { return uploadOf(u, promotion.Currency) }
	return pageByID(in.PageInput, cursorUploads, read, show, func(u store.Upload) int64 { return u.ID })
}

func (a *API) alreadyPaid(ctx context.Context, in *PromotionPath) (*output[client.PaidBefore], error) {
	found, err := a.cfg.Uploads.AlreadyPaid(ctx, in.id)
	if err != nil {
		return nil, err
	}
	return &output[client.PaidBefore]{Body: client.PaidBefore{Targets: found.Targets, Complete: found.Complete, Promotions: mapped(found.Promotions, paidBefore)}}, nil
}

func paidBefore(p campaign.PaidBefore) client.AlreadyPaid {
	return client.AlreadyPaid{PromotionID: p.PromotionID.String(), Name: p.Name, Count: p.People}
}

func uploadOf(u store.Upload, currency string) client.Upload {
	out := client.Upload{
		ID: strconv.FormatInt(u.ID, 10), State: "INTERRUPTED", FileName: u.FileName, CreatedBy: u.CreatedBy, CreatedAt: u.CreatedAt.UTC(), FinishedAt: timeOf(u.FinishedAt),
		Bytes: u.Bytes, Accepted: u.Accepted, Duplicates: u.Duplicates, Conflicts: u.Conflicts, Rejected: u.Rejected, Amount: int64(u.Amount), Currency: currency,
		ReportURL: reportURL(u.PromotionID, u.ID), RefusedURL: refusedURL(u.PromotionID, u.ID),
	}
	switch {
	case u.Running:
		out.State = "RUNNING"
	case !u.FinishedAt.IsZero() && !u.Interrupted:
		out.State = "COMPLETED"
	}
	return out
}

// reportURL returns the path of the lines of an upload that were not accepted.
func reportURL(promotion reward.PromotionID, upload int64) string {
	return fmt.Sprintf("/v1/promotions/%s/uploads/%d/report", promotion, upload)
}

func refusedURL(promotion reward.PromotionID, upload int64) string {
	return fmt.Sprintf("/v1/promotions/%s/uploads/%d/refused", promotion, upload)
}
