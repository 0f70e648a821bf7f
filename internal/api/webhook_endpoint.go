package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
	"github.com/largesse/largesse/internal/webhook"
)

const (
	// previousSecretTTL is the time in which deliveries are signed with a replaced
	// secret, too.
	previousSecretTTL = 24 * time.Hour

	// pendingShown limits the pending deliveries that are counted for an endpoint.
	pendingShown = 100_000
)

func endpointFor(ctx context.Context, e store.WebhookEndpoint) *client.WebhookEndpoint {
	out := &client.WebhookEndpoint{
		ID: strconv.FormatInt(e.ID, 10), Kind: string(e.Kind), URL: e.URL, To: e.To, Language: e.Language, Description: e.Description, Events: e.Events, Enabled: e.Enabled, State: "ACTIVE",
		DisabledReason: e.DisabledReason, DisabledAt: timeOf(e.DisabledAt), FailingSince: timeOf(e.FailingSince), FailedAttempts: e.Failures,
		LastError: webhook.ShownReason(e.LastError), DeliveredAt: timeOf(e.DeliveredAt), PendingCount: e.Pending, DroppedCount: e.Dropped, DroppedAt: timeOf(e.DroppedAt),
		PreviousSecretUntil: timeOf(e.PreviousUntil), CreatedAt: e.CreatedAt.UTC(), CreatedBy: e.CreatedBy,
	}
	switch {
	case !e.Enabled:
		out.State = "DISABLED"
	case e.Overflowing:
		out.State = "OVERFLOWING"
	case e.Failures > 0:
		out.State = "FAILING"
	}
	if !seesURLs(ctx) {
		out.URL = webhook.MaskURL(e.URL)
		out.To = mapped(e.To, func(address string) string { return "…" + address[strings.LastIndex(address, "@"):] })
		if e.Kind == store.KindEmail && out.LastError != "" {
			out.LastError = "…" // it names addresses
		}
	}
	return out
}

// seesURLs reports whether the caller sees the URLs of endpoints as they are.
func seesURLs(ctx context.Context) bool { return slices.Contains(operators, callerOf(ctx).Role) }

// deliveryStates are the names of store.WebhookDeliveryState.
var deliveryStates = []string{"PENDING", "DELIVERED", "ABANDONED"}

func deliveryOf(d store.EndpointDelivery) *client.WebhookDelivery {
	out := &client.WebhookDelivery{
		ID: strconv.FormatInt(d.ID, 10), MessageID: webhook.MessageID(d), EndpointID: strconv.FormatInt(d.EndpointID, 10), Event: d.Event, At: d.At.UTC(),
		State: deliveryStates[d.State], EndedAt: timeOf(d.DoneAt), Attempts: mapped(d.Log, func(a store.WebhookAttempt) client.WebhookAttempt {
			return client.WebhookAttempt{Number: a.Number, At: a.At.UTC(), Status: a.Status, Millis: a.Millis, Error: webhook.ShownReason(a.Error)}
		}),
	}
	if d.PromotionID != 0 {
		out.PromotionID = d.PromotionID.String()
	}
	if d.TargetID != nil {
		out.TargetID = d.TargetID.String()
	}
	if d.CouponID != 0 {
		out.CouponID = d.CouponID.String()
	}
	if d.TemplateID != 0 {
		out.TemplateID = d.TemplateID.String()
	}
	if d.State == store.WebhookPending {
		out.NextAttemptAt = timeOf(d.DueAt)
	}
	return out
}

// CreateWebhookEndpoint is the body of POST /v1/webhook-endpoints.
type CreateWebhookEndpoint struct{ client.NewWebhookEndpoint }

// forAudit returns the body without the secret parts of the URL.
func (b CreateWebhookEndpoint) forAudit() any {
	b.URL = webhook.MaskURL(b.URL)
	return b
}

// Resolve checks what the schema cannot express.
func (b *CreateWebhookEndpoint) Resolve(huma.Context) []error {
	wrong := checkEndpoint(&b.URL, &b.Description)
	return fieldErrors(append(wrong, checkKind(b.kind(), b.URL, b.To, b.Language, b.Events)...))
}

