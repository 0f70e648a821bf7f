package payout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

// approvalAbove and approvalPerDay are the limits of the walks. People try to pay more.
var approvalAbove, approvalPerDay = reward.Limits{Default: 100, Own: map[string]reward.Amount{"KRW": 60}}, reward.Limits{Default: 100, Own: map[string]reward.Amount{"KRW": 80}}

// inAnHour is a time that no walk reaches.
var inAnHour = time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)

// office is four people who work on promotions of a store, and what may be paid by what
// they did. It knows nothing of the rounds of an approval, and nothing of grants.
type office struct {
	*rapid.T
	rows       *flowStore
	store      *rows.Tables // the same rows
	promotions *campaign.Promotions
	uploads    *campaign.Uploads
	guard      *Guard
	ctx        context.Context
	alone      map[string]reward.Amount // of the targets of a person, in a currency, that nobody approved
	*file                               // of the present step
}

// file is what is known of one promotion.
type file struct {
	id      reward.PromotionID
	kind    reward.PromotionType
	target  int
	addedBy map[reward.TargetID]string // "" of records
	counted map[reward.TargetID]bool   // in alone

	authors  map[string]bool
	approved map[reward.TargetID]bool // targets of the approval that holds
	worth    reward.Amount            // of it
	form     *reward.Promotion        // as it was approved
	highest  reward.Amount            // of all approvals
}

// save is the way of uploads to the rows.
type save func(ctx context.Context, t reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error)

func (f save) Save(ctx context.Context, t reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	return f(ctx, t, p)
}

// may fails the test on an error that is not an answer to a person.
func (o *office) may(err error) bool {
	o.Helper()
	if e := (*reward.Error)(nil); err != nil && (!errors.As(err, &e) || e.Kind == reward.KindInternal || e.Kind == reward.KindUnavailable) {
		o.Fatal(err)
	}
	return err == nil
}

func (o *office) all() []reward.Payout {
	o.Helper()
	return fixture.Must(o.store.PayoutList(o.ctx, store.PayoutListParams{PromotionID: o.id, Limit: store.BatchMax}))(o)
}

// saves is a batch that becomes QUEUED at once as far as it may.
func (o *office) saves(p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
	p.MaxLen = rapid.SampledFrom([]int{0, 3, 1000}).Draw(o.T, "stream length")
	res, err := o.rows.PayoutSave(o.ctx, p)
	o.queued(res.Queued)
	return res, err
}

// queued checks rows that became QUEUED.
func (o *office) queued(list []reward.Payout) {
	o.Helper()
	if len(list) == 0 {
		return
	}
	var total reward.Amount
	unknown := false
	for _, p := range o.all() {
		total += p.Amount
		unknown = unknown || p.Amount == 0 && !o.approved[p.TargetID]
	}
	v := fixture.Must(o.store.PromotionGet(o.ctx, o.id))(o)
	for _, p := range list {
		if by := o.addedBy[p.TargetID]; by != "" && !o.approved[p.TargetID] && !o.counted[p.TargetID] {
			key := by + " " + v.Currency
			o.counted[p.TargetID] = true
			if o.alone[key] += p.Amount; o.alone[key] > approvalPerDay.Of(v.Currency) {
				o.Fatalf("%s has %d paid that nobody approved", key, o.alone[key])
			}
		}
		if !o.approved[p.TargetID] && (unknown || total > max(approvalAbove.Of(v.Currency), o.worth)) {
			o.Fatalf("target %s of %d is dispatched: the promotion is worth %d, and %d is approved for %v", p.TargetID, p.Amount, total, o.worth, o.approved)
		}
	}
	if total > approvalAbove.Of(v.Currency) {
		o.asApproved()
	}
}

// asApproved checks that a promotion that pays more than approval.above has no looser
// limits than those that were approved, and keeps them, and does not pay before the start
// that was approved.
func (o *office) asApproved() {
	o.Helper()
	v, err := o.store.PromotionGet(o.ctx, o.id)
	if err != nil || o.form == nil {
		o.Fatal("not approved", err)
	}
	within := func(approved, now float64) bool { return approved == 0 || now > 0 && now <= approved }
	if form := o.form; !within(float64(form.MaxAmount), float64(v.MaxAmount)) || !within(float64(form.RatePerSecond), float64(v.RatePerSecond)) ||
		!within(float64(form.Canary.Targets), float64(v.Canary.Targets)) ||
		form.Canary.Targets > 0 && v.Canary.MaxFailureRate > form.Canary.MaxFailureRate {
		o.Fatalf("pays as %+v, and was approved as %+v", v.Promotion, *form)
	}
	if o.form.Status == reward.Draft && o.worth > approvalAbove.Of(v.Currency) && o.form.StartsAt.After(time.Now()) {
		o.Fatalf("pays now, and was approved for a start at %s", o.form.StartsAt)
	}
	if spent := rules.Spent(v.Counts, 0); o.form.MaxAmount > 0 && spent > o.form.MaxAmount {
		o.Fatalf("%d is spent, and %d was approved as the budget", spent, o.form.MaxAmount)
	}
}

