package api

import (
	"cmp"
	"context"
	"encoding/hex"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/web"
)

// Templates manages coupon templates.
type Templates interface {
	Create(ctx context.Context, t reward.CouponTemplate) (coupon.View, error)
	CopyOf(ctx context.Context, id reward.TemplateID, name string, opensAt *time.Time) (reward.CouponTemplate, error)
	Get(ctx context.Context, id reward.TemplateID) (coupon.View, error)
	Known(ctx context.Context, id reward.TemplateID) (coupon.View, error)
	GetMany(ctx context.Context, ids []reward.TemplateID) ([]coupon.View, error)
	List(ctx context.Context, before reward.TemplateID, limit int, selects func(*reward.CouponTemplate) bool) ([]coupon.View, error)
	Change(ctx context.Context, p rules.TemplateChange) (coupon.View, error)
	Close(ctx context.Context, id reward.TemplateID) (coupon.View, error)
	ReleasePlaces(ctx context.Context, id reward.TemplateID) (int64, error)
	ImportCodes(ctx context.Context, id reward.TemplateID, by string, file io.Reader) (coupon.View, coupon.CodesAdded, error)
	Entrants(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error)
}

const degradedGate = "gate"

const validSecondsMax = int64(reward.TemplateValidMax / time.Second)

// templateFor returns a template as the caller may see it: shoppers do not see what
// callers store with it.
func templateFor(ctx context.Context, v coupon.View) *client.Template {
	t := templateOf(v)
	if callerOf(ctx).Role == auth.RoleShopper {
		t.Metadata, t.Notes, t.AwaitingQuantity = nil, "", 0
	}
	return t
}

func templateOf(v coupon.View) *client.Template {
	t := &client.Template{
		ID: v.ID.String(), Name: v.Name, State: templateState(&v, time.Now()), SoldOutAt: timeOf(v.SoldOutAt), Metadata: v.Metadata.Map(), Notes: v.Notes, TotalQuantity: v.TotalQuantity, PerUserLimit: v.PerUserLimit,
		OpensAt: timeOf(v.OpensAt), ClosesAt: timeOf(v.ClosesAt), ValidForSeconds: int64(v.ValidFor / time.Second), HoldSeconds: int64(v.HoldFor / time.Second),
		Mode: string(v.Mode), ReissueAfterCancel: v.ReissueAfterCancel, WhenRedisAway: string(v.WhenRedisAway), Path: string(v.Path),
		Draw: drawOf(&v.Draw), ImportedCodes: importedCodesOf(&v.CouponTemplate), CreatedAt: v.CreatedAt.UTC(), ArchivedAt: timeOf(v.ArchivedAt),
		Counters: client.TemplateCounters{TotalQuantity: v.TotalQuantity, Stock: v.Stock, Count: v.Live, IssuedTotal: v.IssuedTotal, Waiting: v.Waiting},
	}
	if v.AwaitsApproval() {
		t.AwaitingQuantity = v.AwaitingQuantity
	}
	if v.Codes.Length > 0 {
		t.Codes = &client.CodeStyle{Prefix: v.Codes.Prefix, Length: v.Codes.Length, Alphabet: v.Codes.Alphabet}
	}
	if v.GateUnavailable {
		t.Degraded = []string{degradedGate}
	}
	return t
}

func drawOf(d *reward.Draw) *client.Draw {
	if d.State == reward.DrawNone {
		return nil
	}
	out := &client.Draw{
		From: d.From.UTC(), State: string(d.State), Commitment: hex.EncodeToString(coupon.Commitment(d.Seed)),
		ListHash: hex.EncodeToString(d.List),
	}
	if d.State != reward.DrawOpen {
		out.Seed = hex.EncodeToString(d.Seed)
	}
	return out
}

