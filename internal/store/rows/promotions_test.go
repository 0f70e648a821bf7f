package rows

import (
	"context"
	"reflect"

	"github.com/largesse/largesse/internal/store"
)

// promotions is a database with one promotion. Each read finds the next view of it, and the
// last one again and again.
type promotions struct {
	DB
	views []store.PromotionView
	reads int
}

func (p *promotions) Read(_ context.Context, _ string, build func() Statement) error {
	v := p.views[min(p.reads, len(p.views)-1)]
	p.reads++
	return build().Row(func(dest ...any) error {
		return ScanDetails(func(from ...any) error {
			for i := range dest {
				reflect.ValueOf(dest[i]).Elem().Set(reflect.ValueOf(from[i]).Elem())
			}
			return nil
		}, &v)
	})
}
