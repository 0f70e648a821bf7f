package client

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// Template is a limited stock of coupons.
type Template struct {
	ID              string     `json:"id"`
	Name            string     `json:"name"`
	TotalQuantity   int64      `json:"totalQuantity"`             // coupons that may live at a time
	PerUserLimit    int        `json:"perUserLimit"`              // coupons that one user may have
	OpensAt         *time.Time `json:"opensAt,omitempty"`         // nil: from the beginning
	ClosesAt        *time.Time `json:"closesAt,omitempty"`        // nil: never
	ValidForSeconds int64      `json:"validForSeconds,omitempty"` // of a coupon, from its issue; 0: for ever
	Mode            string     `json:"mode"`                      // STREAM, KAFKA or SYNC
	// ReissueAfterCancel says whether who has cancelled a coupon may have another.
	ReissueAfterCancel bool   `json:"reissueAfterCancel"`
	WhenRedisAway      string `json:"whenRedisAway"` // DATABASE or WAIT
	// Path is the way that requests go at the moment: GATE, or DATABASE while
	// Redis is away.
	Path      string           `json:"path"`
	Draw      *Draw            `json:"draw,omitempty"` // nil: first come, first served
	CreatedAt time.Time        `json:"createdAt"`
	Counters  TemplateCounters `json:"counters"`
	// Degraded is gate when who waits is not known.
	Degraded []string `json:"degraded,omitempty"`
}

// TemplateCounters is how far a template is.
type TemplateCounters struct {
	TotalQuantity int64 `json:"totalQuantity"`
	Stock         int64 `json:"stock"`       // what is left to promise
	Count         int64 `json:"count"`       // live coupons: not CANCELLED
	IssuedTotal   int64 `json:"issuedTotal"` // coupons ever issued
	Waiting       int64 `json:"waiting"`     // people in line
}

// Draw orders those who ask before a template opens. Hashes and the seed are in
// hex.
type Draw struct {
	From       time.Time `json:"from"`
	State      string    `json:"state"`              // OPEN, CLOSED or DONE
	Commitment string    `json:"commitment"`         // SHA-256 of the seed
	Seed       string    `json:"seed,omitempty"`     // empty while OPEN
	ListHash   string    `json:"listHash,omitempty"` // of TemplateEntrants; empty before DONE
}

// NewTemplate is a template to create; empty fields are left to the server.
type NewTemplate struct {
	ID                 string     `json:"id,omitempty"` // a positive number; empty: made by the server
	Name               string     `json:"name"`
	TotalQuantity      int64      `json:"totalQuantity"`
	PerUserLimit       int        `json:"perUserLimit,omitempty"` // 0: 1
	OpensAt            *time.Time `json:"opensAt,omitempty"`
	ClosesAt           *time.Time `json:"closesAt,omitempty"`
	ValidForSeconds    int64      `json:"validForSeconds,omitempty"` // 0: for ever
	Mode               string     `json:"mode,omitempty"`            // STREAM, KAFKA or SYNC; empty: STREAM
	ReissueAfterCancel *bool      `json:"reissueAfterCancel,omitempty"`
	WhenRedisAway      string     `json:"whenRedisAway,omitempty"` // DATABASE or WAIT; empty: DATABASE
	Draw               *NewDraw   `json:"draw,omitempty"`          // nil: none
}

// NewDraw is the draw of a template to create, which needs OpensAt.
type NewDraw struct {
	From time.Time `json:"from"`
}

// TemplateChange is what to change of a template; nil fields stay.
type TemplateChange struct {
	Name          *string `json:"name,omitempty"`
	TotalQuantity *int64  `json:"totalQuantity,omitempty"`
	PerUserLimit  *int    `json:"perUserLimit,omitempty"`
	// OpensAt, ClosesAt and ValidForSeconds can be cleared; see Clear.
	OpensAt            *Clearable[time.Time] `json:"opensAt,omitempty"`
	ClosesAt           *Clearable[time.Time] `json:"closesAt,omitempty"`
	ValidForSeconds    *Clearable[int64]     `json:"validForSeconds,omitempty"`
	Mode               *string               `json:"mode,omitempty"`
	ReissueAfterCancel *bool                 `json:"reissueAfterCancel,omitempty"`
	WhenRedisAway      *string               `json:"whenRedisAway,omitempty"`
}

// CreateTemplate makes a template.
func (c *Client) CreateTemplate(ctx context.Context, t NewTemplate) (Template, error) {
	return c.writeTemplate(ctx, http.MethodPost, t)
}

// ChangeTemplate changes a template. A quantity below what is live and who waits
// is a *Problem with the code CONFLICT.
func (c *Client) ChangeTemplate(ctx context.Context, id string, change TemplateChange) (Template, error) {
	return c.writeTemplate(ctx, http.MethodPatch, change, id)
}

func (c *Client) writeTemplate(ctx context.Context, method string, what any, id ...string) (Template, error) {
	body, header, err := jsonBody(what)
	if err != nil {
		return Template{}, err
	}
	var out Template
	path := append([]string{"v1", "coupon-templates"}, id...)
	err = c.call(ctx, request{method: method, path: path, header: header, body: body}, &out)
	return out, err
}

// Template reads one template with its counters.
func (c *Client) Template(ctx context.Context, id string) (Template, error) {
	var out Template
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "coupon-templates", id}}, &out)
	return out, err
}

// Templates walks over all templates, the newest first. It ends after the first
// error.
func (c *Client) Templates(ctx context.Context) iter.Seq2[Template, error] {
	return pages[Template](ctx, c, []string{"v1", "coupon-templates"}, nil)
}

// CloseTemplate ends the asking. Who is in line is still served.
func (c *Client) CloseTemplate(ctx context.Context, id string) (Template, error) {
	var out Template
	err := c.call(ctx, request{method: http.MethodPost, path: []string{"v1", "coupon-templates", id, "close"}}, &out)
	return out, err
}

// TemplateCoupons walks over the coupons of a template in the order of issue. It
// ends after the first error.
func (c *Client) TemplateCoupons(ctx context.Context, id string) iter.Seq2[Coupon, error] {
	return pages[Coupon](ctx, c, []string{"v1", "coupon-templates", id, "coupons"}, nil)
}

// TemplateEntrants walks over the user ids of those who take part in the draw of
// a template, in the order of their bytes: the list that Draw.ListHash stands
// for. It ends after the first error, which for a draw that is OPEN, or none, is
// a *Problem with the code ILLEGAL_STATE.
func (c *Client) TemplateEntrants(ctx context.Context, id string) iter.Seq2[string, error] {
	type entrant struct {
		UserID string `json:"userId"`
	}
	return func(yield func(string, error) bool) {
		for e, err := range pages[entrant](ctx, c, []string{"v1", "coupon-templates", id, "entrants"}, nil) {
			if !yield(e.UserID, err) {
				return
			}
		}
	}
}