// CreateTemplate is the body of POST /v1/coupon-templates.
type CreateTemplate struct {
	ID                 *wireID           `json:"id,omitempty"`
	Name               string            `json:"name" minLength:"1" maxLength:"200"`
	TotalQuantity      int64             `json:"totalQuantity" minimum:"1" maximum:"1000000000" doc:"What is above approval.codes-above waits for an approval"`
	PerUserLimit       *int              `json:"perUserLimit,omitempty" minimum:"1" maximum:"100" doc:"Absent: 1"`
	OpensAt            *time.Time        `json:"opensAt,omitempty" doc:"Absent: at once"`
	ClosesAt           *time.Time        `json:"closesAt,omitempty"`
	ValidForSeconds    *int64            `json:"validForSeconds,omitempty" minimum:"1" maximum:"3153600000"`
	HoldSeconds        *int64            `json:"holdSeconds,omitempty" minimum:"1" maximum:"2592000" doc:"At most validForSeconds. HELD, then CANCELLED unless confirmed"`
	Mode               string            `json:"mode,omitempty" enum:"STREAM,KAFKA,SYNC" doc:"Absent: STREAM"`
	ReissueAfterCancel *bool             `json:"reissueAfterCancel,omitempty" doc:"Absent: true"`
	WhenRedisAway      string            `json:"whenRedisAway,omitempty" enum:"DATABASE,WAIT" doc:"Absent: DATABASE"`
	Codes              *client.CodeStyle `json:"codes,omitempty" doc:"Short codes; cannot change. Absent: 26 random letters and digits"`
	Draw               *CreateDraw       `json:"draw,omitempty" doc:"Draws the order of who enters before opensAt, which it needs"`
	Metadata           map[string]string `json:"metadata,omitempty" maxProperties:"20" doc:"Keys and values: at most 200 characters"`
	Notes              string            `json:"notes,omitempty" maxLength:"4000"`
}

// CreateDraw is the draw of a new template.
type CreateDraw struct {
	From time.Time `json:"from" doc:"Before opensAt"`
}

// Resolve checks what the schema cannot express, so that one response names all
// invalid fields.
func (b *CreateTemplate) Resolve(huma.Context) []error {
	t, wrong := b.template()
	return fieldErrors(append(wrong, reward.CheckTemplate(&t)...))
}

func (b *CreateTemplate) template() (reward.CouponTemplate, []reward.FieldError) {
	t := reward.CouponTemplate{
		Name: b.Name, Metadata: reward.NewMetadata(b.Metadata), Notes: b.Notes, TotalQuantity: b.TotalQuantity, PerUserLimit: 1, Mode: reward.IssueMode(b.Mode),
		ReissueAfterCancel: true, WhenRedisAway: reward.RedisFallback(b.WhenRedisAway),
	}
	assign(&t.PerUserLimit, b.PerUserLimit)
	assign(&t.OpensAt, b.OpensAt)
	assign(&t.ClosesAt, b.ClosesAt)
	assign(&t.ReissueAfterCancel, b.ReissueAfterCancel)
	if b.ValidForSeconds != nil {
		t.ValidFor = seconds(*b.ValidForSeconds)
	}
	if b.HoldSeconds != nil {
		t.HoldFor = seconds(*b.HoldSeconds)
	}
	if b.Codes != nil {
		t.Codes = reward.CodeStyle{
			Prefix: b.Codes.Prefix, Length: cmp.Or(b.Codes.Length, reward.CodeLengthDefault), Alphabet: cmp.Or(b.Codes.Alphabet, reward.AlphabetDefault),
		}
	}
	if b.Draw != nil {
		t.Draw = reward.Draw{State: reward.DrawOpen, From: b.Draw.From}
	}
	if b.ID == nil {
		return t, nil
	}
	id, err := reward.ParseTemplateID(string(*b.ID))
	if err != nil {
		return t, []reward.FieldError{{Field: "id", Detail: err.Error()}}
	}
	t.ID = id
	return t, nil
}

func assign[T any](field, to *T) {
	if to != nil {
		*field = *to
	}
}

