package client

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Template is a coupon template: a limited stock of coupons.
type Template struct {
	ID                 string            `json:"id"`
	Name               string            `json:"name"`
	State              string            `json:"state" enum:"UPCOMING,OPEN,SOLD_OUT,CLOSED" doc:"As in events"`
	SoldOutAt          *time.Time        `json:"soldOutAt,omitempty" doc:"Since when it is SOLD_OUT, or was until it closed; not in lists"`
	Metadata           map[string]string `json:"metadata,omitempty" doc:"Not for shoppers"`
	Notes              string            `json:"notes,omitempty" doc:"Not for shoppers"` // what people write down about it
	TotalQuantity      int64             `json:"totalQuantity" doc:"In force"`           // maximum number of live coupons
	AwaitingQuantity   int64             `json:"awaitingQuantity,omitempty" doc:"Replaces totalQuantity once another person approves it"`
	PerUserLimit       int               `json:"perUserLimit"`              // maximum number of coupons per user
	OpensAt            *time.Time        `json:"opensAt,omitempty"`         // nil: open since its creation
	ClosesAt           *time.Time        `json:"closesAt,omitempty"`        // nil: it does not close
	ValidForSeconds    int64             `json:"validForSeconds,omitempty"` // from issue to expiry of a coupon; 0: coupons do not expire
	HoldSeconds        int64             `json:"holdSeconds,omitempty"`     // in which a new coupon must be confirmed; 0: coupons are not held
	Mode               string            `json:"mode" enum:"STREAM,KAFKA,SYNC"`
	ReissueAfterCancel bool              `json:"reissueAfterCancel"`      // whether a user whose coupon was cancelled may get another
	Codes              *CodeStyle        `json:"codes,omitempty"`         // nil: 26 random letters and digits
	ImportedCodes      *ImportedCodes    `json:"importedCodes,omitempty"` // nil: they are generated
	WhenRedisAway      string            `json:"whenRedisAway" enum:"DATABASE,WAIT"`
	Path               string            `json:"path" enum:"GATE,DATABASE"` // of requests now: DATABASE during a Redis outage
	Draw               *Draw             `json:"draw,omitempty"`            // nil: first come, first served
	CreatedAt          time.Time         `json:"createdAt"`
	ArchivedAt         *time.Time        `json:"archivedAt,omitempty" doc:"Its coupons are removed"`
	Counters           TemplateCounters  `json:"counters"`
	Degraded           []string          `json:"degraded,omitempty" nullable:"false" doc:"gate: it did not answer, so waiting is 0, and stock ignores it"`
	ETag               string            `json:"-"` // for TemplateChange.IfMatch and ApproveTemplate; empty in lists and in events
}

func (t *Template) setETag(tag string) { t.ETag = tag }

// TemplateCounters holds the counters of a template.
type TemplateCounters struct {
	TotalQuantity int64 `json:"totalQuantity"`
	Stock         int64 `json:"stock" doc:"Left to promise; at most importedCodes.left"`
	Count         int64 `json:"count" doc:"Not CANCELLED"`
	IssuedTotal   int64 `json:"issuedTotal"` // coupons ever issued
	Waiting       int64 `json:"waiting"`     // requests in line
}

// TemplateProgress is how a template comes on.
type TemplateProgress struct {
	ID                  string           `json:"id"`
	State               string           `json:"state" enum:"UPCOMING,OPEN,SOLD_OUT,CLOSED" doc:"SOLD_OUT becomes OPEN when a coupon is cancelled"` // empty where the server's events do not arrive
	Path                string           `json:"path" enum:"GATE,DATABASE"`
	Counters            TemplateCounters `json:"counters"`
	IssuedPerSecond     *float64         `json:"issuedPerSecond,omitempty" doc:"Over at most 10 s"`
	EstimatedWaitMillis *int64           `json:"estimatedWaitMillis,omitempty" doc:"Of a request made now"`
	Degraded            []string         `json:"degraded,omitempty" nullable:"false"` // as in Template
	At                  time.Time        `json:"at,omitzero"`                         // when the server read it; zero as State
}

