package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// letters stores count dead letters of a topic and returns their IDs, oldest
// first.
func (b *bundle) letters(topic, reason string, count int) []int64 {
	b.Helper()
	var ls []reward.DeadLetter
	for n := range count {
		ls = append(ls, reward.DeadLetter{Source: topic, Offset: fmt.Sprint(n), Value: []byte{byte(n)}, Reason: reason, At: at(n)})
	}
	b.must(b.DeadLetterAdd(b.ctx, ls))
	ids := b.letterIDs(store.DeadLetterListParams{Limit: count})
	slices.Reverse(ids)
	return ids
}

func (b *bundle) letterIDs(p store.DeadLetterListParams) []int64 {
	b.Helper()
	list := must(b.DeadLetterList(b.ctx, p))(b)
	ids := []int64{}
	for _, l := range list {
		ids = append(ids, l.ID)
	}
	return ids
}

// settleLetters closes dead letters at second 50 and returns which of them
// moved.
func (b *bundle) settleLetters(to reward.DeadLetterStatus, ids ...int64) []int64 {
	b.Helper()
	settled := must(b.DeadLetterClose(b.ctx, ids, to, "kim", at(50)))(b)
	return append([]int64{}, settled...)
}

func exerciseDeadLetters(t *testing.T, open Open) {
	run(t, open, "ClosedDeadLettersAreForgotten", func(b *bundle) {
		ids := b.letters("t", "BAD", 5)
		for n, id := range ids[:4] {
			to := reward.DeadLetterReplayed
			if n == 3 {
				to = reward.DeadLetterDiscarded
			}
			must(b.DeadLetterClose(b.ctx, []int64{id}, to, "kim", at(10+n)))(b)
		}
		_, err := b.DeadLetterForget(b.ctx, reward.DeadLetterOpen, at(100), 10)
		b.wantCode(err, reward.CodeInvalid)
		for _, step := range []struct {
			status reward.DeadLetterStatus
			before time.Time
			limit  int
			want   int
		}{
			{reward.DeadLetterReplayed, at(10), 10, 0},
			{reward.DeadLetterReplayed, at(12), 1, 1},
			{reward.DeadLetterReplayed, at(12), 10, 1},
			{reward.DeadLetterDiscarded, at(13), 10, 0},
			{reward.DeadLetterDiscarded, at(100), 10, 1},
			{reward.DeadLetterReplayed, at(12), 10, 0},
		} {
			n := must(b.DeadLetterForget(b.ctx, step.status, step.before, step.limit))(b)
			same(b, "removed", step.want, n)
		}
		same(b, "left", []int64{ids[4], ids[2]}, b.letterIDs(store.DeadLetterListParams{Limit: 10}))
	})
	run(t, open, "KeepTheirBytesOnceAndPageDownwards", func(b *bundle) {
		letters := []reward.DeadLetter{
			{Source: "topic", Partition: 2, Offset: "10", Key: []byte{0, 255}, Value: []byte("{\x00\xff"), Reason: "MALFORMED", Detail: hostile, At: epoch},
			{Source: "topic", Partition: 2, Offset: "11", Value: []byte{}, Reason: "TYPE_MISMATCH", At: at(1)},
			{Source: "stream:{1}", Offset: "1-0", Reason: "MALFORMED", Detail: "nul\x00", At: at(2)},
		}
		b.must(b.DeadLetterAdd(b.ctx, letters[:2]))
		b.must(b.DeadLetterAdd(b.ctx, letters))
		b.must(b.DeadLetterAdd(b.ctx, nil))
		list := must(b.DeadLetterList(b.ctx, store.DeadLetterListParams{Limit: 10}))(b)
		want := slices.Clone(letters)
		want[2].Detail = "nul"
		slices.Reverse(want)
		for i := range want {
			want[i].Status, want[i].ValueLength = reward.DeadLetterOpen, int64(len(want[i].Value))
		}
		if diff := cmp.Diff(want, list, cmpopts.IgnoreFields(reward.DeadLetter{}, "ID"), cmpopts.EquateEmpty()); diff != "" {
			b.Fatalf("dead letters (-want +got):\n%s", diff)
		}
		page := must(b.DeadLetterList(b.ctx, store.DeadLetterListParams{Before: list[0].ID, Limit: 1}))(b)
		same(b, "page", list[1:2], page)
		same(b, "past the end", []int64{}, b.letterIDs(store.DeadLetterListParams{Before: list[2].ID, Limit: 9}))
		for _, l := range list {
			got := must(b.DeadLetterGet(b.ctx, l.ID))(b)
			same(b, "one", l, got)
		}
		_, err := b.DeadLetterGet(b.ctx, list[0].ID+1)
		b.wantCode(err, reward.CodeDeadLetterNotFound)
	})
	run(t, open, "LongValuesAreCut", func(b *bundle) {
		long := bytes.Repeat([]byte("é"), reward.DeadLetterKeptMax)
		b.must(b.DeadLetterAdd(b.ctx, []reward.DeadLetter{{Source: "topic", Offset: "1", Key: long, Value: long, At: epoch}}))
		for _, tt := range []struct{ bytesMax, want int }{{0, reward.DeadLetterKeptMax}, {3, 3}} {
			list := must(b.DeadLetterList(b.ctx, store.DeadLetterListParams{Limit: 9, Source: "topic", BytesMax: tt.bytesMax}))(b)
			if l := list[0]; len(l.Key) != tt.want || !bytes.Equal(l.Value, long[:tt.want]) || l.ValueLength != int64(len(long)) {
				b.Errorf("%d bytes of the key, %d of %d of the value", len(l.Key), len(l.Value), l.ValueLength)
			}
		}
	})
	run(t, open, "EachLogOfATopicHasItsOwn", func(b *bundle) {
		letter := func(log, value string) reward.DeadLetter {
			return reward.DeadLetter{Source: "topic", Offset: "0", Log: log, Key: []byte("k"), Value: []byte(value), Reason: "MALFORMED", At: epoch}
		}
		stored := func(want ...reward.DeadLetter) {
			b.Helper()
			list := must(b.DeadLetterList(b.ctx, store.DeadLetterListParams{Limit: 9}))(b)
			slices.Reverse(list)
			for i := range want {
				want[i].Status, want[i].ValueLength = reward.DeadLetterOpen, int64(len(want[i].Value))
			}
			if diff := cmp.Diff(want, list, cmpopts.IgnoreFields(reward.DeadLetter{}, "ID")); diff != "" {
				b.Fatalf("dead letters (-want +got):\n%s", diff)
			}
		}
		one, two, old := letter("topic@1", "one"), letter("topic@2", "two"), letter("", "old")
		for range 2 {
			b.must(b.DeadLetterAdd(b.ctx, []reward.DeadLetter{two, one}))
		}
		stored(one, two)
		b.must(b.DeadLetterAdd(b.ctx, []reward.DeadLetter{old})) // of a version that stored no logs
		stored(one, two, old)
		// The same record is read again, and another one of another log.
		adopted := letter("topic@3", "old")
		b.must(b.DeadLetterAdd(b.ctx, []reward.DeadLetter{letter("topic@4", "new"), adopted}))
		stored(one, two, adopted, letter("topic@4", "new"))
		b.must(b.DeadLetterAdd(b.ctx, []reward.DeadLetter{adopted, one}))
		stored(one, two, adopted, letter("topic@4", "new"))
	})
	run(t, open, "AreKeptWithTheBatchTheyAreOf", func(b *bundle) {
		b.running(1)
		letter := []reward.DeadLetter{{Source: "topic", Offset: "7", Reason: "MALFORMED", At: epoch}}
		_, err := b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(2, 1)}, DeadLetters: letter, Now: epoch})
		b.wantCode(err, reward.CodeNotFound)
		same(b, "of a refused batch", []int64{}, b.letterIDs(store.DeadLetterListParams{Limit: 9}))
		for range 2 {
			must(b.PayoutSave(b.ctx, store.PayoutSaveParams{Rows: []store.NewPayout{row(1, 1)}, DeadLetters: letter, Now: epoch}))(b)
		}
		same(b, "of a batch that came twice", 1, len(b.letterIDs(store.DeadLetterListParams{Limit: 9})))
	})
	run(t, open, "ListByEveryFilter", func(b *bundle) {
		x := b.letters("x", "MALFORMED", 4)
		y := b.letters("y", "POISON", 2)
		z := b.letters(hostile+"\x00", "POISON\x00", 2) // stored without what no database can store
		b.settleLetters(reward.DeadLetterReplayed, x[0], y[1])
		b.settleLetters(reward.DeadLetterDiscarded, x[3])
		for name, test := range map[string]struct {
			p    store.DeadLetterListParams
			want []int64
		}{
			"all":                   {store.DeadLetterListParams{}, []int64{z[1], z[0], y[1], y[0], x[3], x[2], x[1], x[0]}},
			"a source":              {store.DeadLetterListParams{Source: "x"}, []int64{x[3], x[2], x[1], x[0]}},
			"an odd source":         {store.DeadLetterListParams{Source: hostile + "\x00"}, []int64{z[1], z[0]}},
			"a reason":              {store.DeadLetterListParams{Reason: "POISON"}, []int64{z[1], z[0], y[1], y[0]}},
			"a reason and a source": {store.DeadLetterListParams{Reason: "POISON", Source: "y"}, []int64{y[1], y[0]}},
			"open":                  {store.DeadLetterListParams{Status: reward.DeadLetterOpen}, []int64{z[1], z[0], y[0], x[2], x[1]}},
			"replayed":              {store.DeadLetterListParams{Status: reward.DeadLetterReplayed}, []int64{y[1], x[0]}},
			"discarded":             {store.DeadLetterListParams{Status: reward.DeadLetterDiscarded}, []int64{x[3]}},
			"open, of a source, below one": {
				store.DeadLetterListParams{Status: reward.DeadLetterOpen, Source: "x", Before: x[2]}, []int64{x[1]},
			},
			"open, two of them": {store.DeadLetterListParams{Status: reward.DeadLetterOpen, Limit: 2}, []int64{z[1], z[0]}},
			"another status":    {store.DeadLetterListParams{Status: "OPE%"}, []int64{}},
			"a part of a name":  {store.DeadLetterListParams{Source: "X"}, []int64{}},
		} {
			if test.p.Limit == 0 {
				test.p.Limit = 100
			}
			same(b, name, test.want, b.letterIDs(test.p))
		}
	})
	run(t, open, "SettleOnce", func(b *bundle) {
		ids := b.letters("x", "MALFORMED", 4)
		before := must(b.DeadLetterGet(b.ctx, ids[1]))(b)
		same(b, "replayed", []int64{ids[1], ids[3]}, b.settleLetters(reward.DeadLetterReplayed, ids[3], ids[1], ids[3], ids[3]+99))
		want := before
		want.Status, want.SettledAt, want.SettledBy = reward.DeadLetterReplayed, at(50), "kim"
		settled := must(b.DeadLetterClose(b.ctx, ids, reward.DeadLetterDiscarded, "nul\x00"+hostile, at(60)))(b)
		same(b, "discarded", []int64{ids[0], ids[2]}, settled)
		got := must(b.DeadLetterGet(b.ctx, ids[1]))(b)
		same(b, "replayed, after others were discarded", want, got)
		got = must(b.DeadLetterGet(b.ctx, ids[2]))(b)
		same(b, "discarded by", "nul"+hostile, got.SettledBy)
		same(b, "discarded at", at(60), got.SettledAt)
		same(b, "again", []int64{}, b.settleLetters(reward.DeadLetterReplayed, ids...))
		same(b, "none", []int64{}, b.settleLetters(reward.DeadLetterReplayed))

		// A repeat of the record does not reopen it. The next record is another one.
		b.must(b.DeadLetterAdd(b.ctx, []reward.DeadLetter{
			{Source: "x", Offset: "1", Reason: "MALFORMED", At: at(70)}, {Source: "x", Offset: "4", Reason: "MALFORMED", At: at(70)},
		}))
		got = must(b.DeadLetterGet(b.ctx, ids[1]))(b)
		same(b, "after a repeat", want, got)
		same(b, "open", 1, len(b.letterIDs(store.DeadLetterListParams{Status: reward.DeadLetterOpen, Limit: 9})))
	})
	run(t, open, "RefuseWhatIsNoSettlement", func(b *bundle) {
		ids := b.letters("x", "MALFORMED", 1)
		for _, to := range []reward.DeadLetterStatus{reward.DeadLetterOpen, "", "LOST", "replayed"} {
			_, err := b.DeadLetterClose(b.ctx, ids, to, "kim", at(50))
			b.wantCode(err, reward.CodeInvalid)
		}
		_, err := b.DeadLetterClose(b.ctx, make([]int64, store.BatchMax+1), reward.DeadLetterReplayed, "kim", at(50))
		b.wantCode(err, reward.CodeInvalid)
		got := must(b.DeadLetterGet(b.ctx, ids[0]))(b)
		same(b, "status", reward.DeadLetterOpen, got.Status)
		same(b, "settled by", "", got.SettledBy)
	})
	run(t, open, "OfAFullBatchEachIsSettledForOneOfMany", func(b *bundle) {
		ids := b.letters("x", "MALFORMED", store.BatchMax)
		var mu sync.Mutex // guards all
		var all []int64
		b.must(together(4, func(worker int) error {
			to := []reward.DeadLetterStatus{reward.DeadLetterReplayed, reward.DeadLetterDiscarded}[worker%2]
			settled, err := b.DeadLetterClose(b.ctx, shuffled(ids), to, fmt.Sprint(worker), at(50))
			mu.Lock()
			defer mu.Unlock()
			all = append(all, settled...)
			return err
		}))
		slices.Sort(all)
		same(b, "settled", ids, all)
		same(b, "open", []int64{}, b.letterIDs(store.DeadLetterListParams{Status: reward.DeadLetterOpen, Limit: 9}))
	})
}

