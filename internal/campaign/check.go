package campaign

import (
	"cmp"
	"context"
	"io"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// linesShownMax limits the lines of a file that a check shows besides those with errors.
const linesShownMax = 20

// CheckCommand describes a file of targets of a promotion that need not exist.
type CheckCommand struct {
	Body io.Reader // decompressed
	File File
	// Promotion has the type, the currency and the defaults of the lines.
	Promotion reward.Promotion
}

// CheckResult is what an upload of a file into a new promotion would do.
type CheckResult struct {
	UploadResult
	Found Found
	// Lines are the first ones of the file, and the first that are not accepted, in order.
	Lines []ShownLine
	// AlreadyPaid names the promotions that paid people of the file, most of them first.
	AlreadyPaid []PaidBefore
}

// Check reads a file to its end and saves nothing. If no columns are given, those count
// that the header suggests.
func (u *Uploads) Check(ctx context.Context, cmd CheckCommand) (CheckResult, error) {
	cmd.File.Suggest = true
	reader := NewTargetReader(cmd.Body, cmd.File, cmd.Promotion)
	reader.shownMax = linesShownMax
	c := check{
		rehearsal: u.newRehearsal(nil, store.PromotionView{Promotion: cmd.Promotion}),
		before:    newPaidCount(u.cfg.Rows),
	}
	defer c.forget()
	if err := pump(ctx, reader, c.handle); err != nil {
		return CheckResult{}, err
	}
	paid, err := c.before.promotions(ctx)
	if err != nil {
		return CheckResult{}, err
	}
	return CheckResult{UploadResult: c.result, Found: reader.Found(), Lines: withErrors(reader.shown, c.result.Errors), AlreadyPaid: paid}, nil
}

// withErrors adds error lines to the first lines of a file. Some of these may turn out to
// be repeats of others only after they were shown.
func withErrors(shown []ShownLine, errs []store.LineError) []ShownLine {
	for i := range errs {
		bad := &errs[i]
		at, known := slices.BinarySearchFunc(shown, bad.Line, func(l ShownLine, line int64) int { return cmp.Compare(l.Line, line) })
		if known {
			shown[at].Fault = bad
		} else {
			shown = slices.Insert(shown, at, ShownLine{Line: bad.Line, Cells: bad.Cells, Fault: bad})
		}
	}
	return shown
}

// check is a rehearsal that also counts who was paid before.
type check struct {
	*rehearsal
	before *paidCount
}

func (c *check) handle(ctx context.Context, b targetBatch) error {
	if err := c.rehearsal.handle(ctx, b); err != nil {
		return err
	}
	users := make([]string, len(b.rows))
	for i := range b.rows {
		users[i] = b.rows[i].UserID
	}
	return c.before.add(ctx, users)
}