// CodeStyle describes how codes are generated. The server chooses empty fields.
type CodeStyle struct {
	Prefix   string `json:"prefix,omitempty" maxLength:"20" doc:"ASCII letters, digits, - and _"` // begins every code
	Length   int    `json:"length,omitempty" minimum:"1" maximum:"64" doc:"After prefix; absent: 12. A million per coupon must be possible"`
	Alphabet string `json:"alphabet,omitempty" minLength:"2" maxLength:"62" doc:"Letters and digits; absent: those that do not look alike"`
}

// ImportedCodes counts the codes that were imported to a template.
type ImportedCodes struct {
	Imported int64 `json:"imported"` // of all files
	Left     int64 `json:"left" doc:"Never given"`
	Missing  int64 `json:"missing" doc:"Coupons that lack a code"`
}

// CodesResult is the result of an import of codes.
type CodesResult struct {
	Accepted      int64         `json:"accepted"` // codes in the file
	FirstCode     string        `json:"firstCode" doc:"As it was read"`
	LastCode      string        `json:"lastCode"`
	ImportedCodes ImportedCodes `json:"importedCodes"`
	// TotalQuantity and AwaitingQuantity are those of the template. An import may lower the
	// quantity that was approved, until another person approves it again.
	TotalQuantity    int64 `json:"totalQuantity"`
	AwaitingQuantity int64 `json:"awaitingQuantity,omitempty"`
}

// Draw describes the draw of a template, which orders the users who enter
// before it opens. Hashes and the seed are in hex.
type Draw struct {
	From       time.Time `json:"from"`
	State      string    `json:"state" enum:"OPEN,CLOSED,DONE" doc:"OPEN: users enter; CLOSED: entrants are served; DONE: all have an outcome"`
	Commitment string    `json:"commitment" doc:"SHA-256 of the seed, in hex"`
	Seed       string    `json:"seed,omitempty" doc:"In hex; secret while OPEN"`
	ListHash   string    `json:"listHash,omitempty" doc:"Hex SHA-256 of the joined SHA-256 hashes of all userIds in byte order; from DONE on"` // hash of TemplateEntrants; empty before DONE
}

// NewTemplate describes a template to create. The server chooses empty fields.
type NewTemplate struct {
	ID                 string            `json:"id,omitempty"` // positive number from an upstream system; empty: a new ID
	Name               string            `json:"name"`
	Metadata           map[string]string `json:"metadata,omitempty"` // at most 20 entries; keys and values of at most 200 characters
	Notes              string            `json:"notes,omitempty"`    // at most 4000 characters
	TotalQuantity      int64             `json:"totalQuantity"`
	PerUserLimit       int               `json:"perUserLimit,omitempty"` // 0 means 1
	OpensAt            *time.Time        `json:"opensAt,omitempty"`
	ClosesAt           *time.Time        `json:"closesAt,omitempty"`
	ValidForSeconds    int64             `json:"validForSeconds,omitempty"` // 0: coupons do not expire
	HoldSeconds        int64             `json:"holdSeconds,omitempty"`     // at most ValidForSeconds; 0: coupons are not held
	Mode               string            `json:"mode,omitempty"`            // STREAM, KAFKA or SYNC; empty: STREAM
	ReissueAfterCancel *bool             `json:"reissueAfterCancel,omitempty"`
	WhenRedisAway      string            `json:"whenRedisAway,omitempty"` // DATABASE or WAIT; empty: DATABASE
	Codes              *CodeStyle        `json:"codes,omitempty"`         // nil: 26 random letters and digits
	Draw               *NewDraw          `json:"draw,omitempty"`          // nil: no draw
}

