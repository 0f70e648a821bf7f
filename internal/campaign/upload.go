package campaign

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/tracing"
)

const (
	// uploadLeaseTTL is the time for which an upload blocks the completion of
	// its promotion after it was last extended.
	uploadLeaseTTL = 12 * time.Second
	// uploadSaveTimeout limits one write of an upload.
	uploadSaveTimeout = 30 * time.Second
	// uploadErrorsShown limits the lines that a response names.
	uploadErrorsShown = 100
	// uploadErrorsMax limits the lines that a report stores. More are only counted.
	uploadErrorsMax = 100_000
	// uploadCellsMax limits the cells that a report stores, in bytes. Further lines have
	// none.
	uploadCellsMax = 16 << 20
)

// Codes of uploads.
const (
	CodeBodyBroken        = "BODY_BROKEN"
	CodeUploadInterrupted = "UPLOAD_INTERRUPTED"
	CodeDryRunTooLarge    = "DRY_RUN_TOO_LARGE"
)

type uploadRows interface {
	UploadOpen(ctx context.Context, u store.Upload) error
	UploadExtend(ctx context.Context, id int64, leasedUntil time.Time) error
	UploadAddErrors(ctx context.Context, id int64, errs []store.LineError) error
	UploadClose(ctx context.Context, u store.Upload, now time.Time) error
	Clock(ctx context.Context) (time.Time, error)
	PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error)
	PayoutGetMany(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error)
	PayoutList(ctx context.Context, p store.PayoutListParams) ([]reward.Payout, error)
	PromotionsPaid(ctx context.Context, users []string) (map[reward.PromotionID]int64, error)
}

type saver interface {
	Save(ctx context.Context, t reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error)
}

// UploadsConfig configures Uploads.
type UploadsConfig struct {
	Rows  uploadRows
	Saver saver
	IDs   *service.IDs
	Log   obs.Log
	// Hint is called with a promotion that got targets or whose upload ended.
	Hint func(reward.PromotionID)
	// DryRunTargetsMax limits the targets of a dry run. Zero means 2,000,000.
	DryRunTargetsMax int
}

// Uploads saves files of targets. It is safe for concurrent use.
type Uploads struct {
	cfg       UploadsConfig
	log       obs.Log
	rehearsed atomic.Int64 // targets that dry runs remember
}

// NewUploads returns Uploads with the given configuration.
func NewUploads(cfg UploadsConfig) *Uploads {
	cfg.DryRunTargetsMax = cmp.Or(cfg.DryRunTargetsMax, dryRunTargetsMax)
	return &Uploads{cfg: cfg, log: cfg.Log.For(obs.Processor)}
}

// UploadCommand describes a file of targets.
type UploadCommand struct {
	PromotionID reward.PromotionID
	Body        io.Reader // decompressed
	File        File
	By          string // who sends it
	FileName    string // by reward.CheckFileName; may be empty
	// DryRun checks and totals the file without saving anything.
	DryRun bool
}

// UploadResult counts the outcomes of a file's lines.
type UploadResult struct {
	UploadID   int64 // 0 if no upload was opened
	Accepted   int64
	Duplicates int64 // exist with the same data
	Conflicts  int64 // exist with other data, which was not changed
	Rejected   int64
	Amount     reward.Amount // total of the accepted targets
	Currency   string        // the promotion's
	// Errors holds the first 100 error lines: those rejected or in conflict.
	Errors []store.LineError
}

