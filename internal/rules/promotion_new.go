package rules

import (
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// FirstRevision returns the Revision of a new promotion. One that was deleted and
// created again gets other revisions, so that no approval is of targets that nobody has
// seen.
func FirstRevision(created time.Time) int64 { return created.UnixMicro() }

// NewPromotion returns a new DRAFT, which has no stream, with the settings of p.
func NewPromotion(p reward.Promotion) reward.Promotion {
	made := settingsOf(p)
	made.Status, made.StreamDestroyed, made.Version = reward.Draft, true, 1
	made.CreatedAt, made.Revision = instant(p.CreatedAt), FirstRevision(p.CreatedAt)
	return made
}

// settingsOf returns the fields of p that the creator of a promotion sets.
func settingsOf(p reward.Promotion) reward.Promotion {
	return reward.Promotion{
		ID: p.ID, Name: p.Name, Type: p.Type, Amount: p.Amount, VoucherCode: p.VoucherCode, Currency: p.Currency,
		MaxRetries: p.MaxRetries, ConsumersPerInstance: p.ConsumersPerInstance, RatePerSecond: p.RatePerSecond,
		Weight: max(p.Weight, 1), MaxAmount: p.MaxAmount,
		Canary:   reward.Canary{Targets: p.Canary.Targets, MaxFailureRate: p.Canary.MaxFailureRate},
		StartsAt: instant(p.StartsAt), EndsAt: instant(p.EndsAt), WebhookURL: p.WebhookURL, Metadata: p.Metadata, Notes: p.Notes, CreatedBy: p.CreatedBy,
	}
}

// NewRegistered returns the DRAFT of an unknown promotion that a Kafka record names.
func NewRegistered(id reward.PromotionID, of reward.PromotionType, now time.Time) reward.Promotion {
	p := NewPromotion(reward.Promotion{ID: id, Type: of, MaxRetries: reward.MaxRetries, CreatedAt: now})
	p.Registered = true
	return p
}

// FillRegistered returns a DRAFT that a Kafka record has registered with the settings
// of p, neither approved nor rejected. It fails with CodeTypeMismatch or CodeExists.
func FillRegistered(was, p reward.Promotion) (reward.Promotion, error) {
	switch {
	case was.Type != p.Type:
		return was, reward.NewError(reward.KindConflict, reward.CodeTypeMismatch, "promotion %d exists with type %s", p.ID, was.Type)
	case !was.Registered || was.Status != reward.Draft:
		return was, reward.NewError(reward.KindConflict, reward.CodeExists, "promotion %d exists", p.ID)
	}
	next := settingsOf(p)
	next.Status, next.CreatedAt, next.StreamDestroyed = was.Status, was.CreatedAt, was.StreamDestroyed
	next.ExpectedCount, next.Closed, next.Version = was.ExpectedCount, was.Closed, was.Version+1
	next.Approval.Round, next.Approval.Unvalued, next.Revision = was.Approval.Round, was.Approval.Unvalued, was.Revision+1
	return next, nil
}

// StartByRecord returns p after a Kafka record has announced its start and number of
// targets; the first number stays. A DRAFT starts unless it is rejected or StartsEarly.
// authored reports whether it has authors, whose amount per day then limits it.
func StartByRecord(p reward.Promotion, c reward.Counts, expected *int64, authored bool, above reward.Limits, now time.Time) reward.Promotion {
	if p.Status == reward.Draft && p.RejectedBy == "" && !StartsEarly(p, c, above, now) {
		p.Status, p.StartedAt, p.StreamDestroyed = reward.Running, instant(now), false
		if authored {
			p = NeedsGrants(p, true)
		}
	}
	if p.ExpectedCount == nil {
		p.ExpectedCount = expected
	}
	return p
}
