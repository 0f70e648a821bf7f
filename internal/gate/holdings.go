package gate

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// holdersPage is how many facts a page of Holders has at most.
const holdingsPageMax = 1000

// holders is the facts of a gate, by user, and in the order in which they came,
// so that pages can be turned while they change.
type holdings struct {
	byUser  map[string]*numberedHolding
	ordered []*numberedHolding // by number; gone ones are gaps until they are more than half
	last    int64
}

type numberedHolding struct {
	Holding
	number int64
}

func newHoldings() *holdings { return &holdings{byUser: map[string]*numberedHolding{}} }

// set notes a fact.
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

// tidy drops the gaps once they are more than the facts.
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

// page returns the facts behind a cursor. A cursor of another generation
// begins anew.
func (h *holdings) page(generation int64, cursor string) ([]Holding, string, error) {
	of, position, err := ParseCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	after := int64(0)
	if of == generation {
		if after, err = strconv.ParseInt(position, 10, 64); err != nil {
			return nil, "", fmt.Errorf("gate: %q is no cursor of Holders", cursor)
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

// Cursor is for drivers: where the next page of Holders begins, in the facts of
// a generation.
func Cursor(generation int64, position string) string {
	return strconv.FormatInt(generation, 10) + "-" + position
}

// ParseCursor reads a cursor; that of the first page is 0, of generation 0.
func ParseCursor(cursor string) (generation int64, position string, err error) {
	if cursor == "" {
		return 0, "0", nil
	}
	of, position, _ := strings.Cut(cursor, "-")
	generation, err = strconv.ParseInt(of, 10, 64)
	if _, errPosition := strconv.ParseUint(position, 10, 64); err != nil || errPosition != nil {
		return 0, "", fmt.Errorf("gate: %q is no cursor of Holders", cursor)
	}
	return generation, position, nil
}
