package coupon

import (
	"context"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// TopicInspector reads the state of the log behind a topic.
type TopicInspector interface {
	bus.Logs
	// Ends returns the end offset of each partition.
	Ends(ctx context.Context, topic string) (map[int32]int64, error)
	// Positions returns where a group starts to read each partition for which it has
	// stored no offset.
	Positions(ctx context.Context, group, topic string) (map[int32]int64, error)
}

// IssueTopic is the coupon-issue topic. It carries the requests of templates in
// KAFKA mode. The rows store how far its records are settled.
type IssueTopic struct {
	rows      store.Store
	publisher bus.Publisher
	inspector TopicInspector
}

// publish publishes requests. Repeating it is harmless: a ticket is settled once.
func (t *IssueTopic) publish(ctx context.Context, id reward.TemplateID, requests []gate.Request) error {
	records := make([]bus.Record, len(requests))
	for i, q := range requests {
		e := reward.CouponIssueEvent{
			TemplateID: id, UserID: q.UserID, Ticket: q.Ticket, Generation: q.Generation, RequestID: reward.RequestID(id, q.UserID),
		}
		records[i] = bus.Record{Topic: bus.TopicCouponIssue, Key: []byte(id.String()), Value: e.JSON()}
	}
	return t.publisher.Publish(ctx, records)
}

// ends returns the present end offset of each partition.
func (t *IssueTopic) ends(ctx context.Context) (map[int32]int64, error) {
	return t.inspector.Ends(ctx, bus.TopicCouponIssue)
}

// passed reports whether all records before the ends are settled.
func (t *IssueTopic) passed(ctx context.Context, ends map[int32]int64) (bool, error) {
	log, err := t.inspector.LogID(ctx, bus.TopicCouponIssue)
	if err != nil {
		return false, err
	}
	stored, err := t.rows.OffsetsGet(ctx, log)
	if err != nil {
		return false, err
	}
	var open []int32
	for partition, end := range ends {
		if at, known := stored[partition]; known && at < end {
			return false, nil
		} else if !known && end > 0 {
			open = append(open, partition)
		}
	}
	if len(open) == 0 {
		return true, nil
	}
	// These rows have no offset for the open partitions. Records before the position
	// where the listener starts are never read, so they count as passed.
	positions, err := t.inspector.Positions(ctx, bus.GroupCouponIssue, bus.TopicCouponIssue)
	if err != nil {
		return false, err
	}
	for _, partition := range open {
		if positions[partition] < ends[partition] {
			return false, nil
		}
	}
	return true, nil
}
