package api

import (
	"context"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/reward"
)

// DeadLetter is a message that could not be read or processed. Its bytes are
// given as text when they are UTF-8, as base64 otherwise.
type DeadLetter struct {
	ID          string    `json:"id" doc:"A whole number as a string"`
	Source      string    `json:"source" doc:"A topic, or a stream key"`
	Partition   int32     `json:"partition" doc:"0 for streams"`
	Offset      string    `json:"offset" doc:"Kafka offset, or stream entry id"`
	Key         string    `json:"key,omitempty"`
	KeyBase64   []byte    `json:"keyBase64,omitempty" doc:"Instead of key, when that is not UTF-8"`
	Value       string    `json:"value,omitempty"`
	ValueBase64 []byte    `json:"valueBase64,omitempty" doc:"Instead of value, when that is not UTF-8"`
	Reason      string    `json:"reason" example:"MALFORMED"`
	Detail      string    `json:"detail"`
	At          time.Time `json:"at"`
}

func deadLetterOf(l reward.DeadLetter) DeadLetter {
	out := DeadLetter{
		ID: strconv.FormatInt(l.ID, 10), Source: l.Source, Partition: l.Partition, Offset: l.Offset,
		Reason: l.Reason, Detail: l.Detail, At: l.At.UTC(),
	}
	out.Key, out.KeyBase64 = textOrBytes(l.Key)
	out.Value, out.ValueBase64 = textOrBytes(l.Value)
	return out
}

func textOrBytes(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}

type deadLetterListInput struct {
	Cursor string `query:"cursor" doc:"nextCursor of the page before"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"50"`
}

type deadLetterListOutput struct {
	Body struct {
		Items      []DeadLetter `json:"items" nullable:"false"`
		NextCursor string       `json:"nextCursor,omitempty" doc:"Absent on the last page"`
	}
}

func (a *API) addDeadLetters() {
	call(a, huma.Operation{
		OperationID: "list-dead-letters", Method: http.MethodGet, Path: "/v1/dead-letters", Tags: []string{"dead letters"},
		Summary: "List messages that could not be read or processed, the newest first", Errors: []int{http.StatusBadRequest},
	}, func(ctx context.Context, in *deadLetterListInput) (*deadLetterListOutput, error) {
		before := int64(0)
		if in.Cursor != "" {
			var err error
			if before, err = decodeCursor(cursorDeadLetters, in.Cursor); err != nil {
				return nil, err
			}
		}
		letters, err := a.cfg.Rows.DeadLetterList(ctx, before, pageRead(in.Limit))
		if err != nil {
			return nil, err
		}
		letters, more := page(letters, in.Limit)
		out := &deadLetterListOutput{}
		out.Body.Items = make([]DeadLetter, len(letters))
		for i, l := range letters {
			out.Body.Items[i] = deadLetterOf(l)
		}
		if more {
			out.Body.NextCursor = encodeCursor(cursorDeadLetters, letters[len(letters)-1].ID)
		}
		return out, nil
	})
}
