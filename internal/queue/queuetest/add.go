package queuetest

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
)

func exerciseAdd(t *testing.T, b *bundle) {
	b.add(7, 3)
	got := b.read("a", 10)
	want := make([]queue.Entry, 3)
	for i, e := range newEntries(7, 3) {
		want[i] = queue.Entry{
			TargetID: e.TargetID, Dispatch: e.Dispatch, Message: e.Message,
			Readable: true, FirstDelivery: true, Consumer: "a",
		}
	}
	seen := map[string]bool{}
	for i := range got {
		if got[i].ID == "" || seen[got[i].ID] {
			t.Fatalf("entry %d has the id %q, which is empty or not its own", i, got[i].ID)
		}
		seen[got[i].ID] = true
		got[i].ID = ""
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("what was read is not what was added (-want +got):\n%s", diff)
	}
}

func exerciseMaxLen(t *testing.T, b *bundle) {
	for _, step := range []struct{ n, want int }{{6, 6}, {7, 4}, {3, 0}} {
		if got := b.addUpTo(10, step.n*100, step.n); got != step.want {
			t.Fatalf("of %d entries %d went in, want %d", step.n, got, step.want)
		}
	}
	b.wantInfo(10, 0)
	got := b.read("a", 100)
	b.wantTargets(got[:6], 600, 6)
	b.wantTargets(got[6:], 700, 4)

	// Delivered entries still count; acknowledged ones do not.
	if added := b.addUpTo(10, 1, 1); added != 0 {
		t.Fatalf("a stream full of read entries took %d more", added)
	}
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got[:3])))
	if added := b.addUpTo(10, 1, 5); added != 3 {
		t.Fatalf("after three were acknowledged %d went in, want 3", added)
	}
	// A limit below the length removes nothing.
	if added := b.addUpTo(2, 1, 5); added != 0 {
		t.Fatalf("above the bound %d went in", added)
	}
	b.wantInfo(10, 7)
}

func exerciseDeadline(t *testing.T, b *bundle) {
	late := queue.AddParams{Stream: b.s, MaxLen: 10, Deadline: time.Now().Add(-5 * time.Millisecond), Entries: newEntries(0, 3)}
	if added := fixture.Must(b.q.Add(b.ctx, late))(t); added != 0 {
		t.Fatalf("a late batch put in %d", added)
	}
	if b.info().Exists {
		t.Fatal("a late batch has made a stream")
	}
	b.add(0, 1)
	if added := fixture.Must(b.q.Add(b.ctx, late))(t); added != 0 {
		t.Fatalf("a late batch put in %d", added)
	}
	b.wantInfo(1, 0)
}

func exerciseAddNothing(t *testing.T, b *bundle) {
	b.add(0, 0)
	if b.info().Exists {
		t.Fatal("adding nothing has made a stream")
	}
	if added := b.addUpTo(0, 0, 3); added != 0 {
		t.Fatalf("a stream that may hold nothing took %d", added)
	}
	b.wantInfo(0, 0)
}

func exerciseUnreadable(t *testing.T, b *bundle) {
	batch := newEntries(1, 3)
	batch[1].Message = []byte("no JSON \xff")
	if added := fixture.Must(b.q.Add(b.ctx, queue.AddParams{
		Stream: b.s, MaxLen: 10, Deadline: time.Now().Add(time.Minute), Entries: batch,
	}))(t); added != 3 {
		t.Fatalf("%d of 3 went in", added)
	}
	got := b.read("a", 10)
	if len(got) != 3 || !got[0].Readable || got[1].Readable || !got[2].Readable {
		t.Fatalf("only the second of three entries is unreadable, got %+v", got)
	}
	var raw map[string]any
	fixture.OK(b, json.Unmarshal(got[1].Message, &raw))
	if raw["key"] != "2" || raw["dispatch"] != "2" {
		t.Fatalf("the raw fields are %s", got[1].Message)
	}
	bytes, ok := raw["message"].(map[string]any)
	if !ok || bytes["base64"] != "bm8gSlNPTiD/" {
		t.Fatalf("bytes that are no text must be kept as base64, got %s", got[1].Message)
	}
	fixture.OK(b, b.q.Ack(b.ctx, b.s, ids(got)))
	b.wantInfo(0, 0)
}

func exerciseConcurrentAdders(t *testing.T, b *bundle) {
	const adders, each, bound = 8, 100, 555
	var added atomic.Int64
	var wg sync.WaitGroup
	for i := range adders {
		wg.Go(func() {
			for j := 0; j < each; j += 10 {
				n, err := b.q.Add(b.ctx, queue.AddParams{
					Stream: b.s, MaxLen: bound, Deadline: time.Now().Add(time.Minute), Entries: newEntries(i*each+j, 10),
				})
				if err != nil {
					t.Error(err)
				}
				added.Add(int64(n))
			}
		})
	}
	wg.Wait()
	if added.Load() != bound {
		t.Fatalf("%d went in, want exactly %d", added.Load(), bound)
	}
	b.wantInfo(bound, 0)
}
