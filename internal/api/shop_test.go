package api

import (
	"context"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/gatekeeper"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// fakeShop stores templates and coupons in memory, and answers requests as the test
// configured it.
type fakeShop struct {
	codesAbove int64 // the setting; set before the first call

	mu        sync.Mutex // protects what follows
	templates map[reward.TemplateID]coupon.View
	gets      int // calls of Get
	manyReads int // calls of GetMany
	away      error
	changes   []rules.TemplateChange
	entrants  map[reward.TemplateID][]string // of closed draws
	coupons   []reward.Coupon                // by id, and by ticket
	statuses  map[string]coupon.Status       // by request id
	refusals  map[string]error               // by request id
	asked     []string                       // request IDs of the users who asked
	refused   int                            // calls of Refused
	history   coupon.History
	named     []reward.TemplateID // of the latest History

	// news delivers a status to each watcher; watchers counts the open watches.
	news     chan coupon.Status
	begun    chan int64 // receives the ticket of each new watch
	watchers sync.WaitGroup
}

func newFakeShop() *fakeShop {
	return &fakeShop{
		templates: make(map[reward.TemplateID]coupon.View), statuses: make(map[string]coupon.Status), refusals: make(map[string]error),
		news: make(chan coupon.Status), begun: make(chan int64, 10),
	}
}

func (f *fakeShop) lock() func() {
	f.mu.Lock()
	return f.mu.Unlock
}

func (f *fakeShop) Create(_ context.Context, t reward.CouponTemplate) (coupon.View, error) {
	defer f.lock()()
	if t.ID == 0 {
		t.ID = 1 << 60
	}
	if _, known := f.templates[t.ID]; known {
		return coupon.View{}, reward.NewError(reward.KindConflict, reward.CodeExists, "template %s exists", t.ID)
	}
	if t.Mode == "" {
		t.Mode = reward.ModeStream
	}
	if t.WhenRedisAway == "" {
		t.WhenRedisAway = reward.FallbackDatabase
	}
	t.Path, t.CreatedAt = reward.PathGate, testTime
	rules.LimitQuantity(&t, 0, f.codesAbove)
	if t.Draw.State == reward.DrawOpen {
		t.Draw.Seed = []byte("seed")
	}
	f.templates[t.ID] = coupon.View{CouponTemplate: t, Stock: t.TotalQuantity}
	return f.templates[t.ID], nil
}

func (f *fakeShop) CopyOf(ctx context.Context, id reward.TemplateID, name string, opensAt *time.Time) (reward.CouponTemplate, error) {
	v, err := f.Get(ctx, id)
	if err != nil {
		return reward.CouponTemplate{}, err
	}
	t := v.CouponTemplate
	t.ID, t.Name, t.OpensAt = 0, name, *opensAt
	return t, nil
}

func (f *fakeShop) Get(_ context.Context, id reward.TemplateID) (coupon.View, error) {
	defer f.lock()()
	f.gets++
	v, known := f.templates[id]
	if !known {
		return v, store.NoTemplate(id)
	}
	return v, nil
}

func (f *fakeShop) Known(_ context.Context, id reward.TemplateID) (coupon.View, error) {
	defer f.lock()()
	v, known := f.templates[id]
	if !known {
		return v, store.NoTemplate(id)
	}
	return v, nil
}

func (f *fakeShop) GetMany(_ context.Context, ids []reward.TemplateID) ([]coupon.View, error) {
	defer f.lock()()
	f.manyReads++
	var out []coupon.View
	for _, id := range ids {
		if v, known := f.templates[id]; known {
			out = append(out, v)
		}
	}
	return out, f.away
}

func (f *fakeShop) List(_ context.Context, before reward.TemplateID, limit int, selects func(*reward.CouponTemplate) bool) ([]coupon.View, error) {
	defer f.lock()()
	var out []coupon.View
	for id, v := range f.templates {
		if (before == 0 || id < before) && (selects == nil || selects(&v.CouponTemplate)) {
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b coupon.View) int { return int(b.ID - a.ID) })
	return out[:min(limit, len(out))], nil
}

func (f *fakeShop) Change(_ context.Context, p rules.TemplateChange) (coupon.View, error) {
	defer f.lock()()
	v, known := f.templates[p.ID]
	if !known {
		return v, store.NoTemplate(p.ID)
	}
	p.CodesAbove = f.codesAbove
	t, err := p.Apply(v.CouponTemplate)
	if err != nil {
		return v, err
	}
	if t.TotalQuantity < v.Live+v.Waiting {
		return v, reward.NewError(reward.KindConflict, reward.CodeConflict, "too low")
	}
	f.changes = append(f.changes, p)
	v.CouponTemplate = t
	f.templates[p.ID] = v
	return v, nil
}

func (f *fakeShop) Close(ctx context.Context, id reward.TemplateID) (coupon.View, error) {
	at := testTime
	return f.Change(ctx, rules.TemplateChange{ID: id, ClosesAt: &at})
}

func (f *fakeShop) ReleasePlaces(ctx context.Context, id reward.TemplateID) (int64, error) {
	v, err := f.Get(ctx, id)
	return v.Promised(), err
}

func (f *fakeShop) ImportCodes(ctx context.Context, id reward.TemplateID, by string, file io.Reader) (coupon.View, coupon.CodesAdded, error) {
	v, err := f.Get(ctx, id)
	if err != nil {
		return v, coupon.CodesAdded{}, err
	}
	body, err := io.ReadAll(file)
	if err != nil {
		return v, coupon.CodesAdded{}, err
	}
	if strings.Contains(string(body), " ") {
		return v, coupon.CodesAdded{}, reward.NewError(reward.KindInvalid, reward.CodeBadCodes, "line 1: it has a space")
	}
	codes := strings.Fields(string(body))
	n := int64(len(codes))
	if err := rules.CheckImport(&v.CouponTemplate, n, f.codesAbove); err != nil {
		return v, coupon.CodesAdded{}, err
	}
	defer f.lock()()
	rules.LimitImport(&v.CouponTemplate, f.codesAbove)
	v.Authors = v.Authors.Add(by)
	v.CodesImported += n
	f.templates[id] = v
	return v, coupon.CodesAdded{Count: n, First: codes[0], Last: codes[n-1]}, nil
}

func (f *fakeShop) Entrants(ctx context.Context, id reward.TemplateID, after string, limit int) ([]string, error) {
	if _, err := f.Get(ctx, id); err != nil {
		return nil, err
	}
	defer f.lock()()
	users, closed := f.entrants[id]
	if !closed {
		return nil, reward.NewError(reward.KindConflict, reward.CodeIllegalState, "no")
	}
	first, found := slices.BinarySearch(users, after)
	if found {
		first++
	}
	users = users[first:]
	return users[:min(limit, len(users))], nil
}

func (f *fakeShop) Coupon(_ context.Context, id reward.CouponID) (reward.Coupon, error) {
	defer f.lock()()
	for _, c := range f.coupons {
		if c.ID == id {
			return c, nil
		}
	}
	return reward.Coupon{}, store.NoCoupon(id)
}

func (f *fakeShop) Coupons(ctx context.Context, p store.CouponListParams) ([]reward.Coupon, error) {
	if err := p.CheckList(); err != nil {
		return nil, err
	}
	if p.TemplateID != 0 {
		if _, err := f.Get(ctx, p.TemplateID); err != nil {
			return nil, err
		}
	}
	defer f.lock()()
	var out []reward.Coupon
	newest := p.TemplateID == 0 || p.Newest
	for _, c := range f.coupons {
		after := c.Ticket > p.After.Ticket
		if newest {
			after = (p.Before == 0 || c.ID < p.Before) && (p.After.Ticket == 0 || c.Ticket < p.After.Ticket)
		}
		if after && (p.TemplateID == 0 || c.TemplateID == p.TemplateID) && (p.UserID == "" || c.UserID == p.UserID) &&
			(p.Status == nil || c.Status == *p.Status) && (p.Code == "" || c.Code == p.Code) {
			out = append(out, c)
		}
	}
	if newest {
		slices.Reverse(out)
	}
	return out[:min(p.Limit, len(out))], nil
}

func (f *fakeShop) settle(id reward.CouponID, to reward.CouponStatus) (reward.Coupon, error) {
	defer f.lock()()
	for i := range f.coupons {
		c := &f.coupons[i]
		if c.ID != id {
			continue
		}
		check := map[reward.CouponStatus]func() error{
			reward.CouponUsed:      func() error { return rules.CheckUse(c, testTime) },
			reward.CouponCancelled: func() error { return rules.CheckCancel(c, testTime) },
			reward.CouponIssued: func() error {
				if c.Status == reward.CouponHeld && testTime.Before(c.HeldUntil) {
					return nil
				}
				return rules.CheckConfirm(c)
			},
		}[to]
		if err := check(); err != nil {
			return *c, err
		}
		c.Status = to
		switch to {
		case reward.CouponUsed:
			c.UsedAt = testTime
		case reward.CouponCancelled:
			c.CancelledAt = testTime
		default:
			c.HeldUntil = time.Time{}
		}
		return *c, nil
	}
	return reward.Coupon{}, store.NoCoupon(id)
}

func (f *fakeShop) CouponsByCode(_ context.Context, code string, limit int) ([]reward.Coupon, error) {
	defer f.lock()()
	var out []reward.Coupon
	for _, c := range f.coupons {
		if c.Code == code {
			out = append(out, c)
		}
	}
	return out[:min(limit, len(out))], nil
}

func (f *fakeShop) Confirm(_ context.Context, id reward.CouponID) (reward.Coupon, error) {
	return f.settle(id, reward.CouponIssued)
}

func (f *fakeShop) Use(_ context.Context, id reward.CouponID) (reward.Coupon, error) {
	return f.settle(id, reward.CouponUsed)
}

func (f *fakeShop) Cancel(_ context.Context, id reward.CouponID, by string) (reward.Coupon, error) {
	c, err := f.settle(id, reward.CouponCancelled)
	c.CancelledBy = by
	return c, err
}

func (f *fakeShop) CancelMany(ctx context.Context, id reward.TemplateID, coupons []reward.CouponID, by string) (store.CouponCancelResult, error) {
	if _, err := f.Get(ctx, id); err != nil {
		return store.CouponCancelResult{}, err
	}
	r := store.CouponCancelResult{Refused: make(map[reward.CouponID]error)}
	for _, one := range coupons {
		c, err := f.Cancel(ctx, one, by)
		if err != nil {
			r.Refused[one] = err
		} else {
			r.Cancelled = append(r.Cancelled, c)
		}
	}
	return r, nil
}

func (f *fakeShop) History(_ context.Context, _ string, more ...reward.TemplateID) (coupon.History, error) {
	defer f.lock()()
	f.named = more
	return f.history, nil
}

func (f *fakeShop) Request(_ context.Context, cmd coupon.IssueCommand) (coupon.Status, error) {
	s, err := f.standing(reward.RequestID(cmd.TemplateID, cmd.UserID))
	if reward.HasCode(err, reward.CodeRequestUnknown) {
		err = store.NoTemplate(cmd.TemplateID)
	}
	return s, err
}

func (f *fakeShop) Status(_ context.Context, id reward.TemplateID, user string) (coupon.Status, error) {
	return f.standing(reward.RequestID(id, user))
}

func (f *fakeShop) Check(_ context.Context, cmd coupon.IssueCommand) error {
	defer f.lock()()
	if err := f.refusals[reward.RequestID(cmd.TemplateID, cmd.UserID)]; reward.KindOf(err) == reward.KindConflict {
		return err
	}
	return nil
}

func (f *fakeShop) Refused(reward.TemplateID, error) {
	defer f.lock()()
	f.refused++
}

// Leave sets a waiting request to LEFT.
func (f *fakeShop) Leave(_ context.Context, id reward.TemplateID, user string) error {
	request := reward.RequestID(id, user)
	s, err := f.standing(request)
	switch {
	case err != nil:
		return err
	case s.Kind == coupon.StatusWaiting:
		s.Kind = coupon.StatusLeft
		f.stand(request, s, nil)
	case s.Kind != coupon.StatusLeft:
		return reward.NewError(reward.KindConflict, reward.CodeRequestEnded, "request %s has ended", request)
	}
	return nil
}

func (f *fakeShop) standing(request string) (coupon.Status, error) {
	defer f.lock()()
	f.asked = append(f.asked, request)
	if err := f.refusals[request]; err != nil {
		return coupon.Status{}, err
	}
	s, known := f.statuses[request]
	if !known {
		return s, reward.NewError(reward.KindNotFound, reward.CodeRequestUnknown, "there is no request %s", request)
	}
	s.RequestID = request
	return s, nil
}

// Watch counts the open watches.
func (f *fakeShop) Watch(_ reward.TemplateID, _ string, since coupon.Status) (<-chan coupon.Status, func()) {
	f.watchers.Add(1)
	f.begun <- since.Ticket
	return f.news, f.watchers.Done
}

// stand sets the status of a request, or the reason for its refusal.
func (f *fakeShop) stand(request string, s coupon.Status, refusal error) {
	defer f.lock()()
	f.statuses[request], f.refusals[request] = s, refusal
}

// forget loses a request.
func (f *fakeShop) forget(request string) {
	defer f.lock()()
	delete(f.statuses, request)
}

// template puts a template of so many coupons on sale.
func (f *fakeShop) template(id reward.TemplateID, quantity int64) {
	defer f.lock()()
	f.templates[id] = coupon.View{CouponTemplate: reward.CouponTemplate{
		ID: id, Name: "T", TotalQuantity: quantity, PerUserLimit: 1, Mode: reward.ModeStream, WhenRedisAway: reward.FallbackDatabase,
		Path: reward.PathGate, CreatedAt: testTime,
	}, Stock: quantity}
}

// fakeCouponReconciler returns a report about the command, and stores it.
type fakeCouponReconciler struct{ rows *faultyStore }

func (f *fakeCouponReconciler) Run(ctx context.Context, cmd gatekeeper.ReconcileCommand) (store.ReconciliationReport, error) {
	five, four := int64(5), int64(4)
	d := store.Drift{TemplateID: 43, What: "user", UserID: "u7", Store: &five, Redis: &four, Detail: "5 coupons, the gate says 4", Repaired: cmd.Repair}
	if cmd.TemplateID != nil {
		d.TemplateID = *cmd.TemplateID
	}
	r := store.ReconciliationReport{ID: 10, Checked: 2, Drifts: []store.Drift{d}, Skipped: []string{"template 3"}, At: testTime}
	row, err := r.Row()
	if err != nil {
		return r, err
	}
	return r, f.rows.ReconciliationSave(ctx, row)
}

// issued is a coupon of a request.
func issued(id reward.CouponID, template reward.TemplateID, user string, ticket int64) reward.Coupon {
	return reward.Coupon{ID: id, Code: "CODE-" + id.String(), TemplateID: template, UserID: user, Ticket: ticket, IssuedAt: testTime}
}