func (b *CreateWebhookEndpoint) kind() store.WebhookKind {
	return cmp.Or(store.WebhookKind(b.Kind), store.KindWebhook)
}

// ChangeWebhookEndpoint is the body of PATCH /v1/webhook-endpoints/{id}.
type ChangeWebhookEndpoint struct{ client.WebhookEndpointChange }

// forAudit returns the body without the secret parts of the URL.
func (b ChangeWebhookEndpoint) forAudit() any {
	if b.URL != nil {
		b.URL = new(webhook.MaskURL(*b.URL))
	}
	return b
}

// Resolve checks what the schema cannot express.
func (b *ChangeWebhookEndpoint) Resolve(huma.Context) []error {
	return fieldErrors(checkEndpoint(b.URL, b.Description))
}

func checkEndpoint(address, description *string) []reward.FieldError {
	var wrong []reward.FieldError
	if address != nil && *address != "" {
		if err := webhook.CheckURL(*address); err != nil {
			wrong = append(wrong, reward.FieldError{Field: "url", Detail: err.Error()})
		}
	}
	if description != nil {
		if err := reward.CheckLabel(*description); err != nil {
			wrong = append(wrong, reward.FieldError{Field: "description", Detail: err.Error()})
		}
	}
	return wrong
}

// checkKind checks what the kind of an endpoint decides: who receives what.
func checkKind(kind store.WebhookKind, address string, to []string, language string, events []string) []reward.FieldError {
	var wrong []reward.FieldError
	refuse := func(field, detail string) { wrong = append(wrong, reward.FieldError{Field: field, Detail: detail}) }
	switch {
	case kind == store.KindWebhook && address == "":
		refuse("url", "is missing")
	case kind == store.KindEmail && address != "":
		refuse("url", "has no effect for EMAIL: omit it")
	}
	switch {
	case kind == store.KindEmail && len(to) == 0:
		refuse("to", "must name at least one e-mail address")
	case kind != store.KindEmail && len(to) > 0:
		refuse("to", "is for EMAIL only: omit it")
	}
	for i, address := range to {
		if err := webhook.CheckMailAddress(address); err != nil {
			refuse(fmt.Sprintf("to[%d]", i), err.Error())
		}
	}
	if kind == store.KindWebhook {
		if language != "" {
			refuse("language", "is for SLACK and EMAIL only: omit it")
		}
		return wrong
	}
	for i, event := range events {
		if !slices.Contains(reward.PeopleEvents, event) {
			refuse(fmt.Sprintf("events[%d]", i), "is for WEBHOOK only; people are told of "+strings.Join(reward.PeopleEvents, ", "))
		}
	}
	return wrong
}

// checkSender refuses a kind that this instance cannot send.
func (a *API) checkSender(kind store.WebhookKind, address string) error {
	switch {
	case kind == store.KindSlack && address == "" && !a.cfg.SlackSet:
		return web.Invalid("url", "is missing, and the setting notify.slack-url is empty")
	case kind == store.KindEmail && !a.cfg.MailSet:
		return web.Invalid("kind", "is EMAIL, but the setting notify.smtp-url is empty")
	}
	return nil
}

// checkReceiver refuses a URL whose host is an address that is never called. The
// address of a name is only judged when it is dialled.
func (a *API) checkReceiver(address string) error {
	if address == "" {
		return nil
	}
	u, err := url.Parse(address)
	if err != nil {
		return web.Invalid("url", "cannot be parsed")
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return nil //nolint:nilerr // a name
	}
	if err := webhook.CheckAddress(ip, a.cfg.WebhookAllowPrivate); err != nil {
		return web.Invalid("url", err.Error())
	}
	return nil
}

type endpointCreateInput struct {
	Body CreateWebhookEndpoint
}

type endpointChangeInput struct {
	EndpointPath
	IfMatch string `header:"If-Match" maxLength:"2000" doc:"ETag of an earlier response; 412 if it has changed since, except for deliveries and the secret"`
	Body    ChangeWebhookEndpoint
}

// EndpointPath is the path of what belongs to a webhook endpoint.
type EndpointPath struct {
	ID string `path:"id" doc:"Webhook endpoint ID"`

	id int64
}

