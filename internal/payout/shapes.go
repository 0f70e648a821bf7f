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

// payeeErrorsMax is the number of payees in a row whose response may be about
// themselves, after which it is about the settings.
const payeeErrorsMax = 20

// payeeErrors collects, for each promotion, the payees in a row that got a response
// which is about them or about the settings. Nobody else was paid or refused in
// between. It is safe for concurrent use.
type payeeErrors struct {
	mu  sync.Mutex // protects row
	row map[reward.PromotionID]map[reward.TargetID]bool
}

// add adds a payee. It reports how many are in the row, and whether the promotion gets
// nowhere: the payee got such a response before, or there are payeeErrorsMax. The row
// then starts over.
func (e *payeeErrors) add(id reward.PromotionID, target reward.TargetID) (payees int, nowhere bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.row == nil {
		e.row = make(map[reward.PromotionID]map[reward.TargetID]bool)
	}
	row := e.row[id]
	if row == nil {
		row = make(map[reward.TargetID]bool)
		e.row[id] = row
	}
	nowhere = row[target]
	row[target] = true
	if nowhere = nowhere || len(row) >= payeeErrorsMax; nowhere {
		delete(e.row, id)
	}
	return len(row), nowhere
}

// reset records that a payee of a promotion was paid or refused.
func (e *payeeErrors) reset(id reward.PromotionID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.row, id)
}
