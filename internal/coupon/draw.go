package coupon

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash"
	"slices"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// NewSeed returns the secret of a new draw.
func NewSeed() []byte {
	seed := make([]byte, sha256.Size)
	_, _ = rand.Read(seed) // never fails
	return seed
}

// Commitment returns the hash of a seed. The hash is published before the draw, the
// seed after it.
func Commitment(seed []byte) []byte {
	sum := sha256.Sum256(seed)
	return sum[:]
}

const (
	// drawMemory is how many entrants all running draws together keep in memory.
	drawMemory = 100_000
	// drawPassMin is the smallest number of entrants that a draw finds in one pass.
	drawPassMin = batchMax
)

// entrantList is the hash of a closed list of entrants, built entrant by entrant in
// the order of the bytes of the user ids: the SHA-256 of the concatenated SHA-256 sums
// of the ids.
type entrantList struct {
	hash hash.Hash
	size int64
}

func newEntrantList() *entrantList { return &entrantList{hash: sha256.New()} }

func (l *entrantList) add(user string) {
	sum := sha256.Sum256([]byte(user))
	_, _ = l.hash.Write(sum[:]) // never fails
	l.size++
}

func (l *entrantList) sum() []byte { return l.hash.Sum(nil) }

// drawKey decides an entrant's place in the order of the draw: SHA-256(seed ‖ list ‖
// user), where list is the hash of the closed list. After the draw, everyone can check
// the order, because the seed is published and must match the Commitment.
type drawKey [sha256.Size]byte

type drawn struct {
	key  drawKey
	user string
}

// drawPass finds the next entrants in the order of a draw. It sees all entrants and
// keeps twice as many as it finds, whatever their number.
type drawPass struct {
	prefix       []byte // seed ‖ list
	size         int    // how many entrants it finds
	found        []drawn
	above, below *drawKey // the keys of those it still looks for are between these; nil = no bound
}

func (p *drawPass) add(user string) {
	key := drawKey(sha256.Sum256(append(p.prefix, user...)))
	if p.above != nil && bytes.Compare(key[:], p.above[:]) <= 0 || p.below != nil && bytes.Compare(key[:], p.below[:]) >= 0 {
		return
	}
	if p.found = append(p.found, drawn{key, user}); len(p.found) >= 2*p.size {
		p.below = lastKey(p.first())
	}
}

func lastKey(order []drawn) *drawKey {
	key := order[len(order)-1].key
	return &key
}

// first returns the entrants found so far, in order.
func (p *drawPass) first() []drawn {
	slices.SortFunc(p.found, func(a, b drawn) int { return bytes.Compare(a.key[:], b.key[:]) })
	if len(p.found) > p.size {
		clear(p.found[p.size:])
		p.found = p.found[:p.size]
	}
	return p.found
}

// drawer settles the requests of the entrants of a draw when their template opens. An
// entrant's ticket is their position in the order of the draw. Entrants with tickets
// up to the quantity get coupons. The others get no row: an entrant of a draw that is
// done is not drawn unless they have an outcome (see addNotDrawn). After a crash, the
// last settled ticket shows where to continue.
//
// A draw goes over the list of entrants once for its hash, and then once for each
// part of its winners, so that its memory does not grow with the entrants. Draws that
// run at the same time share drawMemory.
type drawer struct {
	parts
	running atomic.Int64 // draws
}

// draw closes the list of entrants and settles the requests of those who are drawn. It
// does nothing if the template opens more than a second from now, or if another
// instance has a newer epoch.
func (d *drawer) draw(ctx context.Context, t *reward.CouponTemplate, epoch int64) error {
	if t.Draw.State == reward.DrawOpen && time.Until(t.OpensAt) > time.Second {
		return nil
	}
	row, err := d.rows.DrawClose(ctx, t.ID, epoch)
	if err != nil || row.Draw.State != reward.DrawClosed || row.Epoch != epoch {
		return err
	}
	d.running.Add(1)
	defer d.running.Add(-1)
	list := newEntrantList()
	if err := d.entrants(ctx, t.ID, list.add); err != nil {
		return err
	}
	if settled, err := d.settle(ctx, &row, list); err != nil || !settled {
		return err
	}
	done, err := d.rows.DrawDone(ctx, t.ID, epoch, list.sum())
	if done {
		d.log.Info("draw completed", "template_id", t.ID, "entrants", list.size)
		d.templates.Hint()
		d.settled(t.ID)
	}
	return err
}

