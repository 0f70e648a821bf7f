package main

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab"
	"github.com/largesse/largesse/internal/reward"
)

const (
	demoCoupons  = 1_000
	demoShoppers = 10_000
	demoAtOnce   = 64
	demoDropPoll = 50 * time.Millisecond
)

// drop runs the last part of the demo: shoppers request coupons over HTTP, and
// there are more shoppers than coupons.
func (d *demo) drop(ctx context.Context) error {
	d.say("\nA coupon drop: %s, first come, first served, for %s who request one over HTTP.\n", countOf(int64(d.coupons), "coupon"), countOf(int64(d.shoppers), "shopper"))
	t, err := d.client.CreateTemplate(ctx, client.NewTemplate{Name: "Demo: the Friday drop", TotalQuantity: int64(d.coupons)})
	if err != nil {
		return fmt.Errorf("create the drop: %w", err)
	}
	id, err := reward.ParseTemplateID(t.ID)
	if err != nil {
		return err
	}
	began := time.Now()
	crowd := lab.Shoppers{Client: d.client, TemplateID: t.ID, People: d.shoppers, AtOnce: demoAtOnce}.Start(ctx)
	longest, err := d.watchDrop(ctx, t.ID, crowd)
	if err != nil {
		return err
	}
	took := time.Since(began)
	want := int64(min(d.coupons, d.shoppers))
	verdicts, err := lab.CheckDrop(ctx, d.site.instance().Store(), id, want)
	if err != nil {
		return err
	}
	counts := crowd.Counts()
	verdicts = append(verdicts, lab.Verdict{
		Invariant: "every other shopper was told SOLD_OUT", Holds: counts.LetIn == want && counts.SoldOut == int64(d.shoppers)-want,
		Detail: fmt.Sprintf("admitted %s, sold out for %s", number(counts.LetIn), number(counts.SoldOut)),
	})
	d.say("\nInvariants of the drop")
	d.judged(verdicts)
	d.say("\nServed %s in %.1f s. The longest line had %s waiting.", countOf(int64(d.shoppers), "shopper"), took.Seconds(), countOf(longest, "shopper"))
	d.result.Drop = dropJSON{
		TemplateID: t.ID, Coupons: d.coupons, Shoppers: d.shoppers, LetIn: counts.LetIn, SoldOut: counts.SoldOut,
		Seconds: took.Seconds(), LongestLine: longest,
	}
	return nil
}

// dropJSON is the result of the drop.
type dropJSON struct {
	TemplateID  string  `json:"templateId"`
	Coupons     int     `json:"coupons"`
	Shoppers    int     `json:"shoppers"`
	LetIn       int64   `json:"letIn"`
	SoldOut     int64   `json:"soldOut"` // shoppers who were refused
	Seconds     float64 `json:"seconds"`
	LongestLine int64   `json:"longestLine"`
	// HeldBy did not confirm a held coupon, and HoldPassedTo then got the place.
	HeldBy       string `json:"heldBy"`
	HoldPassedTo string `json:"holdPassedTo"`
}

// watchDrop shows the shoppers, the coupons and the line until all coupons are
// issued. It returns the greatest length of the line.
func (d *demo) watchDrop(ctx context.Context, id string, crowd *lab.Crowd) (longest int64, err error) {
	show := newBars(d.world)
	defer show.Close()
	want := int64(min(d.coupons, d.shoppers))
	open := true
	for {
		t, err := d.client.Template(ctx, id)
		if err != nil {
			return 0, fmt.Errorf("read the coupon template: %w", err)
		}
		longest = max(longest, t.Counters.Waiting)
		show.Update("shoppers answered", crowd.Counts().Answered, int64(d.shoppers))
		show.Update("coupons issued", t.Counters.IssuedTotal, want)
		if show.Live() { // lines cannot show a value that rises and falls
			show.Update("waiting in line", t.Counters.Waiting, want)
		}
		if !open && t.Counters.IssuedTotal >= want && t.Counters.Waiting == 0 {
			return longest, nil
		}
		select {
		case err := <-crowd.Done():
			if err != nil {
				return 0, err
			}
			open = false
		case <-time.After(demoDropPoll):
		case err := <-d.site.lost:
			return 0, err
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}
