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
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// uploadLease is how long an upload holds up the completion of its
	// promotion after it was last heard of.
	uploadLease = 12 * time.Second
	// uploadSaveWait bounds one write of an upload.
	uploadSaveWait = 30 * time.Second
	// uploadErrorsShown is how many bad lines an answer names.
	uploadErrorsShown = 100
	// uploadErrorsKept is how many bad lines a report keeps; the count goes on.
	uploadErrorsKept = 100_000
)

// Codes of uploads.
const (
	CodeBodyBroken        = "BODY_BROKEN"
	CodeUploadInterrupted = "UPLOAD_INTERRUPTED"
	CodeAmountOverflow    = "AMOUNT_OVERFLOW"
	CodeDryRunTooLarge    = "DRY_RUN_TOO_LARGE"
)

// uploadRows is what an upload needs of the store, besides a saver.
type uploadRows interface {
	store.Uploads
	PromotionGet(ctx context.Context, id reward.PromotionID) (store.PromotionView, error)
	PayoutHeads(ctx context.Context, ids []store.PayoutID) ([]reward.Payout, error)
}

// saver writes targets; see payout.Flow.Save.
type saver interface {
	Save(ctx context.Context, t reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error)
}

// UploadsConfig is what Uploads needs.
type UploadsConfig struct {
	Rows  uploadRows
	Saver saver
	IDs   *service.IDs
	Log   obs.Log
	// Hint is told when a promotion has gained targets or lost its upload.
	Hint func(reward.PromotionID)
	// DryRunTargetsMax bounds the targets of a dry run, which remembers each of
	// them; 0 = 2,000,000.
	DryRunTargetsMax int
}

// Uploads takes files of targets.
type Uploads struct {
	cfg     UploadsConfig
	log     obs.Log
	dryRuns chan struct{} // one token per dry run under way
}

// NewUploads makes Uploads.
func NewUploads(cfg UploadsConfig) *Uploads {
	cfg.DryRunTargetsMax = cmp.Or(cfg.DryRunTargetsMax, dryRunTargetsMax)
	return &Uploads{cfg: cfg, log: cfg.Log.For(obs.Processor), dryRuns: make(chan struct{}, dryRunsMax)}
}

// UploadCommand asks to take a file of targets.
type UploadCommand struct {
	PromotionID reward.PromotionID
	Body        io.Reader // plain text, already unzipped
	Format      Format
	// DryRun checks and totals without taking anything.
	DryRun bool
}

// UploadResult says what became of a file's lines.
type UploadResult struct {
	UploadID   int64 // 0 when nothing was opened
	Accepted   int64
	Duplicates int64 // known, and the same
	Conflicts  int64 // known with another amount, user or code; nothing changed
	Rejected   int64
	Amount     reward.Amount // of the accepted ones
	// Errors names the first 100 rejected and conflicting lines.
	Errors []store.LineError
}

// Upload reads a file to its end and saves its good lines, whatever the
// promotion's status. The next batch is read while the last one is saved.
// Saving is idempotent by target, so sending the same file again is always
// safe. When the body breaks in the middle, what came before is in; the result
// counts it next to the error.
func (u *Uploads) Upload(ctx context.Context, cmd UploadCommand) (UploadResult, error) {
	view, err := u.cfg.Rows.PromotionGet(ctx, cmd.PromotionID)
	if err != nil {
		return UploadResult{}, err
	}
	reader := NewTargetReader(cmd.Body, cmd.Format, view.Promotion)
	if cmd.DryRun {
		return u.dryRun(ctx, reader, view)
	}
	up := &upload{cfg: u.cfg, log: u.log, promotion: view.Promotion, tally: newTally(view)}
	err = pump(ctx, reader, up.save)
	up.close(ctx)
	return up.result, up.explain(err)
}

// Get returns an upload of a promotion.
func (u *Uploads) Get(ctx context.Context, promotion reward.PromotionID, id int64) (store.Upload, error) {
	return u.cfg.Rows.UploadGet(ctx, promotion, id)
}

