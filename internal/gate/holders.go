package gate

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// holdersPage is how many facts a page of Holders has at most.
const holdersPage = 1000

// holders is the facts of a gate, by user, and in the order in which they came,
// so that pages can be turned while they change.
type holders struct {
	byUser map[string]*holder
	all    []*holder // by number; gone ones are gaps until they are more than half
	last   int64
}

type holder struct {
	Fact
	number int64
}

func newHolders() *holders { return &holders{byUser: map[string]*holder{}} }

// set notes a fact.
func (h *holders) set(f Fact) {
	known := h.byUser[f.UserID]
	switch {
	case f.Held > 0 && known != nil:
		known.Fact = f
	case f.Held > 0:
		h.last++
		known = &holder{Fact: f, number: h.last}
		h.byUser[f.UserID], h.all = known, append(h.all, known)
	case known != nil:
		known.Held = 0
		delete(h.byUser, f.UserID)
		h.tidy()
	}
}

// tidy drops the gaps once they are more than the facts.
func (h *holders) tidy() {
	if gaps := len(h.all) - len(h.byUser); gaps < compactFrom || gaps < len(h.byUser) {
		return
	}
	kept := make([]*holder, 0, len(h.byUser)+compactFrom)
	for _, known := range h.all {
		if known.Held > 0 {
			kept = append(kept, known)
		}
	}
	h.all = kept
}

// page returns the facts behind a cursor. A cursor of another generation
// begins anew.
func (h *holders) page(generation int64, cursor string) ([]Fact, string, error) {
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
	var out []Fact
	first := sort.Search(len(h.all), func(i int) bool { return h.all[i].number > after })
	for _, known := range h.all[first:] {
		switch {
		case known.Held == 0:
		case len(out) == holdersPage:
			return out, Cursor(generation, strconv.FormatInt(after, 10)), nil
		default:
			out, after = append(out, known.Fact), known.number
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