// Upload reads a file to its end and saves its valid lines, unless the promotion is
// archived. A COMPLETED promotion that gets targets is RUNNING again, and those of a
// CANCELLED one become CANCELLED. Uploading the same file again is safe. If the body
// ends early, the result counts the targets before that along with the error.
func (u *Uploads) Upload(ctx context.Context, cmd UploadCommand) (UploadResult, error) {
	view, err := u.cfg.Rows.PromotionGet(ctx, cmd.PromotionID)
	if err != nil {
		return UploadResult{}, err
	}
	if err := rules.CheckArchived(cmd.PromotionID, !view.ArchivedAt.IsZero()); err != nil {
		return UploadResult{}, err
	}
	counted := &countedReader{from: cmd.Body}
	reader := NewTargetReader(counted, cmd.File, view.Promotion)
	if cmd.DryRun {
		return u.dryRun(ctx, reader, view)
	}
	up := &upload{cfg: u.cfg, log: u.log, promotion: view.Promotion, by: cmd.By, name: cmd.FileName, body: counted, tally: newTally(view)}
	err = pump(ctx, reader, up.save)
	up.row.Header = reader.shownHeader()
	up.close(ctx, err)
	return up.result, up.explain(err)
}

type countedReader struct {
	from  io.Reader
	bytes int64
}

func (r *countedReader) Read(p []byte) (int, error) {
	n, err := r.from.Read(p)
	r.bytes += int64(n)
	return n, err
}

// targetBatch holds consecutive lines of a file.
type targetBatch struct {
	rows  []store.NewPayout
	lines []int64 // of each row
	bad   []store.LineError
}

// pump reads targets in the caller's goroutine, so that the body is not read after it
// returns, and passes them to handle in batches, at least one per complete file. It
// ends with the first error of handle, or else of the reader.
func pump(ctx context.Context, reader *TargetReader, handle func(ctx context.Context, b targetBatch) error) error {
	reading, stop := context.WithCancel(ctx)
	defer stop()
	batches := make(chan targetBatch, 1)
	var handleErr error
	var handling sync.WaitGroup
	handling.Go(func() {
		for b := range batches {
			if handleErr != nil {
				continue
			}
			if handleErr = handle(ctx, b); handleErr != nil {
				stop()
			}
		}
	})
	var readErr error
	for first := true; readErr == nil; first = false {
		var b targetBatch
		b, readErr = readBatch(reading, reader)
		if len(b.rows)+len(b.bad) > 0 || first && errors.Is(readErr, io.EOF) {
			batches <- b
		}
	}
	close(batches)
	handling.Wait()
	if handleErr == nil && !errors.Is(readErr, io.EOF) {
		return readErr
	}
	return handleErr
}

// readBatch reads the next lines, also those before an error: up to store.BatchMax
// valid or bad ones.
func readBatch(ctx context.Context, reader *TargetReader) (targetBatch, error) {
	var b targetBatch
	for len(b.rows) < store.BatchMax && len(b.bad) < store.BatchMax {
		if ctx.Err() != nil {
			return b, bodyBroken(context.Cause(ctx))
		}
		row, number, bad, err := reader.Next()
		switch {
		case errors.Is(err, io.EOF):
			return b, io.EOF
		case err != nil:
			return b, bodyBroken(err)
		case bad != nil:
			b.bad = append(b.bad, *bad)
		default:
			b.rows = append(b.rows, row)
			b.lines = append(b.lines, number)
		}
	}
	return b, nil
}

// bodyBroken adds a code to a read error that has none.
func bodyBroken(err error) error {
	if e, ok := errors.AsType[*reward.Error](err); ok {
		return e
	}
	return &reward.Error{Kind: reward.KindMalformed, Code: CodeBodyBroken, Detail: "the body ended before it was complete", Err: err}
}

// tally adds up the outcomes of lines.
type tally struct {
	result UploadResult
	// amountLeft is the amount by which the promotion's total may still grow.
	amountLeft reward.Amount
}

func newTally(view store.PromotionView) tally {
	return tally{result: UploadResult{Currency: view.Currency}, amountLeft: math.MaxInt64 - view.Counts.AmountTotal()}
}

