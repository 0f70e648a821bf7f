package payout

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/rows"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

// keepPublisher records what is published.
type keepPublisher struct {
	mu      sync.Mutex
	records []bus.Record
}

func (p *keepPublisher) Publish(_ context.Context, records []bus.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records = append(p.records, records...)
	return nil
}

// desk is a publish listener over real rows.
type desk struct {
	rows      *rows.Tables
	queue     queue.Queue
	publisher *keepPublisher
	listener  *PublishListener
	offset    int64
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	rows := storetest.OpenFile(t, filepath.Join(t.TempDir(), "rows.db"), sqlite.Open)
	t.Cleanup(rows.Close)
	d := &desk{rows: rows, queue: queue.NewMemory(), publisher: &keepPublisher{}}
	t.Cleanup(d.queue.Close)
	common := d.listening("1", nil)
	d.listener = newPublishListener(common, kinds[reward.Point], newProducer(common.shared))
	fixture.Must(d.listener.Offsets(t.Context(), bus.TopicPointPublish))(t)
	return d
}

func (d *desk) listening(logs namedLogs, m *obs.Metrics) listener {
	shared := newShared(Config{Store: d.rows, Queue: d.queue, MaxLen: 1000, Limits: testLimits(), Metrics: m}, nil)
	return listener{shared: shared, logs: logs, publisher: d.publisher}
}

func (d *desk) records(values ...string) []bus.Record {
	out := make([]bus.Record, len(values))
	for i, v := range values {
		out[i] = bus.Record{Topic: bus.TopicPointPublish, Partition: 3, Offset: d.offset, Key: []byte("k"), Value: []byte(v)}
		d.offset++
	}
	return out
}

func point(promotion, target int, amount int) string {
	return fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":1,"targetId":%d,"userId":"u","amount":%d}`, promotion, target, amount)
}

func (d *desk) deadLetters(t *testing.T) map[string]string {
	t.Helper()
	list := fixture.Must(d.rows.DeadLetterList(t.Context(), store.DeadLetterListParams{Limit: 100}))(t)
	out := make(map[string]string)
	for _, l := range list {
		out[l.Offset] = l.Reason
	}
	return out
}