// NewDraw describes the draw of a template to create. It requires OpensAt.
type NewDraw struct {
	From time.Time `json:"from"`
}

// TemplateChange describes a change of a template. Nil fields stay.
type TemplateChange struct {
	Name               *string                        `json:"name,omitempty"`
	Metadata           *Clearable[map[string]*string] `json:"metadata,omitempty"` // sets entries with a value, removes those with nil
	Notes              *string                        `json:"notes,omitempty"`
	TotalQuantity      *int64                         `json:"totalQuantity,omitempty"`
	PerUserLimit       *int                           `json:"perUserLimit,omitempty"`
	OpensAt            *Clearable[time.Time]          `json:"opensAt,omitempty"`
	ClosesAt           *Clearable[time.Time]          `json:"closesAt,omitempty"`
	ValidForSeconds    *Clearable[int64]              `json:"validForSeconds,omitempty"`
	HoldSeconds        *Clearable[int64]              `json:"holdSeconds,omitempty"`
	Mode               *string                        `json:"mode,omitempty"`
	ReissueAfterCancel *bool                          `json:"reissueAfterCancel,omitempty"`
	WhenRedisAway      *string                        `json:"whenRedisAway,omitempty"`
	IfMatch            string                         `json:"-"` // ETag of an earlier response; empty: any. Other settings than then: PRECONDITION_FAILED
}

// CreateTemplate creates a coupon template.
func (c *Client) CreateTemplate(ctx context.Context, t NewTemplate) (Template, error) {
	return post[Template](ctx, c, t, "v1", "coupon-templates")
}

// TemplateCopy describes the copy of a template.
type TemplateCopy struct {
	Name    string     `json:"name,omitempty"`    // empty: that of the template, followed by (copy)
	OpensAt *time.Time `json:"opensAt,omitempty"` // nil: in 30 days
}

// DuplicateTemplate creates a template with the settings of another one, without its
// coupons, imported codes and notes. Its other times keep their distance to OpensAt.
func (c *Client) DuplicateTemplate(ctx context.Context, id string, as TemplateCopy) (Template, error) {
	return post[Template](ctx, c, as, "v1", "coupon-templates", id, "duplicate")
}

// ChangeTemplate changes a template. If the quantity is below the number of
// live coupons and waiting requests, it returns a *Problem with the code
// CONFLICT.
func (c *Client) ChangeTemplate(ctx context.Context, id string, change TemplateChange) (Template, error) {
	return call[Template](ctx, c, request{method: http.MethodPatch, path: []string{"v1", "coupon-templates", id}, json: change, ifMatch: change.IfMatch})
}

// Template returns a template with its counters.
func (c *Client) Template(ctx context.Context, id string) (Template, error) {
	return get[Template](ctx, c, "v1", "coupon-templates", id)
}

// WatchTemplate follows the counters of a template while ctx lives. It yields
// them after each change. It reconnects if the connection is lost, and reads
// the template at an interval where the server's events do not arrive.
func (c *Client) WatchTemplate(ctx context.Context, id string, o WatchOptions) iter.Seq2[TemplateProgress, error] {
	never := func(TemplateProgress) bool { return false }
	return watch(ctx, c, []string{"v1", "coupon-templates", id}, "", never, o)
}

// Templates iterates over all templates, highest ID first.
func (c *Client) Templates(ctx context.Context) iter.Seq2[Template, error] {
	return pages[Template](ctx, c, []string{"v1", "coupon-templates"}, nil)
}

// FindTemplates iterates over the templates whose name, ID or metadata contain
// a text, highest ID first; upper and lower case are the same.
func (c *Client) FindTemplates(ctx context.Context, search string) iter.Seq2[Template, error] {
	return pages[Template](ctx, c, []string{"v1", "coupon-templates"}, filled(map[string]string{"q": search}))
}

