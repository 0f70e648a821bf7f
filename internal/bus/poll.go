package bus

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/service"
)

// fetchMaxWait is how long a broker holds an empty answer back. New records
// are answered at once; each question of an idle listener wakes the instance.
const fetchMaxWait = 2 * time.Second

// poll waits for at most limit records of one topic. None come back when ctx
// ended, or when there was an error, which is logged; the library goes on
// trying by itself.
func poll(ctx context.Context, kafka *kgo.Client, limit int, log obs.Log) []*kgo.Record {
	fetches := kafka.PollRecords(ctx, limit)
	failed := false
	fetches.EachError(func(topic string, partition int32, err error) {
		var loss *kgo.ErrDataLoss
		switch {
		case errors.As(err, &loss):
			// The brokers have lost what they had acknowledged.
			log.Error(obs.Failed, err, "topic", topic, "partition", partition)
		case ctx.Err() == nil:
			failed = true
			log.Warn(obs.Failed, err, "doing", "reading", "topic", topic, "partition", partition)
		}
	})
	records := fetches.Records()
	if failed && len(records) == 0 {
		// An error that comes back at once must not make a busy loop.
		service.Sleep(ctx, retryBase)
	}
	return records
}