// lettersAfterMigration checks that a dead letter of an older schema is OPEN.
// It closes the one that it finds, or creates one. The migration down drops the
// status.
func (b *bundle) lettersAfterMigration() {
	b.Helper()
	b.must(b.DeadLetterAdd(b.ctx, []reward.DeadLetter{{Source: "x", Offset: "1", Reason: "MALFORMED", At: epoch}}))
	ids := b.letterIDs(store.DeadLetterListParams{Status: reward.DeadLetterOpen, Limit: 9})
	same(b, "open dead letters", 1, len(ids))
	same(b, "settled", ids, b.settleLetters(reward.DeadLetterDiscarded, ids...))
}

const hookURL = "https://example.test/hook?a=1&b='2'"

// hooked creates a RUNNING promotion with a webhook.
func (b *bundle) hooked(id reward.PromotionID, canary reward.Canary) {
	b.Helper()
	must(b.PromotionCreate(b.ctx, reward.Promotion{
		ID: id, Type: reward.Point, MaxRetries: 3, WebhookURL: hookURL, Canary: canary, CreatedAt: epoch,
	}))(b)
	b.move(id, reward.Running)
}

// breach pauses a RUNNING promotion with an event for its webhook.
func (b *bundle) breach(id reward.PromotionID, now time.Time) error {
	_, err := b.PromotionMove(b.ctx, store.PromotionMoveParams{
		ID: id, From: []reward.PromotionStatus{reward.Running}, To: reward.Paused, Reason: "because", Event: store.EventBreach, Now: now,
	})
	return err
}

