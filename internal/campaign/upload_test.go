package campaign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

// fakeUploadRows stores in memory what uploads write.
type fakeUploadRows struct {
	mu     sync.Mutex // protects the fields below
	view   store.PromotionView
	other  reward.Promotion
	rows   map[reward.TargetID]store.NewPayout
	saves  int
	failAt int // the save (from 1) that fails; 0 means none
	// archived makes every save find that the promotion was archived.
	archived bool
	// overflows makes every save find that the amounts of others and its own are too much.
	overflows bool
	opened    []store.Upload
	extends   []time.Time
	closed    []store.Upload
	errs      []store.LineError
	hints     int
	ahead     time.Duration                   // of the clock
	paid      map[string][]reward.PromotionID // by user
}

func newFakeUploadRows(p reward.Promotion) *fakeUploadRows {
	return &fakeUploadRows{view: store.PromotionView{Promotion: p}, rows: make(map[reward.TargetID]store.NewPayout)}
}

func (f *fakeUploadRows) uploads() *Uploads {
	return NewUploads(UploadsConfig{Rows: f, Saver: f, IDs: service.NewIDs(), Hint: func(reward.PromotionID) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.hints++
	}})
}

func (f *fakeUploadRows) PromotionGet(_ context.Context, id reward.PromotionID) (store.PromotionView, error) {
	if id == f.other.ID && id != 0 {
		return store.PromotionView{Promotion: f.other}, nil
	}
	if id != f.view.ID {
		return store.PromotionView{}, reward.NewError(reward.KindNotFound, reward.CodeNotFound, "no promotion %s", id)
	}
	return f.view, nil
}

func (f *fakeUploadRows) PromotionsPaid(_ context.Context, users []string) (map[reward.PromotionID]int64, error) {
	paid := make(map[reward.PromotionID]int64)
	for _, user := range users {
		for _, id := range f.paid[user] {
			paid[id]++
		}
	}
	return paid, nil
}

func (f *fakeUploadRows) PayoutList(_ context.Context, p store.PayoutListParams) ([]reward.Payout, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []reward.Payout
	for _, id := range slices.Sorted(maps.Keys(f.rows)) {
		if (p.After == nil || id > *p.After) && len(out) < p.Limit {
			out = append(out, reward.Payout{TargetID: id, UserID: f.rows[id].UserID})
		}
	}
	return out, nil
}

func (f *fakeUploadRows) PayoutGetMany(_ context.Context, ids []store.PayoutID) ([]reward.Payout, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []reward.Payout
	for _, id := range ids {
		if r, ok := f.rows[id.TargetID]; ok {
			out = append(out, reward.Payout{TargetID: r.TargetID, UserID: r.UserID, Amount: r.Amount, VoucherCode: r.VoucherCode})
		}
	}
	return out, nil
}

func (f *fakeUploadRows) Save(ctx context.Context, t reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.saves++
	if ctx.Err() != nil || f.saves == f.failAt || t != f.view.Type || len(p.Rows) > store.BatchMax {
		return store.PayoutSaveResult{}, errors.New("the database is away")
	}
	if f.overflows {
		return store.PayoutSaveResult{}, rules.AmountOverflow(f.view.ID)
	}
	var res store.PayoutSaveResult
	for _, r := range p.Rows {
		known, ok := f.rows[r.TargetID]
		outcome := store.Accepted
		switch {
		case f.archived:
			outcome = store.Archived
		case !ok:
			f.rows[r.TargetID] = r
		case known == r:
			outcome = store.Duplicate
		default:
			outcome = store.Conflict
		}
		res.Outcomes = append(res.Outcomes, outcome)
	}
	return res, nil
}

func (f *fakeUploadRows) Clock(context.Context) (time.Time, error) {
	return time.Now().Add(f.ahead), nil
}

func (f *fakeUploadRows) UploadOpen(_ context.Context, u store.Upload) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opened = append(f.opened, u)
	return nil
}

func (f *fakeUploadRows) UploadExtend(_ context.Context, _ int64, until time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.extends = append(f.extends, until)
	return nil
}

func (f *fakeUploadRows) UploadAddErrors(_ context.Context, _ int64, errs []store.LineError) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(errs) == 0 || len(errs) > store.BatchMax {
		return fmt.Errorf("a batch of %d", len(errs))
	}
	f.errs = append(f.errs, errs...)
	return nil
}

func (f *fakeUploadRows) UploadClose(_ context.Context, u store.Upload, _ time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = append(f.closed, u)
	return nil
}

func csvOf(from, n int) string {
	var b strings.Builder
	b.WriteString("targetId\n")
	for i := range n {
		fmt.Fprintln(&b, from+i)
	}
	return b.String()
}

