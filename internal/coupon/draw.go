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
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// NewSeed makes the secret of a draw.
func NewSeed() []byte {
	seed := make([]byte, sha256.Size)
	_, _ = rand.Read(seed) // never fails
	return seed
}

// Commitment is what is published of a seed before the draw.
func Commitment(seed []byte) []byte {
	sum := sha256.Sum256(seed)
	return sum[:]
}

// ListHash stands for a closed list of entrants, which is in the order of the
// bytes of the user ids: the SHA-256 of the SHA-256 of each of them, one after
// the other.
func ListHash(users []string) []byte {
	h := sha256.New()
	for _, user := range users {
		sum := sha256.Sum256([]byte(user))
		_, _ = h.Write(sum[:]) // never fails
	}
	return h.Sum(nil)
}

// DrawOrder puts entrants in the order of the draw: by SHA-256(seed ‖ hash of
// the list ‖ user). With the seed, which is public afterwards and whose hash
// was before, anybody can do it again.
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

// drawer decides the entrants of a draw once their template opens: those up to
// the quantity get coupons, in the order of the draw, the others are refused
// ReasonNotDrawn. Tickets are places in that order, so whoever goes on after a
// crash knows from what is settled where to begin.
type drawer struct {
	rows      store.Store
	templates *TemplateCache
	ids       *service.IDs
	settled   func(id reward.TemplateID)
	log       obs.Log
}

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
		result, err := d.rows.CouponSettle(ctx, d.params(&row, epoch, first, batch))
		if err != nil {
			return err
		}
		if result.Refused != store.NotRefused {
			return nil // somebody else goes on
		}
		first += int64(len(batch))
		d.settled(t.ID)
	}
	done, err := d.rows.DrawDone(ctx, t.ID, epoch, list)
	if done {
		d.log.Info(obs.Completed, "template_id", t.ID, "entrants", len(order))
		d.templates.hint()
		d.settled(t.ID)
	}
	return err
}

func (d *drawer) params(t *reward.CouponTemplate, epoch, first int64, batch []string) store.CouponSettleParams {
	p := store.CouponSettleParams{
		TemplateID: t.ID, Kind: store.SettleInOrder, Epoch: epoch, Generation: t.Generation, Now: time.Now(),
		Asks: make([]store.CouponAsk, len(batch)),
	}
	for i, user := range batch {
		ticket := first + int64(i) + 1
		p.Asks[i] = store.CouponAsk{
			UserID: user, Generation: t.Generation, Ticket: ticket,
			CouponID: reward.CouponID(d.ids.Next()), Code: reward.NewCouponCode(),
		}
		if ticket > t.TotalQuantity {
			p.Asks[i].Reason = reward.ReasonNotDrawn
		}
	}
	return p
}