func TestPublishListener(t *testing.T) {
	t.Parallel()
	t.Run("BadRecordsAreBuriedAndTheRestIsSaved", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		records := d.records(
			point(1, 1, 100),
			`{`,
			``,
			point(2, 7, 100), // interleaved with another promotion
			`{"promotionId":1,"targetId":-4,"amount":1}`,
			`{"promotionId":"1","targetId":"2","amount":200,"userId":"`+"\xff"+`"}`,
			`{"promotionId":"1","targetId":"2","amount":200,"extra":{"any":"thing"}}`,
			`{"promotionId":1,"targetId":3,"amount":0}`,
			`{"promotionId":1,"targetId":4,"amount":1.5}`,
			strings.Repeat("x", reward.MessageMax+1),
			point(1, 9223372036854775807, 5),
		)
		fixture.OK(t, d.listener.ProcessTopicMessages(t.Context(), records))
		want := map[string]string{"1": "MALFORMED", "2": "MALFORMED", "4": "MALFORMED", "5": "MALFORMED", "7": "MALFORMED", "8": "MALFORMED", "9": "MALFORMED"}
		fixture.Equal(t, want, d.deadLetters(t))
		if len(d.publisher.records) != len(want) || d.publisher.records[0].Topic != bus.TopicPointPublish+bus.DeadLetterSuffix {
			t.Errorf("published %v", d.publisher.records)
		}
		for id, n := range map[reward.PromotionID]int64{1: 3, 2: 1} {
			v, err := d.rows.PromotionGet(t.Context(), id)
			if err != nil || v.Counts.Total() != n || v.Status != reward.Draft {
				t.Errorf("promotion %d: %+v, %v", id, v, err)
			}
		}
		offsets, err := d.listener.Offsets(t.Context(), bus.TopicPointPublish)
		if err != nil || offsets[3] != int64(len(records)) {
			t.Errorf("offsets %v, %v", offsets, err)
		}
		// The same records again, as after a crash: nothing changes.
		fixture.OK(t, d.listener.ProcessTopicMessages(t.Context(), records))
		fixture.Equal(t, want, d.deadLetters(t))
	})
	t.Run("ARecordThatTheDatabaseRefusesStandsAlone", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		fixture.OK(t, d.listener.ProcessTopicMessages(t.Context(), d.records(point(1, 1000, 100))))
		fixture.Must(d.rows.PayoutSave(t.Context(), store.PayoutSaveParams{Rows: []store.NewPayout{{PromotionID: 1, TargetID: 1001, UserID: "u", Amount: math.MaxInt64 - 150}}}))(t)
		var values []string // 50 are left, which all but one of them are worth
		for i := range 40 {
			values = append(values, point(1, i, 1))
		}
		values[13] = point(1, 13, 50)
		fixture.OK(t, d.listener.ProcessTopicMessages(t.Context(), d.records(values...)))
		fixture.Equal(t, map[string]string{"14": reward.CodeAmountOverflow}, d.deadLetters(t))
		if v, err := d.rows.PromotionGet(t.Context(), 1); err != nil || v.Counts.Total() != 41 {
			t.Errorf("promotion %+v, %v", v, err)
		}
		if offsets, err := d.listener.Offsets(t.Context(), bus.TopicPointPublish); err != nil || offsets[3] != 41 {
			t.Errorf("offsets %v, %v", offsets, err)
		}
	})
	t.Run("AnotherTypeAndAnotherAmountChangeNothing", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		fixture.Must(d.rows.PromotionCreate(t.Context(), reward.Promotion{ID: 5, Name: "v", Type: reward.Voucher, Status: reward.Draft, CreatedAt: time.Now()}))(t)
		fixture.OK(t, d.listener.ProcessTopicMessages(t.Context(), d.records(point(5, 1, 100), point(6, 1, 100), point(6, 1, 100), point(6, 1, 999))))
		want := map[string]string{"0": reward.CodeTypeMismatch, "3": reward.CodeConflict}
		fixture.Equal(t, want, d.deadLetters(t))
		row, _, err := d.rows.PayoutGet(t.Context(), store.PayoutID{PromotionID: 6, TargetID: 1})
		if err != nil || row.Amount != 100 {
			t.Errorf("row %+v, %v", row, err)
		}
		// Once the promotion is deleted, the ID belongs to the type that comes next.
		fixture.OK(t, d.rows.PromotionDelete(t.Context(), 5))
		fixture.OK(t, d.listener.ProcessTopicMessages(t.Context(), d.records(point(5, 1, 100))))
		if row, _, err := d.rows.PayoutGet(t.Context(), store.PayoutID{PromotionID: 5, TargetID: 1}); err != nil || row.Amount != 100 {
			t.Errorf("row %+v, %v", row, err)
		}
	})
	t.Run("ARunningPromotionsRecordsAreEnqueued", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		count := int64(2)
		fixture.Must(d.rows.PromotionRegister(t.Context(), []store.Registration{{ID: 8, Type: reward.Point, Started: true, ExpectedCount: &count}}, reward.Limits{}, time.Now()))(t)
		fixture.OK(t, d.listener.ProcessTopicMessages(t.Context(), d.records(point(8, 1, 100), point(8, 2, 100))))
		entries, err := d.queue.Range(t.Context(), queue.Stream{Type: reward.Point, PromotionID: 8}, 10)
		if err != nil || len(entries) != 2 || entries[0].Dispatch != 1 {
			t.Errorf("entries %v, %v", entries, err)
		}
	})
}

func TestStartedListener(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	l := &StartedListener{d.listening("1", nil)}
	started := func(offset int64, value string) bus.Record {
		return bus.Record{Topic: bus.TopicStarted, Offset: offset, Value: []byte(value)}
	}
	records := []bus.Record{
		started(0, `{"promotionId":1,"promotionType":"point","totalCount":10}`),
		started(1, `{"promotionId":1,"promotionType":"POINT","totalCount":99}`), // a repeat changes nothing
		started(2, `{"promotionId":1,"promotionType":"VOUCHER","totalCount":10}`),
		started(3, `{"promotionId":2,"promotionType":"CASH","totalCount":10}`),
		started(4, `nonsense`),
	}
	for range 2 { // every instance reads the whole topic at every start
		fixture.OK(t, l.ProcessTopicMessages(t.Context(), records))
	}
	v, err := d.rows.PromotionGet(t.Context(), 1)
	if err != nil || v.Status != reward.Running || v.ExpectedCount == nil || *v.ExpectedCount != 10 {
		t.Errorf("promotion %+v, %v", v, err)
	}
	want := map[string]string{"2": reward.CodeTypeMismatch, "3": reward.CodeMalformed, "4": reward.CodeMalformed}
	fixture.Equal(t, want, d.deadLetters(t))
}

