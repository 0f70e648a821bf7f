package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/queuetest"
	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { fixture.Main(m) }

var stream = queue.Stream{Type: reward.Point, PromotionID: 1}

func TestMemory(t *testing.T) {
	t.Parallel()
	queuetest.Exercise(t, func(t *testing.T, test func(t *testing.T, q queue.Queue, age func(s queue.Stream, d time.Duration))) {
		synctest.Test(t, func(t *testing.T) {
			q := queue.NewMemory()
			defer q.Close()
			test(t, q, func(_ queue.Stream, d time.Duration) { time.Sleep(d) })
		})
	})
}

func TestMemoryLeases(t *testing.T) {
	t.Parallel()
	fixture.OnFakeTime(t, "EndToTheNanosecond", func(t *testing.T) {
		const lease = 15 * time.Second
		q := queue.NewMemory()
		defer q.Close()
		add(t, q, 3)
		first := read(t, q, 2)
		time.Sleep(time.Second)
		read(t, q, 1)

		time.Sleep(lease - time.Second - time.Nanosecond)
		if got := claim(t, q, lease, 10); len(got) != 0 {
			t.Fatalf("claimed a nanosecond before the lease is over: %+v", got)
		}
		fixture.Must(q.Extend(t.Context(), stream, "a", []string{first[0].ID}))(t)
		time.Sleep(time.Nanosecond)
		if got := claim(t, q, lease, 10); len(got) != 1 || got[0].TargetID != 1 {
			t.Fatalf("only target 1 is idle, claimed %+v", got)
		}
		time.Sleep(time.Second)
		if got := claim(t, q, lease, 10); len(got) != 1 || got[0].TargetID != 2 {
			t.Fatalf("only target 2 is idle, claimed %+v", got)
		}
	})
	fixture.OnFakeTime(t, "DeadlineIsTheLastMoment", func(t *testing.T) {
		q := queue.NewMemory()
		defer q.Close()
		p := queue.AddParams{
			Stream: stream, MaxLen: 10, Deadline: time.Now().Add(time.Second),
			Entries: []queue.NewEntry{{TargetID: 1, Dispatch: 1, Message: []byte(`{}`)}},
		}
		time.Sleep(time.Second)
		if n, err := q.Add(t.Context(), p); n != 1 || err != nil {
			t.Fatalf("in time: %d, %v", n, err)
		}
		time.Sleep(time.Nanosecond)
		if n, err := q.Add(t.Context(), p); n != 0 || err != nil {
			t.Fatalf("too late: %d, %v", n, err)
		}
	})
}

func TestMemoryKeepsItsOwnCopy(t *testing.T) {
	t.Parallel()
	q := queue.NewMemory()
	t.Cleanup(q.Close)
	message := []byte(`{"amount":1}`)
	fixture.Must(q.Add(t.Context(), queue.AddParams{
		Stream: stream, MaxLen: 1, Deadline: time.Now().Add(time.Minute),
		Entries: []queue.NewEntry{{TargetID: 1, Dispatch: 1, Message: message}},
	}))(t)
	message[10] = '9'
	if got := read(t, q, 1); string(got[0].Message) != `{"amount":1}` {
		t.Fatalf("the caller's buffer is the queue's: %s", got[0].Message)
	}
}

func TestDecodeFields(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fields []string
		want   queue.Entry
	}{
		"Readable": {
			[]string{"key", "7", "message", `{"a":1}`, "dispatch", "3", "run", "abc"},
			queue.Entry{ID: "1-1", TargetID: 7, Dispatch: 3, Readable: true, Message: []byte(`{"a":1}`)},
		},
		"KeyNotCanonical": {
			[]string{"key", "07", "message", `{}`, "dispatch", "3"},
			queue.Entry{ID: "1-1", Message: []byte(`{"key":"07","message":"{}","dispatch":"3"}`)},
		},
		"NoDispatch": {
			[]string{"key", "7", "message", `{}`},
			queue.Entry{ID: "1-1", Message: []byte(`{"key":"7","message":"{}"}`)},
		},
		"DispatchTooLarge": {
			[]string{"key", "7", "message", `{}`, "dispatch", "2147483648"},
			queue.Entry{ID: "1-1", Message: []byte(`{"key":"7","message":"{}","dispatch":"2147483648"}`)},
		},
		"NoMessage": {
			[]string{"key", "7", "dispatch", "1"},
			queue.Entry{ID: "1-1", Message: []byte(`{"key":"7","dispatch":"1"}`)},
		},
		"FieldsOfTheSameNameAndBytes": {
			[]string{"x", "1", "x", "\xff"},
			queue.Entry{ID: "1-1", Message: []byte(`{"x":"1","x":{"base64":"/w=="}}`)},
		},
		"Nothing": {nil, queue.Entry{ID: "1-1", Message: []byte(`{}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, queue.DecodeFields("1-1", c.fields)); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

func add(t *testing.T, q queue.Queue, n int) {
	t.Helper()
	entries := make([]queue.NewEntry, n)
	for i := range entries {
		entries[i] = queue.NewEntry{TargetID: reward.TargetID(i), Dispatch: 1, Message: []byte(`{}`)}
	}
	added, err := q.Add(t.Context(), queue.AddParams{Stream: stream, MaxLen: n, Deadline: time.Now().Add(time.Minute), Entries: entries})
	if err != nil || added != n {
		t.Fatalf("added %d, %v", added, err)
	}
}

func read(t *testing.T, q queue.Queue, n int) []queue.Entry {
	t.Helper()
	got, err := q.Read(t.Context(), stream, []queue.ReadParams{{Consumer: "a", Count: n}})
	if err != nil || len(got) != n {
		t.Fatalf("read %d of %d, %v", len(got), n, err)
	}
	return got
}

func claim(t *testing.T, q queue.Queue, idle time.Duration, n int) []queue.Entry {
	t.Helper()
	return fixture.Must(q.Claim(t.Context(), queue.ClaimParams{Stream: stream, Consumer: "b", MinIdle: idle, Count: n}))(t).Entries
}
