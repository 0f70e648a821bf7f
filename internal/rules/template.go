package rules

import (
	"bytes"
	"fmt"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// NewTemplate returns a new template with the settings of t. Progress fields are
// ignored. A template that breaks a rule is CodeInvalid.
func NewTemplate(t reward.CouponTemplate) (reward.CouponTemplate, error) {
	made := reward.CouponTemplate{
		ID: t.ID, Name: t.Name, Metadata: t.Metadata, Notes: t.Notes, TotalQuantity: t.TotalQuantity, PerUserLimit: t.PerUserLimit,
		OpensAt: instant(t.OpensAt), ClosesAt: instant(t.ClosesAt), ValidFor: t.ValidFor, HoldFor: t.HoldFor, Mode: t.Mode,
		ReissueAfterCancel: t.ReissueAfterCancel, WhenRedisAway: t.WhenRedisAway, Codes: t.Codes, CreatedAt: instant(t.CreatedAt),
		Path: reward.PathGate, AwaitingQuantity: t.AwaitingQuantity, Authors: t.Authors,
	}
	if t.Draw.State != reward.DrawNone {
		made.Draw = reward.Draw{State: reward.DrawOpen, From: instant(t.Draw.From), Seed: bytes.Clone(t.Draw.Seed)}
	}
	return made, checkTemplate(&made)
}

// checkTemplate returns CodeInvalid for a template that breaks a rule. The error
// lists every wrong field.
func checkTemplate(t *reward.CouponTemplate) error {
	fields := reward.CheckTemplate(t)
	if t.ID <= 0 {
		fields = append(fields, reward.FieldError{Field: "templateId", Detail: fmt.Sprintf("%d is not above 0", t.ID)})
	}
	if t.Mode != reward.ModeStream && t.Mode != reward.ModeKafka && t.Mode != reward.ModeSync {
		fields = append(fields, reward.FieldError{Field: "mode", Detail: reward.Quote(string(t.Mode)) + " is not STREAM, KAFKA or SYNC"})
	}
	if t.WhenRedisAway != reward.FallbackDatabase && t.WhenRedisAway != reward.FallbackWait {
		fields = append(fields, reward.FieldError{
			Field: "whenRedisAway", Detail: reward.Quote(string(t.WhenRedisAway)) + " is not DATABASE or WAIT",
		})
	}
	if len(fields) == 0 {
		return nil
	}
	return reward.NewError(reward.KindInvalid, reward.CodeInvalid, "template %d: %s %s", t.ID, fields[0].Field, fields[0].Detail).With(fields...)
}

// TemplateChange is a change of the settings of a template. A nil field keeps its
// value.
type TemplateChange struct {
	ID                 reward.TemplateID
	Name               *string
	Metadata           *reward.MetadataChange
	Notes              *string
	TotalQuantity      *int64
	PerUserLimit       *int
	OpensAt, ClosesAt  *time.Time // zero means none
	ValidFor, HoldFor  *time.Duration
	Mode               *reward.IssueMode
	ReissueAfterCancel *bool
	WhenRedisAway      *reward.RedisFallback
	// Shrunk is what the gate said when it gave up places for this change; nil means
	// that it was not asked. The change takes these places back, as Shrink does.
	Shrunk *Shrunk
	// By changes the template, and is one of its authors from then on. CodesAbove is the
	// setting approval.codes-above.
	By         string
	CodesAbove int64
	// Approvers are the names of a caller who approves the quantity that waits; nil means
	// that nobody does. Reject drops that quantity.
	Approvers []string
	Reject    bool
	// Tags are the values of TemplateTag that the caller accepts; nil means any.
	Tags []string
}

// Shrunk is what a gate says that gave up the places that it had not given: its
// generation, its number of grants, and the places that it kept.
type Shrunk struct{ Generation, Grants, Granted int64 }

// Empty reports whether the change names no field.
func (c *TemplateChange) Empty() bool { return c.Notes == nil && !c.settings() }

// settings reports whether the change names a field other than Notes.
func (c *TemplateChange) settings() bool {
	return c.Name != nil || c.Metadata != nil || c.TotalQuantity != nil || c.PerUserLimit != nil || c.OpensAt != nil || c.ClosesAt != nil ||
		c.ValidFor != nil || c.HoldFor != nil || c.Mode != nil || c.ReissueAfterCancel != nil || c.WhenRedisAway != nil
}

// Apply returns template t with the change. A result that breaks a rule is
// CodeInvalid, and a template with an unexpected tag is CodePreconditionFailed.
func (c *TemplateChange) Apply(t reward.CouponTemplate) (reward.CouponTemplate, error) {
	if c.Tags != nil {
		if err := CheckTag(c.Tags, TemplateTag(&t), "template", int64(t.ID)); err != nil {
			return t, err
		}
	}
	inForce := t.TotalQuantity
	set(&t.Name, c.Name)
	if c.Metadata != nil {
		t.Metadata = c.Metadata.Apply(t.Metadata)
	}
	set(&t.Notes, c.Notes)
	set(&t.TotalQuantity, c.TotalQuantity)
	set(&t.PerUserLimit, c.PerUserLimit)
	set(&t.OpensAt, c.OpensAt)
	set(&t.ClosesAt, c.ClosesAt)
	set(&t.ValidFor, c.ValidFor)
	set(&t.HoldFor, c.HoldFor)
	set(&t.Mode, c.Mode)
	set(&t.ReissueAfterCancel, c.ReissueAfterCancel)
	set(&t.WhenRedisAway, c.WhenRedisAway)
	t.OpensAt, t.ClosesAt = instant(t.OpensAt), instant(t.ClosesAt)
	c.Shrunk.takeBack(&t)
	if err := c.decide(&t); err != nil {
		return t, err
	}
	checked := t
	if c.Name == nil {
		checked.Name = "-" // an old name may break a later rule
	}
	if err := checkTemplate(&checked); err != nil {
		return t, err
	}
	if c.TotalQuantity != nil {
		LimitQuantity(&t, inForce, c.CodesAbove)
	}
	if c.Notes == nil || c.settings() { // who only writes notes is no author
		t.Authors = t.Authors.Add(c.By)
	}
	return t, nil
}

func set[T any](field *T, to *T) {
	if to != nil {
		*field = *to
	}
}

// FixedByUse reports whether a change is forbidden once the template was used.
// That is a change of the mode, or of the opening time of a draw.
func FixedByUse(from, to *reward.CouponTemplate) bool {
	return from.Mode != to.Mode || from.Draw.State != reward.DrawNone && !from.OpensAt.Equal(to.OpensAt)
}

// CheckChange returns CodeConflict for a change that the progress of a template
// forbids. to is the result of Apply. entrants reports whether its draw has any.
func CheckChange(from, to *reward.CouponTemplate, entrants bool) error {
	promised := to.Promised()
	switch {
	case to.TotalQuantity < from.Live+promised:
		return reward.NewError(reward.KindConflict, reward.CodeConflict,
			"template %d has %d coupons that are not cancelled and %d places promised to its waiting line, so its quantity cannot be %d; set %d or more",
			from.ID, from.Live, promised, to.TotalQuantity, from.Live+promised)
	case LacksCodes(from, to.TotalQuantity):
		return codesExhausted("template %d has %d codes left and would have %d coupons left to issue; import codes first, or set a lower quantity",
			from.ID, from.CodesLeft(), to.TotalQuantity-from.Live)
	case FixedByUse(from, to) && (entrants || from.Settled > 0 || from.Used > 0 || from.Draw.State == reward.DrawClosed || from.Draw.State == reward.DrawDone):
		return reward.NewError(reward.KindConflict, reward.CodeConflict,
			"template %d was used, so its mode and the times of its draw cannot change", from.ID)
	case from.Mode != to.Mode && promised > 0:
		return reward.NewError(reward.KindConflict, reward.CodeConflict,
			"%d places of template %d are promised to its waiting line; change the mode when the line is empty", promised, from.ID)
	}
	return nil
}

// Grant grants places to the gate of template t: those that users lack, as far as places
// are left, and at most more for users who come next. Of what is left for them it takes at
// most a half: if Redis becomes unavailable, nobody can get the places of the gate. It
// reports whether it changed t: not if t has another generation, path or number of
// grants than the gate had seen, or if there is no place and the gate knows that. In
// ModeSync it grants nothing: only a gate that does not know the new mode yet would ask,
// and nobody would use its places. A gate that knows of fewer than Granted places, because a Shrink was interrupted,
// learns of them by a grant of none.
func Grant(t *reward.CouponTemplate, generation, grants, granted, lacking, more int64) bool {
	left := max(t.LiveMax()-t.Live-t.Promised(), 0)
	k := min(lacking, left)
	k += min(more, (left-k)/2)
	if t.Generation != generation || t.Path != reward.PathGate || t.Mode == reward.ModeSync || t.Grants != grants || k == 0 && t.Granted <= granted {
		return false
	}
	t.Granted += k
	t.Grants++
	t.Version++
	return true
}

// Shrink takes back the places that the gate gave up. It reports whether it changed t:
// not if t has another generation, path or number of grants than the gate.
func Shrink(t *reward.CouponTemplate, s Shrunk) bool {
	taken := s.takeBack(t)
	if taken {
		t.Version++
	}
	return taken
}

// ReleasePlaces takes back all places that are set aside for the gate of template t. It
// reports whether it changed t: not while the template uses its gate, or if no place is
// set aside.
func ReleasePlaces(t *reward.CouponTemplate) bool {
	if t.Path != reward.PathDatabase || t.Promised() == 0 {
		return false
	}
	t.Granted = t.Used
	t.Grants++
	t.Version++
	return true
}

// takeBack is Shrink without a new version.
func (s *Shrunk) takeBack(t *reward.CouponTemplate) bool {
	if s == nil || t.Generation != s.Generation || t.Path != reward.PathGate || t.Grants != s.Grants {
		return false
	}
	t.Granted = max(min(t.Granted, s.Granted), t.Used)
	t.Grants++
	return true
}

// CheckTemplateArchived returns CodeArchived if a template is archived. Nothing of it
// changes any more: the rows that enforce its limit per user are removed.
func CheckTemplateArchived(id reward.TemplateID, archived bool) error {
	if archived {
		return reward.NewError(reward.KindConflict, reward.CodeArchived,
			"coupon template %d is archived, and its coupons are removed (retention.coupons): use a new template", id)
	}
	return nil
}
