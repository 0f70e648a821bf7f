package payout

import (
	"sync"

	"github.com/largesse/largesse/internal/reward"
)

// keylessMax is the number of calls in a row without a transaction key after which
// the settings or the provider are wrong.
const keylessMax = 20

// keyless counts calls in a row that the provider answered with success but
// without a transaction key, and that no lookup confirmed. Such a charge may have
// taken effect, so its payout is looked up and charged again with the same key. If
// there are many, that never ends. It counts each type of promotion separately,
// because each has a path of its own. It is safe for concurrent use.
type keyless struct {
	mu     sync.Mutex // protects counts
	counts map[reward.PromotionType]int
}

// add counts a call without a key, and reports whether there are too many.
func (k *keyless) add(t reward.PromotionType) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.counts == nil {
		k.counts = make(map[reward.PromotionType]int)
	}
	k.counts[t] = min(k.counts[t]+1, keylessMax)
	return k.counts[t] == keylessMax
}

// reset records a response that the provider gave in the right shape.
func (k *keyless) reset(t reward.PromotionType) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.counts, t)
}
