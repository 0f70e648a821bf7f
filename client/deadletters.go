package client

import (
	"context"
	"iter"
	"net/http"
	"time"
)

// DeadLetter is a message that could not be read or processed. Key and value
// are text where they are UTF-8, and bytes otherwise.
type DeadLetter struct {
	ID         string    `json:"id"`
	Source     string    `json:"source"` // topic or stream key
	Partition  int32     `json:"partition"`
	Offset     string    `json:"offset"` // Kafka offset or stream entry id
	Key        string    `json:"key,omitempty"`
	KeyBytes   []byte    `json:"keyBase64,omitempty"`
	Value      string    `json:"value,omitempty"`
	ValueBytes []byte    `json:"valueBase64,omitempty"`
	Reason     string    `json:"reason"` // code, e.g. MALFORMED
	Detail     string    `json:"detail"`
	At         time.Time `json:"at"`
	// Status is OPEN, REPLAYED or DISCARDED; the latter two are for good.
	Status    string     `json:"status"`
	SettledAt *time.Time `json:"settledAt,omitempty"` // nil while OPEN
	SettledBy string     `json:"settledBy,omitempty"`
}

// DeadLetterFilter narrows a list of dead letters; empty fields let all
// through.
type DeadLetterFilter struct {
	Source string // topic or stream key
	Reason string // e.g. MALFORMED
	Status string // OPEN, REPLAYED or DISCARDED
}

// DeadLetters walks over dead letters, the newest first. It ends after the
// first error.
func (c *Client) DeadLetters(ctx context.Context, f DeadLetterFilter) iter.Seq2[DeadLetter, error] {
	return pages[DeadLetter](ctx, c, []string{"v1", "dead-letters"}, filled(map[string]string{"source": f.Source, "reason": f.Reason, "status": f.Status}))
}

// DeadLetter reads one dead letter.
func (c *Client) DeadLetter(ctx context.Context, id string) (DeadLetter, error) {
	var out DeadLetter
	err := c.call(ctx, request{method: http.MethodGet, path: []string{"v1", "dead-letters", id}}, &out)
	return out, err
}

// ReplayDeadLetter processes an OPEN dead letter once more: its record is
// published again, or its payout is requeued.
func (c *Client) ReplayDeadLetter(ctx context.Context, id string) (DeadLetter, error) {
	return c.settleDeadLetter(ctx, id, "replay")
}

// DiscardDeadLetter says that nothing more will be done about an OPEN dead
// letter.
func (c *Client) DiscardDeadLetter(ctx context.Context, id string) (DeadLetter, error) {
	return c.settleDeadLetter(ctx, id, "discard")
}

func (c *Client) settleDeadLetter(ctx context.Context, id, verb string) (DeadLetter, error) {
	var out DeadLetter
	err := c.call(ctx, request{method: http.MethodPost, path: []string{"v1", "dead-letters", id, verb}}, &out)
	return out, err
}

// DeadLetterSelection names OPEN dead letters: at most 1000 ids, or those of a
// source, a reason or both, or all there are.
type DeadLetterSelection struct {
	IDs    []string `json:"ids,omitempty"`
	Source string   `json:"source,omitempty"`
	Reason string   `json:"reason,omitempty"`
	All    bool     `json:"all,omitempty"`
}

// DeadLettersSettled says what became of a selection.
type DeadLettersSettled struct {
	Count int64 `json:"count"`
	// Skipped ones are not there, are not OPEN any more, or cannot be replayed.
	Skipped int64 `json:"skipped"`
}

// ReplayDeadLetters replays a selection. After an error a part of it is done;
// calling it again goes on.
func (c *Client) ReplayDeadLetters(ctx context.Context, s DeadLetterSelection) (DeadLettersSettled, error) {
	return c.settleDeadLetters(ctx, "replay", s)
}

// DiscardDeadLetters discards a selection, like ReplayDeadLetters.
func (c *Client) DiscardDeadLetters(ctx context.Context, s DeadLetterSelection) (DeadLettersSettled, error) {
	return c.settleDeadLetters(ctx, "discard", s)
}

func (c *Client) settleDeadLetters(ctx context.Context, verb string, s DeadLetterSelection) (DeadLettersSettled, error) {
	body, header, err := jsonBody(s)
	if err != nil {
		return DeadLettersSettled{}, err
	}
	var out DeadLettersSettled
	path := []string{"v1", "dead-letters", verb}
	err = c.call(ctx, request{method: http.MethodPost, path: path, header: header, body: body, unbounded: true}, &out)
	return out, err
}
