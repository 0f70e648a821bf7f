package api

import (
	"context"
	"encoding/hex"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// Templates is what people do with coupon templates.
type Templates interface {
	Create(ctx context.Context, t reward.CouponTemplate) (coupon.View, error)
	Get(ctx context.Context, id reward.TemplateID) (coupon.View, error)
	List(ctx context.Context, before reward.TemplateID, limit int) ([]coupon.View, error)
	Change(ctx context.Context, p store.TemplateChangeParams) (coupon.View, error)
	Close(ctx context.Context, id reward.TemplateID) (coupon.View, error)
	Entrants(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error)
}

// degradedGate names the gate among what did not answer.
const degradedGate = "gate"

// validSecondsMax is the longest a coupon can be valid.
const validSecondsMax = int64(reward.TemplateValidMax / time.Second)

// Template is a coupon template on the wire.
type Template struct {
	ID                 string    `json:"id" doc:"A whole number as a string" example:"42"`
	Name               string    `json:"name"`
	TotalQuantity      int64     `json:"totalQuantity" doc:"Coupons that may live at a time"`
	PerUserLimit       int       `json:"perUserLimit" doc:"Coupons that one user may have"`
	OpensAt            time.Time `json:"opensAt,omitzero" doc:"Absent: from the beginning"`
	ClosesAt           time.Time `json:"closesAt,omitzero" doc:"Absent: never"`
	ValidForSeconds    int64     `json:"validForSeconds,omitempty" doc:"How long a coupon is valid from its issue; absent: for ever"`
	Mode               string    `json:"mode" enum:"STREAM,KAFKA,SYNC" doc:"STREAM: a waiting line, issued exactly in its order; KAFKA: accepted once the broker has it, order not promised; SYNC: issued under a lock, answered at once"`
	ReissueAfterCancel bool      `json:"reissueAfterCancel" doc:"Whether who has cancelled a coupon may have another"`
	WhenRedisAway      string    `json:"whenRedisAway" enum:"DATABASE,WAIT" doc:"DATABASE: issue through the database; WAIT: answer 503 until Redis is back"`
	Path               string    `json:"path" enum:"GATE,DATABASE" doc:"The way that requests go at the moment; DATABASE: Redis is away, and nobody waits"`
	Draw               *Draw     `json:"draw,omitempty" doc:"Absent: first come, first served from the beginning"`
	CreatedAt          time.Time `json:"createdAt"`
	Counters           Counters  `json:"counters"`
	Degraded           []string  `json:"degraded,omitempty" nullable:"false" doc:"gate: it did not answer, so waiting is not known (0), and stock counts as if nobody waited"`
}

// Counters is how far a template is. What is live, what waits and the stock
// together are the quantity.
type Counters struct {
	TotalQuantity int64 `json:"totalQuantity"`
	Stock         int64 `json:"stock" doc:"What is left to promise"`
	Count         int64 `json:"count" doc:"Live coupons: all that are not CANCELLED"`
	IssuedTotal   int64 `json:"issuedTotal" doc:"Coupons ever issued"`
	Waiting       int64 `json:"waiting" doc:"People in line"`
}

// Draw orders those who ask before a template opens, so that anybody can check
// it afterwards.
type Draw struct {
	From       time.Time `json:"from" doc:"From when on one can ask to take part"`
	State      string    `json:"state" enum:"OPEN,CLOSED,DONE" doc:"OPEN: takes entrants; CLOSED: the template has opened, entrants are being decided; DONE: all are decided"`
	Commitment string    `json:"commitment" doc:"SHA-256 of the seed, in hex: public from the beginning"`
	Seed       string    `json:"seed,omitempty" doc:"In hex; secret while OPEN"`
	ListHash   string    `json:"listHash,omitempty" doc:"In hex: the SHA-256 of the SHA-256 of each entrant's userId, in the order of their bytes; absent before DONE"`
}

func templateOf(v coupon.View) *Template {
	t := &Template{
		ID: v.ID.String(), Name: v.Name, TotalQuantity: v.TotalQuantity, PerUserLimit: v.PerUserLimit,
		OpensAt: v.OpensAt.UTC(), ClosesAt: v.ClosesAt.UTC(), ValidForSeconds: int64(v.ValidFor / time.Second),
		Mode: string(v.Mode), ReissueAfterCancel: v.ReissueAfterCancel, WhenRedisAway: string(v.WhenRedisAway), Path: string(v.Path),
		Draw: drawOf(&v.Draw), CreatedAt: v.CreatedAt.UTC(),
		Counters: Counters{TotalQuantity: v.TotalQuantity, Stock: v.Stock, Count: v.Live, IssuedTotal: v.IssuedTotal, Waiting: v.Waiting},
	}
	if v.GateAway {
		t.Degraded = []string{degradedGate}
	}
	return t
}

func drawOf(d *reward.Draw) *Draw {
	if d.State == reward.DrawNone {
		return nil
	}
	out := &Draw{
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
	ID                 *wireID     `json:"id,omitempty" doc:"Of an upstream system"`
	Name               string      `json:"name" minLength:"1" maxLength:"200"`
	TotalQuantity      int64       `json:"totalQuantity" minimum:"1" maximum:"1000000000"`
	PerUserLimit       *int        `json:"perUserLimit,omitempty" minimum:"1" maximum:"100" doc:"1 when absent"`
	OpensAt            *time.Time  `json:"opensAt,omitempty" doc:"Absent: at once"`
	ClosesAt           *time.Time  `json:"closesAt,omitempty" doc:"Absent: never"`
	ValidForSeconds    *int64      `json:"validForSeconds,omitempty" minimum:"1" maximum:"3153600000" doc:"How long a coupon is valid from its issue; absent: for ever"`
	Mode               string      `json:"mode,omitempty" enum:"STREAM,KAFKA,SYNC" doc:"STREAM when absent"`
	ReissueAfterCancel *bool       `json:"reissueAfterCancel,omitempty" doc:"true when absent"`
	WhenRedisAway      string      `json:"whenRedisAway,omitempty" enum:"DATABASE,WAIT" doc:"DATABASE when absent"`
	Draw               *CreateDraw `json:"draw,omitempty" doc:"Draw the order of those who ask from draw.from until opensAt, which is needed then"`
}

// CreateDraw is the draw of a new template.
type CreateDraw struct {
	From time.Time `json:"from" doc:"Before opensAt"`
}

// Resolve adds what the schema cannot say, so that all wrong fields are named
// at once.
func (b *CreateTemplate) Resolve(huma.Context) []error {
	t, wrong := b.template()
	return fieldErrors(append(wrong, reward.CheckTemplate(&t)...))
}

func (b *CreateTemplate) template() (reward.CouponTemplate, []reward.FieldError) {
	t := reward.CouponTemplate{
		Name: b.Name, TotalQuantity: b.TotalQuantity, PerUserLimit: 1, Mode: reward.IssueMode(b.Mode),
		ReissueAfterCancel: true, WhenRedisAway: reward.RedisAway(b.WhenRedisAway),
	}
	assign(&t.PerUserLimit, b.PerUserLimit)
	assign(&t.OpensAt, b.OpensAt)
	assign(&t.ClosesAt, b.ClosesAt)
	assign(&t.ReissueAfterCancel, b.ReissueAfterCancel)
	if b.ValidForSeconds != nil {
		t.ValidFor = seconds(*b.ValidForSeconds)
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

// seconds keeps a number that is out of bounds out of them, without overflowing.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, -1), validSecondsMax+1)) * time.Second
}

// fieldErrors tells huma which fields of a body are wrong.
func fieldErrors(wrong []reward.FieldError) []error {
	errs := make([]error, len(wrong))
	for i, f := range wrong {
		errs[i] = &huma.ErrorDetail{Location: "body." + f.Field, Message: f.Detail}
	}
	return errs
}

// ChangeTemplate is the body of PATCH /v1/coupon-templates/{id}: what is absent
// stays.
type ChangeTemplate struct {
	Name               *string                  `json:"name,omitempty" minLength:"1" maxLength:"200"`
	TotalQuantity      *int64                   `json:"totalQuantity,omitempty" minimum:"1" maximum:"1000000000" doc:"Not below the live coupons and the people in line"`
	PerUserLimit       *int                     `json:"perUserLimit,omitempty" minimum:"1" maximum:"100"`
	OpensAt            web.Clearable[time.Time] `json:"opensAt,omitempty,omitzero" doc:"null: open at once"`
	ClosesAt           web.Clearable[time.Time] `json:"closesAt,omitempty,omitzero" doc:"null: never"`
	ValidForSeconds    web.Clearable[int64]     `json:"validForSeconds,omitempty,omitzero" minimum:"1" maximum:"3153600000" doc:"For coupons issued from now on; null: for ever"`
	Mode               *string                  `json:"mode,omitempty" enum:"STREAM,KAFKA,SYNC" doc:"As long as nobody has asked"`
	ReissueAfterCancel *bool                    `json:"reissueAfterCancel,omitempty"`
	WhenRedisAway      *string                  `json:"whenRedisAway,omitempty" enum:"DATABASE,WAIT"`
}

// Resolve adds what the schema cannot say. What depends on the template as it is
// comes from below.
func (b *ChangeTemplate) Resolve(huma.Context) []error {
	p := b.params(0)
	t := reward.CouponTemplate{Name: "-", TotalQuantity: 1, PerUserLimit: 1}
	assign(&t.Name, p.Name)
	assign(&t.TotalQuantity, p.TotalQuantity)
	assign(&t.PerUserLimit, p.PerUserLimit)
	assign(&t.OpensAt, p.OpensAt)
	assign(&t.ClosesAt, p.ClosesAt)
	assign(&t.ValidFor, p.ValidFor)
	return fieldErrors(reward.CheckTemplate(&t))
}

func (b *ChangeTemplate) params(id reward.TemplateID) store.TemplateChangeParams {
	p := store.TemplateChangeParams{
		ID: id, Name: b.Name, TotalQuantity: b.TotalQuantity, PerUserLimit: b.PerUserLimit,
		OpensAt: b.OpensAt.Change(), ClosesAt: b.ClosesAt.Change(),
		Mode: (*reward.IssueMode)(b.Mode), ReissueAfterCancel: b.ReissueAfterCancel, WhenRedisAway: (*reward.RedisAway)(b.WhenRedisAway),
	}
	if n := b.ValidForSeconds.Change(); n != nil {
		valid := seconds(*n)
		p.ValidFor = &valid
	}
	return p
}

type templateIDInput struct {
	ID string `path:"id" doc:"Template id"`
}

type templateOutput struct {
	Body *Template
}

type templateCreatedOutput struct {
	Location string `header:"Location" doc:"Path of the template, relative to that of the request"`
	Body     *Template
}

type templateListInput struct {
	Cursor string `query:"cursor" doc:"nextCursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"50"`
}

type templateListOutput struct {
	Body struct {
		Items      []*Template `json:"items" nullable:"false"`
		NextCursor string      `json:"nextCursor,omitempty" doc:"Absent on the last page"`
	}
}

type templateEntrantsInput struct {
	ID     string `path:"id" doc:"Template id"`
	Cursor string `query:"cursor" doc:"nextCursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

// Entrant is who takes part in a draw.
type Entrant struct {
	UserID string `json:"userId"`
}

type entrantListOutput struct {
	Body struct {
		Items      []Entrant `json:"items" nullable:"false"`
		NextCursor string    `json:"nextCursor,omitempty" doc:"Absent on the last page"`
	}
}

type templateChangeInput struct {
	ID   string `path:"id" doc:"Template id"`
	Body ChangeTemplate
}

func (a *API) addTemplates() {
	const path = "/v1/coupon-templates"
	tags := []string{"coupon templates"}
	call(a, huma.Operation{
		OperationID: "create-template", Method: http.MethodPost, Path: path, Tags: tags,
		Summary: "Make a coupon template", DefaultStatus: http.StatusCreated,
	}, a.createTemplate)
	call(a, huma.Operation{
		OperationID: "list-templates", Method: http.MethodGet, Path: path, Tags: tags,
		Summary: "List coupon templates, the highest id first",
	}, a.listTemplates)
	call(a, huma.Operation{
		OperationID: "get-template", Method: http.MethodGet, Path: path + "/{id}", Tags: tags,
		Summary: "Show a coupon template with its counters",
	}, a.templateCall(func(ctx context.Context, id reward.TemplateID) (coupon.View, error) {
		return a.cfg.Templates.Get(ctx, id)
	}))
	call(a, huma.Operation{
		OperationID: "change-template", Method: http.MethodPatch, Path: path + "/{id}", Tags: tags,
		Summary: "Change a coupon template; what is absent stays",
		Description: "A quantity below what is live and who waits is refused, and nobody who was let in is refused afterwards. " +
			"The mode, and opensAt where there is a draw, stay once anybody has asked.",
	}, a.changeTemplate)
	call(a, huma.Operation{
		OperationID: "close-template", Method: http.MethodPost, Path: path + "/{id}/close", Tags: tags,
		Summary: "End the asking; who is in line is still served",
	}, a.templateCall(func(ctx context.Context, id reward.TemplateID) (coupon.View, error) {
		v, err := a.cfg.Templates.Close(ctx, id)
		if err == nil {
			a.log.Info(obs.Processed, "template_id", id, "doing", "closing", "by", actor(ctx))
		}
		return v, err
	}))
	call(a, huma.Operation{
		OperationID: "list-template-entrants", Method: http.MethodGet, Path: path + "/{id}/entrants", Tags: tags,
		Summary:     "List who takes part in the draw of a coupon template, in the order of the bytes of userId",
		Description: "This is the list that draw.listHash stands for. 409 ILLEGAL_STATE: the draw is OPEN, or there is none.",
	}, a.listTemplateEntrants)
}

// templateCall makes a call that names a template and answers with it.
func (a *API) templateCall(do func(ctx context.Context, id reward.TemplateID) (coupon.View, error)) func(context.Context, *templateIDInput) (*templateOutput, error) {
	return func(ctx context.Context, in *templateIDInput) (*templateOutput, error) {
		id, err := templateID("id", in.ID)
		if err != nil {
			return nil, err
		}
		v, err := do(ctx, id)
		if err != nil {
			return nil, err
		}
		return &templateOutput{Body: templateOf(v)}, nil
	}
}

// templateID reads the id of a template from the field of a path or query.
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
	claim := claimOf(ctx)
	if claim != nil && t.ID == 0 {
		t.ID = reward.TemplateID(claim.ID)
	}
	v, err := a.cfg.Templates.Create(ctx, t)
	if claim != nil && claim.Again && reward.HasCode(err, reward.CodeExists) {
		// An earlier try of the same request may have made it, before its instance
		// died.
		exists := err
		if v, err = a.cfg.Templates.Get(ctx, t.ID); err == nil && (v.Name != t.Name || v.CreatedAt.Before(claim.FirstAt.Add(-clockSlack))) {
			err = exists
		}
	}
	if err != nil {
		return nil, err
	}
	a.log.Info(obs.Processed, "template_id", v.ID, "doing", "creating", "by", actor(ctx))
	out := templateOf(v)
	return &templateCreatedOutput{Location: "coupon-templates/" + out.ID, Body: out}, nil
}

func (a *API) changeTemplate(ctx context.Context, in *templateChangeInput) (*templateOutput, error) {
	id, err := templateID("id", in.ID)
	if err != nil {
		return nil, err
	}
	p := in.Body.params(id)
	var v coupon.View
	if p == (store.TemplateChangeParams{ID: id}) {
		v, err = a.cfg.Templates.Get(ctx, id) // nothing to change
	} else if v, err = a.cfg.Templates.Change(ctx, p); err == nil {
		a.log.Info(obs.Processed, "template_id", id, "doing", "changing", "by", actor(ctx))
	}
	if err != nil {
		return nil, err
	}
	return &templateOutput{Body: templateOf(v)}, nil
}

func (a *API) listTemplates(ctx context.Context, in *templateListInput) (*templateListOutput, error) {
	var before reward.TemplateID
	if in.Cursor != "" {
		n, err := decodeCursor(cursorTemplates, in.Cursor)
		if err != nil {
			return nil, err
		}
		before = reward.TemplateID(n)
	}
	views, err := a.cfg.Templates.List(ctx, before, pageRead(in.Limit))
	if err != nil {
		return nil, err
	}
	views, more := page(views, in.Limit)
	out := &templateListOutput{}
	out.Body.Items = make([]*Template, len(views))
	for i, v := range views {
		out.Body.Items[i] = templateOf(v)
	}
	if more {
		out.Body.NextCursor = encodeCursor(cursorTemplates, int64(views[len(views)-1].ID))
	}
	return out, nil
}

func (a *API) listTemplateEntrants(ctx context.Context, in *templateEntrantsInput) (*entrantListOutput, error) {
	id, err := templateID("id", in.ID)
	if err != nil {
		return nil, err
	}
	after := ""
	if in.Cursor != "" {
		if after, err = decodeUserCursor(cursorEntrants, in.Cursor); err != nil {
			return nil, err
		}
	}
	users, err := a.cfg.Templates.Entrants(ctx, id, after, pageRead(in.Limit))
	if err != nil {
		return nil, err
	}
	users, more := page(users, in.Limit)
	out := &entrantListOutput{}
	out.Body.Items = make([]Entrant, len(users))
	for i, user := range users {
		out.Body.Items[i] = Entrant{UserID: user}
	}
	if more {
		out.Body.NextCursor = encodeUserCursor(cursorEntrants, users[len(users)-1])
	}
	return out, nil
}