// Errors pages over the bad lines of an upload, above after.
func (u *Uploads) Errors(ctx context.Context, id, after int64, limit int) ([]store.LineError, error) {
	return u.cfg.Rows.UploadErrors(ctx, id, after, limit)
}

// targetBatch is a run of lines of a file.
type targetBatch struct {
	rows  []store.NewPayout
	lines []int64 // of each row
	bad   []store.LineError
}

// pump reads targets in the caller's goroutine, so that nobody reads the body
// after pump has returned, and hands them on in batches, one of which waits
// while another is used. use sees at least one batch of a whole file, and none
// after it has failed. Its error comes before that of the reader.
func pump(ctx context.Context, reader *TargetReader, use func(ctx context.Context, b targetBatch) error) error {
	batches := make(chan targetBatch, 1)
	failed := make(chan struct{})
	var useErr error
	var using sync.WaitGroup
	using.Go(func() {
		for b := range batches {
			if useErr != nil {
				continue
			}
			if useErr = use(ctx, b); useErr != nil {
				close(failed)
			}
		}
	})
	readErr := readBatches(ctx, reader, batches, failed)
	close(batches)
	using.Wait()
	if useErr != nil {
		return useErr
	}
	return readErr
}

// readBatches sends what the reader finds until its end, also what came before
// a break.
func readBatches(ctx context.Context, reader *TargetReader, to chan<- targetBatch, failed <-chan struct{}) error {
	for first := true; ; first = false {
		b, err := readBatch(ctx, reader, failed)
		whole := errors.Is(err, io.EOF)
		if len(b.rows)+len(b.bad) > 0 || first && whole {
			select {
			case to <- b:
			case <-failed:
				return nil
			}
		}
		if whole {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// errPumpStopped ends reading after a batch could not be used.
var errPumpStopped = errors.New("payout: the batch before failed")

func readBatch(ctx context.Context, reader *TargetReader, failed <-chan struct{}) (targetBatch, error) {
	var b targetBatch
	for len(b.rows) < store.BatchMax && len(b.bad) < store.BatchMax {
		select {
		case <-failed:
			return b, errPumpStopped
		case <-ctx.Done():
			return b, bodyBroken(context.Cause(ctx))
		default:
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

// bodyBroken gives an error of the stream a code, unless it has one.
func bodyBroken(err error) error {
	if e, ok := errors.AsType[*reward.Error](err); ok {
		return e
	}
	return &reward.Error{Kind: reward.KindMalformed, Code: CodeBodyBroken, Detail: "the body broke off before its end", Err: err}
}

// tally adds up what became of the lines.
type tally struct {
	result UploadResult
	// room is what the promotion's total may still grow by.
	room reward.Amount
}

func newTally(view store.PromotionView) tally {
	return tally{room: math.MaxInt64 - view.Counts.AmountTotal()}
}

// fits refuses a batch that would take the promotion's total out of its range;
// if all of it were accepted, that is. With reward.AmountMax per target that
// takes thousands of the largest amounts, so a single line cannot do it.
func (t *tally) fits(b targetBatch) error {
	left := t.room - t.result.Amount
	for i, r := range b.rows {
		if r.Amount > left {
			return reward.NewError(reward.KindInvalid, CodeAmountOverflow,
				"line %d would take the promotion's total above %d minor units; none was taken from line %d on",
				b.lines[i], int64(math.MaxInt64), b.lines[0])
		}
		left -= r.Amount
	}
	return nil
}

// add counts a batch by the outcomes of its rows, and returns its bad lines in
// order, conflicts among them.
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
				Detail: "target " + b.rows[i].TargetID.String() + " is known with another amount, user or code; nothing was changed",
			})
		}
	}
	slices.SortFunc(bad, func(a, b store.LineError) int { return cmp.Compare(a.Line, b.Line) })
	shown := min(len(bad), uploadErrorsShown-len(r.Errors))
	r.Errors = append(r.Errors, bad[:shown]...)
	return bad
}

// upload is one file on its way into the store.
type upload struct {
	tally
	cfg       UploadsConfig
	log       obs.Log
	promotion reward.Promotion // as it was at the beginning
	row       store.Upload
	kept      int          // bad lines in the report
	lease     service.Base // runs from open to close
}

// open makes the row that holds up the promotion's completion. It comes with
// the first batch, so that a file refused whole leaves nothing behind.
func (u *upload) open(ctx context.Context) error {
	now := time.Now()
	row := store.Upload{
		ID: u.cfg.IDs.Next(), PromotionID: u.promotion.ID, CreatedAt: now, LeasedUntil: now.Add(uploadLease),
	}
	if err := u.cfg.Rows.UploadOpen(ctx, row); err != nil {
		return fmt.Errorf("open an upload: %w", err)
	}
	u.row, u.result.UploadID = row, row.ID
	u.lease.Start(context.WithoutCancel(ctx), u.extend)
	return nil
}

// extend keeps the lease alive. When it cannot, the promotion may complete
// while the upload goes on; the next targets reopen it.
func (u *upload) extend(ctx context.Context) {
	for service.Sleep(ctx, uploadLease/3) {
		wctx, cancel := context.WithTimeout(ctx, uploadLease/3)
		err := u.cfg.Rows.UploadExtend(wctx, u.row.ID, time.Now().Add(uploadLease))
		cancel()
		if err != nil && ctx.Err() == nil {
			u.log.Warn("extending upload lease failed", err, "promotion_id", u.promotion.ID, "upload_id", u.row.ID)
		}
	}
}

// save takes a batch. A caller who has gone does not stop a write under way.
func (u *upload) save(ctx context.Context, b targetBatch) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uploadSaveWait)
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
		res, err := u.cfg.Saver.Save(ctx, u.promotion.Type, store.PayoutSaveParams{Rows: b.rows})
		if err != nil {
			return fmt.Errorf("save targets: %w", err)
		}
		outcomes = res.Outcomes
	}
	accepted := u.result.Accepted
	bad := u.add(b, outcomes)
	if u.result.Accepted > accepted {
		u.cfg.Hint(u.promotion.ID)
	}
	return u.keep(ctx, bad)
}