// seconds converts n without overflow. A value outside of the limits stays outside.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, -1), validSecondsMax+1)) * time.Second
}

// fieldErrors converts errors about fields of a body for huma.
func fieldErrors(wrong []reward.FieldError) []error {
	return mapped(wrong, func(f reward.FieldError) error {
		return &huma.ErrorDetail{Location: "body." + f.Field, Message: f.Detail}
	})
}

// ChangeTemplate is the body of PATCH /v1/coupon-templates/{id}. Absent fields stay.
type ChangeTemplate struct {
	Name               *string                       `json:"name,omitempty" minLength:"1" maxLength:"200"`
	TotalQuantity      *int64                        `json:"totalQuantity,omitempty" minimum:"1" maximum:"1000000000" doc:"At least live coupons plus waiting requests. A raise above approval.codes-above waits for an approval"`
	PerUserLimit       *int                          `json:"perUserLimit,omitempty" minimum:"1" maximum:"100"`
	OpensAt            web.Clearable[time.Time]      `json:"opensAt,omitempty,omitzero" doc:"null: at once"`
	ClosesAt           web.Clearable[time.Time]      `json:"closesAt,omitempty,omitzero" doc:"null: never"`
	ValidForSeconds    web.Clearable[int64]          `json:"validForSeconds,omitempty,omitzero" minimum:"1" maximum:"3153600000" doc:"For later coupons; null: none"`
	HoldSeconds        web.Clearable[int64]          `json:"holdSeconds,omitempty,omitzero" minimum:"1" maximum:"2592000" doc:"For later coupons; null: none"`
	Mode               *string                       `json:"mode,omitempty" enum:"STREAM,KAFKA,SYNC" doc:"Only before the first request"`
	ReissueAfterCancel *bool                         `json:"reissueAfterCancel,omitempty"`
	WhenRedisAway      *string                       `json:"whenRedisAway,omitempty" enum:"DATABASE,WAIT"`
	Metadata           web.Clearable[metadataChange] `json:"metadata,omitempty,omitzero" doc:"Sets entries; a null value removes one, null all"`
	Notes              *string                       `json:"notes,omitempty" maxLength:"4000"`
}

// Resolve checks what the schema cannot express. Templates.Change checks what depends
// on the current template.
func (b *ChangeTemplate) Resolve(huma.Context) []error {
	p := b.params(0)
	p.Mode, p.WhenRedisAway = nil, nil // the schema has checked them
	t, _ := p.Apply(reward.CouponTemplate{Name: "-", TotalQuantity: 1, PerUserLimit: 1})
	return fieldErrors(reward.CheckTemplate(&t))
}

func (b *ChangeTemplate) params(id reward.TemplateID) rules.TemplateChange {
	p := rules.TemplateChange{
		ID: id, Name: b.Name, Metadata: (*reward.MetadataChange)(b.Metadata.Change()), Notes: b.Notes, TotalQuantity: b.TotalQuantity, PerUserLimit: b.PerUserLimit,
		OpensAt: b.OpensAt.Change(), ClosesAt: b.ClosesAt.Change(),
		Mode: (*reward.IssueMode)(b.Mode), ReissueAfterCancel: b.ReissueAfterCancel, WhenRedisAway: (*reward.RedisFallback)(b.WhenRedisAway),
	}
	if n := b.ValidForSeconds.Change(); n != nil {
		p.ValidFor = new(seconds(*n))
	}
	if n := b.HoldSeconds.Change(); n != nil {
		p.HoldFor = new(seconds(*n))
	}
	return p
}

// TemplatePath is the path of what belongs to a template.
type TemplatePath struct {
	ID string `path:"id" doc:"Template ID"`

	id reward.TemplateID
}

func (p *TemplatePath) parsePath(context.Context) (err error) {
	p.id, err = templateID("id", p.ID)
	return err
}

