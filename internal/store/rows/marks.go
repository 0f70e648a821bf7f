package rows

import (
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// marks remembers how far the chunks of a cancel have come. A row that has left
// its state stays in the index until no snapshot needs it. Behind an old snapshot,
// such as that of a backup, each chunk would otherwise read the entries of all
// chunks before it.
//
// A mark only saves work: rows below it may be locked, or saved since. So a chunk
// that reaches the end removes the mark and reads once more from the beginning.
type marks struct {
	mu sync.Mutex
	at map[markKey]mark
}

type markKey struct {
	promotion reward.PromotionID
	state     reward.State
}

// mark is the last row that a chunk has found.
type mark struct {
	dueAt  time.Time
	target int64
}

// beginning is below every row.
var beginning = mark{target: -1}

// get returns the mark of a promotion, or the beginning.
func (m *marks) get(k markKey) mark {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at, ok := m.at[k]; ok {
		return at
	}
	return beginning
}

// set stores a mark. The beginning removes it.
func (m *marks) set(k markKey, at mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at == beginning {
		delete(m.at, k)
		return
	}
	if m.at == nil {
		m.at = make(map[markKey]mark)
	}
	m.at[k] = at
}
