package api

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// fakeStore stores in memory what the API reads and writes. The calls that the
// API does not make are nil.
type fakeStore struct {
	store.Store

	mu       sync.Mutex // protects what follows
	away     error      // answer of every call while set
	awayFrom int        // reads of payouts and errors until away begins; 0 = at once
	gets     int        // calls of PromotionGet
	ps       map[reward.PromotionID]store.PromotionView
	rows     map[store.PayoutID]reward.Payout
	attempts map[store.PayoutID][]reward.Attempt
	sums     []reward.Summary
	uploads  map[int64]store.Upload
	errs     map[int64][]store.LineError
	letters  []reward.DeadLetter
	present  []store.Instance
	reports  map[int64]store.Reconciliation
	oldest   store.OldestPayouts
}

func newFakeStore() *fakeStore {
	return &fakeStore{
		ps: make(map[reward.PromotionID]store.PromotionView), rows: make(map[store.PayoutID]reward.Payout),
		attempts: make(map[store.PayoutID][]reward.Attempt), uploads: make(map[int64]store.Upload), errs: make(map[int64][]store.LineError),
		reports: make(map[int64]store.Reconciliation),
	}
}

func (f *fakeStore) ReconciliationSave(_ context.Context, r store.Reconciliation) error {
	defer f.lock()()
	f.reports[r.ID] = r
	return nil
}

func (f *fakeStore) ReconciliationGet(_ context.Context, id int64) (store.Reconciliation, error) {
	defer f.lock()()
	r, ok := f.reports[id]
	if !ok {
		return r, reward.NewError(reward.KindNotFound, reward.CodeReconciliationNotFound, "there is no reconciliation %d", id)
	}
	return r, nil
}

func (f *fakeStore) ReconciliationList(_ context.Context, before int64, limit int) ([]store.Reconciliation, error) {
	defer f.lock()()
	var out []store.Reconciliation
	for _, r := range f.reports {
		if before == 0 || r.ID < before {
			r.Report = nil
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b store.Reconciliation) int { return cmp.Compare(b.ID, a.ID) })
	return out[:min(len(out), limit)], f.away
}

func (f *fakeStore) PayoutUnknown(context.Context, store.PayoutUnknownParams) ([]reward.Payout, error) {
	defer f.lock()()
	return nil, f.away
}

func (f *fakeStore) PayoutOldest(context.Context) (store.OldestPayouts, error) {
	defer f.lock()()
	return f.oldest, f.away
}

func (f *fakeStore) PromotionTimeline(context.Context, reward.PromotionID, store.TimelineSpan) ([]store.PromotionPoint, error) {
	defer f.lock()()
	return nil, f.away
}

func (f *fakeStore) TemplateTimeline(context.Context, reward.TemplateID, store.TimelineSpan) ([]store.TemplatePoint, error) {
	defer f.lock()()
	return nil, f.away
}

func (f *fakeStore) PayoutHistory(context.Context, string, int) ([]store.UserPayout, error) {
	return nil, nil
}

func (f *fakeStore) PayoutErrors(context.Context, reward.PromotionID) ([]store.PayoutError, error) {
	defer f.lock()()
	return nil, f.away
}

func (f *fakeStore) lock() func() {
	f.mu.Lock()
	return f.mu.Unlock
}

func (f *fakeStore) edit(id reward.PromotionID, edit func(v *store.PromotionView)) {
	defer f.lock()()
	v := f.ps[id]
	edit(&v)
	f.ps[id] = v
}

func (f *fakeStore) Ping(context.Context) error {
	defer f.lock()()
	return f.away
}

func (f *fakeStore) PromotionCreate(_ context.Context, p reward.Promotion) (reward.Promotion, error) {
	defer f.lock()()
	if _, ok := f.ps[p.ID]; ok {
		return p, reward.NewError(reward.KindConflict, reward.CodeExists, "promotion %s exists", p.ID)
	}
	f.ps[p.ID] = store.PromotionView{Promotion: p}
	return p, nil
}

func (f *fakeStore) PromotionGet(_ context.Context, id reward.PromotionID) (store.PromotionView, error) {
	defer f.lock()()
	f.gets++
	v, ok := f.ps[id]
	if f.away != nil && f.awayFrom == 0 {
		return v, f.away
	}
	if !ok {
		return v, reward.NewError(reward.KindNotFound, reward.CodeNotFound, "promotion %s is not known", id)
	}
	return v, nil
}

func (f *fakeStore) PromotionList(_ context.Context, p store.PromotionListParams) ([]store.PromotionView, error) {
	defer f.lock()()
	var out []store.PromotionView
	for _, id := range slices.Backward(slices.Sorted(maps.Keys(f.ps))) {
		v := f.ps[id]
		if (p.Last.ID == 0 || id < p.Last.ID) && (p.Status == "" || p.Status == v.Status) &&
			(!p.AwaitingApproval || rules.AwaitsApproval(v.Promotion, v.Counts, p.ApprovalAbove)) && len(out) < p.Limit {
			out = append(out, v)
		}
	}
	return out, nil
}