// ImportCodes streams a file of codes of any size to a template, while ctx lives. The
// file has one code per line, or is an .xlsx file with them in one column. Coupons get
// the codes in its order, each once. After a *Problem, nothing was imported; its code is
// CODES_EXHAUSTED if the first file has fewer codes than the template has coupons to
// issue, and BAD_CODES for a bad line. Do not use the reader again after an error.
func (c *Client) ImportCodes(ctx context.Context, id string, file io.Reader, o ImportOptions) (CodesResult, error) {
	return call[CodesResult](ctx, c, upload([]string{"v1", "coupon-templates", id, "codes"}, mediaTypes[CSV], file, o.Gzip))
}

// ImportOptions describes a file of codes.
type ImportOptions struct {
	Gzip bool // whether the file is compressed with gzip
}

// CloseTemplate closes a template to further requests. Waiting requests are
// still served.
func (c *Client) CloseTemplate(ctx context.Context, id string) (Template, error) {
	return post[Template](ctx, c, nil, "v1", "coupon-templates", id, "close")
}

// ApproveTemplate puts the quantity in force that waits for another person, if the
// template is as the caller has seen it; otherwise it returns a *Problem with the code
// PRECONDITION_FAILED. SAME_PERSON means that the caller is an author of the template.
func (c *Client) ApproveTemplate(ctx context.Context, seen Template) (Template, error) {
	return call[Template](ctx, c, request{method: http.MethodPost, path: []string{"v1", "coupon-templates", seen.ID, "approve"}, ifMatch: seen.ETag})
}

// RejectTemplate drops the quantity that waits for another person. The quantity in force
// stays.
func (c *Client) RejectTemplate(ctx context.Context, id string) (Template, error) {
	return post[Template](ctx, c, nil, "v1", "coupon-templates", id, "reject")
}

// ReleasePlaces releases the places of a template that are set aside for a waiting line
// in a Redis that was removed permanently, and returns their number. Users in that line
// lose their places. While any instance uses Redis, do not call it.
func (c *Client) ReleasePlaces(ctx context.Context, id string) (int64, error) {
	out, err := post[struct {
		Released int64 `json:"released"`
	}](ctx, c, nil, "v1", "coupon-templates", id, "release-places")
	return out.Released, err
}

// TemplateCoupons iterates over the coupons of a template in the order of their
// tickets.
func (c *Client) TemplateCoupons(ctx context.Context, id string) iter.Seq2[Coupon, error] {
	return c.FindTemplateCoupons(ctx, id, CouponFilter{})
}

// CouponFilter selects coupons of a template. Empty fields select all of them.
type CouponFilter struct {
	Status string // HELD, ISSUED, USED, CANCELLED or EXPIRED
	UserID string
	Code   string // the case matters only for imported codes
	Newest bool   // whether the highest ticket comes first
}

func (f CouponFilter) query() url.Values {
	sort := ""
	if f.Newest {
		sort = "-ticket"
	}
	return filled(map[string]string{"status": f.Status, "userId": f.UserID, "code": f.Code, "sort": sort})
}

// FindTemplateCoupons iterates over coupons of a template in the order of their tickets.
func (c *Client) FindTemplateCoupons(ctx context.Context, id string, f CouponFilter) iter.Seq2[Coupon, error] {
	return pages[Coupon](ctx, c, []string{"v1", "coupon-templates", id, "coupons"}, f.query())
}

// ExportTemplateCoupons writes coupons of a template to w as CSV with a header line. After an
// error, w may hold a part of them.
func (c *Client) ExportTemplateCoupons(ctx context.Context, id string, f CouponFilter, w io.Writer) error {
	return c.exportCSV(ctx, []string{"v1", "coupon-templates", id, "coupons"}, f.query(), w)
}

// TemplateEntrants iterates over the user IDs of the entrants of a draw,
// ordered by their bytes. Draw.ListHash is the hash of this list. If the draw
// is OPEN or the template has none, the error is a *Problem with the code
// ILLEGAL_STATE.
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