type templateOutput struct {
	ETag string `header:"ETag" doc:"For If-Match"`
	Body *client.Template
}

// templateAnswer returns a template as the caller may see it. Shoppers get no tag: it
// would tell them whether a guess of what they do not see is right.
func templateAnswer(ctx context.Context, v coupon.View) *templateOutput {
	out := &templateOutput{Body: templateFor(ctx, v)}
	if callerOf(ctx).Role != auth.RoleShopper {
		out.ETag = templateTag(v)
	}
	return out
}

func templateTag(v coupon.View) string { return `"` + rules.TemplateTag(&v.CouponTemplate) + `"` }

type templateCreatedOutput struct {
	Location string `header:"Location" doc:"Path of the new object"`
	ETag     string `header:"ETag" doc:"For If-Match"`
	Body     *client.Template
}

type templateListInput struct {
	LongItemsInput
	Search   string `query:"q" maxLength:"200" doc:"In name, ID or metadata (key=value), in any case"`
	Awaiting bool   `query:"awaitingApproval" doc:"true: only those with an awaitingQuantity"`
}

type templateEntrantsInput struct {
	TemplatePath
	PageInput
}

// Entrant is a user who entered a draw.
type Entrant struct {
	UserID string `json:"userId"`
}

type templateChangeInput struct {
	TemplatePath
	IfMatch string `header:"If-Match" maxLength:"2000" doc:"ETag of an earlier response; 412 if it has changed since, except for progress"`
	Body    ChangeTemplate
}

func (a *API) addTemplates() {
	const path = "/v1/coupon-templates"
	const tag = "coupon templates"
	call(a, operation{
		id: "create-template", method: http.MethodPost, path: path, tag: tag, roles: campaigners, creates: true,
		summary: "Create a template", status: http.StatusCreated,
		errors:  []string{reward.CodeExists},
		example: tree{"name": "Spring", "totalQuantity": 1000},
	}, a.createTemplate)
	call(a, operation{
		id: "list-templates", method: http.MethodGet, path: path, tag: tag, roles: staff,
		summary: "List templates",
	}, a.listTemplates)
	call(a, operation{
		id: "get-template", method: http.MethodGet, path: path + "/{id}", tag: tag, roles: everyRole, unlimited: true,
		summary: "Get a template",
		errors:  []string{reward.CodeTemplateNotFound},
	}, a.getTemplate)
	call(a, operation{
		id: "change-template", method: http.MethodPatch, path: path + "/{id}", tag: tag, roles: campaigners,
		summary:     "Change a template",
		description: "After the first request, mode cannot change, nor opensAt of a draw.",
		errors:      []string{reward.CodeTemplateNotFound, reward.CodeConflict, reward.CodeCodesExhausted, reward.CodeArchived, reward.CodePreconditionFailed},
		example:     tree{"totalQuantity": 2000},
	}, a.changeTemplate)
	call(a, operation{
		id: "approve-template", method: http.MethodPost, path: path + "/{id}/approve", tag: tag, roles: approvers,
		summary: "Approve the quantity that waits as another person",
		errors:  []string{reward.CodeTemplateNotFound, reward.CodeIllegalState, reward.CodeSamePerson, reward.CodeCodesExhausted, reward.CodeArchived, reward.CodePreconditionFailed},
	}, a.approveTemplate)
	call(a, operation{
		id: "reject-template", method: http.MethodPost, path: path + "/{id}/reject", tag: tag, roles: approvers,
		summary: "Drop the quantity that waits for an approval",
		errors:  []string{reward.CodeTemplateNotFound, reward.CodeIllegalState, reward.CodeArchived},
	}, func(ctx context.Context, in *TemplatePath) (*templateOutput, error) {
		v, err := a.cfg.Templates.Change(ctx, rules.TemplateChange{ID: in.id, Reject: true})
		return a.changed(ctx, "rejected", v, err)
	})
	call(a, operation{
		id: "close-template", method: http.MethodPost, path: path + "/{id}/close", tag: tag, roles: campaigners,
		summary: "Close a template; waiting requests are still served",
		errors:  []string{reward.CodeTemplateNotFound, reward.CodeIllegalState, reward.CodeConflict, reward.CodeArchived},
	}, func(ctx context.Context, in *TemplatePath) (*templateOutput, error) {
		v, err := a.cfg.Templates.Close(ctx, in.id)
		return a.changed(ctx, "closed", v, err)
	})
	call(a, operation{
		id: "release-places", method: http.MethodPost, path: path + "/{id}/release-places", tag: tag, roles: operators,
		summary:     "Release the places of a waiting line in a Redis that was removed permanently",
		description: "Do not call it while any instance uses Redis: users in line lose their places.",
		errors:      []string{reward.CodeTemplateNotFound, reward.CodeIllegalState, reward.CodeArchived},
	}, a.releasePlaces)
	call(a, operation{
		id: "list-template-entrants", method: http.MethodGet, path: path + "/{id}/entrants", tag: tag, roles: staff,
		summary:     "List the entrants of a draw by the bytes of userId",
		description: "draw.listHash is its hash. ILLEGAL_STATE: the draw is OPEN, or there is none.",
		errors:      []string{reward.CodeTemplateNotFound, reward.CodeIllegalState},
	}, a.listTemplateEntrants)
}

