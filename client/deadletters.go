package client

import (
	"context"
	"iter"
	"net/url"
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
}

// DeadLetters walks over all dead letters, the newest first. It ends after the
// first error.
func (c *Client) DeadLetters(ctx context.Context) iter.Seq2[DeadLetter, error] {
	return pages[DeadLetter](ctx, c, []string{"v1", "dead-letters"}, url.Values{})
}
