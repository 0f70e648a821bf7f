package queue

import (
	"bytes"
	"container/list"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/largesse/largesse/internal/service"
)

// ErrClosed is the error of every method of a closed Memory.
var ErrClosed = errors.New("queue: closed")

// wakesBuffer is how many hints wait until they are received; further ones are dropped.
const wakesBuffer = 1024

// Memory is the in-process driver. It has no goroutines, and its cost per entry does
// not grow with the number of entries. Its contents end with the process, so every
// entry that Read returns is a first delivery.
type Memory struct {
	wakes chan Stream

	mu      sync.Mutex // protects the fields below, and sending to and closing wakes
	closed  bool
	streams map[Stream]*memoryStream
	lastID  memoryID
}

var _ Queue = (*Memory)(nil)

// memoryID orders entries like the IDs of Redis.
type memoryID struct{ millis, seq int64 }

func (id memoryID) String() string {
	return strconv.FormatInt(id.millis, 10) + "-" + strconv.FormatInt(id.seq, 10)
}

type memoryStream struct {
	entries *list.List // of *memoryEntry, oldest first
	unread  *list.Element
	byID    map[string]*memoryEntry
	// pending holds the pending entries, oldest lease first. A delivery, a claim
	// and a renewal begin a new lease and move the entry to the back, so the list
	// needs no sorting.
	pending   *list.List
	consumers map[string]*memoryConsumer
}

type memoryEntry struct {
	entry     Entry // without FirstDelivery and Consumer
	addedAt   time.Time
	inEntries *list.Element
	inPending *list.Element   // nil while unread
	owner     *memoryConsumer // the consumer that has the lease
	idleSince time.Time       // when the lease began
}

type memoryConsumer struct {
	name    string
	pending int64
	seenAt  time.Time
}

// NewMemory returns an empty queue.
func NewMemory() *Memory {
	return &Memory{wakes: make(chan Stream, wakesBuffer), streams: map[Stream]*memoryStream{}}
}

// lock locks the mutex and returns a stream, an empty one if it is missing.
func (m *Memory) lock(ctx context.Context, stream Stream) (s *memoryStream, exists bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, fmt.Errorf("queue: not started: %w", err)
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, false, ErrClosed
	}
	if s, exists = m.streams[stream]; !exists {
		s = &memoryStream{entries: list.New(), byID: map[string]*memoryEntry{}, pending: list.New(), consumers: map[string]*memoryConsumer{}}
	}
	return s, exists, nil
}

// Add implements Queue.
func (m *Memory) Add(ctx context.Context, p AddParams) (int, error) {
	decoded := make([]Entry, len(p.Entries))
	for i, e := range p.Entries {
		decoded[i] = Entry{TargetID: e.TargetID, Dispatch: e.Dispatch, Readable: true, Message: bytes.Clone(e.Message)}
		if e.TargetID < 0 || e.Dispatch < 0 || !json.Valid(e.Message) {
			decoded[i] = DecodeFields("", []string{
				FieldKey, e.TargetID.String(), FieldMessage, string(e.Message),
				FieldDispatch, strconv.FormatInt(int64(e.Dispatch), 10),
			})
		}
	}
	s, _, err := m.lock(ctx, p.Stream)
	if err != nil {
		return 0, err
	}
	defer m.mu.Unlock()
	now := time.Now()
	if now.After(p.Deadline) {
		return 0, nil
	}
	allRead := s.unread == nil
	added := min(len(decoded), max(0, p.MaxLen-s.entries.Len()))
	for _, entry := range decoded[:added] {
		m.lastID = m.lastID.next(now)
		entry.ID = m.lastID.String()
		e := &memoryEntry{entry: entry, addedAt: time.UnixMilli(m.lastID.millis)}
		e.inEntries = s.entries.PushBack(e)
		s.byID[entry.ID] = e
		if s.unread == nil {
			s.unread = e.inEntries
		}
	}
	if added == 0 {
		return 0, nil
	}
	m.streams[p.Stream] = s
	if allRead {
		select {
		case m.wakes <- p.Stream:
		default:
		}
	}
	return added, nil
}

