package payout

import (
	"container/heap"
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
)

const (
	// retryHeapMax limits the retries in memory. The feeder dispatches the others when
	// they are due.
	retryHeapMax = 100_000
	retryOutMax  = 64 // batches of retry records that wait for Kafka
)

// retryOf is an entry whose payout became RETRYING.
type retryOf struct {
	finished
	row store.FinishResult
}

// RetryProcessor dispatches RETRYING payouts again when they are due, the earliest first.
// After the commit of an outcome, it publishes one record per RETRYING payout to a retry
// topic. The instance that reads the record keeps it in memory until it is due. A record
// may be lost: the feeder then dispatches the payout.
type RetryProcessor struct {
	service.Base
	*shared
	publisher bus.Publisher
	producer  *Producer
	log       obs.Log

	// out carries the records to publish. If it is full, records are dropped, so that a
	// Kafka outage does not block the finisher.
	out chan []bus.Record
	due service.Hint // given when the heap has changed

	mu    sync.Mutex // protects waits
	waits retryHeap
}

func newRetryProcessor(s *shared, p bus.Publisher, producer *Producer) *RetryProcessor {
	return &RetryProcessor{
		shared: s, publisher: p, producer: producer, log: s.cfg.Log.For(obs.Retry),
		out: make(chan []bus.Record, retryOutMax), due: service.NewHint(),
	}
}

// publish passes one record per retry to be published. It never blocks.
func (r *RetryProcessor) publish(retries []retryOf) {
	records := make([]bus.Record, 0, len(retries))
	for _, x := range retries {
		message, err := reward.ParseEntry(x.item.Stream.Type, x.item.Message)
		if err != nil {
			continue // another program added the entry; the feeder dispatches the payout
		}
		value, err := json.Marshal(reward.RetryMessage{
			PublishMessage: message, RetryCount: x.row.Attempts, NotBefore: x.row.DueAt.UTC(),
			LastError: x.outcome.Code, Dispatch: x.outcome.Dispatch,
		})
		if err != nil {
			continue
		}
		records = append(records, bus.Record{
			Topic: kinds[x.item.Stream.Type].retryTopic, Key: []byte(message.TargetID.String()), Value: value,
		})
	}
	select {
	case r.out <- records:
	default:
		r.log.Debug("retry records dropped: buffer full", "count", len(records))
	}
}

func (r *RetryProcessor) send(ctx context.Context) {
	for {
		select {
		case records := <-r.out:
			if err := r.publisher.Publish(ctx, records); err != nil && ctx.Err() == nil {
				r.log.Warn("publishing retries failed", err, "count", len(records))
			}
		case <-ctx.Done():
			return
		}
	}
}

func (r *RetryProcessor) wait(t reward.PromotionType, retries []parsed[reward.RetryMessage]) {
	r.mu.Lock()
	for _, retry := range retries {
		if len(r.waits) == retryHeapMax {
			break
		}
		m := retry.message
		heap.Push(&r.waits, waiting{
			ref: reward.Ref{PromotionID: m.PromotionID, TargetID: m.TargetID, Dispatch: m.Dispatch},
			due: m.NotBefore, promotionType: t,
		})
	}
	r.mu.Unlock()
	r.due.Give()
}

// run dispatches retries that are due until ctx ends.
func (r *RetryProcessor) run(ctx context.Context) {
	var sending sync.WaitGroup
	sending.Go(func() { r.send(ctx) })
	defer sending.Wait()
	for ctx.Err() == nil {
		if pause := r.untilDue(); pause > 0 {
			select {
			case <-time.After(pause):
			case <-r.due:
			case <-ctx.Done():
			}
			continue
		}
		// Wait a moment, so that retries due together go in one batch.
		service.Sleep(ctx, 5*time.Millisecond)
		r.dispatch(ctx, r.takeDue(time.Now()))
	}
}

// untilDue returns the time until the earliest retry is due, or an hour if there is none.
func (r *RetryProcessor) untilDue() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waits) == 0 {
		return time.Hour
	}
	return time.Until(r.waits[0].due)
}

// takeDue takes at most store.BatchMax retries that are due from the heap.
func (r *RetryProcessor) takeDue(now time.Time) map[queue.Stream][]reward.Ref {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[queue.Stream][]reward.Ref)
	for n := 0; len(r.waits) > 0 && !r.waits[0].due.After(now) && n < store.BatchMax; n++ {
		w := heap.Pop(&r.waits).(waiting)
		s := queue.Stream{Type: w.promotionType, PromotionID: w.ref.PromotionID}
		out[s] = append(out[s], w.ref)
	}
	return out
}

// dispatch dispatches the payouts that are still RETRYING with the dispatch number
// of their record. If that fails, the feeder dispatches them.
func (r *RetryProcessor) dispatch(ctx context.Context, due map[queue.Stream][]reward.Ref) {
	for s, refs := range due {
		if !r.clock.accepts(s) {
			continue
		}
		rows, err := r.rows.PayoutDispatch(ctx, store.PayoutDispatchParams{
			PromotionID: s.PromotionID, From: reward.Retrying, Refs: refs, Limit: len(refs), MaxLen: r.cfg.MaxLen,
		})
		if err != nil {
			if ctx.Err() == nil {
				r.log.Warn("dispatching retries failed", err, "promotion_id", s.PromotionID, "count", len(refs))
			}
			continue
		}
		r.producer.Enqueue(ctx, s.Type, rows)
		r.log.Debug("retries dispatched", "promotion_id", s.PromotionID, "count", len(rows))
	}
}

type waiting struct {
	ref           reward.Ref
	promotionType reward.PromotionType
	due           time.Time
}

type retryHeap []waiting

func (h retryHeap) Len() int           { return len(h) }
func (h retryHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h retryHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *retryHeap) Push(x any)        { *h = append(*h, x.(waiting)) }
func (h *retryHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
