package redisstream

import "github.com/largesse/largesse/internal/queue"

// StreamKey returns the key of a promotion's work stream, such as
// campaign-promotion-stream:VOUCHER:12345.
func StreamKey(prefix string, s queue.Stream) string {
	return prefix + s.Name()
}

// ConsumerGroup returns the name of the group of a promotion's work stream,
// such as campaign-promotion-group:VOUCHER:12345.
func ConsumerGroup(prefix string, s queue.Stream) string {
	return prefix + "campaign-promotion-group:" + streamName(s)
}

// regroupedKey returns the key that is set when a missing group is created for
// a stream with entries. It holds the ID of the newest entry at that time. The
// new group delivers again what the lost group had delivered, so no entry up to
// this ID can be a first delivery. The stream's key is the hash tag, so both keys share a slot.
func regroupedKey(prefix string, s queue.Stream) string {
	return "{" + StreamKey(prefix, s) + "}:regrouped"
}

// wakeChannel returns the channel that carries the name of each stream that
// gets its first work.
func wakeChannel(prefix string) string { return prefix + "campaign-promotion-wake" }

// streamName returns the name of a stream in keys and wake-ups.
func streamName(s queue.Stream) string { return string(s.Type) + ":" + s.PromotionID.String() }