// next returns a higher ID, even after the clock was set back.
func (id memoryID) next(now time.Time) memoryID {
	if millis := now.UnixMilli(); millis > id.millis {
		return memoryID{millis: millis}
	}
	return memoryID{millis: id.millis, seq: id.seq + 1}
}

// Create implements Queue.
func (m *Memory) Create(ctx context.Context, stream Stream, consumers []string) (bool, error) {
	s, exists, err := m.lock(ctx, stream)
	if err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	for _, name := range consumers {
		if s.consumers[name] == nil {
			s.consumers[name] = &memoryConsumer{name: name, seenAt: time.Now()}
		}
	}
	return exists, nil
}

// Read implements Queue.
func (m *Memory) Read(ctx context.Context, stream Stream, reads []ReadParams) ([]Entry, error) {
	s, _, err := m.lock(ctx, stream)
	if err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	now := time.Now()
	var out []Entry
	for _, r := range reads {
		if r.Count <= 0 {
			continue
		}
		c := s.consumer(r.Consumer, now)
		for n := 0; n < r.Count && s.unread != nil; n++ {
			e := s.unread.Value.(*memoryEntry)
			s.unread = s.unread.Next()
			s.give(e, c, now)
			got := e.entry
			got.FirstDelivery, got.Consumer = true, c.name
			out = append(out, got)
		}
	}
	return out, nil
}

// Claim implements Queue. It scans only entries whose lease has expired, so it needs
// no Next.
func (m *Memory) Claim(ctx context.Context, p ClaimParams) (Claimed, error) {
	s, _, err := m.lock(ctx, p.Stream)
	if err != nil {
		return Claimed{}, err
	}
	defer m.mu.Unlock()
	now := time.Now()
	var out Claimed
	c := s.consumer(p.Consumer, now)
	// A claimed entry moves to the back, so look at each entry only once.
	for range min(p.Count, s.pending.Len()) {
		e := s.pending.Front().Value.(*memoryEntry)
		if now.Sub(e.idleSince) < p.MinIdle {
			break
		}
		s.give(e, c, now)
		got := e.entry
		got.Consumer = c.name
		out.Entries = append(out.Entries, got)
	}
	return out, nil
}

// Adopt implements Queue. It finds nothing: every delivered entry has a consumer.
func (m *Memory) Adopt(ctx context.Context, _ AdoptParams) (next string, err error) {
	return "", m.Ping(ctx)
}

// Extend implements Queue.
func (m *Memory) Extend(ctx context.Context, stream Stream, consumer string, ids []string) ([]string, error) {
	s, _, err := m.lock(ctx, stream)
	if err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var owned []string
	now := time.Now()
	for _, id := range ids {
		if e := s.byID[id]; e != nil && e.owner != nil && e.owner.name == consumer {
			s.give(e, e.owner, now)
			owned = append(owned, id)
		}
	}
	return owned, nil
}

// Ack implements Queue.
func (m *Memory) Ack(ctx context.Context, stream Stream, ids []string) error {
	s, _, err := m.lock(ctx, stream)
	if err != nil {
		return err
	}
	defer m.mu.Unlock()
	for _, id := range ids {
		e := s.byID[id]
		if e == nil {
			continue
		}
		if s.unread == e.inEntries {
			s.unread = s.unread.Next()
		}
		s.entries.Remove(e.inEntries)
		if e.owner != nil {
			s.pending.Remove(e.inPending)
			e.owner.pending--
		}
		delete(s.byID, id)
	}
	return nil
}