// takeHooks claims every delivery that is due at now, until then.
func (b *bundle) takeHooks(now, until time.Time) []store.WebhookDelivery {
	b.Helper()
	return must(b.WebhookClaim(b.ctx, 100, until, now))(b)
}

// deliveries is takeHooks without the IDs.
func (b *bundle) deliveries(now, until time.Time) []store.WebhookDelivery {
	b.Helper()
	got := []store.WebhookDelivery{}
	for _, d := range b.takeHooks(now, until) {
		d.ID = 0
		got = append(got, d)
	}
	return got
}

func delivery(id reward.PromotionID, event string, at time.Time) store.WebhookDelivery {
	return store.WebhookDelivery{PromotionID: id, Event: event, URL: hookURL, At: at}
}

func exerciseWebhooks(t *testing.T, open Open) {
	none := []store.WebhookDelivery{}
	run(t, open, "HearOfEveryEnd", func(b *bundle) {
		b.hooked(1, reward.Canary{})
		b.saveQueued(1, 1)
		same(b, "completed with work", false, b.complete(1, 10))
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		same(b, "before the end", none, b.deliveries(at(99), at(99)))
		same(b, "completed", true, b.complete(1, 20))
		same(b, "completed again", false, b.complete(1, 21))
		same(b, "at the end", []store.WebhookDelivery{delivery(1, store.EventFinished, at(20))}, b.deliveries(at(20), at(1000)))
		b.saveReady(1, 2) // the promotion is RUNNING again
		same(b, "reopened", none, b.deliveries(at(99), at(1000)))
		b.move(1, reward.PromotionCancelled)
		same(b, "cancelled with a READY row", false, b.complete(1, 30))
		must(b.PayoutCancelStep(b.ctx, store.PayoutCancelStepParams{PromotionID: 1, Lease: lease, Now: at(31)}))(b)
		same(b, "not finished", none, b.deliveries(at(99), at(1000)))
		same(b, "cancel finished", true, b.complete(1, 40))
		same(b, "cancel finished again", false, b.complete(1, 41))
		same(b, "at the second end", []store.WebhookDelivery{delivery(1, store.EventFinished, at(40))}, b.deliveries(at(99), at(1000)))
	})
	run(t, open, "HearOfMovesThatSaySo", func(b *bundle) {
		b.hooked(1, reward.Canary{})
		b.move(1, reward.Paused)
		b.wantCode(b.breach(1, at(6)), reward.CodeIllegalState)
		same(b, "after moves without a word, or none", none, b.deliveries(at(99), at(99)))
		b.move(1, reward.Running)
		b.must(b.breach(1, at(7).Add(time.Nanosecond)))
		same(b, "early", none, b.deliveries(at(6), at(99)))
		same(b, "after a breach", []store.WebhookDelivery{delivery(1, store.EventBreach, at(7))}, b.deliveries(at(7), at(99)))
	})
	run(t, open, "WithoutOneThereIsNothingToTell", func(b *bundle) {
		must(b.PromotionCreate(b.ctx, reward.Promotion{
			ID: 1, Type: reward.Point, Canary: reward.Canary{Targets: 1}, MaxRetries: 3, CreatedAt: epoch,
		}))(b)
		b.move(1, reward.Running)
		b.must(b.breach(1, at(7)))
		b.move(1, reward.Running)
		b.saveQueued(1, 1)
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomeRefused})
		_, judged, err := b.PromotionJudge(b.ctx, store.PromotionJudgeParams{ID: 1, Event: store.EventCanary, Now: at(20)})
		b.must(err)
		same(b, "judged", true, judged)
		b.move(1, reward.Running)
		same(b, "completed", true, b.complete(1, 30))
		same(b, "deliveries", none, b.deliveries(at(99), at(99)))
	})
	run(t, open, "HearOfABadCanaryOnly", func(b *bundle) {
		judge := func(id reward.PromotionID, seconds int) (bool, error) {
			_, judged, err := b.PromotionJudge(b.ctx, store.PromotionJudgeParams{
				ID: id, Reason: "because", Event: store.EventCanary, Now: at(seconds),
			})
			return judged, err
		}
		for id := reward.PromotionID(1); id <= 2; id++ {
			b.hooked(id, reward.Canary{Targets: 1, MaxFailureRate: 0.5})
			b.saveQueued(id, 1)
			judged := must(judge(id, 5))(b)
			same(b, "judged while it is open", false, judged)
		}
		b.finish(rules.Outcome{Ref: ref(1, 1, 1), Kind: rules.OutcomePaid})
		b.finish(rules.Outcome{Ref: ref(2, 1, 1), Kind: rules.OutcomeRefused})
		same(b, "before the judgement", none, b.deliveries(at(99), at(99)))
		for id := reward.PromotionID(1); id <= 2; id++ {
			judged := must(judge(id, 20))(b)
			same(b, "judged", true, judged)
			judged = must(judge(id, 21))(b)
			same(b, "judged again", false, judged)
		}
		same(b, "deliveries", []store.WebhookDelivery{delivery(2, store.EventCanary, at(20))}, b.deliveries(at(99), at(99)))
	})
	run(t, open, "AreHeldByTheirTakerAndTriedUntilDone", func(b *bundle) {
		b.hooked(1, reward.Canary{})
		b.must(b.breach(1, at(10)))
		want := []store.WebhookDelivery{delivery(1, store.EventBreach, at(10))}
		first := must(b.WebhookClaim(b.ctx, 9, at(20), at(10)))(b)
		same(b, "taken", 1, len(first))
		id := first[0].ID
		same(b, "while held", none, b.deliveries(at(20).Add(-time.Microsecond), at(30)))
		same(b, "no longer held", want, b.deliveries(at(20), at(30)))
		b.must(b.WebhookReschedule(b.ctx, id, 503, hostile+"\x00", at(40)))
		same(b, "before the next try", none, b.deliveries(at(39), at(99)))
		want[0].FailedAttempts = 1
		same(b, "at the next try", want, b.deliveries(at(40), at(50)))
		b.must(b.WebhookReschedule(b.ctx, id, 0, "", at(45)))
		want[0].FailedAttempts = 2
		same(b, "at the third try", want, b.deliveries(at(45), at(45)))
		b.must(b.WebhookDone(b.ctx, id+1, 200, "", at(46)))
		b.must(b.WebhookReschedule(b.ctx, id+1, 500, "", at(46)))
		same(b, "after another was done", want, b.deliveries(at(46), at(46)))
		b.must(b.WebhookDone(b.ctx, id, 200, "\xff", at(47)))
		b.must(b.WebhookDone(b.ctx, id, 200, "", at(48)))
		b.must(b.WebhookReschedule(b.ctx, id, 500, "from a slow one", at(48)))
		same(b, "done", none, b.deliveries(at(9999), at(9999)))
	})
	run(t, open, "AreTakenOldestFirst", func(b *bundle) {
		for id, seconds := range map[reward.PromotionID]int{1: 30, 2: 10, 3: 40, 4: 20} {
			b.hooked(id, reward.Canary{})
			b.must(b.breach(id, at(seconds)))
		}
		take := func(limit, now int) []reward.PromotionID {
			b.Helper()
			list := must(b.WebhookClaim(b.ctx, limit, at(500), at(now)))(b)
			ids := []reward.PromotionID{}
			for _, d := range list {
				ids = append(ids, d.PromotionID)
			}
			return ids
		}
		same(b, "none wanted", []reward.PromotionID{}, take(0, 100))
		same(b, "two", []reward.PromotionID{2, 4}, take(2, 100))
		same(b, "those that are due", []reward.PromotionID{1}, take(9, 39))
		same(b, "the rest", []reward.PromotionID{3}, take(9, 40))
		same(b, "all, when their time is over", []reward.PromotionID{2, 4, 1}, take(3, 500))
	})
	run(t, open, "OfManyTakersEachTakesItsOwn", func(b *bundle) {
		const deliveries = 60
		for id := reward.PromotionID(1); id <= deliveries; id++ {
			b.hooked(id, reward.Canary{})
			b.must(b.breach(id, at(10)))
		}
		var mu sync.Mutex // guards taken
		taken := make(map[int64]int)
		b.must(together(4, func(int) error {
			for {
				list, err := b.WebhookClaim(b.ctx, 7, at(900), at(20))
				if err != nil {
					return err
				}
				mu.Lock()
				twice := false
				for _, d := range list {
					taken[d.ID]++
					twice = twice || taken[d.ID] > 1
				}
				mu.Unlock()
				if twice || len(list) == 0 {
					return nil
				}
			}
		}))
		for _, d := range b.takeHooks(at(20), at(999)) { // those that concurrent claims skipped
			taken[d.ID]++
		}
		for id, n := range taken {
			same(b, fmt.Sprintf("takers of delivery %d", id), 1, n)
		}
		same(b, "taken", deliveries, len(taken))
	})
}

