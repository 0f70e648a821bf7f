package lab

import (
	"context"
	"fmt"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
)

const (
	demoAtOnce   = 64
	demoDropPoll = 50 * time.Millisecond
)

// drop runs the last part of the demo: shoppers request coupons over HTTP, and
// there are more shoppers than coupons.
func (d *demoRun) drop(ctx context.Context) error {
	d.say("\nA coupon drop: %s, first come, first served, for %s who request one over HTTP.\n", countOf(int64(d.Coupons), "coupon"), countOf(int64(d.Shoppers), "shopper"))
	t, err := d.client.CreateTemplate(ctx, client.NewTemplate{Name: "Demo: the Friday drop", TotalQuantity: int64(d.Coupons)})
	if err != nil {
		return fmt.Errorf("create the drop: %w", err)
	}
	id, err := reward.ParseTemplateID(t.ID)
	if err != nil {
		return err
	}
	began := time.Now()
	shoppers := &crowd{people: d.Shoppers, atOnce: demoAtOnce, request: overHTTP(d.client, t.ID)}
	done := make(chan error, 1)
	go func() { done <- shoppers.run(ctx) }()
	longest, err := d.watchDrop(ctx, t.ID, shoppers, done)
	if err != nil {
		return err
	}
	took := time.Since(began)
	want := int64(min(d.Coupons, d.Shoppers))
	verdicts, err := CheckDrop(ctx, d.site.instance().Store(), id, want)
	if err != nil {
		return err
	}
	letIn, soldOut := shoppers.admitted.Load(), shoppers.soldOut.Load()
	verdicts = append(verdicts, Verdict{
		Invariant: "every other shopper was told SOLD_OUT", Holds: letIn == want && soldOut == int64(d.Shoppers)-want,
		Detail: fmt.Sprintf("admitted %s, sold out for %s", number(letIn), number(soldOut)),
	})
	d.say("\nInvariants of the drop")
	d.judged(verdicts)
	d.say("\nServed %s in %.1f s. The longest line had %s waiting.", countOf(int64(d.Shoppers), "shopper"), took.Seconds(), countOf(longest, "shopper"))
	d.result.Drop = DropResult{
		TemplateID: t.ID, Coupons: d.Coupons, Shoppers: d.Shoppers, LetIn: letIn, SoldOut: soldOut,
		Seconds: took.Seconds(), LongestLine: longest,
	}
	return nil
}

// DropResult is the result of the drop.
type DropResult struct {
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
func (d *demoRun) watchDrop(ctx context.Context, id string, shoppers *crowd, done <-chan error) (longest int64, err error) {
	show := d.Show()
	defer show.Close()
	want := int64(min(d.Coupons, d.Shoppers))
	open := true
	for {
		t, err := d.client.Template(ctx, id)
		if err != nil {
			return 0, fmt.Errorf("read the coupon template: %w", err)
		}
		longest = max(longest, t.Counters.Waiting)
		show.Update("shoppers answered", shoppers.admitted.Load()+shoppers.soldOut.Load(), int64(d.Shoppers))
		show.Update("coupons issued", t.Counters.IssuedTotal, want)
		if show.Live() { // lines cannot show a value that rises and falls
			show.Update("waiting in line", t.Counters.Waiting, want)
		}
		if !open && t.Counters.IssuedTotal >= want && t.Counters.Waiting == 0 {
			return longest, nil
		}
		select {
		case err := <-done:
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
