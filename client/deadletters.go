package client

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// DeadLetter is a message that could not be read or processed. Key and Value
// hold UTF-8 text; other content is in KeyBytes and ValueBytes.
type DeadLetter struct {
	ID             string     `json:"id"`
	Source         string     `json:"source"` // topic or stream key
	Partition      int32      `json:"partition" doc:"0 for streams"`
	Offset         string     `json:"offset" doc:"Or stream entry ID"`
	Key            string     `json:"key,omitempty"`
	KeyBytes       []byte     `json:"keyBase64,omitempty" doc:"If not UTF-8"`
	Value          string     `json:"value,omitempty" doc:"For viewers, its voucherCode is … and the last four characters, and a value that may have a code elsewhere is …"`
	ValueBytes     []byte     `json:"valueBase64,omitempty" doc:"If not UTF-8"`
	ValueLength    int64      `json:"valueBytes" doc:"Length of the whole"`
	ValueTruncated bool       `json:"valueTruncated,omitempty" doc:"Lists show 1024 bytes, get-dead-letter up to 65536"`
	Reason         string     `json:"reason" example:"MALFORMED"`
	Detail         string     `json:"detail"`
	At             time.Time  `json:"at"`
	Status         string     `json:"status" enum:"OPEN,REPLAYED,DISCARDED"`
	SettledAt      *time.Time `json:"settledAt,omitempty"` // nil while OPEN
	SettledBy      string     `json:"settledBy,omitempty"`
}

// DeadLetterFilter selects dead letters. Empty fields select all.
type DeadLetterFilter struct {
	Source string // topic or stream key
	Reason string // e.g. MALFORMED
	Status string // OPEN, REPLAYED or DISCARDED
}

// DeadLetters iterates over dead letters, newest first.
func (c *Client) DeadLetters(ctx context.Context, f DeadLetterFilter) iter.Seq2[DeadLetter, error] {
	return pages[DeadLetter](ctx, c, []string{"v1", "dead-letters"}, filled(map[string]string{"source": f.Source, "reason": f.Reason, "status": f.Status}))
}

// DeadLetter returns a dead letter.
func (c *Client) DeadLetter(ctx context.Context, id string) (DeadLetter, error) {
	return get[DeadLetter](ctx, c, "v1", "dead-letters", id)
}

// ReplayDeadLetter replays an OPEN dead letter: it publishes its record again,
// or requeues its payout.
func (c *Client) ReplayDeadLetter(ctx context.Context, id string) (DeadLetter, error) {
	return post[DeadLetter](ctx, c, nil, "v1", "dead-letters", id, "replay")
}

// DiscardDeadLetter discards an OPEN dead letter. Its bytes are retained.
func (c *Client) DiscardDeadLetter(ctx context.Context, id string) (DeadLetter, error) {
	return post[DeadLetter](ctx, c, nil, "v1", "dead-letters", id, "discard")
}

// DeadLetterSelection selects OPEN dead letters: by at most 1000 IDs, by
// source, reason or both, or all.
type DeadLetterSelection struct {
	IDs    []string `json:"ids,omitempty"`
	Source string   `json:"source,omitempty"`
	Reason string   `json:"reason,omitempty"`
	All    bool     `json:"all,omitempty"`
}

// DeadLettersSettled is the result of an operation on many dead letters.
type DeadLettersSettled struct {
	Count   int64 `json:"count"`
	Skipped int64 `json:"skipped" doc:"Unknown, not OPEN, or not replayable"`
}

// ReplayDeadLetters replays the selected dead letters. An error may leave some
// unreplayed; call it again to continue.
func (c *Client) ReplayDeadLetters(ctx context.Context, s DeadLetterSelection) (DeadLettersSettled, error) {
	return c.settleDeadLetters(ctx, "replay", s)
}

// DiscardDeadLetters discards the selected dead letters, like
// ReplayDeadLetters.
func (c *Client) DiscardDeadLetters(ctx context.Context, s DeadLetterSelection) (DeadLettersSettled, error) {
	return c.settleDeadLetters(ctx, "discard", s)
}

func (c *Client) settleDeadLetters(ctx context.Context, verb string, s DeadLetterSelection) (DeadLettersSettled, error) {
	path := []string{"v1", "dead-letters", verb}
	return call[DeadLettersSettled](ctx, c, request{method: http.MethodPost, path: path, json: s, unbounded: true})
}
