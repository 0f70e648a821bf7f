package payout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// PromotionsConfig is what Promotions needs.
type PromotionsConfig struct {
	Store store.Store
	IDs   *service.IDs
	Log   obs.Log
	// Hint is told which promotion has changed.
	Hint func(reward.PromotionID)
	// MaxRetries is for promotions that name none; nil = reward.MaxRetries.
	MaxRetries *int
}

// Promotions is what people do with promotions.
type Promotions struct {
	cfg PromotionsConfig
	log obs.Log
}

// NewPromotions makes Promotions.
func NewPromotions(cfg PromotionsConfig) *Promotions {
	return &Promotions{cfg: cfg, log: cfg.Log.For(obs.Engine)}
}

// CreateCommand asks for a promotion.
type CreateCommand struct {
	ID          *reward.PromotionID // nil = a new one is made
	Name        string              // 1 to 200 characters
	Type        string              // POINT or VOUCHER
	Amount      *reward.Amount      // per target, in minor units, up to reward.AmountMax; nil = every target names its own
	VoucherCode string              // default for targets; VOUCHER only
	Currency    string              // three capital letters, or none
	MaxRetries  *int                // retries after the first call, 0 to 20
	// ConsumersPerInstance is how many consumers each instance keeps for it, 1
	// to 256; nil = by its size.
	ConsumersPerInstance *int
}

var currencyPattern = regexp.MustCompile(`^[A-Z]{3}$`)