func (f *fakeStore) PromotionMove(_ context.Context, p store.PromotionMoveParams) (reward.Promotion, error) {
	defer f.lock()()
	v, ok := f.ps[p.ID]
	switch {
	case !ok:
		return v.Promotion, reward.NewError(reward.KindNotFound, reward.CodeNotFound, "promotion %s is not known", p.ID)
	case !slices.Contains(p.From, v.Status), p.To == reward.Running && !rules.MayRun(v.Promotion, v.Counts, p.ApprovalAbove, p.Now):
		return v.Promotion, reward.NewError(reward.KindConflict, reward.CodeIllegalState, "no")
	}
	v.Status, v.PauseReason = p.To, p.Reason
	f.ps[p.ID] = v
	return v.Promotion, nil
}

func (f *fakeStore) PromotionClose(_ context.Context, id reward.PromotionID) (reward.Promotion, error) {
	defer f.lock()()
	v := f.ps[id]
	v.Closed = true
	f.ps[id] = v
	return v.Promotion, nil
}

func (f *fakeStore) PromotionDelete(_ context.Context, id reward.PromotionID) error {
	defer f.lock()()
	v, ok := f.ps[id]
	switch {
	case !ok:
		return reward.NewError(reward.KindNotFound, reward.CodeNotFound, "promotion %s is not known", id)
	case v.Status != reward.Draft:
		return reward.NewError(reward.KindConflict, reward.CodeIllegalState, "no")
	}
	delete(f.ps, id)
	return nil
}

// Save is the payout flow's way in.
func (f *fakeStore) Save(_ context.Context, _ reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	defer f.lock()()
	if f.away != nil {
		return store.PayoutSaveResult{}, f.away
	}
	var res store.PayoutSaveResult
	for _, r := range p.Rows {
		id := store.PayoutID{PromotionID: r.PromotionID, TargetID: r.TargetID}
		known, ok := f.rows[id]
		outcome := store.Duplicate
		switch {
		case !ok:
			outcome = store.Accepted
			v := f.ps[r.PromotionID]
			state := reward.Ready
			if v.Status == reward.PromotionCancelled {
				state = reward.Cancelled
			}
			v.Counts.Payouts[state]++
			v.Counts.Amounts[state] += r.Amount
			f.ps[r.PromotionID] = v
			f.rows[id] = reward.Payout{
				PromotionID: r.PromotionID, TargetID: r.TargetID, UserID: r.UserID, Amount: r.Amount,
				VoucherCode: r.VoucherCode, State: state, UpdatedAt: time.Now(),
			}
		case known.UserID != r.UserID || known.Amount != r.Amount || known.VoucherCode != r.VoucherCode:
			outcome = store.Conflict
		}
		res.Outcomes = append(res.Outcomes, outcome)
	}
	return res, nil
}

func (f *fakeStore) PayoutGetMany(_ context.Context, ids []store.PayoutID) ([]reward.Payout, error) {
	defer f.lock()()
	var out []reward.Payout
	for _, id := range ids {
		if r, ok := f.rows[id]; ok {
			out = append(out, r)
		}
	}
	return out, nil
}

func (f *fakeStore) PayoutGet(_ context.Context, id store.PayoutID) (reward.Payout, []reward.Attempt, error) {
	defer f.lock()()
	r, ok := f.rows[id]
	if !ok {
		return r, nil, reward.NewError(reward.KindNotFound, reward.CodePayoutNotFound, "no target %s", id.TargetID)
	}
	return r, f.attempts[id], nil
}

func (f *fakeStore) PayoutList(_ context.Context, p store.PayoutListParams) ([]reward.Payout, error) {
	defer f.lock()()
	if f.away != nil {
		if f.awayFrom--; f.awayFrom < 0 {
			return nil, f.away
		}
	}
	if p.Limit < 1 || p.Limit > store.BatchMax {
		return nil, errors.New("a page out of bounds")
	}
	var out []reward.Payout
	for id, r := range f.rows {
		if id.PromotionID == p.PromotionID && (p.After == nil || id.TargetID > *p.After) &&
			(p.State == nil || r.State == *p.State) && (p.Code == "" || r.ErrorCode == p.Code) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b reward.Payout) int { return cmp.Compare(a.TargetID, b.TargetID) })
	return out[:min(len(out), p.Limit)], nil
}

func (f *fakeStore) SummaryList(_ context.Context, id reward.PromotionID, _ int) ([]reward.Summary, error) {
	defer f.lock()()
	var out []reward.Summary
	for _, s := range f.sums {
		if s.PromotionID == id {
			out = append(out, s)
		}
	}
	return out, nil
}