func exerciseReconciliations(t *testing.T, open Open) {
	run(t, open, "ReportsComeBackAsTheyWere", func(b *bundle) {
		_, err := b.ReconciliationGet(b.ctx, 1)
		b.wantCode(err, reward.CodeReconciliationNotFound)
		big := store.Reconciliation{
			ID: 1<<63 - 1, At: at(5), Report: []byte(`{"b": 1,"a":"nul\u0000 ` + strings.Repeat("x", 1<<20) + `", "b":2.0}`),
			Checked: 1 << 40, Drifts: 3, Repaired: 2,
		}
		small := store.Reconciliation{ID: 1, At: at(6), Report: []byte(`{}`)}
		for range 2 {
			b.must(b.ReconciliationSave(b.ctx, big))
			b.must(b.ReconciliationSave(b.ctx, small))
		}
		for _, want := range []store.Reconciliation{big, small} {
			got := must(b.ReconciliationGet(b.ctx, want.ID))(b)
			same(b, "report", want, got)
		}
		small.Report, small.At = []byte(`{"checked":7}`), at(7).Add(time.Nanosecond)
		b.must(b.ReconciliationSave(b.ctx, small))
		got := must(b.ReconciliationGet(b.ctx, 1))(b)
		same(b, "written again", store.Reconciliation{ID: 1, Report: small.Report, At: at(7)}, got)
		big.ID = 1 << 40
		b.must(b.ReconciliationSave(b.ctx, big))
		small, big.Report = got, nil
		small.Report = nil
		for _, page := range []struct {
			before int64
			limit  int
			want   []store.Reconciliation
		}{
			{1 << 41, 9, []store.Reconciliation{big, small}}, {1 << 41, 1, []store.Reconciliation{big}}, {big.ID, 9, []store.Reconciliation{small}}, {1, 9, nil}, {0, 0, nil},
		} {
			list := must(b.ReconciliationList(b.ctx, page.before, page.limit))(b)
			same(b, "page", page.want, list)
		}
	})
	run(t, open, "TheRestoreMarkIsTheLatest", func(b *bundle) {
		mark := func() time.Time {
			b.Helper()
			return must(b.RestoreMark(b.ctx))(b)
		}
		same(b, "never", time.Time{}, mark())
		for _, step := range []struct{ set, want int }{{5, 5}, {9, 9}, {7, 9}, {9, 9}, {10, 10}} {
			b.must(b.RestoreMarkSet(b.ctx, at(step.set)))
			same(b, "mark", at(step.want), mark())
		}
	})
}

