package bus

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// fetchMaxWait is the time for which a broker delays an empty reply. It sends
// new records at once; each request of an idle listener wakes the instance.
const fetchMaxWait = 2 * time.Second

// poll waits for at most limit records of one topic. It returns none if ctx
// ended or a read failed, which it logs; the library repeats the read. recreated reports
// whether the topic was deleted and created again: this client reads nothing of it any
// more, another one must.
func poll(ctx context.Context, kafka *kgo.Client, limit int, log obs.Log) (records []*kgo.Record, recreated bool) {
	fetches := kafka.PollRecords(ctx, limit)
	failed := false
	fetches.EachError(func(topic string, partition int32, err error) {
		var loss *kgo.ErrDataLoss
		switch {
		case errors.As(err, &loss):
			log.Error("Kafka lost acknowledged records", err, "topic", topic, "partition", partition)
		case ctx.Err() == nil:
			failed = true
			recreated = recreated || errors.Is(err, kerr.UnknownTopicID)
			log.Warn("reading records failed", err, "topic", topic, "partition", partition)
		}
	})
	records = fetches.Records()
	if failed && len(records) == 0 {
		// An error that comes back at once must not cause a busy loop.
		service.Sleep(ctx, retryBase)
	}
	return records, recreated
}
