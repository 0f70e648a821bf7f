package gate

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// holdingsPageMax limits the holdings of a page.
const holdingsPageMax = 1000

// holdings holds the holdings of a gate by user, and in the order in which they
// were added, so that pages stay consistent while holdings change.
type holdings struct {
	byUser  map[string]*numberedHolding
	ordered []*numberedHolding // by number, with gaps (Held 0) until these are at least half
	last    int64              // the highest number
}

type numberedHolding struct {
	Holding
	number int64
}

func newHoldings() *holdings { return &holdings{byUser: map[string]*numberedHolding{}} }

// set stores a holding, or removes it if Held is 0.
func (h *holdings) set(f Holding) {
	known := h.byUser[f.UserID]
	switch {
	case f.Held > 0 && known != nil:
		known.Holding = f
	case f.Held > 0:
		h.last++
		known = &numberedHolding{Holding: f, number: h.last}
		h.byUser[f.UserID], h.ordered = known, append(h.ordered, known)
	case known != nil:
		known.Held = 0
		delete(h.byUser, f.UserID)
		h.compact()
	}
}

// compact removes the gaps once they are at least half of the list.
func (h *holdings) compact() {
	if gaps := len(h.ordered) - len(h.byUser); gaps < compactGapsMin || gaps < len(h.byUser) {
		return
	}
	kept := make([]*numberedHolding, 0, len(h.byUser)+compactGapsMin)
	for _, known := range h.ordered {
		if known.Held > 0 {
			kept = append(kept, known)
		}
	}
	h.ordered = kept
}

// page returns the holdings after a cursor. A cursor of another generation starts
// over.
func (h *holdings) page(generation int64, cursor string) ([]Holding, string, error) {
	of, position, err := ParseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	after := int64(0)
	if of == generation {
		if after, err = strconv.ParseInt(position, 10, 64); err != nil {
			return nil, "", fmt.Errorf("gate: %q is not a cursor of Holdings", cursor)
		}
	}
	var out []Holding
	first := sort.Search(len(h.ordered), func(i int) bool { return h.ordered[i].number > after })
	for _, known := range h.ordered[first:] {
		switch {
		case known.Held == 0:
		case len(out) == holdingsPageMax:
			return out, Cursor(generation, strconv.FormatInt(after, 10)), nil
		default:
			out, after = append(out, known.Holding), known.number
		}
	}
	return out, "", nil
}

// Cursor is for drivers. It encodes where the next page of Holdings starts: at a
// position in the holdings of a generation.
func Cursor(generation int64, position string) string {
	return strconv.FormatInt(generation, 10) + "-" + position
}

// ParseCursor is for drivers. It decodes a cursor. The first page is position 0 of
// generation 0.
func ParseCursor(cursor string) (generation int64, position string, err error) {
	if cursor == "" {
		return 0, "0", nil
	}
	of, position, _ := strings.Cut(cursor, "-")
	generation, err = strconv.ParseInt(of, 10, 64)
	if _, errPosition := strconv.ParseUint(position, 10, 64); err != nil || errPosition != nil {
		return 0, "", fmt.Errorf("gate: %q is not a cursor of Holdings", cursor)
	}
	return generation, position, nil
}
