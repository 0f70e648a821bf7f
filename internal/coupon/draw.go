package coupon

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"slices"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
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

// ListHash returns the hash of a closed list of entrants, sorted by the bytes of
// the user ids: the SHA-256 of the concatenated SHA-256 sums of the ids.
func ListHash(users []string) []byte {
	h := sha256.New()
	for _, user := range users {
		sum := sha256.Sum256([]byte(user))
		_, _ = h.Write(sum[:]) // never fails
	}
	return h.Sum(nil)
}

// DrawOrder returns the entrants in the order of the draw: by SHA-256(seed ‖ list ‖
// user), where list is the hash of the closed list. After the draw, everyone can
// check the order, because the seed is published and must match the Commitment.
func DrawOrder(seed, list []byte, users []string) []string {
	keys := make(map[string][sha256.Size]byte, len(users))
	prefix := slices.Concat(seed, list)
	for _, user := range users {
		keys[user] = sha256.Sum256(append(slices.Clip(prefix), user...))
	}
	out := slices.Clone(users)
	slices.SortFunc(out, func(a, b string) int {
		x, y := keys[a], keys[b]
		return bytes.Compare(x[:], y[:])
	})
	return out
}

// drawer settles the requests of the entrants of a draw when their template opens. An
// entrant's ticket is their position in the order of the draw. Entrants with tickets
// up to the quantity get coupons; the others are rejected with ReasonNotDrawn. After
// a crash, the last settled ticket shows where to continue.
type drawer struct {
	rows      store.Store
	templates *TemplateCache
	ids       *service.IDs
	settled   func(id reward.TemplateID) // called after each batch
	log       obs.Log
}

// draw closes the list of entrants and settles their requests. It does nothing if
// the template opens more than a second from now, or if another instance has a newer
// epoch.
func (d *drawer) draw(ctx context.Context, t *reward.CouponTemplate, epoch int64) error {
	if t.Draw.State == reward.DrawOpen && time.Until(t.OpensAt) > time.Second {
		return nil
	}
	row, err := d.rows.DrawClose(ctx, t.ID, epoch)
	if err != nil || row.Draw.State != reward.DrawClosed || row.Epoch != epoch {
		return err
	}
	var users []string
	for after := ""; ; after = users[len(users)-1] {
		page, err := d.rows.EntrantList(ctx, t.ID, after, store.BatchMax)
		if err != nil {
			return err
		}
		users = append(users, page...)
		if len(page) < store.BatchMax {
			break
		}
	}
	list := ListHash(users)
	order := DrawOrder(row.Draw.Seed, list, users)
	for first := row.Settled; first < int64(len(order)); {
		batch := order[first:min(first+batchMax, int64(len(order)))]
		result, err := d.rows.CouponSettle(ctx, d.settleParams(&row, epoch, first, batch))
		if err != nil {
			return err
		}
		if result.Refused != rules.NotRefused {
			return nil // another instance has the template now, and continues
		}
		first += int64(len(batch))
		d.settled(t.ID)
	}
	done, err := d.rows.DrawDone(ctx, t.ID, epoch, list)
	if done {
		d.log.Info("draw completed", "template_id", t.ID, "entrants", len(order))
		d.templates.hint()
		d.settled(t.ID)
	}
	return err
}

// settleParams returns the transaction for a batch whose tickets follow first.
func (d *drawer) settleParams(t *reward.CouponTemplate, epoch, first int64, batch []string) store.CouponSettleParams {
	p := store.CouponSettleParams{
		TemplateID: t.ID, Kind: rules.SettleInOrder, Epoch: epoch, Generation: t.Generation, Now: time.Now(),
		Requests: make([]rules.CouponRequest, len(batch)),
	}
	for i, user := range batch {
		ticket := first + int64(i) + 1
		p.Requests[i] = newAsk(d.ids, t, user, t.Generation, ticket)
		if ticket > t.TotalQuantity {
			p.Requests[i].Reason = reward.ReasonNotDrawn
		}
	}
	return p
}
