package api

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// deadLetterFor returns a dead letter as the caller may see it. Its bytes are shown as text
// if they are UTF-8, otherwise as base64.
func deadLetterFor(ctx context.Context, l reward.DeadLetter) client.DeadLetter {
	out := client.DeadLetter{
		ID: strconv.FormatInt(l.ID, 10), Source: l.Source, Partition: l.Partition, Offset: l.Offset,
		Reason: l.Reason, Detail: l.Detail, At: l.At.UTC(), Status: string(l.Status), SettledAt: timeOf(l.SettledAt), SettledBy: l.SettledBy,
	}
	out.Key, out.KeyBytes = textOrBytes(l.Key)
	out.ValueLength, out.ValueTruncated = l.ValueLength, l.ValueLength > int64(len(l.Value))
	shown := withCode(ctx, string(l.Value), string(recordMasked(l.Source, l.Value)))
	out.Value, out.ValueBytes = textOrBytes([]byte(shown))
	return out
}

// lettersShown limits what a list shows of each key and value, in bytes, so that a page of
// long ones needs little memory.
const lettersShown = 1024

// textOrBytes returns bytes as text if they are UTF-8, without a last character that was
// cut.
func textOrBytes(b []byte) (string, []byte) {
	whole := b
	for n := 1; n <= min(len(b), utf8.UTFMax); n++ {
		if last := b[len(b)-n:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				whole = b[:len(b)-n]
			}
			break
		}
	}
	if utf8.Valid(whole) {
		return string(whole), nil
	}
	return "", b
}

type deadLetterListInput struct {
	Source string `query:"source"`
	Reason string `query:"reason" doc:"E.g. MALFORMED"`
	Status string `query:"status" enum:"OPEN,REPLAYED,DISCARDED"`
	LongItemsInput
}

type deadLetterIDInput struct {
	ID string `path:"id" doc:"Dead letter ID"`
}

// SelectDeadLetters is the body of POST /v1/dead-letters/replay and discard: IDs, a
// filter, or all.
type SelectDeadLetters struct {
	IDs    []wireID `json:"ids,omitempty" maxItems:"1000"`
	Source string   `json:"source,omitempty"`
	Reason string   `json:"reason,omitempty"`
	All    bool     `json:"all,omitempty"`
}

// Resolve checks what the schema cannot express.
func (b *SelectDeadLetters) Resolve(huma.Context) []error {
	selection, err := b.selection()
	if err != nil {
		return []error{&huma.ErrorDetail{Location: "body.ids", Message: err.Error()}}
	}
	return fieldErrors(selection.Check())
}

func (b *SelectDeadLetters) selection() (campaign.DeadLetterSelection, error) {
	s := campaign.DeadLetterSelection{Source: b.Source, Reason: b.Reason, All: b.All}
	for _, id := range b.IDs {
		n, err := web.IDOf("dead letter", string(id))
		if err != nil {
			return s, err
		}
		s.IDs = append(s.IDs, n)
	}
	return s, nil
}

type deadLettersInput struct {
	Body SelectDeadLetters
}

type deadLettersOutput struct {
	Body struct{ client.DeadLettersSettled }
}

func (a *API) addDeadLetters() {
	const path = "/v1/dead-letters"
	const tag = "dead letters"
	call(a, operation{
		id: "list-dead-letters", method: http.MethodGet, path: path, tag: tag, roles: readers,
		summary: "List dead letters",
	}, a.listDeadLetters)
	call(a, operation{
		id: "get-dead-letter", method: http.MethodGet, path: path + "/{id}", tag: tag, roles: readers,
		summary: "Get a dead letter",
		errors:  []string{reward.CodeDeadLetterNotFound},
	}, deadLetterCall(func(ctx context.Context, id int64) (reward.DeadLetter, error) {
		return a.cfg.Rows.DeadLetterGet(ctx, id)
	}))
	for _, act := range []struct {
		name, summary, summaryMany string
		errors, errorsMany         []string
		to                         reward.DeadLetterStatus
	}{
		{
			"replay", "Publish the record of a dead letter again, or requeue its payout", "Replay OPEN dead letters by ids, by source and reason, or all",
			[]string{campaign.CodeNotReplayable, campaign.CodeNotPublished},
			[]string{campaign.CodeNotPublished},
			reward.DeadLetterReplayed,
		},
		{"discard", "Discard a dead letter", "Discard OPEN dead letters by ids, by source and reason, or all", nil, nil, reward.DeadLetterDiscarded},
	} {
		call(a, operation{
			id: act.name + "-dead-letter", method: http.MethodPost, path: path + "/{id}/" + act.name, tag: tag, roles: operators,
			summary: act.summary, status: http.StatusAccepted,
			errors: slices.Concat(act.errors, []string{reward.CodeDeadLetterNotFound, reward.CodeIllegalState}),
		}, deadLetterCall(func(ctx context.Context, id int64) (reward.DeadLetter, error) {
			return a.cfg.DeadLetters.Close(ctx, id, act.to, actor(ctx))
		}))
		call(a, operation{
			id: act.name + "-dead-letters", method: http.MethodPost, path: path + "/" + act.name, tag: tag, roles: operators,
			summary: act.summaryMany, status: http.StatusAccepted,
			errors:  slices.Concat(act.errorsMany, []string{campaign.CodePartlyDone}),
			example: tree{"reason": "MALFORMED"},
		}, func(ctx context.Context, in *deadLettersInput) (*deadLettersOutput, error) {
			selection, err := in.Body.selection()
			if err != nil {
				return nil, web.Invalid("ids", err.Error())
			}
			res, err := a.cfg.DeadLetters.CloseMany(ctx, selection, act.to, actor(ctx))
			if err != nil {
				return nil, partly{err} // perhaps
			}
			out := &deadLettersOutput{}
			out.Body.Count, out.Body.Skipped = int64(res.Count), int64(res.Skipped)
			return out, nil
		})
	}
}

// deadLetterCall returns an operation that takes a dead letter ID and answers with
// the dead letter.
func deadLetterCall(do func(ctx context.Context, id int64) (reward.DeadLetter, error)) func(context.Context, *deadLetterIDInput) (*output[client.DeadLetter], error) {
	return func(ctx context.Context, in *deadLetterIDInput) (*output[client.DeadLetter], error) {
		id, err := web.IDOf("dead letter", in.ID)
		if err != nil {
			return nil, web.Malformed("id", err.Error())
		}
		l, err := do(ctx, id)
		return outputOf(deadLetterFor(ctx, l), err)
	}
}

func (a *API) listDeadLetters(ctx context.Context, in *deadLetterListInput) (*output[listOf[client.DeadLetter]], error) {
	read := func(before int64, limit int) ([]reward.DeadLetter, error) {
		return a.cfg.Rows.DeadLetterList(ctx, store.DeadLetterListParams{
			Before: before, Limit: limit, Source: in.Source, Reason: in.Reason, Status: reward.DeadLetterStatus(in.Status), BytesMax: lettersShown,
		})
	}
	show := func(l reward.DeadLetter) client.DeadLetter { return deadLetterFor(ctx, l) }
	return pageByID(PageInput(in.LongItemsInput), cursorDeadLetters, read, show, func(l reward.DeadLetter) int64 { return l.ID })
}