func (p *EndpointPath) parsePath(context.Context) (err error) {
	if p.id, err = web.IDOf("webhook endpoint", p.ID); err != nil {
		return web.Malformed("id", err.Error())
	}
	return nil
}

type endpointOutput struct {
	ETag string `header:"ETag" doc:"For If-Match"`
	Body *client.WebhookEndpoint
}

func (o *endpointOutput) withoutSecret() any {
	out, e := *o, *o.Body
	if e.Kind != client.KindWebhook {
		return o
	}
	e.Secret, e.Notice = "", "only the first response to this request had the secret: if you have lost it, rotate it"
	out.Body = &e
	return &out
}

type endpointListOutput struct {
	Body struct {
		Items []*client.WebhookEndpoint `json:"items" nullable:"false"`
	}
}

// DeliveryPath is the path of a webhook delivery.
type DeliveryPath struct {
	EndpointPath
	DeliveryID string `path:"deliveryId" doc:"Delivery ID"`

	delivery int64
}

func (p *DeliveryPath) parsePath(ctx context.Context) (err error) {
	if err := p.EndpointPath.parsePath(ctx); err != nil {
		return err
	}
	if p.delivery, err = web.IDOf("delivery", p.DeliveryID); err != nil {
		return web.Malformed("deliveryId", err.Error())
	}
	return nil
}

type deliveryListInput struct {
	EndpointPath
	State string `query:"state" enum:"PENDING,DELIVERED,ABANDONED"`
	PageInput
}

func (a *API) addWebhookEndpoints() {
	const path = "/v1/webhook-endpoints"
	const tag = "webhooks"
	call(a, operation{
		id: "create-webhook-endpoint", method: http.MethodPost, path: path, tag: tag, roles: admins, creates: true,
		summary: "Create a webhook endpoint", status: http.StatusCreated,
		errors:  []string{reward.CodeExists, reward.CodeTooManyEndpoints},
		example: tree{"url": "https://hooks.example/largesse", "events": []any{"promotion.completed"}},
	}, a.createWebhookEndpoint)
	call(a, operation{
		id: "list-webhook-endpoints", method: http.MethodGet, path: path, tag: tag, roles: readers,
		summary: "List webhook endpoints",
	}, a.listWebhookEndpoints)
	call(a, operation{
		id: "get-webhook-endpoint", method: http.MethodGet, path: path + "/{id}", tag: tag, roles: readers,
		summary: "Get a webhook endpoint",
		errors:  []string{reward.CodeEndpointNotFound},
	}, a.getWebhookEndpoint)
	call(a, operation{
		id: "change-webhook-endpoint", method: http.MethodPatch, path: path + "/{id}", tag: tag, roles: admins,
		summary: "Change a webhook endpoint",
		errors:  []string{reward.CodeEndpointNotFound, reward.CodePreconditionFailed},
		example: tree{"enabled": false},
	}, a.changeWebhookEndpoint)
	call(a, operation{
		id: "delete-webhook-endpoint", method: http.MethodDelete, path: path + "/{id}", tag: tag, roles: admins,
		summary: "Delete a webhook endpoint", status: http.StatusNoContent,
		errors: []string{reward.CodeEndpointNotFound},
	}, a.deleteWebhookEndpoint)
	call(a, operation{
		id: "rotate-webhook-secret", method: http.MethodPost, path: path + "/{id}/rotate-secret", tag: tag, roles: admins,
		summary: "Replace the secret; both sign for 24 hours",
		errors:  []string{reward.CodeEndpointNotFound, reward.CodeIllegalState},
	}, a.rotateWebhookSecret)
	call(a, operation{
		id: "test-webhook-endpoint", method: http.MethodPost, path: path + "/{id}/test", tag: tag, roles: operators,
		summary: "Test a webhook endpoint", status: http.StatusAccepted,
		errors: []string{reward.CodeEndpointNotFound, reward.CodeEndpointDisabled},
	}, a.testWebhookEndpoint)
	call(a, operation{
		id: "list-webhook-deliveries", method: http.MethodGet, path: path + "/{id}/deliveries", tag: tag, roles: readers,
		summary: "List webhook deliveries",
		errors:  []string{reward.CodeEndpointNotFound},
	}, a.listWebhookDeliveries)
	call(a, operation{
		id: "get-webhook-delivery", method: http.MethodGet, path: path + "/{id}/deliveries/{deliveryId}", tag: tag, roles: readers,
		summary: "Get a webhook delivery",
		errors:  []string{reward.CodeDeliveryNotFound},
	}, a.getWebhookDelivery)
	call(a, operation{
		id: "resend-webhook-delivery", method: http.MethodPost, path: path + "/{id}/deliveries/{deliveryId}/resend", tag: tag, roles: operators,
		summary: "Send a delivery again, with the same messageId", status: http.StatusAccepted,
		errors: []string{reward.CodeEndpointNotFound, reward.CodeDeliveryNotFound, reward.CodeEndpointDisabled},
	}, a.resendWebhookDelivery)
}

