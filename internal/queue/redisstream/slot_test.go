package redisstream

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// slotOf is the cluster slot of a key: CRC16 (XMODEM) of its hash tag, the
// first {…} that is not empty, or of all of it.
func slotOf(key string) uint16 {
	if _, after, ok := strings.Cut(key, "{"); ok {
		if tag, _, closed := strings.Cut(after, "}"); closed && tag != "" {
			key = tag
		}
	}
	var crc uint16
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % 16384
}

func TestSlotOf(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]uint16{
		"123456789": 0x31c3, "foo": 12182, "bar": 5061, "": 0,
		"{foo}": 12182, "a{foo}b": 12182, "{foo}{bar}": 12182, "{{foo}": slotOf("{foo"),
	} {
		if got := slotOf(key); got != want {
			t.Errorf("%q is in slot %d, want %d", key, got, want)
		}
	}
	if slotOf("{}foo") == slotOf("{}bar") {
		t.Error("an empty tag is no tag")
	}
}

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
		if slotOf(stream) != slotOf(mark) {
			t.Fatalf("%q is in slot %d, %q in slot %d (seed %d)", stream, slotOf(stream), mark, slotOf(mark), seed)
		}
		if stream == mark {
			t.Fatalf("%q is used for two things", stream)
		}
		slots[slotOf(stream)] = true
	}
	if len(slots) < streams/2 {
		t.Errorf("%d streams share %d slots", streams, len(slots))
	}
}