// TestRetriesDueSoonDoNotWaitBehindLaterOnes checks the order of retries on
// fake time.
func TestRetriesDueSoonDoNotWaitBehindLaterOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, newProvider(nil))
		s.create(2, 5)
		now := time.Now()
		rows := s.dispatched(2)
		var messages []parsed[reward.RetryMessage]
		var outcomes []rules.Outcome
		for i, due := range []time.Duration{time.Minute, time.Second} {
			at := now.Add(due)
			outcomes = append(outcomes, rules.Outcome{Ref: rows[i].Ref(), Kind: rules.OutcomeFailed, RetryAt: at})
			messages = append(messages, parsed[reward.RetryMessage]{message: reward.RetryMessage{PublishMessage: rows[i].Message(), NotBefore: at, Dispatch: 1}})
		}
		fixture.Must(s.store.PayoutFinish(t.Context(), store.PayoutFinishParams{Outcomes: outcomes, Now: now}))(t)
		retry := s.flow.retry
		retry.Start(t.Context(), retry.run)
		retry.wait(reward.Point, messages)
		retry.wait(reward.Point, messages) // a repeated record does nothing
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()
		if a, b := s.row(rows[0].TargetID), s.row(rows[1].TargetID); a.State != reward.Retrying || b.State != reward.Queued || b.Dispatch != 2 {
			t.Errorf("rows %+v, %+v", a, b)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if a := s.row(rows[0].TargetID); a.State != reward.Queued || a.Dispatch != 2 {
			t.Errorf("row %+v", a)
		}
	})
}

// namedLogs names the log of every topic.
type namedLogs string

func (l namedLogs) LogID(_ context.Context, topic string) (string, error) {
	return topic + "@" + string(l), nil
}

// away is a store that crashes before it stores a dead letter on its own.
type away struct{ Store }

func (away) DeadLetterAdd(context.Context, []reward.DeadLetter) error { return errFault }

func TestDeadLettersAreNotLost(t *testing.T) {
	t.Parallel()
	t.Run("OfATopicThatWasMadeAnew", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		read := func(log namedLogs, value string) {
			t.Helper()
			l := newPublishListener(d.listening(log, nil), kinds[reward.Point], d.listener.producer)
			fixture.Must(l.Offsets(t.Context(), bus.TopicPointPublish))(t)
			d.offset = 0
			fixture.OK(t, l.ProcessTopicMessages(t.Context(), d.records(value)))
		}
		read("1", "bad")
		read("1", "bad") // again, after a crash
		read("2", "worse")
		read("2", "worse")
		list, err := d.rows.DeadLetterList(t.Context(), store.DeadLetterListParams{Limit: 100})
		if err != nil || len(list) != 2 || string(list[0].Value) != "worse" || string(list[1].Value) != "bad" || list[0].Offset != "0" {
			t.Errorf("%+v, %v", list, err)
		}
	})
	t.Run("OfTheOtherTopics", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		metrics := obs.NewMetrics()
		for _, log := range []namedLogs{"1", "1", "2"} {
			common := d.listening(log, metrics)
			started := &StartedListener{common}
			retry := &RetryListener{common, kinds[reward.Point], newRetryProcessor(common.shared, d.publisher, nil)}
			for topic, process := range map[string]bus.HandleFunc{
				bus.TopicStarted: started.ProcessTopicMessages, bus.TopicPointRetry: retry.ProcessTopicMessages,
			} {
				fixture.OK(t, process(t.Context(), []bus.Record{{Topic: topic, Value: []byte("bad")}}))
			}
		}
		list, err := d.rows.DeadLetterList(t.Context(), store.DeadLetterListParams{Limit: 100})
		if err != nil || len(list) != 4 {
			t.Errorf("%+v, %v", list, err)
		}
		shown := httptest.NewRecorder()
		metrics.Handler().ServeHTTP(shown, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
		if want := `largesse_dead_letters_total{reason="MALFORMED"} 6`; !strings.Contains(shown.Body.String(), want) {
			t.Errorf("the metrics have no %s", want)
		}
	})
	t.Run("OfConflictsWithTheOffsets", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t)
		rows := d.rows
		fixture.OK(t, d.listener.ProcessTopicMessages(t.Context(), d.records(point(1, 1, 100), point(1, 2, 100))))
		d.listener.rows.Store = away{rows}
		err := d.listener.ProcessTopicMessages(t.Context(), d.records(point(1, 3, 100), point(1, 1, 999), "bad", point(1, 4, 1), point(1, 4, 2)))
		next := fixture.Must(rows.OffsetsGet(t.Context(), bus.TopicPointPublish+"@1"))(t)
		letters := d.deadLetters(t)
		stored := letters["3"] == reward.CodeConflict && letters["4"] == reward.CodeMalformed && letters["6"] == reward.CodeConflict
		if next[3] > 3 && !stored {
			t.Errorf("the offset is %d, so nobody reads the records again, but the dead letters are %v (%v)", next[3], letters, err)
		}
		if err != nil || !stored || next[3] != 7 {
			t.Errorf("offset %d, dead letters %v, %v", next[3], letters, err)
		}
	})
}