func (a *API) createWebhookEndpoint(ctx context.Context, in *endpointCreateInput) (*endpointOutput, error) {
	if err := a.checkReceiver(in.Body.URL); err != nil {
		return nil, err
	}
	kind, secret := in.Body.kind(), ""
	if err := a.checkSender(kind, in.Body.URL); err != nil {
		return nil, err
	}
	if kind == store.KindWebhook {
		secret = webhook.NewSecret()
	}
	id, err := a.secretID(ctx, func(crashed int64) error { return a.cfg.Rows.WebhookEndpointDelete(ctx, crashed) })
	if err != nil {
		return nil, err
	}
	e, err := a.cfg.Rows.WebhookEndpointCreate(ctx, store.WebhookEndpoint{
		ID: id, Kind: kind, URL: in.Body.URL, To: in.Body.To, Language: in.Body.Language, Description: in.Body.Description, Events: in.Body.Events, Enabled: in.Body.Enabled == nil || *in.Body.Enabled,
		Secret: secret, CreatedAt: time.Now(), CreatedBy: actor(ctx),
	})
	return withSecret(ctx, e, err)
}

// endpointAnswer returns an endpoint as the caller may see it. Who sees no URLs gets no tag:
// it would tell them whether a guess of the URL is right.
func endpointAnswer(ctx context.Context, e store.WebhookEndpoint) *endpointOutput {
	out := &endpointOutput{Body: endpointFor(ctx, e)}
	if seesURLs(ctx) {
		out.ETag = `"` + endpointTag(e) + `"`
	}
	return out
}

// endpointTag returns a tag of what a change can change.
func endpointTag(e store.WebhookEndpoint) string {
	return rules.Tag(e.ID, e.CreatedAt, e.URL, e.Description, store.WebhookEventBits(e.Events), e.Enabled, strings.Join(e.To, " "), e.Language)
}

func withSecret(ctx context.Context, e store.WebhookEndpoint, err error) (*endpointOutput, error) {
	if err != nil {
		return nil, err
	}
	out := endpointAnswer(ctx, e)
	out.Body.Secret = e.Secret
	return out, nil
}

func (a *API) listWebhookEndpoints(ctx context.Context, _ *struct{}) (*endpointListOutput, error) {
	list, err := a.cfg.Rows.WebhookEndpointList(ctx, pendingShown)
	if err != nil {
		return nil, err
	}
	out := &endpointListOutput{}
	out.Body.Items = mapped(list, func(e store.WebhookEndpoint) *client.WebhookEndpoint { return endpointFor(ctx, e) })
	return out, nil
}

func (a *API) getWebhookEndpoint(ctx context.Context, in *EndpointPath) (*endpointOutput, error) {
	e, err := a.cfg.Rows.WebhookEndpointGet(ctx, in.id, pendingShown)
	if err != nil {
		return nil, err
	}
	return endpointAnswer(ctx, e), nil
}