// amounts draws the amounts of new targets.
func (o *office) amounts() []reward.Amount {
	list := rapid.SliceOfN(rapid.SampledFrom([]reward.Amount{1, 10, 30, 60, 99, 100, 101, 500}), 1, 3).Draw(o.T, "amounts")
	if o.kind == reward.Voucher && rapid.IntRange(0, 2).Draw(o.T, "without an amount") == 0 {
		list[0] = 0
	}
	return list
}

// next returns a target that does not exist, for by to add. Later ones may have smaller IDs.
func (o *office) next(by string) reward.TargetID {
	o.target++
	id := reward.TargetID(o.target * 7919 % 10007)
	o.addedBy[id] = by
	return id
}

// step is something that a person does.
func (o *office) step(by, name string) {
	steps := map[string]func(){
		"create": func() {
			_, err := o.promotions.Create(o.ctx, campaign.CreateCommand{PromotionChange: rules.PromotionChange{ID: o.id, Name: new("x"), By: by}, Type: string(o.kind)})
			if o.may(err) {
				o.authors[by] = true
				o.void()
			}
		},
		"delete": func() {
			if o.may(o.promotions.Delete(o.ctx, o.id)) {
				o.void()
			}
		},
		"upload": func() {
			var file strings.Builder
			file.WriteString("targetId,amount,voucherCode\n")
			for _, a := range o.amounts() {
				code := ""
				if o.kind == reward.Voucher {
					code = "V"
				}
				fmt.Fprintf(&file, "%s,%d,%s\n", o.next(by), a, code)
			}
			_, err := o.uploads.Upload(o.ctx, campaign.UploadCommand{PromotionID: o.id, Body: strings.NewReader(file.String()), File: campaign.File{Format: campaign.FormatCSV}, By: by})
			if o.may(err) {
				o.authors[by] = true
			}
		},
		"records": func() {
			_, err := o.rows.PromotionRegister(o.ctx, []store.Registration{{ID: o.id, Type: o.kind, Started: rapid.Bool().Draw(o.T, "started")}})
			if !o.may(err) {
				return
			}
			var p store.PayoutSaveParams
			for _, a := range o.amounts() {
				p.Rows = append(p.Rows, store.NewPayout{PromotionID: o.id, TargetID: o.next(""), Amount: a})
			}
			_, err = o.saves(p)
			o.may(err)
		},
		"replay": func() { o.replay(by) },
		"patch": func() {
			c := rules.PromotionChange{ID: o.id, By: by, Name: new(by)}
			switch rapid.IntRange(0, 4).Draw(o.T, "what changes") {
			case 0:
				c.Currency = new(rapid.SampledFrom([]string{"EUR", "KRW"}).Draw(o.T, "currency"))
			case 1:
				c.MaxAmount = new(rapid.SampledFrom([]reward.Amount{0, 90, 200, 600}).Draw(o.T, "budget"))
			case 2:
				c.RatePerSecond = new(rapid.SampledFrom([]int{0, 1, 5}).Draw(o.T, "rate"))
			case 3:
				c.Canary = new(rapid.SampledFrom([]reward.Canary{{}, {Targets: 1}, {Targets: 2}, {Targets: 1, MaxFailureRate: 0.5}}).Draw(o.T, "canary"))
			}
			before, err := o.store.PromotionGet(o.ctx, o.id)
			if !o.may(err) {
				return
			}
			after, err := o.promotions.Change(o.ctx, c)
			if o.may(err) {
				o.authors[by] = true
				if before.Currency != after.Currency {
					o.void()
				}
			}
		},
		"schedule": func() {
			_, err := o.promotions.Change(o.ctx, rules.PromotionChange{
				ID: o.id, By: by, StartsAt: new(rapid.SampledFrom([]time.Time{inAnHour, inAnHour.Add(time.Hour), {}}).Draw(o.T, "start time")),
			})
			if o.may(err) {
				o.authors[by] = true
			}
		},
		"approve": func() {
			v, err := o.promotions.Approve(o.ctx, campaign.ApproveCommand{ID: o.id, Persons: []string{strings.ToUpper(by)}})
			if !o.may(err) {
				return
			}
			if o.authors[by] {
				o.Fatalf("%s approves, one of %v", by, o.authors)
			}
			o.void()
			o.form = &v.Promotion
			for _, p := range o.all() {
				o.approved[p.TargetID] = true
				o.worth += p.Amount
			}
			if v.Approval.Amount != o.worth || v.Approval.Count != int64(len(o.approved)) {
				o.Fatalf("the approval is of %+v, the rows are %d worth %d", v.Approval, len(o.approved), o.worth)
			}
			o.highest = max(o.highest, o.worth)
		},
		"reject": func() {
			if _, err := o.promotions.Reject(o.ctx, o.id, by, "no"); o.may(err) {
				o.void()
			}
		},
		"start": func() { _, err := o.promotions.Start(o.ctx, o.id); o.may(err) },
		"start record": func() {
			_, err := o.rows.PromotionRegister(o.ctx, []store.Registration{{ID: o.id, Type: o.kind, Started: true}})
			o.may(err)
		},
		"pause":  func() { _, err := o.promotions.Pause(o.ctx, o.id, "ann", ""); o.may(err) },
		"resume": func() { _, err := o.promotions.Resume(o.ctx, o.id); o.may(err) },
		"close":  func() { _, err := o.promotions.Close(o.ctx, o.id); o.may(err) },
		"retry":  func() { _, err := o.promotions.RetryFailed(o.ctx, o.id, ""); o.may(err) },
		"guard": func() {
			v, err := o.store.PromotionGet(o.ctx, o.id)
			if o.may(err) && v.Status == reward.Running {
				o.may(o.guard.watch(o.ctx, v))
			}
		},
		"dispatch": o.dispatch,
		"outcomes": o.outcomes,
	}
	if name == "" {
		name = rapid.SampledFrom(slices.Concat(slices.Sorted(maps.Keys(steps)), []string{
			"dispatch", "dispatch", "dispatch", "outcomes", "start", "start", "upload", "upload", "resume", "approve", "approve", "approve",
		})).Draw(o.T, "step")
	}
	steps[name]()
}

