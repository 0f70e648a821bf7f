package store

import (
	"crypto/sha256"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/reward"
)

func invalid(format string, args ...any) error {
	return reward.NewError(reward.KindInvalid, reward.CodeInvalid, format, args...)
}

// CheckText returns CodeInvalid for a text that no database can store unchanged.
// field names it in the error.
func CheckText(field, s string) error {
	if reward.CheckText(s) == nil {
		return nil
	}
	return invalid("%s %s must be valid UTF-8 without U+0000", field, reward.Quote(s))
}

// StorableUsers returns the users whose ID a row can have.
func StorableUsers(users []string) []string {
	return slices.DeleteFunc(slices.Clone(users), func(u string) bool { return reward.CheckText(u) != nil })
}

// Check returns CodeInvalid for a payout that no driver can store. The intake
// then finds the bad payout by halving its batch.
func (r NewPayout) Check() error {
	switch {
	case r.PromotionID <= 0:
		return invalid("promotion id %d is not above 0", r.PromotionID)
	case r.TargetID < 0:
		return invalid("target id %d is below 0", r.TargetID)
	case r.SummaryID < 0:
		return invalid("promotion summary id %d is below 0", r.SummaryID)
	case r.Amount < 0:
		return invalid("amount %d is below 0", r.Amount)
	case len(r.Trace) > TraceMax:
		return invalid("the trace of a target has %d bytes; at most %d are allowed", len(r.Trace), TraceMax)
	}
	return checkTexts([]namedText{{"trace", r.Trace}, {"user id", r.UserID}, {"voucher code", r.VoucherCode}})
}

// CheckPromotion returns CodeInvalid for a promotion that no driver can store.
func CheckPromotion(p reward.Promotion) error {
	switch {
	case p.ID <= 0:
		return invalid("promotion id %d is not above 0", p.ID)
	case p.Amount < 0:
		return invalid("amount %d is below 0", p.Amount)
	case p.MaxRetries < 0 || p.MaxRetries > 1<<30:
		return invalid("max retries %d is out of range", p.MaxRetries)
	case p.ConsumersPerInstance < 0 || p.ConsumersPerInstance > 1<<30:
		return invalid("consumers per instance %d is out of range", p.ConsumersPerInstance)
	case p.RatePerSecond < 0 || p.RatePerSecond > 1<<30:
		return invalid("rate per second %d is out of range", p.RatePerSecond)
	case p.Weight < 0 || p.Weight > 1<<30:
		return invalid("weight %d is out of range", p.Weight)
	case p.MaxAmount < 0:
		return invalid("max amount %d is below 0", p.MaxAmount)
	case p.Canary.Targets < 0:
		return invalid("canary targets %d are below 0", p.Canary.Targets)
	case !(p.Canary.MaxFailureRate >= 0 && p.Canary.MaxFailureRate <= 1): // NaN is refused too
		return invalid("max failure rate %v of the canary is not between 0 and 1", p.Canary.MaxFailureRate)
	}
	return checkTexts([]namedText{
		{"name", p.Name},
		{"voucher code", p.VoucherCode},
		{"currency", p.Currency},
		{"metadata", string(p.Metadata)},
		{"notes", p.Notes},
		{"webhook URL", p.WebhookURL},
		{"creator", p.CreatedBy},
	})
}

// CheckDeadLetterClose checks the arguments of DeadLetterClose and returns CodeInvalid if
// they are wrong.
func CheckDeadLetterClose(ids []int64, to reward.DeadLetterStatus) error {
	switch {
	case to != reward.DeadLetterReplayed && to != reward.DeadLetterDiscarded:
		return invalid("a dead letter can be closed as %s or %s, not as %s", reward.DeadLetterReplayed, reward.DeadLetterDiscarded, reward.Quote(string(to)))
	case len(ids) > BatchMax:
		return invalid("a batch has %d dead letters; at most %d are allowed", len(ids), BatchMax)
	}
	return nil
}

// CheckViews returns CodeInvalid for more than BatchMax ids.
func CheckViews(ids []reward.PromotionID) error {
	if len(ids) > BatchMax {
		return invalid("a batch has %d promotions; at most %d are allowed", len(ids), BatchMax)
	}
	return nil
}

// Check returns CodeInvalid for a key that no driver can store.
func (k APIKey) Check() error {
	switch {
	case k.ID <= 0:
		return invalid("API key id %d is not above 0", k.ID)
	case len(k.Hash) != sha256.Size:
		return invalid("the hash of an API key has %d bytes, not %d", len(k.Hash), sha256.Size)
	}
	return checkTexts([]namedText{
		{"name of an API key", k.Name}, {"prefix of an API key", k.Prefix}, {"role of an API key", k.Role}, {"creator of an API key", k.CreatedBy},
	})
}

// Check returns CodeInvalid for a line that no driver can store.
func (l AuditLine) Check() error {
	if l.ID <= 0 {
		return invalid("audit id %d is not above 0", l.ID)
	}
	return checkTexts([]namedText{
		{"actor", l.Actor},
		{"role", l.Role},
		{"token subject", l.TokenSubject},
		{"action", l.Action},
		{"subject", l.Subject},
		{"detail", l.Detail},
		{"request id", l.RequestID},
		{"address", l.Address},
	})
}

// Check returns CodeInvalid for a filter that no line can match.
func (p AuditListParams) Check() error {
	return checkTexts([]namedText{{"actor", p.Actor}, {"action", p.Action}, {"subject", p.Subject}})
}

// Check returns CodeInvalid for a filter that no promotion can match.
func (p PromotionListParams) Check() error {
	return checkTexts([]namedText{{"search", p.Search}, {"creator", p.CreatedBy}, {"name", p.Last.Name}})
}

// Below returns the range of subjects that begin with Subject, ordered by bytes:
// from is included, before is not. It reports whether Subject ends with a slash;
// otherwise there is no range.
func (p AuditListParams) Below() (from, before string, ok bool) {
	parent, ok := strings.CutSuffix(p.Subject, "/")
	return p.Subject, parent + string(rune('/'+1)), ok
}

type namedText struct{ field, text string }

func checkTexts(texts []namedText) error {
	for _, t := range texts {
		if err := CheckText(t.field, t.text); err != nil {
			return err
		}
	}
	return nil
}