// counts omits what differs between runs.
func counts(r UploadResult) UploadResult {
	r.UploadID, r.Errors = 0, nil
	return r
}

func command(body io.Reader) UploadCommand {
	return UploadCommand{PromotionID: pointPromotion.ID, Body: body, File: File{Format: FormatCSV}}
}

func TestUpload(t *testing.T) {
	t.Parallel()

	t.Run("AnArchivedPromotionTakesNoFile", func(t *testing.T) {
		t.Parallel()
		f := newFakeUploadRows(pointPromotion)
		f.view.ArchivedAt = time.Now()
		for _, dryRun := range []bool{false, true} {
			cmd := command(strings.NewReader(csvOf(1, 2)))
			cmd.DryRun = dryRun
			if _, err := f.uploads().Upload(t.Context(), cmd); !reward.HasCode(err, reward.CodeArchived) || len(f.opened) > 0 || f.saves > 0 {
				t.Errorf("dry run %v: %v; %d uploads opened, %d saves", dryRun, err, len(f.opened), f.saves)
			}
		}
	})

	t.Run("ItIsArchivedDuringTheUpload", func(t *testing.T) {
		t.Parallel()
		f := newFakeUploadRows(pointPromotion)
		f.archived = true
		_, err := f.uploads().Upload(t.Context(), command(strings.NewReader(csvOf(1, 2))))
		if !reward.HasCode(err, reward.CodeArchived) || len(f.closed) != 1 || !f.closed[0].Interrupted || f.closed[0].Accepted != 0 {
			t.Errorf("%v; closed %+v", err, f.closed)
		}
	})

	t.Run("SameFileAgainIsAllDuplicates", func(t *testing.T) {
		t.Parallel()
		f := newFakeUploadRows(pointPromotion)
		u := f.uploads()
		for i, want := range []UploadResult{{Accepted: 2500, Amount: 250_000}, {Duplicates: 2500}} {
			got := fixture.Must(u.Upload(t.Context(), command(strings.NewReader(csvOf(1, 2500)))))(t)
			fixture.Equal(t, want, counts(got))
			if got.UploadID == 0 || f.opened[i].ID != got.UploadID || f.closed[i].ID != got.UploadID || f.closed[i].Accepted != want.Accepted {
				t.Errorf("upload %d: opened %+v, closed %+v", i, f.opened[i], f.closed[i])
			}
		}
		if f.hints < 3 || f.opened[0].LeasedUntil.Sub(f.opened[0].CreatedAt) != uploadLeaseTTL {
			t.Errorf("%d hints, lease %v", f.hints, f.opened[0])
		}
	})

	t.Run("ConflictsAndRejectedAreNamedInOrder", func(t *testing.T) {
		t.Parallel()
		f := newFakeUploadRows(pointPromotion)
		got := fixture.Must(f.uploads().Upload(t.Context(), command(strings.NewReader("targetId,amount\n1,5\n1,6\nx,1\n1,5\n2,\n2,7\n"))))(t)
		fixture.Equal(t, UploadResult{Accepted: 2, Duplicates: 1, Conflicts: 2, Rejected: 1, Amount: 105}, counts(got))
		var named []string
		for _, e := range got.Errors {
			named = append(named, fmt.Sprintf("%d %s", e.Line, e.Code))
		}
		fixture.Equal(t, []string{"3 CONFLICT", "4 BAD_ID", "7 CONFLICT"}, named)
		fixture.Equal(t, f.errs, got.Errors)
	})

	t.Run("KeepsAHundredThousandErrorsAndCountsOn", func(t *testing.T) {
		t.Parallel()
		f := newFakeUploadRows(pointPromotion)
		got := fixture.Must(f.uploads().Upload(t.Context(), command(strings.NewReader("targetId\n"+strings.Repeat("x\n", 100_500)+"1\n"))))(t)
		if got.Rejected != 100_500 || got.Accepted != 1 || len(got.Errors) != 100 || len(f.errs) != 100_000 {
			t.Errorf("rejected %d, accepted %d, shown %d, kept %d", got.Rejected, got.Accepted, len(got.Errors), len(f.errs))
		}
	})

	t.Run("ABrokenBodyKeepsWhatCameBefore", func(t *testing.T) {
		t.Parallel()
		f := newFakeUploadRows(pointPromotion)
		body := io.MultiReader(strings.NewReader(csvOf(1, 1500)+"9999"), iotest.ErrReader(io.ErrUnexpectedEOF))
		got, err := f.uploads().Upload(t.Context(), command(body))
		if !reward.HasCode(err, CodeBodyBroken) || reward.KindOf(err) != reward.KindMalformed || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("error %v", err)
		}
		if !strings.Contains(err.Error(), "1500 targets were accepted") || !strings.Contains(err.Error(), "sending the same file again is safe") {
			t.Errorf("error %v", err)
		}
		if _, cut := f.rows[9999]; got.Accepted != 1500 || len(f.rows) != 1500 || cut {
			t.Errorf("accepted %d, rows %d", got.Accepted, len(f.rows))
		}
		if len(f.closed) != 1 || f.closed[0].Accepted != 1500 {
			t.Errorf("closed %+v", f.closed)
		}
	})

	t.Run("AFailedSaveStopsReading", func(t *testing.T) {
		t.Parallel()
		f := newFakeUploadRows(pointPromotion)
		f.failAt = 2
		got, err := f.uploads().Upload(t.Context(), command(io.MultiReader(strings.NewReader("targetId\n"), repeating("5\n"))))
		if !reward.HasCode(err, CodeUploadInterrupted) || reward.KindOf(err) != reward.KindUnavailable {
			t.Fatalf("error %v", err)
		}
		if got.Accepted != 1 || got.Duplicates != 999 || len(f.closed) != 1 || f.saves != 2 {
			t.Errorf("result %+v, closed %+v, saves %d", got, f.closed, f.saves)
		}
	})

	t.Run("ACancelledCallerEndsAnEndlessBody", func(t *testing.T) {
		t.Parallel()
		f := newFakeUploadRows(pointPromotion)
		ctx, cancel := context.WithCancel(t.Context())
		body := io.MultiReader(strings.NewReader(csvOf(1, 1000)), &calling{f: cancel}, repeating("5\n"))
		_, err := f.uploads().Upload(ctx, command(body))
		if !reward.HasCode(err, CodeBodyBroken) || !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
		if len(f.rows) != 1000 || len(f.closed) != 1 {
			t.Errorf("rows %d, closed %+v", len(f.rows), f.closed)
		}
	})

	t.Run("AFileRefusedWholeOpensNothing", func(t *testing.T) {
		t.Parallel()
		f := newFakeUploadRows(pointPromotion)
		_, err := f.uploads().Upload(t.Context(), command(strings.NewReader("nope\n1\n")))
		if !reward.HasCode(err, CodeNoHeader) || len(f.opened)+len(f.closed) != 0 {
			t.Fatalf("error %v, opened %v", err, f.opened)
		}
	})

	t.Run("ATotalOutOfRange", func(t *testing.T) {
		t.Parallel()
		for _, dry := range []bool{false, true} {
			f := newFakeUploadRows(pointPromotion)
			f.view.Counts.Amounts[reward.Succeeded] = math.MaxInt64 - 10
			cmd := command(strings.NewReader("targetId,amount\n1,10\n2,1\n"))
			cmd.DryRun = dry
			if _, err := f.uploads().Upload(t.Context(), cmd); !reward.HasCode(err, reward.CodeAmountOverflow) || len(f.rows) != 0 || !strings.Contains(err.Error(), "line 3 would") {
				t.Fatalf("dry %v: error %v, rows %v", dry, err, f.rows)
			}
		}
		f := newFakeUploadRows(pointPromotion)
		f.overflows = true
		_, err := f.uploads().Upload(t.Context(), command(strings.NewReader("targetId,amount\n1,10\n")))
		if !reward.HasCode(err, reward.CodeAmountOverflow) || !strings.Contains(err.Error(), "split the targets across promotions; no target from line 2 on was accepted; 0 targets") {
			t.Fatalf("with another upload: %v", err)
		}
	})
}