// replay replays a dead letter with a new target, and saves what Kafka gets.
func (o *office) replay(by string) {
	o.Helper()
	message := fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":1,"targetId":%d,"userId":"u","amount":%d,"voucherCode":"V"}`,
		o.id, o.next(by), rapid.SampledFrom([]int{1, 60, 101}).Draw(o.T, "amount of the record"))
	topic := bus.TopicPointPublish
	if o.kind == reward.Voucher {
		topic = bus.TopicVoucherPublish
	} else {
		message = strings.Replace(message, `,"voucherCode":"V"`, "", 1)
	}
	letter := reward.DeadLetter{Source: topic, Offset: fmt.Sprintf("%d-%d", o.id, o.target), Value: []byte(message), Reason: "TEST", At: time.Now()}
	if !o.may(o.rows.DeadLetterAdd(o.ctx, []reward.DeadLetter{letter})) {
		return
	}
	list, err := o.store.DeadLetterList(o.ctx, store.DeadLetterListParams{Limit: 1})
	if err != nil || len(list) != 1 {
		o.Fatal(list, err)
	}
	published := &keepPublisher{}
	letters := campaign.NewDeadLetters(campaign.DeadLettersConfig{Rows: o.store, Publisher: published, Hint: func(reward.PromotionID) {}})
	if _, err := letters.Close(o.ctx, list[0].ID, reward.DeadLetterReplayed, by); !o.may(err) {
		return
	}
	o.authors[by] = true
	for _, r := range published.records {
		m := fixture.Must(reward.ParsePublishMessage(o.kind, r.Value))(o)
		_, err := o.rows.PromotionRegister(o.ctx, []store.Registration{{ID: m.PromotionID, Type: o.kind}})
		if !o.may(err) {
			return
		}
		_, err = o.saves(store.PayoutSaveParams{Rows: []store.NewPayout{{
			PromotionID: m.PromotionID, TargetID: m.TargetID, SummaryID: m.SummaryID, UserID: m.UserID, Amount: m.Amount, VoucherCode: m.VoucherCode,
		}}})
		o.may(err)
	}
}

// void forgets the approval.
func (o *office) void() { o.approved, o.worth, o.form = make(map[reward.TargetID]bool), 0, nil }

