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
	publisher, err := bus.Open(ctx, bus.Config{Brokers: p.Brokers, TopicPrefix: p.TopicPrefix, ClientID: "largesse-lab"})
	if err != nil {
		return Workload{}, err
	}
	defer publisher.Close()
	out := Workload{Rejects: make(map[string]int)}
	started := false
	for sent := 0; sent < p.Targets || !started; {
		if !started && sent >= p.Targets/3 {
			started = true
			if err := publisher.Publish(ctx, []bus.Record{startedRecord(p.PromotionID, p.Voucher, p.Targets)}); err != nil {
				return out, err
			}
		}
		n := min(publishBatch, p.Targets-sent)
		records := make([]bus.Record, 0, n+1)
		for i := sent; i < sent+n; i++ {
			amount := amountOf(i)
			if p.Voucher {
				amount = voucherAmount
			}
			records = append(records, targetRecord(p.PromotionID, p.Voucher, firstTarget+i, 1+i%2, amount))
			out.Amount += amount
		}
		if out.Bad < p.Malformed {
			out.Bad++
			out.Rejects["MALFORMED"]++
			records = append(records, malformedRecord(publishTopic(p.Voucher)))
		}
		if err := publisher.Publish(ctx, records); err != nil {
			return out, err
		}
		sent += n
		out.Good = sent
	}
	return out, nil
}

func startedRecord(promotion int64, voucher bool, targets int) bus.Record {
	kind := "POINT"
	if voucher {
		kind = "VOUCHER"
	}
	value := fmt.Sprintf(`{"promotionId":%d,"promotionType":%q,"totalCount":%d}`, promotion, kind, targets)
	return bus.Record{Topic: bus.TopicStarted, Value: []byte(value)}
}

// malformedRecord returns a record that cannot be parsed.
func malformedRecord(topic string) bus.Record {
	return bus.Record{Topic: topic, Key: []byte("?"), Value: []byte(`{"promotionId":"not a number","targetId":`)}
}

func publishTopic(voucher bool) string {
	if voucher {
		return bus.TopicVoucherPublish
	}
	return bus.TopicPointPublish
}

func targetRecord(promotion int64, voucher bool, target, summary int, amount int64) bus.Record {
	value := fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":%d,"targetId":%d,"userId":"user-%d","amount":%d`, promotion, summary, target, target, amount)
	if voucher {
		value += fmt.Sprintf(`,"voucherCode":%q`, voucherCode)
	}
	return bus.Record{Topic: publishTopic(voucher), Key: fmt.Append(nil, target), Value: []byte(value + "}")}
}
