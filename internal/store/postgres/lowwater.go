package postgres

import (
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

const (
	// lowAfter is how many rows of a promotion this store dispatches before it
	// keeps a low-water mark for it. With fewer rows, the scan is short.
	lowAfter = 10_000
	// lowMaxAge is the age of a mark at which a dispatch scans from the start again.
	// A row below the mark waits no longer than that.
	lowMaxAge = 10 * time.Second
	// lowMax limits the promotions with a mark.
	lowMax = 10_000
)

// lowWater holds the low-water marks of promotions: the DueAt up to which their
// READY rows were dispatched. A row that leaves READY leaves a dead entry in the
// index, which the server keeps while any session has an older snapshot. The
// entries of all rows that were dispatched before would stand in front of those
// that are due, and each dispatch would read all of them.
//
// A mark is only a hint. Another instance may save rows below it, because its
// clock is behind or its transaction was slow. So a dispatch that finds too few
// rows from the mark on takes others too, and a mark does not get old. The zero
// lowWater is ready to use. All methods are safe for concurrent use.
type lowWater struct {
	mu    sync.Mutex // protects marks
	marks map[reward.PromotionID]*lowMark
}

type lowMark struct {
	due     time.Time
	rows    int       // dispatched by this store
	scanned time.Time // when a dispatch last scanned from the start
}

// get returns the mark of a promotion, or zero if the dispatch must scan from the
// start.
func (w *lowWater) get(id reward.PromotionID) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.marks[id]
	switch {
	case m == nil || m.rows < lowAfter:
		return time.Time{}
	case time.Since(m.scanned) >= lowMaxAge:
		m.scanned = time.Now()
		return time.Time{}
	}
	return m.due
}

// dispatched records that rows up to a DueAt were dispatched; zero changes no mark.
func (w *lowWater) dispatched(id reward.PromotionID, rows int, due time.Time) {
	if rows == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.marks[id]
	if m == nil {
		if w.marks == nil || len(w.marks) >= lowMax {
			w.marks = make(map[reward.PromotionID]*lowMark)
		}
		m = &lowMark{scanned: time.Now()}
		w.marks[id] = m
	}
	m.rows += rows
	if !due.IsZero() {
		m.due = due
	}
}
