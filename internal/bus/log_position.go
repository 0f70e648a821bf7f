package bus

import (
	"context"
	"sync"
)

// LogPosition knows which log a listener reads, so that stored offsets belong to
// that log. The zero value is ready to use. It is safe for concurrent use.
type LogPosition struct {
	mu sync.Mutex // protects id
	id string     // of the log, as of the last assignment
}

// Logs identifies the logs behind topics.
type Logs interface {
	// LogID returns the ID of the log. A topic that is deleted and created again has
	// another one.
	LogID(ctx context.Context, topic string) (string, error)
}

// Start returns the offsets at which to continue reading a topic, which read
// returns by the ID of the topic's log.
func (p *LogPosition) Start(ctx context.Context, logs Logs, topic string, read func(ctx context.Context, logID string) (map[int32]int64, error)) (map[int32]int64, error) {
	id, err := logs.LogID(ctx, topic)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.id = id
	p.mu.Unlock()
	return read(ctx, id)
}

// ID returns the ID of the log, as of the last assignment.
func (p *LogPosition) ID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.id
}

// After returns the ID of the log, and the offset after the last record of each
// partition.
func (p *LogPosition) After(records []Record) (logID string, next map[int32]int64) {
	next = make(map[int32]int64)
	for _, r := range records {
		next[r.Partition] = max(next[r.Partition], r.Offset+1)
	}
	return p.ID(), next
}
