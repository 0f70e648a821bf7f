package coupon

import (
	"context"
	"io"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	codesSweepInterval = time.Minute
	codesSweepBatch    = 10_000 // codes per transaction
	// codesIdleMax is how long an import may make no progress. The API ends a slow
	// upload long before.
	codesIdleMax = time.Hour
)

// CodesAdded describes an import of codes.
type CodesAdded struct {
	Count       int64
	First, Last string // codes, in the order of the file
}

// ImportCodes gives the codes of a CSV file to a template, and returns it with what
// was added. It reads the file in batches of any number, and publishes them with one
// change at the end. by becomes an author of the template just before that, and cannot
// approve the codes. A quantity that was approved waits again, by rules.LimitImport.
//
// After any error nothing has changed, except for the author if an outage ended the
// import. The errors are those of rules.CheckImport, CodeBadCodes for the first bad line,
// and those of the reader.
func (c *Catalog) ImportCodes(ctx context.Context, id reward.TemplateID, by string, file io.Reader) (View, CodesAdded, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil {
		return View{}, CodesAdded{}, err
	}
	// Refuse a template that takes no codes before the file is read.
	if err := rules.CheckImport(&t, reward.TemplateQuantityMax-t.CodesImported+t.CodesReturned, c.limit); err != nil {
		return View{}, CodesAdded{}, err
	}
	importID := c.ids.Next()
	if err := c.rows.CodesBegin(ctx, id, importID, time.Now()); err != nil {
		return View{}, CodesAdded{}, err
	}
	change, added, err := c.importCodes(ctx, id, importID, by, newCodeFile(file))
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), saveTimeout)
		defer cancel()
		_ = c.rows.CodesDiscard(ctx, importID) // otherwise a sweep ends it
		return View{}, CodesAdded{}, err
	}
	c.afterChange(ctx, &change)
	return c.views(ctx, []reward.CouponTemplate{change.Template})[0], added, nil
}

// importCodes stages the codes of a file and publishes them.
func (c *Catalog) importCodes(ctx context.Context, id reward.TemplateID, importID int64, by string, file *codeFile) (store.CouponChange, CodesAdded, error) {
	var added CodesAdded
	for {
		b, err := file.next()
		if err != nil {
			return store.CouponChange{}, CodesAdded{}, err
		}
		if len(b.codes) == 0 {
			break
		}
		taken, err := c.rows.CodesStage(ctx, store.CodesStageParams{TemplateID: id, ImportID: importID, Staged: added.Count, Codes: b.codes, Now: time.Now()})
		switch at := taken.At; {
		case err != nil:
			return store.CouponChange{}, CodesAdded{}, err
		case at >= 0 && taken.Template:
			return store.CouponChange{}, CodesAdded{}, knownCode(b.lines[at], b.codes[at])
		case at >= 0:
			return store.CouponChange{}, CodesAdded{}, repeatedCode(b.lines[at], b.codes[at])
		}
		if added.Count == 0 {
			added.First = b.codes[0]
		}
		added.Count += int64(len(b.codes))
		added.Last = b.codes[len(b.codes)-1]
	}
	if added.Count == 0 {
		return store.CouponChange{}, CodesAdded{}, reward.NewError(reward.KindInvalid, reward.CodeBadCodes, "the file has no codes; send one code per line")
	}
	t, err := c.rows.TemplateGet(ctx, id)
	if err == nil {
		err = rules.CheckImport(&t, added.Count, c.limit) // who is refused is no author
	}
	if err == nil && t.Authors.Add(by) != t.Authors {
		_, err = c.Change(ctx, rules.TemplateChange{ID: id, By: by})
	}
	if err != nil {
		return store.CouponChange{}, CodesAdded{}, err
	}
	change, err := c.rows.CodesPublish(ctx, id, importID, added.Count, c.limit)
	return change, added, err
}

// sweepCodes removes the codes of imports that were not published, until ctx ends.
func (f *Flow) sweepCodes(ctx context.Context) {
	report := f.log.Streak("removing codes that were not imported failed", "")
	for ctx.Err() == nil {
		n, err := f.cfg.Store.CodesSweep(ctx, time.Now().Add(-codesIdleMax), codesSweepBatch)
		if ctx.Err() == nil {
			report(err)
		}
		if n == 0 {
			service.Sleep(ctx, service.Jitter(codesSweepInterval, 0.2))
		}
	}
}
