package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// NewTemplate is what a template that is made begins with: what the caller may
// say about it, and nothing of a course. CodeInvalid when it breaks a rule.
func NewTemplate(t reward.CouponTemplate) (reward.CouponTemplate, error) {
	made := reward.CouponTemplate{
		ID: t.ID, Name: t.Name, TotalQuantity: t.TotalQuantity, PerUserLimit: t.PerUserLimit,
		OpensAt: instant(t.OpensAt), ClosesAt: instant(t.ClosesAt), ValidFor: t.ValidFor, Mode: t.Mode,
		ReissueAfterCancel: t.ReissueAfterCancel, WhenRedisAway: t.WhenRedisAway, CreatedAt: instant(t.CreatedAt),
		Path: reward.PathGate,
	}
	if t.Draw.State != reward.DrawNone {
		made.Draw = reward.Draw{State: reward.DrawOpen, From: instant(t.Draw.From), Seed: bytes.Clone(t.Draw.Seed)}
	}
	return made, checkTemplate(&made)
}

// checkTemplate refuses a template that breaks a rule, and names every field
// that is wrong.
func checkTemplate(t *reward.CouponTemplate) error {
	fields := reward.CheckTemplate(t)
	if t.ID <= 0 {
		fields = append(fields, reward.FieldError{Field: "templateId", Detail: fmt.Sprintf("%d is not above 0", t.ID)})
	}
	if t.Mode != reward.ModeStream && t.Mode != reward.ModeKafka && t.Mode != reward.ModeSync {
		fields = append(fields, reward.FieldError{Field: "mode", Detail: reward.Quote(string(t.Mode)) + " is none of STREAM, KAFKA, SYNC"})
	}
	if t.WhenRedisAway != reward.AwayDatabase && t.WhenRedisAway != reward.AwayWait {
		fields = append(fields, reward.FieldError{
			Field: "whenRedisAway", Detail: reward.Quote(string(t.WhenRedisAway)) + " is none of DATABASE, WAIT",
		})
	}
	if len(fields) == 0 {
		return nil
	}
	e := reward.NewError(reward.KindInvalid, reward.CodeInvalid, "template %d: %s %s", t.ID, fields[0].Field, fields[0].Detail)
	e.Fields = fields
	return e
}

// Apply returns the template with the changes in it. CodeInvalid when it then
// breaks a rule.
func (p *TemplateChangeParams) Apply(t reward.CouponTemplate) (reward.CouponTemplate, error) {
	set(&t.Name, p.Name)
	set(&t.TotalQuantity, p.TotalQuantity)
	set(&t.PerUserLimit, p.PerUserLimit)
	set(&t.OpensAt, p.OpensAt)
	set(&t.ClosesAt, p.ClosesAt)
	set(&t.ValidFor, p.ValidFor)
	set(&t.Mode, p.Mode)
	set(&t.ReissueAfterCancel, p.ReissueAfterCancel)
	set(&t.WhenRedisAway, p.WhenRedisAway)
	t.OpensAt, t.ClosesAt = instant(t.OpensAt), instant(t.ClosesAt)
	return t, checkTemplate(&t)
}

func set[T any](field *T, to *T) {
	if to != nil {
		*field = *to
	}
}

// FixedByUse says whether a change touches what stays as it is once anybody was
// served or has asked: the mode, and when a draw takes its entrants.
func FixedByUse(from, to *reward.CouponTemplate) bool {
	return from.Mode != to.Mode || from.Draw.State != reward.DrawNone && !from.OpensAt.Equal(to.OpensAt)
}

// CheckChange refuses, with CodeConflict, a change that the course of a template
// forbids; asked says whether its draw has entrants.
func CheckChange(from, to *reward.CouponTemplate, asked bool) error {
	switch {
	case to.TotalQuantity < from.Live:
		return reward.NewError(reward.KindConflict, reward.CodeConflict,
			"template %d has %d coupons that are not cancelled, more than %d", from.ID, from.Live, to.TotalQuantity)
	case FixedByUse(from, to) && (asked || from.Settled > 0 || from.Draw.State == reward.DrawClosed || from.Draw.State == reward.DrawDone):
		return reward.NewError(reward.KindConflict, reward.CodeConflict,
			"template %d was asked already; its mode and the times of its draw stay", from.ID)
	}
	return nil
}

// SameSettings says whether two states of a template agree in everything that
// TemplateChange can change.
func SameSettings(a, b *reward.CouponTemplate) bool {
	return a.Name == b.Name && a.TotalQuantity == b.TotalQuantity && a.PerUserLimit == b.PerUserLimit &&
		a.OpensAt.Equal(b.OpensAt) && a.ClosesAt.Equal(b.ClosesAt) && a.ValidFor == b.ValidFor && a.Mode == b.Mode &&
		a.ReissueAfterCancel == b.ReissueAfterCancel && a.WhenRedisAway == b.WhenRedisAway
}

// CloneTemplate copies a template, so that whoever has the copy may change it.
func CloneTemplate(t reward.CouponTemplate) reward.CouponTemplate {
	t.Draw.Seed, t.Draw.List = bytes.Clone(t.Draw.Seed), bytes.Clone(t.Draw.List)
	t.Ends = maps.Clone(t.Ends)
	return t
}

// EncodeEnds returns end offsets as the JSON that drivers keep.
func EncodeEnds(ends map[int32]int64) (string, error) {
	b, err := json.Marshal(ends)
	if err != nil {
		return "", fmt.Errorf("encode end offsets: %w", err)
	}
	return string(b), nil
}

// DecodeEnds reads what EncodeEnds wrote; "" is none.
func DecodeEnds(s string) (map[int32]int64, error) {
	if s == "" {
		return nil, nil
	}
	var ends map[int32]int64
	if err := json.Unmarshal([]byte(s), &ends); err != nil {
		return nil, fmt.Errorf("read the end offsets of a template: %w", err)
	}
	return ends, nil
}

// NoTemplate is the error of an id that no template has.
func NoTemplate(id reward.TemplateID) error {
	return reward.NewError(reward.KindNotFound, reward.CodeTemplateNotFound, "there is no coupon template %d", id)
}

// instant is a time as every database keeps it: microseconds, UTC.
func instant(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