// ReleasedPlaces is the response of release-places.
type ReleasedPlaces struct {
	Released int64 `json:"released"`
}

func (a *API) releasePlaces(ctx context.Context, in *TemplatePath) (*output[*ReleasedPlaces], error) {
	released, err := a.cfg.Templates.ReleasePlaces(ctx, in.id)
	if err != nil {
		return nil, err
	}
	if released > 0 {
		a.log.Info("places released", "template_id", in.id, "places", released, "actor", actor(ctx))
	}
	return &output[*ReleasedPlaces]{Body: &ReleasedPlaces{Released: released}}, nil
}

// changed logs a change of a template, and answers with the template.
func (a *API) changed(ctx context.Context, how string, v coupon.View, err error, attrs ...any) (*templateOutput, error) {
	if err != nil {
		return nil, err
	}
	a.log.Info("template "+how, slices.Concat([]any{"template_id", v.ID}, attrs, []any{"actor", actor(ctx)})...)
	return templateAnswer(ctx, v), nil
}

// getTemplate reads a template. Shoppers are many, and get it from memory.
func (a *API) getTemplate(ctx context.Context, in *TemplatePath) (*templateOutput, error) {
	var v coupon.View
	var err error
	if callerOf(ctx).Role == auth.RoleShopper {
		v, err = a.cfg.Templates.Known(ctx, in.id)
	} else {
		err = a.read(ctx, func(ctx context.Context) error {
			v, err = a.cfg.Templates.Get(ctx, in.id)
			return err
		})
	}
	if err != nil {
		return nil, err
	}
	return templateAnswer(ctx, v), nil
}

// templateID parses a template ID in a field of a path or query.
func templateID(field, s string) (reward.TemplateID, error) {
	id, err := reward.ParseTemplateID(s)
	if err != nil {
		return 0, web.Malformed(field, err.Error())
	}
	return id, nil
}

func (a *API) createTemplate(ctx context.Context, in *struct{ Body CreateTemplate }) (*templateCreatedOutput, error) {
	t, wrong := in.Body.template()
	if len(wrong) > 0 {
		return nil, web.Invalid(wrong[0].Field, wrong[0].Detail)
	}
	return a.createTemplateOf(ctx, t)
}