// fits refuses a batch that could make the promotion's total overflow.
func (t *tally) fits(b targetBatch) error {
	left := t.amountLeft - t.result.Amount
	for i, r := range b.rows {
		if r.Amount > left {
			return reward.NewError(reward.KindInvalid, reward.CodeAmountOverflow,
				"line %d would make the promotion's total amount exceed %d; no target from line %d on was accepted",
				b.lines[i], int64(math.MaxInt64), b.lines[0])
		}
		left -= r.Amount
	}
	return nil
}

// add counts a batch by the outcomes of its rows, and returns its error lines in order.
func (t *tally) add(b targetBatch, outcomes []store.SaveOutcome) []store.LineError {
	bad := b.bad
	r := &t.result
	r.Rejected += int64(len(bad))
	for i, outcome := range outcomes {
		switch outcome {
		case store.Accepted:
			r.Accepted++
			r.Amount += b.rows[i].Amount
		case store.Duplicate:
			r.Duplicates++
		case store.Conflict:
			r.Conflicts++
			bad = append(bad, store.LineError{
				Line: b.lines[i], Code: LineConflict,
				Detail: "target " + b.rows[i].TargetID.String() + " exists with another amount, user or voucher code and was not changed",
			})
		}
	}
	slices.SortFunc(bad, func(a, b store.LineError) int { return cmp.Compare(a.Line, b.Line) })
	shown := min(len(bad), uploadErrorsShown-len(r.Errors))
	r.Errors = append(r.Errors, bad[:shown]...)
	return bad
}

type upload struct {
	tally
	cfg       UploadsConfig
	log       obs.Log
	promotion reward.Promotion // as of the beginning
	by        string           // who sends it
	name      string           // of the file
	body      *countedReader
	row       store.Upload
	stored    int          // lines in the report
	cells     int          // bytes of cells in the report
	traced    int          // rows in the trace of the request
	lease     service.Base // runs from open to close
}

// open creates the row that blocks the promotion's completion, with the first batch: a
// file refused as a whole leaves no row. The lease is a time of the database, because
// any instance may decide whether it has expired.
func (u *upload) open(ctx context.Context) error {
	now, err := u.cfg.Rows.Clock(ctx)
	if err != nil {
		return fmt.Errorf("open an upload: %w", err)
	}
	row := store.Upload{
		ID: u.cfg.IDs.Next(), PromotionID: u.promotion.ID, CreatedAt: now, LeasedUntil: now.Add(uploadLeaseTTL), CreatedBy: u.by, FileName: u.name,
	}
	if err := u.cfg.Rows.UploadOpen(ctx, row); err != nil {
		return fmt.Errorf("open an upload: %w", err)
	}
	u.row, u.result.UploadID = row, row.ID
	u.lease.Start(context.WithoutCancel(ctx), u.extend)
	return nil
}

// extend renews the lease. If it cannot, the promotion may complete while the
// upload continues; the next targets make it RUNNING again.
func (u *upload) extend(ctx context.Context) {
	for service.Sleep(ctx, uploadLeaseTTL/3) {
		wctx, cancel := context.WithTimeout(ctx, uploadLeaseTTL/3)
		now, err := u.cfg.Rows.Clock(wctx)
		if err == nil {
			err = u.cfg.Rows.UploadExtend(wctx, u.row.ID, now.Add(uploadLeaseTTL))
		}
		cancel()
		if err != nil && ctx.Err() == nil {
			u.log.Warn("extending upload lease failed", err, "promotion_id", u.promotion.ID, "upload_id", u.row.ID)
		}
	}
}

