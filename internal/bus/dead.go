package bus

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// DeadRecord is a record that could not be read or processed, and the reason.
type DeadRecord struct {
	Record
	Reason string // code
	Detail string
}

// DeadLetters returns the rows that store dead records of one log (Logs).
func DeadLetters(logID string, dead []DeadRecord) []reward.DeadLetter {
	out := make([]reward.DeadLetter, len(dead))
	for i, d := range dead {
		out[i] = reward.DeadLetter{
			Source: d.Topic, Partition: d.Partition, Offset: strconv.FormatInt(d.Offset, 10), Log: logID,
			Key: d.Key, Value: d.Value, Reason: d.Reason, Detail: d.Detail, At: time.Now(),
		}
	}
	return out
}

// PublishDead counts dead records whose rows are stored, and copies them to their
// dead-letter topics. It only logs a failure: the rows are the source of truth.
func PublishDead(ctx context.Context, p Publisher, m *obs.Metrics, log obs.Log, dead []DeadRecord) {
	if len(dead) == 0 {
		return
	}
	records := make([]Record, len(dead))
	first := dead[0]
	log.Warn("records dead-lettered", errors.New(first.Detail), "count", len(dead),
		"topic", first.Topic, "partition", first.Partition, "offset", first.Offset, "reason", first.Reason)
	for i, d := range dead {
		m.DeadLettered(d.Reason, 1)
		records[i] = DeadLetterRecord(d.Record, d.Reason, d.Detail, time.Now())
	}
	if err := p.Publish(ctx, records); err != nil && ctx.Err() == nil {
		log.Warn("publishing dead-letter copies failed", err, "count", len(records))
	}
}
