package bus

import (
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The headers of a dead-letter record. A record that is dead-lettered again has
// them twice; the last ones count.
const (
	HeaderTopic     = "largesse-topic"
	HeaderPartition = "largesse-partition"
	HeaderOffset    = "largesse-offset"
	HeaderError     = "largesse-error"
	HeaderDetail    = "largesse-detail"
	HeaderTime      = "largesse-time" // RFC 3339, UTC
)

// DeadLetterRecord returns the record for the dead-letter topic of rec.Topic.
// It keeps the key, value and headers, and adds headers that say where the
// record was found and why it is there. reason is a code, detail is for humans.
func DeadLetterRecord(rec Record, reason, detail string, at time.Time) Record {
	headers := make([]Header, 0, len(rec.Headers)+6)
	headers = append(headers, rec.Headers...)
	headers = append(headers,
		Header{HeaderTopic, []byte(rec.Topic)},
		Header{HeaderPartition, strconv.AppendInt(nil, int64(rec.Partition), 10)},
		Header{HeaderOffset, strconv.AppendInt(nil, rec.Offset, 10)},
		Header{HeaderError, []byte(reason)},
		Header{HeaderDetail, []byte(detail)},
		Header{HeaderTime, []byte(at.UTC().Format(time.RFC3339Nano))},
	)
	return Record{
		Topic:   rec.Topic + DeadLetterSuffix,
		Key:     rec.Key,
		Value:   rec.Value,
		Headers: headers,
		At:      at,
	}
}

// toKafka returns the record to send. The broker assigns its partition and
// offset.
func (c *Client) toKafka(rec Record) *kgo.Record {
	out := &kgo.Record{Topic: c.full(rec.Topic), Key: rec.Key, Value: rec.Value, Timestamp: rec.At}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	return out
}

func (c *Client) fromKafka(rec *kgo.Record) Record {
	out := Record{
		Topic:     c.bare(rec.Topic),
		Partition: rec.Partition,
		Offset:    rec.Offset,
		Key:       rec.Key,
		Value:     rec.Value,
		At:        rec.Timestamp,
	}
	for _, h := range rec.Headers {
		out.Headers = append(out.Headers, Header{Key: h.Key, Value: h.Value})
	}
	return out
}