// Check returns every field that is wrong.
func (c CreateCommand) Check() []reward.FieldError {
	var wrong []reward.FieldError
	refuse := func(field, format string, args ...any) {
		wrong = append(wrong, reward.FieldError{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
	if c.ID != nil && *c.ID <= 0 {
		refuse("id", "must be from 1 to %d", int64(math.MaxInt64))
	}
	if n := utf8.RuneCountInString(c.Name); n == 0 || n > reward.PromotionNameMax {
		refuse("name", "must have 1 to %d characters, not %d", reward.PromotionNameMax, n)
	} else if err := reward.CheckText(c.Name); err != nil {
		refuse("name", "%v", err)
	}
	if c.Type != string(reward.Point) && c.Type != string(reward.Voucher) {
		refuse("type", "must be POINT or VOUCHER, not %s", reward.Quote(c.Type))
	}
	least := reward.AmountMin(reward.PromotionType(c.Type))
	switch {
	case c.Amount == nil:
	case *c.Amount < least || *c.Amount > reward.AmountMax:
		refuse("amount", "must be from %d to %d, not %d; leave it out when every target names its own", least, reward.AmountMax, *c.Amount)
	}
	if c.VoucherCode != "" {
		c.checkVoucherCode(refuse)
	}
	if c.Currency != "" && !currencyPattern.MatchString(c.Currency) {
		refuse("currency", "must be three capital letters, e.g. EUR, not %s", reward.Quote(c.Currency))
	}
	if c.MaxRetries != nil && (*c.MaxRetries < 0 || *c.MaxRetries > reward.PromotionMaxRetriesMax) {
		refuse("maxRetries", "must be from 0 to %d, not %d", reward.PromotionMaxRetriesMax, *c.MaxRetries)
	}
	if c.ConsumersPerInstance != nil && (*c.ConsumersPerInstance < 1 || *c.ConsumersPerInstance > reward.PromotionConsumersMax) {
		refuse("consumersPerInstance", "must be from 1 to %d, not %d; leave it out to go by the promotion's size", reward.PromotionConsumersMax, *c.ConsumersPerInstance)
	}
	return wrong
}

func (c CreateCommand) checkVoucherCode(refuse func(field, format string, args ...any)) {
	const field = "voucherCode"
	if c.Type != string(reward.Voucher) {
		refuse(field, "is for VOUCHER promotions only")
	}
	if n := utf8.RuneCountInString(c.VoucherCode); n > reward.PromotionVoucherCodeMax || len(c.VoucherCode) > reward.VoucherCodeMax {
		refuse(field, "must have at most %d characters and %d bytes", reward.PromotionVoucherCodeMax, reward.VoucherCodeMax)
	} else if err := reward.CheckText(c.VoucherCode); err != nil {
		refuse(field, "%v", err)
	} else if hasControl(c.VoucherCode) {
		refuse(field, "holds a control character")
	} else if startsFormula(c.VoucherCode) {
		refuse(field, "%s begins like a formula of a spreadsheet", reward.Quote(c.VoucherCode))
	}
}

// Create makes a DRAFT, or completes the one that Kafka registered under the
// id.
func (s *Promotions) Create(ctx context.Context, c CreateCommand) (store.PromotionView, error) {
	if wrong := c.Check(); len(wrong) > 0 {
		return store.PromotionView{}, &reward.Error{
			Kind: reward.KindInvalid, Code: reward.CodeInvalid,
			Detail: fmt.Sprintf("the promotion has %d wrong fields", len(wrong)), Fields: wrong,
		}
	}
	p := reward.Promotion{
		Name: c.Name, Type: reward.PromotionType(c.Type), Status: reward.Draft, VoucherCode: c.VoucherCode,
		Currency: c.Currency, MaxRetries: reward.MaxRetries, CreatedAt: time.Now().UTC(),
	}
	if s.cfg.MaxRetries != nil {
		p.MaxRetries = *s.cfg.MaxRetries
	}
	if c.MaxRetries != nil {
		p.MaxRetries = *c.MaxRetries
	}
	if c.ConsumersPerInstance != nil {
		p.ConsumersPerInstance = *c.ConsumersPerInstance
	}
	if c.Amount != nil {
		p.Amount = *c.Amount
	}
	if c.ID != nil {
		p.ID = *c.ID
	} else {
		p.ID = reward.PromotionID(s.cfg.IDs.Next())
	}
	p, err := s.cfg.Store.PromotionCreate(ctx, p)
	if err != nil {
		return store.PromotionView{}, err
	}
	return s.changed(ctx, p.ID, "created")
}

// Get returns a promotion with its counts.
func (s *Promotions) Get(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.cfg.Store.PromotionGet(ctx, id)
}

// Summaries returns the counts per promotionSummaryId, by id, at most
// store.BatchMax of them.
func (s *Promotions) Summaries(ctx context.Context, id reward.PromotionID) ([]reward.Summary, error) {
	return s.cfg.Store.SummaryList(ctx, id, store.BatchMax)
}

// List pages over promotions, the newest first.
func (s *Promotions) List(ctx context.Context, p store.PromotionListParams) ([]store.PromotionView, error) {
	return s.cfg.Store.PromotionList(ctx, p)
}

// action is something to do with a promotion, and when it may be done.
type action struct {
	name string
	from []reward.PromotionStatus
	to   reward.PromotionStatus // "" = the status stays, or goes with the row
}

// The actions.
var (
	actionStart  = action{"start", []reward.PromotionStatus{reward.Draft}, reward.Running}
	actionPause  = action{"pause", []reward.PromotionStatus{reward.Running}, reward.Paused}
	actionResume = action{"resume", []reward.PromotionStatus{reward.Paused}, reward.Running}
	actionCancel = action{"cancel", []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused}, reward.PromotionCancelled}
	actionClose  = action{"close", []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused, reward.Completed}, ""}
	actionDelete = action{"delete", []reward.PromotionStatus{reward.Draft}, ""}

	actions = []action{actionStart, actionPause, actionResume, actionCancel, actionClose, actionDelete}
)

// Start moves a DRAFT to RUNNING.
func (s *Promotions) Start(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.move(ctx, id, actionStart, "")
}

// Pause stops a RUNNING promotion from opening new calls.
func (s *Promotions) Pause(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.move(ctx, id, actionPause, "paused by an operator")
}

// Resume lets a PAUSED promotion go on.
func (s *Promotions) Resume(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.move(ctx, id, actionResume, "")
}

// Cancel ends a promotion for good: what has not been called is not paid.
func (s *Promotions) Cancel(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	return s.move(ctx, id, actionCancel, "")
}

// Close says that no more targets will come, so that an announced promotion
// may complete below its expected count.
func (s *Promotions) Close(ctx context.Context, id reward.PromotionID) (store.PromotionView, error) {
	view, err := s.Get(ctx, id)
	if err != nil {
		return store.PromotionView{}, err
	}
	if !slices.Contains(actionClose.from, view.Status) {
		return store.PromotionView{}, illegal(actionClose, view.Promotion)
	}
	if _, err := s.cfg.Store.PromotionClose(ctx, id); err != nil {
		return store.PromotionView{}, s.explain(ctx, id, actionClose, err)
	}
	return s.changed(ctx, id, actionClose.name)
}

// Delete removes a DRAFT and its targets.
func (s *Promotions) Delete(ctx context.Context, id reward.PromotionID) error {
	if err := s.cfg.Store.PromotionDelete(ctx, id); err != nil {
		return s.explain(ctx, id, actionDelete, err)
	}
	s.log.Info(obs.Saved, "promotion_id", id, "action", actionDelete.name)
	s.cfg.Hint(id)
	return nil
}

func (s *Promotions) move(ctx context.Context, id reward.PromotionID, a action, reason string) (store.PromotionView, error) {
	_, err := s.cfg.Store.PromotionMove(ctx, store.PromotionMoveParams{
		ID: id, From: a.from, To: a.to, Reason: reason, Now: time.Now(),
	})
	if err != nil {
		return store.PromotionView{}, s.explain(ctx, id, a, err)
	}
	return s.changed(ctx, id, a.name)
}

// changed tells everybody and returns the promotion as it stands.
func (s *Promotions) changed(ctx context.Context, id reward.PromotionID, what string) (store.PromotionView, error) {
	s.log.Info(obs.Saved, "promotion_id", id, "action", what)
	s.cfg.Hint(id)
	return s.Get(ctx, id)
}

// explain makes a refused move say what is allowed instead.
func (s *Promotions) explain(ctx context.Context, id reward.PromotionID, a action, err error) error {
	if !reward.HasCode(err, reward.CodeIllegalState) {
		return err
	}
	view, getErr := s.Get(ctx, id)
	if getErr != nil {
		return errors.Join(err, getErr)
	}
	return illegal(a, view.Promotion)
}

func illegal(a action, p reward.Promotion) error {
	var allowed []string
	for _, other := range actions {
		if slices.Contains(other.from, p.Status) {
			allowed = append(allowed, other.name)
		}
	}
	if len(allowed) == 0 {
		allowed = []string{"nothing"}
	}
	from := make([]string, len(a.from))
	for i, f := range a.from {
		from[i] = string(f)
	}
	return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
		"promotion %s is %s, and %s needs %s; allowed now: %s",
		p.ID, p.Status, a.name, strings.Join(from, " or "), strings.Join(allowed, ", "))
}

// Payouts pages over the payouts of a promotion, by target id.
func (s *Promotions) Payouts(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error) {
	if p.After == nil {
		// An empty page of an unknown promotion would look like success.
		if _, err := s.Get(ctx, p.PromotionID); err != nil {
			return nil, err
		}
	}
	return s.cfg.Store.PayoutList(ctx, p)
}

// Payout returns one payout with its attempts.
func (s *Promotions) Payout(ctx context.Context, id store.PayoutID) (reward.Payout, []reward.Attempt, error) {
	return s.cfg.Store.PayoutGet(ctx, id)
}