// repeating is an endless stream.
func repeating(s string) io.Reader { return &repeater{s: s} }

type repeater struct {
	s  string
	at int
}

func (r *repeater) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = r.s[r.at%len(r.s)]
		r.at++
	}
	return len(p), nil
}

// calling is an empty stream that calls f when it is read.
type calling struct{ f func() }

func (c *calling) Read([]byte) (int, error) {
	c.f()
	return 0, io.EOF
}

// TestUploadKeepsItsLease checks that an upload extends its lease in time, by the
// clock of the database: another instance decides by it whether the upload is live.
func TestUploadKeepsItsLease(t *testing.T) {
	t.Parallel()
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		fixture.OnFakeTime(t, fmt.Sprint(ahead), func(t *testing.T) {
			f := newFakeUploadRows(pointPromotion)
			f.ahead = ahead
			began := time.Now()
			// The first batch is complete, so the upload is open; then the sender
			// pauses for a minute.
			body := io.MultiReader(strings.NewReader(csvOf(1, 1000)), &calling{f: func() { time.Sleep(time.Minute) }}, strings.NewReader("5000\n"))
			got, err := f.uploads().Upload(t.Context(), command(body))
			if err != nil || got.Accepted != 1001 {
				t.Fatalf("%+v, %v", got, err)
			}
			if len(f.extends) < 4 {
				t.Errorf("extended %d times in a minute", len(f.extends))
			}
			until := f.opened[0].LeasedUntil
			if lasts := until.Sub(began.Add(ahead)); lasts != uploadLeaseTTL {
				t.Errorf("the lease lasts for %v by the clock of the database", lasts)
			}
			for _, next := range f.extends {
				if next.Sub(until) > uploadLeaseTTL {
					t.Errorf("the lease lapsed between %v and %v", until, next)
				}
				until = next
			}
		})
	}
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	const file = "targetId,amount\n1,5\n1,5\n1,6\n2,7\n3,8\n3,9\n4,\nx,1\n"
	f := newFakeUploadRows(pointPromotion)
	u := f.uploads()
	fixture.Must(u.Upload(t.Context(), command(strings.NewReader("targetId,amount\n2,7\n3,9\n"))))(t)
	rows, opened := len(f.rows), len(f.opened)
	cmd := command(strings.NewReader(file))
	cmd.DryRun = true
	dry := fixture.Must(u.Upload(t.Context(), cmd))(t)
	want := UploadResult{Accepted: 2, Duplicates: 3, Conflicts: 2, Rejected: 1, Amount: 105}
	fixture.Equal(t, want, counts(dry))
	if len(f.rows) != rows || len(f.opened) != opened || dry.UploadID != 0 {
		t.Errorf("a dry run left rows %d, uploads %d, id %d", len(f.rows), len(f.opened), dry.UploadID)
	}
	// The upload has the same result.
	real := fixture.Must(u.Upload(t.Context(), command(strings.NewReader(file))))(t)
	real.UploadID = 0
	fixture.Equal(t, dry, real)
}