func (a *API) changeWebhookEndpoint(ctx context.Context, in *endpointChangeInput) (*endpointOutput, error) {
	if in.Body.URL != nil {
		if err := a.checkReceiver(*in.Body.URL); err != nil {
			return nil, err
		}
	}
	was, err := a.cfg.Rows.WebhookEndpointGet(ctx, in.id, 0)
	if err != nil {
		return nil, err
	}
	b := in.Body
	address, to, language := *cmp.Or(b.URL, &was.URL), was.To, *cmp.Or(b.Language, &was.Language)
	if b.To != nil {
		to = b.To
	}
	if wrong := checkKind(was.Kind, address, to, language, b.Events); len(wrong) > 0 {
		return nil, web.Invalid(wrong[0].Field, wrong[0].Detail)
	}
	if err := a.checkSender(was.Kind, address); err != nil && b.URL != nil {
		return nil, err
	}
	secret := webhook.NewSecret()
	change := store.WebhookEndpointChange{
		URL: b.URL, To: b.To, Language: b.Language, Description: b.Description, Events: b.Events, Enabled: b.Enabled, NewSecret: secret,
	}
	tags, err := web.IfMatchTags(in.IfMatch)
	if err != nil {
		return nil, err
	}
	if tags != nil {
		if err := rules.CheckTag(tags, endpointTag(was), "webhook endpoint", in.id); err != nil {
			return nil, err
		}
		change.Was = &was
	}
	if _, err := a.cfg.Rows.WebhookEndpointChange(ctx, in.id, change); err != nil {
		return nil, err
	}
	e, err := a.cfg.Rows.WebhookEndpointGet(ctx, in.id, pendingShown)
	if e.Secret != secret {
		e.Secret = "" // made by an earlier request, or by one since
	}
	return withSecret(ctx, e, err)
}

func (a *API) deleteWebhookEndpoint(ctx context.Context, in *EndpointPath) (*struct{}, error) {
	return nil, a.cfg.Rows.WebhookEndpointDelete(ctx, in.id)
}

func (a *API) rotateWebhookSecret(ctx context.Context, in *EndpointPath) (*endpointOutput, error) {
	was, err := a.cfg.Rows.WebhookEndpointGet(ctx, in.id, 0)
	if err != nil {
		return nil, err
	}
	if was.Kind != store.KindWebhook {
		return nil, reward.NewError(reward.KindConflict, reward.CodeIllegalState, "webhook endpoint %d is of kind %s: its messages are not signed", in.id, was.Kind)
	}
	e, err := a.cfg.Rows.WebhookEndpointRotate(ctx, in.id, webhook.NewSecret(), previousSecretTTL)
	return withSecret(ctx, e, err)
}

func (a *API) testWebhookEndpoint(ctx context.Context, in *EndpointPath) (*output[*client.WebhookDelivery], error) {
	return deliveryAnswer(a.cfg.Rows.WebhookDeliveryTest(ctx, in.id))
}

func (a *API) listWebhookDeliveries(ctx context.Context, in *deliveryListInput) (*output[listOf[*client.WebhookDelivery]], error) {
	p := store.WebhookDeliveryListParams{EndpointID: in.id}
	if i := slices.Index(deliveryStates, in.State); i >= 0 {
		p.State = new(store.WebhookDeliveryState(i))
	}
	read := func(before int64, limit int) ([]store.EndpointDelivery, error) {
		if _, err := a.cfg.Rows.WebhookEndpointGet(ctx, in.id, 0); err != nil {
			return nil, err
		}
		p.Before, p.Limit = before, limit
		return a.cfg.Rows.WebhookDeliveryList(ctx, p)
	}
	return pageByID(in.PageInput, cursorDeliveries, read, deliveryOf, func(d store.EndpointDelivery) int64 { return d.ID })
}

func (a *API) getWebhookDelivery(ctx context.Context, in *DeliveryPath) (*output[*client.WebhookDelivery], error) {
	return deliveryAnswer(a.cfg.Rows.WebhookDeliveryGet(ctx, in.id, in.delivery))
}

func (a *API) resendWebhookDelivery(ctx context.Context, in *DeliveryPath) (*output[*client.WebhookDelivery], error) {
	return deliveryAnswer(a.cfg.Rows.WebhookDeliveryResend(ctx, in.id, in.delivery))
}

func deliveryAnswer(d store.EndpointDelivery, err error) (*output[*client.WebhookDelivery], error) {
	return outputOf(deliveryOf(d), err)
}
