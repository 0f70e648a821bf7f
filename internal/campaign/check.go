package campaign

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"io"
	"maps"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

const (
	// linesShownMax limits the lines of a file that a check shows besides those with errors.
	linesShownMax = 20
	// paidShownMax limits the promotions that a check names.
	paidShownMax = 20
	// usersPerRead limits the users of one read, which has to end within the time of a viewer.
	usersPerRead = 500
)

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

// PaidBefore says how many people of a file a promotion has paid.
type PaidBefore struct {
	PromotionID reward.PromotionID
	Name        string
	People      int64
}

// Check reads a file to its end and saves nothing. If no columns are given, those count
// that the header suggests.
func (u *Uploads) Check(ctx context.Context, cmd CheckCommand) (CheckResult, error) {
	leave, err := u.enterDryRun(ctx)
	if err != nil {
		return CheckResult{}, err
	}
	defer leave()
	cmd.File.Suggest = true
	reader := NewTargetReader(cmd.Body, cmd.File, cmd.Promotion)
	reader.shownMax = linesShownMax
	c := check{
		rehearsal: newRehearsal(nil, store.PromotionView{Promotion: cmd.Promotion}, u.cfg.DryRunTargetsMax),
		from:      u.cfg.Rows, people: make(map[uint64]struct{}), paid: make(map[reward.PromotionID]int64),
	}
	if err := pump(ctx, reader, c.handle); err != nil {
		return CheckResult{}, err
	}
	paid, err := c.alreadyPaid(ctx)
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
	from   uploadRows
	people map[uint64]struct{} // fingerprints of those who were counted
	paid   map[reward.PromotionID]int64
}

func (c *check) handle(ctx context.Context, b targetBatch) error {
	if err := c.rehearsal.handle(ctx, b); err != nil {
		return err
	}
	var users []string
	for _, r := range b.rows {
		print := maphash.String(c.seed, r.UserID)
		if _, counted := c.people[print]; !counted {
			c.people[print] = struct{}{}
			users = append(users, r.UserID)
		}
	}
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

func (c *check) alreadyPaid(ctx context.Context) ([]PaidBefore, error) {
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