// RemoveConsumer implements Queue.
func (m *Memory) RemoveConsumer(ctx context.Context, stream Stream, consumer, heir string) (bool, error) {
	if consumer == heir {
		return false, fmt.Errorf("queue: consumer %s cannot be its own heir", consumer)
	}
	s, _, err := m.lock(ctx, stream)
	if err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	if c := s.consumers[consumer]; c != nil && c.pending > 0 {
		if heir == "" {
			return false, nil
		}
		to := s.consumer(heir, time.Now())
		for el := s.pending.Front(); el != nil; el = el.Next() {
			if e := el.Value.(*memoryEntry); e.owner == c {
				e.owner = to // the entry keeps its position and its idle time
				to.pending++
			}
		}
	}
	delete(s.consumers, consumer)
	return true, nil
}

// Destroy implements Queue.
func (m *Memory) Destroy(ctx context.Context, stream Stream) (bool, error) {
	s, _, err := m.lock(ctx, stream)
	if err != nil {
		return false, err
	}
	defer m.mu.Unlock()
	if s.entries.Len() > 0 {
		return false, nil
	}
	delete(m.streams, stream)
	return true, nil
}

// Consumers implements Queue.
func (m *Memory) Consumers(ctx context.Context, stream Stream) ([]ConsumerInfo, error) {
	s, _, err := m.lock(ctx, stream)
	if err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	out := make([]ConsumerInfo, 0, len(s.consumers))
	for _, c := range s.consumers {
		out = append(out, ConsumerInfo{Name: c.name, Pending: c.pending, Idle: time.Since(c.seenAt)})
	}
	slices.SortFunc(out, func(a, b ConsumerInfo) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// Info implements Queue.
func (m *Memory) Info(ctx context.Context, stream Stream) (Info, error) {
	s, exists, err := m.lock(ctx, stream)
	if err != nil {
		return Info{}, err
	}
	defer m.mu.Unlock()
	info := Info{At: time.Now(), Exists: exists, Len: int64(s.entries.Len()), Pending: int64(s.pending.Len())}
	if oldest := s.entries.Front(); oldest != nil {
		info.OldestAt = oldest.Value.(*memoryEntry).addedAt
		if oldest != s.unread { // the entries before the first unread one are pending
			info.OldestPendingAt = info.OldestAt
		}
	}
	return info, nil
}

// Range implements Queue.
func (m *Memory) Range(ctx context.Context, stream Stream, count int) ([]Entry, error) {
	s, _, err := m.lock(ctx, stream)
	if err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var out []Entry
	for el := s.entries.Front(); el != nil && len(out) < count; el = el.Next() {
		out = append(out, el.Value.(*memoryEntry).entry)
	}
	return out, nil
}

// Wakes implements Queue.
func (m *Memory) Wakes() <-chan Stream { return m.wakes }

// Clocks implements Queue. The clock is this process's.
func (m *Memory) Clocks(ctx context.Context) (Clocks, error) {
	return Clocks{Of: func(Stream) service.Clock { return service.Clock{} }}, m.Ping(ctx)
}

// Ping implements Queue.
func (m *Memory) Ping(ctx context.Context) error {
	_, _, err := m.lock(ctx, Stream{})
	if err == nil {
		m.mu.Unlock()
	}
	return err
}

// Try implements Queue.
func (m *Memory) Try(ctx context.Context, _ Stream) error { return m.Ping(ctx) }

// Close implements Queue. It may be called twice.
func (m *Memory) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return
	}
	m.closed, m.streams = true, nil
	close(m.wakes)
}

// consumer returns a consumer that has just called.
func (s *memoryStream) consumer(name string, now time.Time) *memoryConsumer {
	c := s.consumers[name]
	if c == nil {
		c = &memoryConsumer{name: name}
		s.consumers[name] = c
	}
	c.seenAt = now
	return c
}

func (s *memoryStream) give(e *memoryEntry, c *memoryConsumer, now time.Time) {
	if e.owner == nil {
		e.inPending = s.pending.PushBack(e)
	} else {
		e.owner.pending--
		s.pending.MoveToBack(e.inPending)
	}
	c.pending++
	e.owner, e.idleSince = c, now
}
