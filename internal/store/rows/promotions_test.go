package rows

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/store"
)

// promotions is a database with one promotion. Each read finds the next view of it, and the
// last one again and again. No write finds it as it was read.
type promotions struct {
	views []store.PromotionView
	reads int
}

func (p *promotions) Run(_ context.Context, _ string, mode Mode, build func() []Statement) error {
	if mode.Write {
		return ErrStale
	}
	v := p.views[min(p.reads, len(p.views)-1)]
	p.reads++
	return build()[0].Row(func(dest ...any) error {
		return scanDetails(func(from ...any) error {
			for i := range dest {
				reflect.ValueOf(dest[i]).Elem().Set(reflect.ValueOf(from[i]).Elem())
			}
			return nil
		}, &v)
	})
}

// tablesOver returns the methods over a database, and a driver for payouts.
func tablesOver(db DB, payouts Payouts) *Tables {
	return &Tables{db: &database{db: db, inDialect: func(sql string) string { return sql }}, payouts: payouts}
}

func TestAPromotionIsNeverAsItWasRead(t *testing.T) {
	t.Parallel()
	db := &promotions{views: []store.PromotionView{{}}}
	if _, err := tablesOver(db, nil).PromotionClose(t.Context(), 1); !errors.Is(err, store.ErrBusy) || db.reads != rereadsMax {
		t.Errorf("%v after %d reads", err, db.reads)
	}
}

func TestAPromotionThatIsAsTheRuleWantsItIsNotWritten(t *testing.T) {
	t.Parallel()
	closed := store.PromotionView{}
	closed.Closed = true
	db := &promotions{views: []store.PromotionView{{}, closed}}
	if p, err := tablesOver(db, nil).PromotionClose(t.Context(), 1); err != nil || !p.Closed || db.reads != 2 {
		t.Errorf("%+v, %v after %d reads", p, err, db.reads)
	}
}

// TestEveryColumnOfAPromotionIsCompared checks that a new column is compared, or a reason is
// given why it is not.
func TestEveryColumnOfAPromotionIsCompared(t *testing.T) {
	t.Parallel()
	unruled := []string{
		"id", "type", "created_at", "archived_at", // no rule changes them
		"unvalued_rounds",                         // compared, not written
		"canary_dispatched", "last_dispatched_at", // see ruledColumns
	}
	for column := range strings.SplitSeq(strings.ReplaceAll(PromotionColumns, "\n", " "), ",") {
		column = strings.TrimPrefix(strings.TrimSpace(column), "m.")
		if slices.Contains(ruledColumns, column) == slices.Contains(unruled, column) {
			t.Errorf("%s is neither among ruledColumns nor left out, or both", column)
		}
	}
}