// entrants calls add with each entrant, in the order of the bytes of the user ids.
func (d *drawer) entrants(ctx context.Context, id reward.TemplateID, add func(user string)) error {
	for after := ""; ; {
		page, err := d.rows.EntrantList(ctx, id, after, store.BatchMax)
		if err != nil {
			return err
		}
		for _, user := range page {
			add(user)
		}
		if len(page) < store.BatchMax {
			return nil
		}
		after = page[len(page)-1]
	}
}

// settle settles the requests of those who are drawn. It reports false if another
// instance has the template now, and continues.
func (d *drawer) settle(ctx context.Context, row *reward.CouponTemplate, list *entrantList) (bool, error) {
	prefix := slices.Clip(slices.Concat(row.Draw.Seed, list.sum()))
	winners := min(row.TotalQuantity, list.size)
	var above *drawKey
	for first := int64(0); first < winners && row.Settled < winners; {
		share := max(drawMemory/2/d.running.Load(), drawPassMin)
		pass := &drawPass{prefix: prefix, above: above, size: int(min(share, winners-first))}
		if err := d.entrants(ctx, row.ID, pass.add); err != nil {
			return false, err
		}
		order := pass.first()
		if len(order) == 0 {
			return false, fmt.Errorf("the draw of template %s lists fewer entrants than before", row.ID)
		}
		above = lastKey(order)
		for done := max(row.Settled-first, 0); done < int64(len(order)); done += batchMax {
			batch := order[done:min(done+batchMax, int64(len(order)))]
			result, err := d.rows.CouponSettle(ctx, d.settleParams(row, first+done, batch))
			if err != nil || result.Refused != rules.NotRefused {
				return false, err
			}
			d.settled(row.ID)
		}
		first += int64(len(order))
	}
	return true, nil
}

// settleParams returns the transaction for a batch whose tickets follow first.
func (d *drawer) settleParams(t *reward.CouponTemplate, first int64, batch []drawn) store.CouponSettleParams {
	p := store.CouponSettleParams{
		TemplateID: t.ID, Known: t, Kind: rules.SettleInOrder, Epoch: t.Epoch, Generation: t.Generation, Now: time.Now(),
		Requests: make([]rules.CouponRequest, len(batch)),
	}
	for i, one := range batch {
		p.Requests[i] = newAsk(d.ids, t, one.user, t.Generation, first+int64(i)+1)
	}
	return p
}

// addNotDrawn adds an outcome for those users who entered the draw of a template, now
// done, and have no other outcome: they were not drawn.
func addNotDrawn(ctx context.Context, rows Store, t *reward.CouponTemplate, users []string, outcomes map[string]reward.IssueOutcome) error {
	if t.Draw.State != reward.DrawDone {
		return nil
	}
	var missing []string
	for _, user := range users {
		if _, found := outcomes[user]; !found {
			missing = append(missing, user)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	entered, err := rows.EntrantHas(ctx, t.ID, missing)
	for user := range entered {
		outcomes[user] = notDrawn(t.ID, user, t.OpensAt)
	}
	return err
}

// notDrawn is the outcome of an entrant who was not drawn.
func notDrawn(id reward.TemplateID, user string, opensAt time.Time) reward.IssueOutcome {
	return reward.IssueOutcome{TemplateID: id, UserID: user, Reason: reward.ReasonNotDrawn, At: opensAt}
}