func TestDryRunKnowsRepeatsAcrossBatches(t *testing.T) {
	t.Parallel()
	f := newFakeUploadRows(pointPromotion)
	cmd := command(strings.NewReader(csvOf(1, 3000) + strings.TrimPrefix(csvOf(1, 3000), "targetId\n")))
	cmd.DryRun = true
	got := fixture.Must(f.uploads().Upload(t.Context(), cmd))(t)
	fixture.Equal(t, UploadResult{Accepted: 3000, Duplicates: 3000, Amount: 300_000}, counts(got))
}

func TestDryRunIsBounded(t *testing.T) {
	t.Parallel()
	f := newFakeUploadRows(pointPromotion)
	u := NewUploads(UploadsConfig{Rows: f, DryRunTargetsMax: 1500})
	cmd := command(strings.NewReader(csvOf(1, 2500)))
	cmd.DryRun = true
	if _, err := u.Upload(t.Context(), cmd); !reward.HasCode(err, CodeDryRunTooLarge) {
		t.Fatalf("error %v", err)
	}
	fixture.Equal(t, int64(0), u.rehearsed.Load())
}

func TestDryRunsShareTheirMemory(t *testing.T) {
	t.Parallel()
	u := newFakeUploadRows(pointPromotion).uploads()
	cmd := command(strings.NewReader(csvOf(1, 2)))
	cmd.DryRun = true
	u.rehearsed.Add(dryRunsTargetsMax - 1)
	if _, err := u.Upload(t.Context(), cmd); !reward.HasCode(err, reward.CodeUnavailable) {
		t.Fatalf("error %v", err)
	}
	u.rehearsed.Add(-1)
	cmd.Body = strings.NewReader(csvOf(1, 2))
	if got, err := u.Upload(t.Context(), cmd); err != nil || got.Accepted != 2 {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestSlowDryRunsHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	u := newFakeUploadRows(pointPromotion).uploads()
	var slow sync.WaitGroup
	defer slow.Wait()
	for range 10 {
		r, w := io.Pipe()
		defer func() { _ = w.Close() }()
		cmd := command(r)
		cmd.DryRun = true
		slow.Go(func() { _, _ = u.Upload(t.Context(), cmd) })
		_, err := io.WriteString(w, "targetId\n1\n") // its reader is inside
		fixture.OK(t, err)
	}
	cmd := command(strings.NewReader(csvOf(1, 1)))
	cmd.DryRun = true
	if got, err := u.Upload(t.Context(), cmd); err != nil || got.Accepted != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
}

func TestCreateCommandBoundsTheAmount(t *testing.T) {
	t.Parallel()
	for amount, ok := range map[reward.Amount]bool{-1: false, 0: false, 1: true, reward.AmountMax: true, reward.AmountMax + 1: false} {
		c := CreateCommand{PromotionChange: rules.PromotionChange{Name: new("x"), Amount: &amount}, Type: string(reward.Point)}
		wrong := c.Check(time.Now())
		if (len(wrong) == 0) != ok || !ok && !strings.Contains(wrong[0].Detail, "from 1 to 1000000000000000") {
			t.Errorf("%d: %v", amount, wrong)
		}
	}
}