// save saves a batch. A write is completed even if the client disconnects.
func (u *upload) save(ctx context.Context, b targetBatch) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uploadSaveTimeout)
	defer cancel()
	if u.row.ID == 0 {
		if err := u.open(ctx); err != nil {
			return err
		}
	}
	var outcomes []store.SaveOutcome
	if len(b.rows) > 0 {
		if err := u.fits(b); err != nil {
			return err
		}
		u.trace(ctx, b.rows)
		res, err := u.cfg.Saver.Save(ctx, u.promotion.Type, store.PayoutSaveParams{Rows: b.rows})
		if e, ok := errors.AsType[*reward.Error](err); ok && e.Code == reward.CodeAmountOverflow { // others added targets meanwhile
			return reward.NewError(e.Kind, e.Code, "%s; no target from line %d on was accepted", e.Detail, b.lines[0])
		}
		if err != nil {
			return fmt.Errorf("save targets: %w", err)
		}
		if outcomes = res.Outcomes; slices.Contains(outcomes, store.Archived) {
			return rules.CheckArchived(u.promotion.ID, true) // the upload did not begin early enough
		}
	}
	accepted := u.result.Accepted
	bad := u.add(b, outcomes)
	if u.result.Accepted > accepted {
		u.cfg.Hint(u.promotion.ID)
	}
	return u.report(ctx, bad)
}

// trace puts the first targets of the file in the trace of ctx, if it has one.
func (u *upload) trace(ctx context.Context, rows []store.NewPayout) {
	rows = rows[:min(len(rows), tracing.RowsPerRequest-u.traced)]
	u.traced += len(rows)
	parent := tracing.Parent(ctx)
	for i := range rows {
		rows[i].Trace = parent
	}
}

func (u *upload) report(ctx context.Context, bad []store.LineError) error {
	bad = bad[:min(len(bad), uploadErrorsMax-u.stored)]
	for i := range bad {
		for _, cell := range bad[i].Cells {
			u.cells += cellSize(len(cell))
		}
		if u.cells > uploadCellsMax {
			bad[i].Cells = nil
		}
	}
	for chunk := range slices.Chunk(bad, store.BatchMax) {
		if err := u.cfg.Rows.UploadAddErrors(ctx, u.row.ID, chunk); err != nil {
			return fmt.Errorf("store error lines: %w", err)
		}
		u.stored += len(chunk)
	}
	return nil
}

// close lets the promotion complete, and logs the counts. err is why the file was not
// saved to its end. If the row cannot be closed, its lease expires.
func (u *upload) close(ctx context.Context, err error) {
	if u.row.ID == 0 {
		return
	}
	u.lease.Stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uploadSaveTimeout)
	defer cancel()
	r := &u.result
	u.row.Accepted, u.row.Duplicates, u.row.Conflicts = r.Accepted, r.Duplicates, r.Conflicts
	u.row.Rejected, u.row.Amount = r.Rejected, r.Amount
	u.row.Bytes, u.row.Interrupted = u.body.bytes, err != nil
	u.row.FinishedAt = time.Now()
	attrs := []any{
		"promotion_id", u.promotion.ID, "upload_id", u.row.ID, "accepted", r.Accepted,
		"duplicates", r.Duplicates, "conflicts", r.Conflicts, "rejected", r.Rejected,
	}
	closeErr := u.cfg.Rows.UploadClose(ctx, u.row, u.row.FinishedAt)
	if closeErr != nil {
		u.log.Warn("closing upload failed", closeErr, attrs...)
	}
	switch {
	case err != nil:
		u.log.Warn("upload interrupted", err, attrs...)
	case closeErr == nil:
		u.log.Info("upload saved", attrs...)
	}
	u.cfg.Hint(u.promotion.ID)
}

// explain adds to an error how many targets were accepted before it.
func (u *upload) explain(err error) error {
	if err == nil || u.row.ID == 0 {
		return err
	}
	out := reward.Error{Kind: reward.KindUnavailable, Code: CodeUploadInterrupted, Detail: "the targets could not be saved", Err: err}
	if e, ok := errors.AsType[*reward.Error](err); ok && e.Kind == reward.KindUnavailable {
		out.Detail += ": " + e.Detail
	} else if ok {
		out = *e
	}
	out.Detail += fmt.Sprintf("; %d targets were accepted before that, and sending the same file again is safe", u.result.Accepted)
	return &out
}