// createTemplateOf creates a template for the caller, once per idempotency key.
func (a *API) createTemplateOf(ctx context.Context, t reward.CouponTemplate) (*templateCreatedOutput, error) {
	t.Authors = t.Authors.Add(actor(ctx))
	claim := claimOf(ctx)
	if claim != nil && t.ID == 0 {
		t.ID = reward.TemplateID(claim.ID)
	}
	v, err := a.cfg.Templates.Create(ctx, t)
	if claim != nil && claim.Again && reward.HasCode(err, reward.CodeExists) {
		// An earlier attempt of the same request may have created it before it crashed.
		exists := err
		if v, err = a.cfg.Templates.Get(ctx, t.ID); err == nil && (v.Name != t.Name || v.CreatedAt.Before(claim.FirstAt.Add(-clockSkewMax))) {
			err = exists
		}
	}
	out, err := a.changed(ctx, "created", v, err)
	if err != nil {
		return nil, err
	}
	return &templateCreatedOutput{Location: web.Location(ctx, "/v1/coupon-templates/"+out.Body.ID), ETag: out.ETag, Body: out.Body}, nil
}

func (a *API) changeTemplate(ctx context.Context, in *templateChangeInput) (*templateOutput, error) {
	tags, err := web.IfMatchTags(in.IfMatch)
	if err != nil {
		return nil, err
	}
	p := in.Body.params(in.id)
	p.By, p.Tags = actor(ctx), tags
	if !p.Empty() {
		v, err := a.cfg.Templates.Change(ctx, p)
		return a.changed(ctx, "changed", v, err)
	}
	v, err := a.cfg.Templates.Get(ctx, in.id)
	if err == nil {
		err = rules.CheckTag(p.Tags, rules.TemplateTag(&v.CouponTemplate), "template", int64(in.id))
	}
	if err != nil {
		return nil, err
	}
	return templateAnswer(ctx, v), nil
}

type templateApproveInput struct {
	TemplatePath
	IfMatch string `header:"If-Match" maxLength:"2000" doc:"ETag of an earlier response; 412 if it has changed since, except for progress"`
}

// approveTemplate puts the quantity that waits in force. The tag, who the authors are and
// whether the codes suffice are checked in the transaction that does it.
func (a *API) approveTemplate(ctx context.Context, in *templateApproveInput) (*templateOutput, error) {
	tags, err := web.IfMatchTags(in.IfMatch)
	if err != nil {
		return nil, err
	}
	persons, err := a.persons(ctx)
	if err != nil {
		return nil, err
	}
	v, err := a.cfg.Templates.Change(ctx, rules.TemplateChange{ID: in.id, Tags: tags, Approvers: persons})
	return a.changed(ctx, "approved", v, err, "quantity", v.TotalQuantity)
}

func (a *API) listTemplates(ctx context.Context, in *templateListInput) (*output[listOf[*client.Template]], error) {
	var selects func(*reward.CouponTemplate) bool
	if in.Search != "" || in.Awaiting {
		text := strings.ToLower(in.Search)
		selects = func(t *reward.CouponTemplate) bool {
			return (!in.Awaiting || t.AwaitsApproval()) && strings.Contains(t.SearchText(), text)
		}
	}
	read := func(before int64, limit int) ([]coupon.View, error) {
		return a.cfg.Templates.List(ctx, reward.TemplateID(before), limit, selects)
	}
	show := func(v coupon.View) *client.Template { return templateFor(ctx, v) }
	return pageByID(PageInput(in.LongItemsInput), cursorTemplates, read, show, func(v coupon.View) int64 { return int64(v.ID) })
}

func (a *API) listTemplateEntrants(ctx context.Context, in *templateEntrantsInput) (*output[listOf[Entrant]], error) {
	after, err := decodeUserCursor(cursorEntrants, in.Cursor)
	if err != nil {
		return nil, err
	}
	users, err := a.cfg.Templates.Entrants(ctx, in.id, after, pageRead(in.Limit))
	if err != nil {
		return nil, err
	}
	show := func(user string) Entrant { return Entrant{UserID: user} }
	return page(users, in.Limit, show, func(last string) string { return encodeUserCursor(cursorEntrants, last) }), nil
}