func (o *office) dispatch() {
	p := store.PayoutDispatchParams{
		PromotionID: o.id, From: rapid.SampledFrom([]reward.State{reward.Ready, reward.Retrying}).Draw(o.T, "from"),
		Limit: rapid.SampledFrom([]int{1, 2, 1000}).Draw(o.T, "limit"), MaxLen: 1000,
	}
	if rapid.Bool().Draw(o.T, "named") {
		p.Refs = []reward.Ref{}
		for _, r := range o.all() {
			p.Refs = append(p.Refs, r.Ref())
		}
	}
	list, err := o.rows.PayoutDispatch(o.ctx, p)
	o.may(err)
	o.queued(list)
}

// outcomes ends the dispatches, or returns them.
func (o *office) outcomes() {
	for _, r := range o.all() {
		if r.State != reward.Queued {
			continue
		}
		kind := rapid.SampledFrom([]rules.OutcomeKind{rules.OutcomePaid, rules.OutcomePaid, rules.OutcomeRefused, rules.OutcomeFailed, -1}).Draw(o.T, "outcome")
		var err error
		if kind == -1 {
			_, err = o.rows.PayoutReturn(o.ctx, store.PayoutReturnParams{Refs: []reward.Ref{r.Ref()}, MaybeCalled: true})
		} else {
			_, err = o.rows.PayoutFinish(o.ctx, store.PayoutFinishParams{Outcomes: []rules.Outcome{{
				Ref: r.Ref(), Kind: kind, TransactionKey: "T", RetryAt: time.Now().Add(-time.Minute),
			}}})
		}
		o.may(err)
	}
}

// walkApprovals lets four people do what they like, in random orders.
func walkApprovals(t *testing.T, rows *rows.Tables) {
	next := reward.PromotionID(0)
	ids := service.NewIDs()
	rapid.Check(t, func(rt *rapid.T) {
		o := &office{T: rt, rows: newFlowStore(rows, approvalAbove, Breaches{}), store: rows, ctx: t.Context(), alone: make(map[string]reward.Amount)}
		var files []*file
		for range 2 {
			next++
			o.file = &file{
				id: next, kind: rapid.SampledFrom([]reward.PromotionType{reward.Point, reward.Voucher}).Draw(rt, "type"),
				authors: make(map[string]bool), addedBy: make(map[reward.TargetID]string), counted: make(map[reward.TargetID]bool),
			}
			o.void()
			files = append(files, o.file)
		}
		hint := func(reward.PromotionID) {}
		o.promotions = campaign.NewPromotions(campaign.PromotionsConfig{Store: rows, IDs: ids, Hint: hint, ApprovalAbove: approvalAbove, ApprovalPerDay: approvalPerDay})
		o.uploads = campaign.NewUploads(campaign.UploadsConfig{Rows: rows, IDs: ids, Hint: hint, Saver: save(func(_ context.Context, _ reward.PromotionType, p store.PayoutSaveParams) (store.PayoutSaveResult, error) {
			return o.saves(p)
		})})
		o.guard = newGuard(newShared(Config{Store: rows, ApprovalAbove: approvalAbove, ApprovalPerDay: approvalPerDay}, nil))
		for _, first := range rapid.SampledFrom([][]string{
			nil,
			{"ann create", "ann upload", "ann start", "ann dispatch"},
			{"ann create", "ann upload", "ann schedule", "bob approve", "ann start record", "ann dispatch"},
		}).Draw(rt, "first") {
			by, name, _ := strings.Cut(first, " ")
			for _, o.file = range files {
				o.step(by, name)
			}
		}
		for range rapid.IntRange(20, 80).Draw(rt, "steps") {
			o.file = rapid.SampledFrom(files).Draw(rt, "promotion")
			o.step(rapid.SampledFrom([]string{"ann", "ann", "ann", "ann", "bob", "cid", "dee", "dee"}).Draw(o.T, "person"), "")
			var paid reward.Amount
			for _, p := range o.all() {
				if p.State == reward.Succeeded {
					paid += p.Amount
				}
			}
			if most := max(approvalAbove.Default, o.highest); paid > most {
				rt.Fatalf("%d is paid, more than %d", paid, most)
			}
		}
	})
}

// TestNobodyPaysAloneSQLite checks that four people never make more be paid than
// approval.above, or than somebody else approved, and none of them more than
// approval.above-per-day of their own targets that nobody approved.
func TestNobodyPaysAloneSQLite(t *testing.T) {
	t.Parallel()
	rows := storetest.OpenFile(t, filepath.Join(t.TempDir(), "rows.db"), sqlite.Open)
	defer rows.Close()
	walkApprovals(t, rows)
}
