// Package queuetest is the conformance suite of queue.Queue.
package queuetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// World runs a test on an empty queue, and closes the queue after it; the test may have
// closed it. age makes every pending entry of a stream idle for so much longer.
type World func(t *testing.T, test func(t *testing.T, q queue.Queue, age func(s queue.Stream, d time.Duration)))

// Exercise runs the suite, in parallel.
func Exercise(t *testing.T, world World) {
	t.Helper()
	for name, exercise := range map[string]func(*testing.T, *bundle){
		"AddGivesWhatWasAdded":                     exerciseAdd,
		"AddFillsUpToMaxLenInOrder":                exerciseMaxLen,
		"AddRefusesALateBatch":                     exerciseDeadline,
		"AddOfNothingMakesNothing":                 exerciseAddNothing,
		"AddKeepsWhatItCannotRead":                 exerciseUnreadable,
		"ReadGivesAnEntryOnce":                     exerciseReadOnce,
		"ReadServesConsumersInTurn":                exerciseReadSeveral,
		"OnlyAddMakesAStream":                      exerciseOnlyAdd,
		"ReadersShareWithoutOverlap":               exerciseConcurrentReaders,
		"AddersNeverExceedMaxLen":                  exerciseConcurrentAdders,
		"ClaimTakesIdleEntriesOnly":                exerciseClaim,
		"ClaimGivesAnEntryToOneClaimer":            exerciseConcurrentClaims,
		"ClaimPassesOverWhatIsNotIdle":             exerciseClaimBehindLeased,
		"ExtendKeepsALease":                        exerciseExtend,
		"ExtendLeavesWhatIsTaken":                  exerciseExtendTaken,
		"AckDeletesReadAndUnread":                  exerciseAck,
		"CreateRegistersConsumers":                 exerciseCreate,
		"RemoveConsumerHandsEverythingOn":          exerciseRemoveConsumer,
		"RemoveConsumerKeepsIdleTime":              exerciseRemoveConsumerIdle,
		"RemoveConsumerWithoutHeirRefuses":         exerciseRemoveConsumerNoHeir,
		"DestroyRefusesUnfinishedWork":             exerciseDestroy,
		"DestroyNeverStrandsALateAdd":              exerciseDestroyRace,
		"InfoAndRangeTakeNothing":                  exerciseInfo,
		"EverythingElseCountsAMissingStreamAsNone": exerciseMissing,
		"ClocksAreComparedWithOurs":                exerciseClocks,
		"StreamsAreApart":                          exerciseStreamsApart,
		"WakesTellOfFirstWork":                     exerciseWakes,
		"ACancelledCallDoesNothing":                exerciseCancelled,
		"CloseEndsWakesAndCalls":                   exerciseClose,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world(t, func(t *testing.T, q queue.Queue, age func(s queue.Stream, d time.Duration)) {
				s := queue.Stream{Type: reward.Voucher, PromotionID: 12345}
				exercise(t, &bundle{TB: t, q: q, ctx: t.Context(), s: s, age: func(d time.Duration) { age(s, d) }})
			})
		})
	}
}

// bundle is what one part of the suite uses.
type bundle struct {
	testing.TB
	q   queue.Queue
	ctx context.Context
	s   queue.Stream
	age func(d time.Duration) // of the stream's pending entries
}

// message returns the message of entry i.
func message(i int) []byte { return fmt.Appendf(nil, `{"promotionId":12345,"targetId":%d}`, i) }

func newEntries(from, n int) []queue.NewEntry {
	out := make([]queue.NewEntry, n)
	for i := range out {
		out[i] = queue.NewEntry{TargetID: reward.TargetID(from + i), Dispatch: int32(i%3) + 1, Message: message(from + i)}
	}
	return out
}

// add adds n entries with the targets from, from+1 and so on, which must all
// fit.
func (b *bundle) add(from, n int) {
	b.Helper()
	if added := b.addUpTo(1_000_000, from, n); added != n {
		b.Fatalf("Add put in %d of %d entries", added, n)
	}
}

func (b *bundle) addUpTo(maxLen, from, n int) int {
	b.Helper()
	return fixture.Must(b.q.Add(b.ctx, queue.AddParams{
		Stream: b.s, MaxLen: maxLen, Deadline: time.Now().Add(time.Minute), Entries: newEntries(from, n),
	}))(b)
}

func (b *bundle) read(consumer string, n int) []queue.Entry {
	b.Helper()
	return fixture.Must(b.q.Read(b.ctx, b.s, []queue.ReadParams{{Consumer: consumer, Count: n}}))(b)
}

func (b *bundle) claim(consumer string, minIdle time.Duration, n int) []queue.Entry {
	b.Helper()
	return fixture.Must(b.q.Claim(b.ctx, queue.ClaimParams{Stream: b.s, Consumer: consumer, MinIdle: minIdle, Count: n}))(b).Entries
}

func (b *bundle) info() queue.Info {
	b.Helper()
	return fixture.Must(b.q.Info(b.ctx, b.s))(b)
}

// wantInfo checks the lengths.
func (b *bundle) wantInfo(length, pending int64) {
	b.Helper()
	if i := b.info(); i.Len != length || i.Pending != pending {
		b.Fatalf("Info says Len %d, Pending %d; want %d, %d", i.Len, i.Pending, length, pending)
	}
}

// wantPending checks the number of a consumer's pending entries; −1 stands for
// a missing consumer.
func (b *bundle) wantPending(consumer string, want int64) {
	b.Helper()
	got := int64(-1)
	for _, c := range fixture.Must(b.q.Consumers(b.ctx, b.s))(b) {
		if c.Name == consumer {
			got = c.Pending
		}
	}
	if got != want {
		b.Fatalf("consumer %s has %d pending, want %d", consumer, got, want)
	}
}

// wantTargets checks the targets of the entries, in order.
func (b *bundle) wantTargets(entries []queue.Entry, from, n int) {
	b.Helper()
	want := make([]reward.TargetID, n)
	for i := range want {
		want[i] = reward.TargetID(from + i)
	}
	if got := targets(entries); !slices.Equal(got, want) {
		b.Fatalf("targets are %v, want %d from %d on", got, n, from)
	}
}

func targets(entries []queue.Entry) []reward.TargetID {
	out := make([]reward.TargetID, len(entries))
	for i, e := range entries {
		out[i] = e.TargetID
	}
	return out
}

func ids(entries []queue.Entry) []string {
	out := make([]string, len(entries))
	for i, e := range entries {
		out[i] = e.ID
	}
	return out
}

// nextWake returns the next hint. open is false if the channel is closed.
func (b *bundle) nextWake() (s queue.Stream, open bool) {
	b.Helper()
	timeout := time.NewTimer(fixture.Patience)
	defer timeout.Stop()
	select {
	case s, open = <-b.q.Wakes():
	case <-timeout.C:
		b.Fatal("no wake-up, and the channel of wakes is not closed")
	}
	return s, open
}

// wantError checks that a call failed.
func (b *bundle) wantError(what string, err error) {
	b.Helper()
	if err == nil {
		b.Fatalf("%s gave no error", what)
	}
}
