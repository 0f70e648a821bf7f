package lab

import (
	"context"
	"fmt"

	"github.com/largesse/largesse/internal/bus"
)

// Publishing is a campaign that another system sends through Kafka.
type Publishing struct {
	Brokers     []string
	TopicPrefix string
	PromotionID int64
	Voucher     bool // VOUCHER if true, otherwise POINT
	Targets     int
	// Malformed is the number of malformed records to mix in, one per batch.
	// Each must become a dead letter.
	Malformed int
}

const (
	publishBatch  = 500
	voucherAmount = 1000
	voucherCode   = "COFFEE-1000"
)

// Publish sends the campaign: some targets, the started event, and the other
// targets, because no order is guaranteed between topics.
func (p Publishing) Publish(ctx context.Context) (Workload, error) {
	c, err := bus.Open(ctx, bus.Config{Brokers: p.Brokers, TopicPrefix: p.TopicPrefix, ClientID: "largesse-lab"})
	if err != nil {
		return Workload{}, err
	}
	defer c.Close()
	publisher := bus.NewPublisher(c)
	topic := bus.TopicPointPublish
	if p.Voucher {
		topic = bus.TopicVoucherPublish
	}
	out := Workload{Rejects: make(map[string]int)}
	started := false
	for sent := 0; sent < p.Targets || !started; {
		if !started && sent >= p.Targets/3 {
			started = true
			if err := publisher.Publish(ctx, []bus.Record{startedRecord(p.PromotionID, p.kind(), p.Targets)}); err != nil {
				return out, err
			}
		}
		n := min(publishBatch, p.Targets-sent)
		records := make([]bus.Record, 0, n+1)
		for i := sent; i < sent+n; i++ {
			records = append(records, p.record(topic, i))
			out.Amount += p.amount(i)
		}
		if out.Bad < p.Malformed {
			out.Bad++
			out.Rejects["MALFORMED"]++
			records = append(records, malformedRecord(topic))
		}
		if err := publisher.Publish(ctx, records); err != nil {
			return out, err
		}
		sent += n
		out.Good = sent
	}
	return out, nil
}

func startedRecord(promotion int64, kind string, targets int) bus.Record {
	value := fmt.Sprintf(`{"promotionId":%d,"promotionType":%q,"totalCount":%d}`, promotion, kind, targets)
	return bus.Record{Topic: bus.TopicStarted, Value: []byte(value)}
}

// malformedRecord returns a record that cannot be parsed.
func malformedRecord(topic string) bus.Record {
	return bus.Record{Topic: topic, Key: []byte("?"), Value: []byte(`{"promotionId":"not a number","targetId":`)}
}

func (p Publishing) kind() string {
	if p.Voucher {
		return "VOUCHER"
	}
	return "POINT"
}

func (p Publishing) amount(i int) int64 {
	if p.Voucher {
		return voucherAmount
	}
	return amountOf(i)
}

func (p Publishing) record(topic string, i int) bus.Record {
	id := firstTarget + i
	value := fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":%d,"targetId":%d,"userId":"user-%d","amount":%d`,
		p.PromotionID, 1+i%2, id, id, p.amount(i))
	if p.Voucher {
		value += fmt.Sprintf(`,"voucherCode":%q`, voucherCode)
	}
	return bus.Record{Topic: topic, Key: fmt.Append(nil, id), Value: []byte(value + "}")}
}
