package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// PromotionTag returns the tag of the version of a promotion's settings. The time of its
// creation tells it from that of a promotion that had the same ID and was deleted.
func PromotionTag(p reward.Promotion) string {
	return fmt.Sprintf("v%d.%d", p.Version, p.CreatedAt.UnixMicro())
}

// TemplateTag returns a tag of everything that TemplateChange can change, for If-Match.
// Progress does not change it, except for an import of codes while a quantity waits.
func TemplateTag(t *reward.CouponTemplate) string {
	settings := []any{
		int64(t.ID), t.CreatedAt, t.Name, string(t.Metadata), t.Notes, t.TotalQuantity, t.PerUserLimit, t.OpensAt, t.ClosesAt, t.ValidFor, t.HoldFor,
		string(t.Mode), t.ReissueAfterCancel, string(t.WhenRedisAway),
	}
	if t.AwaitsApproval() { // an approval is of this quantity, with the codes that were there
		settings = append(settings, t.AwaitingQuantity, t.CodesImported-t.CodesReturned)
	}
	return Tag(settings...)
}

// Tag returns a hash of settings: texts, numbers, bools, and times in microseconds.
func Tag(settings ...any) string {
	for i, s := range settings {
		if t, ok := s.(time.Time); ok {
			settings[i] = t.UnixMicro()
		}
	}
	b, err := json.Marshal(settings)
	if err != nil {
		panic(err) // not one of these types
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// CheckTag returns CodePreconditionFailed if the tag of something is not among those that
// the caller accepts. Nil means any.
func CheckTag(accepted []string, tag, what string, id int64) error {
	if accepted == nil || slices.Contains(accepted, tag) {
		return nil
	}
	return reward.NewError(reward.KindPrecondition, reward.CodePreconditionFailed,
		"%s %d was changed since the version that If-Match names; read it again, and repeat the change if it is still right", what, id)
}
