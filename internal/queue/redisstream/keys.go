package redisstream

import (
	"strings"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// StreamKey is the key of a promotion's work stream, e.g.
// campaign-promotion-stream:VOUCHER:12345. [CampaignPromotionStreamKeys]
func StreamKey(prefix string, s queue.Stream) string {
	return prefix + "campaign-promotion-stream:" + streamName(s)
}

// ConsumerGroup is the name of the one group of a promotion's work stream,
// e.g. campaign-promotion-group:VOUCHER:12345. [CampaignPromotionStreamKeys]
func ConsumerGroup(prefix string, s queue.Stream) string {
	return prefix + "campaign-promotion-group:" + streamName(s)
}

// regroupedKey is the key that holds the id of the newest entry there was when
// a missing group had to be made for a stream that was not empty. What the
// lost group had given out is given out again, so up to this id nothing is
// Mine. The stream's own key is the hash tag, so both are in one slot.
func regroupedKey(prefix string, s queue.Stream) string {
	return "{" + StreamKey(prefix, s) + "}:regrouped"
}

// wakeChannel carries the name of a stream whenever one gets its first work.
func wakeChannel(prefix string) string { return prefix + "campaign-promotion-wake" }

// streamName is how a stream is called in keys and wake-ups.
func streamName(s queue.Stream) string { return string(s.Type) + ":" + s.PromotionID.String() }

func parseStreamName(name string) (queue.Stream, bool) {
	typ, id, _ := strings.Cut(name, ":")
	t, errType := reward.ParsePromotionType(typ)
	p, errID := reward.ParsePromotionID(id)
	return queue.Stream{Type: t, PromotionID: p}, errType == nil && errID == nil
}
