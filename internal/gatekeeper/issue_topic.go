package gatekeeper

import (
	"context"
	"errors"
	"maps"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/gate"
	"github.com/largesse/largesse/internal/reward"
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
	rows      Store
	Publisher bus.Publisher
	Inspector TopicInspector
}

// Publish publishes requests. Repeating it is harmless: a ticket is settled once.
func (t *IssueTopic) Publish(ctx context.Context, id reward.TemplateID, requests []gate.Request) error {
	records := make([]bus.Record, len(requests))
	for i, q := range requests {
		e := reward.CouponIssueEvent{
			TemplateID: id, UserID: q.UserID, Ticket: q.Ticket, Generation: q.Generation, RequestID: reward.RequestID(id, q.UserID),
		}
		records[i] = bus.Record{Topic: bus.TopicCouponIssue, Key: []byte(id.String()), Value: e.JSON()}
	}
	return t.Publisher.Publish(ctx, records)
}

// topicEnds are the end offsets of the partitions of one log.
type topicEnds struct {
	log string
	at  map[int32]int64
}

// errLogCut means that the broker has lost records before the ends that were read, or
// that the topic was recreated: nobody can settle all records before these ends.
var errLogCut = errors.New("the log of " + bus.TopicCouponIssue + " ends earlier than before, or is another one")

// ends returns the present end offset of each partition. If the topic is recreated between
// the two reads, the ends are too high for the new log, which behind notices.
func (t *IssueTopic) ends(ctx context.Context) (topicEnds, error) {
	at, err := t.Inspector.Ends(ctx, bus.TopicCouponIssue)
	if err != nil {
		return topicEnds{}, err
	}
	log, err := t.Inspector.LogID(ctx, bus.TopicCouponIssue)
	return topicEnds{log: log, at: at}, err
}

// behind returns how many records before the ends are not settled. It returns errLogCut
// if the log has lost some of them.
func (t *IssueTopic) behind(ctx context.Context, ends topicEnds) (int64, error) {
	stored, err := t.rows.OffsetsGet(ctx, ends.log)
	if err != nil {
		return 0, err
	}
	positions := stored
	for partition, end := range ends.at {
		if _, known := stored[partition]; !known && end > 0 {
			// These rows have no offset for the partition. Records before the position
			// where the listener starts are never read, so they count as settled.
			group, err := t.Inspector.Positions(ctx, bus.GroupCouponIssue, bus.TopicCouponIssue)
			if err != nil {
				return 0, err
			}
			maps.Copy(group, stored)
			positions = group
			break
		}
	}
	behind := int64(0)
	for partition, end := range ends.at {
		behind += max(0, end-positions[partition])
	}
	if behind == 0 {
		return 0, nil
	}
	now, err := t.ends(ctx)
	if err != nil {
		return 0, err
	}
	for partition, end := range ends.at {
		if now.log != ends.log || now.at[partition] < end {
			return 0, errLogCut
		}
	}
	return behind, nil
}