// TestRecordsOfArchivedPromotions pays two targets, archives the promotion, removes its
// payouts, and reads the same records again, as after an offset was reset. Each one is a
// dead letter, and nothing is saved, while records of other promotions are.
func TestRecordsOfArchivedPromotions(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := t.Context()
	process := func(targets ...string) {
		t.Helper()
		fixture.OK(t, d.listener.ProcessTopicMessages(ctx, d.records(targets...)))
	}
	fixture.Must(d.rows.PromotionRegister(ctx, []store.Registration{{ID: 1, Type: reward.Point, Started: true}}, reward.Limits{}, time.Now()))(t)
	process(point(1, 1, 100), point(1, 2, 100))
	var outcomes []rules.Outcome
	for target := reward.TargetID(1); target <= 2; target++ {
		outcomes = append(outcomes, rules.Outcome{Ref: reward.Ref{PromotionID: 1, TargetID: target, Dispatch: 1}, Kind: rules.OutcomePaid, TransactionKey: "t"})
	}
	later := time.Now().Add(time.Hour)
	fixture.Must(d.rows.PayoutFinish(ctx, store.PayoutFinishParams{Outcomes: outcomes, Now: time.Now()}))(t)
	fixture.Must(d.rows.PromotionComplete(ctx, 1, time.Minute, time.Now()))(t)
	ended := fixture.Must(d.rows.PromotionGet(ctx, 1))(t)
	fixture.Must(d.rows.PromotionStreamDestroyed(ctx, 1, ended.LastDispatchedAt))(t)
	if archived, err := d.rows.PromotionArchive(ctx, 1, later, later); err != nil || !archived {
		t.Fatalf("archived: %v, %v", archived, err)
	}
	if page, err := d.rows.PayoutForget(ctx, store.PayoutForgetParams{PromotionID: 1, Limit: 10, Before: later}); err != nil || page.Removed != 2 {
		t.Fatalf("%+v, %v", page, err)
	}
	process(point(1, 1, 100), point(2, 1, 100), point(1, 2, 100), point(1, 3, 100))
	fixture.Equal(t, map[string]string{"2": "ARCHIVED", "4": "ARCHIVED", "5": "ARCHIVED"}, d.deadLetters(t))
	for id, want := range map[reward.PromotionID]int{1: 0, 2: 1} {
		if list, err := d.rows.PayoutList(ctx, store.PayoutListParams{PromotionID: id, Limit: 10}); err != nil || len(list) != want {
			t.Errorf("promotion %d has %d payouts, want %d; %v", id, len(list), want, err)
		}
	}
	if v, err := d.rows.PromotionGet(ctx, 1); err != nil || v.Counts != ended.Counts || v.Status != reward.Completed {
		t.Errorf("the archived promotion is %s with %+v, want COMPLETED with %+v; %v", v.Status, v.Counts, ended.Counts, err)
	}
	offsets, err := d.rows.OffsetsGet(ctx, bus.TopicPointPublish+"@1")
	if err != nil || offsets[3] != 6 {
		t.Errorf("the next offsets are %v, want 6 for partition 3; %v", offsets, err)
	}
}