func (f *fakeStore) DeadLetterList(_ context.Context, p store.DeadLetterListParams) ([]reward.DeadLetter, error) {
	defer f.lock()()
	var out []reward.DeadLetter
	for _, l := range slices.Backward(f.letters) {
		if (p.Before == 0 || l.ID < p.Before) && (p.Source == "" || l.Source == p.Source) && (p.Reason == "" || l.Reason == p.Reason) &&
			(p.Status == "" || l.Status == p.Status) && len(out) < p.Limit {
			out = append(out, l)
		}
	}
	return out, f.away
}

func (f *fakeStore) DeadLetterGet(_ context.Context, id int64) (reward.DeadLetter, error) {
	defer f.lock()()
	for _, l := range f.letters {
		if l.ID == id {
			return l, f.away
		}
	}
	return reward.DeadLetter{}, reward.NewError(reward.KindNotFound, reward.CodeDeadLetterNotFound, "there is no dead letter %d", id)
}

func (f *fakeStore) DeadLetterClose(_ context.Context, ids []int64, to reward.DeadLetterStatus, by string, now time.Time) ([]int64, error) {
	defer f.lock()()
	var settled []int64
	for i := range f.letters {
		l := &f.letters[i]
		if slices.Contains(ids, l.ID) && l.Status == reward.DeadLetterOpen {
			l.Status, l.SettledBy, l.SettledAt = to, by, now
			settled = append(settled, l.ID)
		}
	}
	return settled, nil
}

func (f *fakeStore) PromotionAuthorAdd(context.Context, reward.PromotionID, string) error { return nil }

func (f *fakeStore) PayoutRetry(_ context.Context, p store.PayoutRetryParams) (int, error) {
	defer f.lock()()
	if s := f.ps[p.PromotionID].Status; s == reward.Draft || s == reward.PromotionCancelled {
		return 0, reward.NewError(reward.KindConflict, reward.CodeIllegalState, "no")
	}
	moved := 0
	for id, r := range f.rows {
		if id.PromotionID == p.PromotionID && r.State == reward.Failed && (p.Code == "" || r.ErrorCode == p.Code) && slices.Contains(p.Targets, id.TargetID) {
			r.State = reward.Ready
			f.rows[id] = r
			moved++
		}
	}
	return moved, nil
}

func (f *fakeStore) PayoutResolve(_ context.Context, p store.PayoutResolveParams) (reward.Payout, error) {
	defer f.lock()()
	r, ok := f.rows[p.PayoutID]
	switch {
	case !ok:
		return r, reward.NewError(reward.KindNotFound, reward.CodePayoutNotFound, "no target %s", p.TargetID)
	case r.State != reward.Unknown:
		return r, reward.NewError(reward.KindConflict, reward.CodeIllegalState, "no")
	}
	r.State = reward.Failed
	if p.Paid {
		r.State, r.TransactionKey = reward.Succeeded, p.TransactionKey
	}
	f.rows[p.PayoutID] = r
	f.attempts[p.PayoutID] = append(f.attempts[p.PayoutID], reward.Attempt{At: p.Now, Class: reward.AnswerResolved, Code: p.By, Message: p.Note})
	return r, nil
}

func (f *fakeStore) InstanceList(context.Context) ([]store.Instance, error) {
	defer f.lock()()
	return slices.Clone(f.present), f.away
}

func (f *fakeStore) PromotionActive(context.Context) ([]store.PromotionView, error) {
	defer f.lock()()
	var out []store.PromotionView
	for _, id := range slices.Sorted(maps.Keys(f.ps)) {
		out = append(out, f.ps[id])
	}
	return out, f.away
}

func (f *fakeStore) Clock(context.Context) (time.Time, error) { return time.Now(), nil }

func (f *fakeStore) UploadOpen(_ context.Context, u store.Upload) error {
	defer f.lock()()
	f.uploads[u.ID] = u
	v := f.ps[u.PromotionID]
	v.Revision++
	f.ps[u.PromotionID] = v
	return nil
}

func (f *fakeStore) UploadExtend(context.Context, int64, time.Time) error { return nil }

func (f *fakeStore) UploadAddErrors(_ context.Context, id int64, errs []store.LineError) error {
	defer f.lock()()
	f.errs[id] = append(f.errs[id], errs...)
	return nil
}

func (f *fakeStore) UploadClose(_ context.Context, u store.Upload, now time.Time) error {
	defer f.lock()()
	u.FinishedAt = now
	f.uploads[u.ID] = u
	return nil
}

func (f *fakeStore) UploadGet(_ context.Context, promotion reward.PromotionID, id int64) (store.Upload, error) {
	defer f.lock()()
	u, ok := f.uploads[id]
	if !ok || u.PromotionID != promotion {
		return u, reward.NewError(reward.KindNotFound, "UPLOAD_NOT_FOUND", "upload %d is not known", id)
	}
	return u, nil
}

func (f *fakeStore) UploadErrors(_ context.Context, id, after int64, limit int) ([]store.LineError, error) {
	defer f.lock()()
	var out []store.LineError
	for _, e := range f.errs[id] {
		if e.Line > after && len(out) < limit {
			out = append(out, e)
		}
	}
	return out, nil
}
