package campaign

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// paidShownMax limits the promotions that are named as having paid people before.
	paidShownMax = 20
	// usersPerRead limits the users of one read, which has to end within the time of a viewer.
	usersPerRead = 500
	// paidTargetsMax limits the targets of a promotion that AlreadyPaid reads.
	paidTargetsMax = 10_000
)

// PaidBefore says how many people of a file or of a promotion another promotion has paid.
type PaidBefore struct {
	PromotionID reward.PromotionID
	Name        string
	People      int64
}

// PaidOf names the promotions that paid the people of a promotion, most of them first.
type PaidOf struct {
	Targets int64 // that were read
	// Complete is false if the promotion has more targets.
	Complete   bool
	Promotions []PaidBefore
}

// AlreadyPaid returns which other promotions have paid people of the first 10,000 targets
// of a promotion.
func (u *Uploads) AlreadyPaid(ctx context.Context, id reward.PromotionID) (PaidOf, error) {
	ctx = store.ForViewer(ctx)
	view, err := u.cfg.Rows.PromotionGet(ctx, id)
	if err != nil {
		return PaidOf{}, err
	}
	p, before := store.PayoutListParams{PromotionID: id, Limit: usersPerRead}, newPaidCount(u.cfg.Rows)
	var out PaidOf
	for more := true; more && out.Targets < paidTargetsMax; {
		rows, err := u.cfg.Rows.PayoutList(ctx, p)
		if err != nil {
			return PaidOf{}, err
		}
		users := make([]string, len(rows))
		for i := range rows {
			users[i], p.After = rows[i].UserID, &rows[i].TargetID
		}
		if err := before.add(ctx, users); err != nil {
			return PaidOf{}, err
		}
		out.Targets += int64(len(rows))
		more = len(rows) == p.Limit
	}
	out.Complete = out.Targets >= view.Counts.Total()
	delete(before.paid, id)
	out.Promotions, err = before.promotions(ctx)
	return out, err
}

// paidCount counts people that promotions have paid, everybody once.
type paidCount struct {
	from   uploadRows
	seed   maphash.Seed
	people map[uint64]struct{} // fingerprints of those who were counted
	paid   map[reward.PromotionID]int64
}

func newPaidCount(from uploadRows) *paidCount {
	return &paidCount{from: from, seed: maphash.MakeSeed(), people: make(map[uint64]struct{}), paid: make(map[reward.PromotionID]int64)}
}

func (c *paidCount) add(ctx context.Context, users []string) error {
	users = slices.DeleteFunc(users, func(user string) bool {
		print := maphash.String(c.seed, user)
		_, counted := c.people[print]
		c.people[print] = struct{}{}
		return counted
	})
	for some := range slices.Chunk(users, usersPerRead) {
		paid, err := c.from.PromotionsPaid(store.ForViewer(ctx), some)
		if err != nil {
			return err
		}
		for id, n := range paid {
			c.paid[id] += n
		}
	}
	return nil
}

func (c *paidCount) promotions(ctx context.Context) ([]PaidBefore, error) {
	ids := slices.SortedFunc(maps.Keys(c.paid), func(a, b reward.PromotionID) int {
		return cmp.Or(cmp.Compare(c.paid[b], c.paid[a]), cmp.Compare(b, a))
	})
	var out []PaidBefore
	for _, id := range ids[:min(len(ids), paidShownMax)] {
		view, err := c.from.PromotionGet(store.ForViewer(ctx), id)
		if e, ok := errors.AsType[*reward.Error](err); ok && e.Code == reward.CodeNotFound {
			continue // it was deleted meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, PaidBefore{PromotionID: id, Name: view.Name, People: c.paid[id]})
	}
	return out, nil
}
