package redisstream

import (
	"math/rand/v2"
	"testing"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/redis"
	"github.com/largesse/largesse/internal/reward"
)

// TestEachStreamHasOneSlot: a stream's two keys, of which the KEYS of every
// script consist, are in one slot, and streams are spread over all slots.
func TestEachStreamHasOneSlot(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	const letters = "abcXYZ019._:-/ é\x00\n*?[]()"
	slots := map[uint16]bool{}
	const streams = 5000
	for range streams {
		prefix := make([]byte, random.IntN(20))
		for i := range prefix {
			prefix[i] = letters[random.IntN(len(letters))]
		}
		s := queue.Stream{
			Type:        []reward.PromotionType{reward.Point, reward.Voucher}[random.IntN(2)],
			PromotionID: reward.PromotionID(1 + random.Int64N(1<<random.IntN(63))),
		}
		stream, mark := StreamKey(string(prefix), s), regroupedKey(string(prefix), s)
		if redis.Slot(stream) != redis.Slot(mark) {
			t.Fatalf("%q is in slot %d, %q in slot %d (seed %d)", stream, redis.Slot(stream), mark, redis.Slot(mark), seed)
		}
		if stream == mark {
			t.Fatalf("%q is used for two things", stream)
		}
		slots[redis.Slot(stream)] = true
	}
	if len(slots) < streams/2 {
		t.Errorf("%d streams share %d slots", streams, len(slots))
	}
}
