package bus

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// DeadRecord is a record that could not be read or processed, and why.
type DeadRecord struct {
	Record
	Reason string // a code
	Detail string
}

// Letters are the rows that keep dead records.
func Letters(dead []DeadRecord) []reward.DeadLetter {
	out := make([]reward.DeadLetter, len(dead))
	for i, d := range dead {
		out[i] = reward.DeadLetter{
			Source: d.Topic, Partition: d.Partition, Offset: strconv.FormatInt(d.Offset, 10),
			Key: d.Key, Value: d.Value, Reason: d.Reason, Detail: d.Detail, At: time.Now(),
		}
	}
	return out
}

// PublishDead copies dead records to the .dlq topics. Best effort: the row is
// the truth.
func PublishDead(ctx context.Context, p Publisher, log obs.Log, dead []DeadRecord) {
	if len(dead) == 0 {
		return
	}
	records := make([]Record, len(dead))
	first := dead[0]
	log.Warn(obs.DeadLettered, errors.New(first.Detail), "count", len(dead),
		"topic", first.Topic, "partition", first.Partition, "offset", first.Offset, "reason", first.Reason)
	for i, d := range dead {
		records[i] = DeadLetterRecord(d.Record, d.Reason, d.Detail, time.Now())
	}
	if err := p.Publish(ctx, records); err != nil && ctx.Err() == nil {
		log.Warn(obs.Failed, err, "count", len(records))
	}
}