// asRead returns a promotion as reads of many promotions return it: without its
// details.
func (b *bundle) asRead(id reward.PromotionID) store.PromotionView {
	b.Helper()
	v := b.view(id)
	v.Metadata, v.Notes = "", ""
	return v
}

func exerciseStarts(t *testing.T, open Open) {
	run(t, open, "DueAreDraftsWhoseTimeHasCome", func(b *bundle) {
		starts := map[reward.PromotionID]time.Time{
			1: at(30), 2: at(10), 3: {}, 4: at(20), 5: at(10), 6: at(5), 7: at(6),
		}
		for id, startsAt := range starts {
			must(b.PromotionCreate(b.ctx, reward.Promotion{ID: id, Type: reward.Point, StartsAt: startsAt, CreatedAt: epoch}))(b)
		}
		must(b.PromotionCreate(b.ctx, reward.Promotion{ID: 8, Type: reward.Point, StartsAt: at(5), EndsAt: at(10), CreatedAt: epoch}))(b)
		b.saveReady(4, 1, 2)
		due := func(now time.Time, limit int) []reward.PromotionID {
			b.Helper()
			list := must(b.PromotionDue(b.ctx, now, limit))(b)
			ids := []reward.PromotionID{}
			for _, v := range list {
				ids = append(ids, v.ID)
				same(b, "as it is read", b.asRead(v.ID), v)
			}
			return ids
		}
		b.move(6, reward.Running)
		b.move(7, reward.PromotionCancelled)
		same(b, "before the end of one", []reward.PromotionID{8}, due(at(10).Add(-time.Microsecond), 9))
		same(b, "two", []reward.PromotionID{2, 5}, due(at(10), 9))
		same(b, "all", []reward.PromotionID{2, 5, 4, 1}, due(at(30), 9))
		same(b, "some", []reward.PromotionID{2, 5, 4}, due(at(999), 3))
		b.move(2, reward.Running)
		b.must(b.PromotionDelete(b.ctx, 5))
		same(b, "those that still wait", []reward.PromotionID{4, 1}, due(at(999), 9))
	})
}