// keep writes bad lines into the report, as far as it goes.
func (u *upload) keep(ctx context.Context, bad []store.LineError) error {
	bad = bad[:min(len(bad), uploadErrorsKept-u.kept)]
	for chunk := range slices.Chunk(bad, store.BatchMax) {
		if err := u.cfg.Rows.UploadAddErrors(ctx, u.row.ID, chunk); err != nil {
			return fmt.Errorf("keep the lines that were refused: %w", err)
		}
		u.kept += len(chunk)
	}
	return nil
}

// close lets the promotion complete. When that fails the lease runs out.
func (u *upload) close(ctx context.Context) {
	if u.row.ID == 0 {
		return
	}
	u.lease.Stop()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uploadSaveWait)
	defer cancel()
	r := &u.result
	u.row.Accepted, u.row.Duplicates, u.row.Conflicts = r.Accepted, r.Duplicates, r.Conflicts
	u.row.Rejected, u.row.Amount = r.Rejected, r.Amount
	u.row.FinishedAt = time.Now()
	if err := u.cfg.Rows.UploadClose(ctx, u.row, u.row.FinishedAt); err != nil {
		u.log.Warn("closing upload failed", err, "promotion_id", u.promotion.ID, "upload_id", u.row.ID)
	}
	u.log.Info("upload saved", "promotion_id", u.promotion.ID, "upload_id", u.row.ID, "accepted", r.Accepted,
		"duplicates", r.Duplicates, "conflicts", r.Conflicts, "rejected", r.Rejected)
	u.cfg.Hint(u.promotion.ID)
}

// explain tells the caller how far the upload came.
func (u *upload) explain(err error) error {
	if err == nil || u.row.ID == 0 {
		return err
	}
	out := reward.Error{Kind: reward.KindUnavailable, Code: CodeUploadInterrupted, Detail: "the targets could not be saved", Err: err}
	if e, ok := errors.AsType[*reward.Error](err); ok {
		out = *e
	}
	out.Detail += fmt.Sprintf("; %d targets were accepted before that, and sending the same file again is safe", u.result.Accepted)
	return &out
}
