package redisstream

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/queuetest"
	"github.com/largesse/largesse/internal/redis"
	"github.com/largesse/largesse/internal/reward"
)

// rig is a driver with keys of its own and a plain client next to it, which in
// a Cluster sends a command to where its key is.
type rig struct {
	testing.TB
	q      *Queue
	raw    rueidis.Client
	prefix string
	s      queue.Stream
	log    fixture.Buffer
}

func newRig(t testing.TB, url string) *rig { return newRigVia(t, url, nil) }

// newRigVia lets the driver, but not the plain client, reach the server by way
// of a proxy.
func newRigVia(t testing.TB, url string, p *proxy) *rig {
	t.Helper()
	r := &rig{
		TB: t, raw: fixture.RedisClient(t, url), prefix: fixture.Keys(t, url),
		s: queue.Stream{Type: reward.Voucher, PromotionID: 12345},
	}
	t.Cleanup(r.raw.Close)
	log := fixture.Must(obs.NewLog(&r.log, "debug", "text"))(t)
	cfg := Config{URL: url, KeyPrefix: r.prefix, Log: log}
	option := fixture.Must(cfg.Option())(t)
	if p != nil {
		option.DialCtxFn = p.dial
	}
	r.q = fixture.Must(open(t.Context(), cfg, option))(t)
	t.Cleanup(r.q.Close)
	return r
}

// do runs a command as any other client would.
func (r *rig) do(command ...string) rueidis.RedisMessage {
	r.Helper()
	reply, err := r.raw.Do(r.Context(), r.raw.B().Arbitrary(command...).Build()).ToMessage()
	if err != nil {
		r.Fatalf("%v: %v", command, err)
	}
	return reply
}

func (r *rig) key() string   { return StreamKey(r.prefix, r.s) }
func (r *rig) group() string { return ConsumerGroup(r.prefix, r.s) }

func (r *rig) add(from, n int) {
	r.Helper()
	added, err := r.q.Add(r.Context(), r.params(from, n))
	if err != nil || added != n {
		r.Fatalf("added %d of %d, %v", added, n, err)
	}
}

func (r *rig) params(from, n int) queue.AddParams {
	p := queue.AddParams{Stream: r.s, MaxLen: 1_000_000, Deadline: time.Now().Add(time.Minute)}
	for i := range n {
		p.Entries = append(p.Entries, queue.NewEntry{
			TargetID: reward.TargetID(from + i), Dispatch: 4, Message: fmt.Appendf(nil, `{"targetId":%d}`, from+i),
		})
	}
	return p
}

// age makes every pending entry of a stream idle for so much longer, as if that time had
// passed.
func (r *rig) age(s queue.Stream, d time.Duration) {
	r.Helper()
	const text = `for _, p in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 100000)) do
		redis.call('XCLAIM', KEYS[1], ARGV[1], p[2], 0, p[1], 'IDLE', p[3] + ARGV[2], 'JUSTID')
	end
	return 0`
	r.eval(text, []string{StreamKey(r.prefix, s)}, ConsumerGroup(r.prefix, s), strconv.FormatInt(d.Milliseconds(), 10))
}

func (r *rig) read(n int) []queue.Entry {
	r.Helper()
	return fixture.Must(r.q.Read(r.Context(), r.s, []queue.ReadParams{{Consumer: "a", Count: n}}))(r)
}

// run is the run of the server that has the rig's stream.
func (r *rig) run() string {
	r.Helper()
	info := r.eval("return redis.call('INFO', 'server') .. redis.call('INFO', 'replication')", []string{r.key()}).(string)
	return redis.InfoValue(info, "run_id") + "-" + redis.InfoValue(info, "master_replid")
}

// eval runs a script where its keys are and returns its reply as plain Go.
func (r *rig) eval(text string, keys []string, args ...string) any {
	r.Helper()
	message := r.do(slices.Concat([]string{"EVAL", text, fmt.Sprint(len(keys))}, keys, args)...)
	return plain(r, message)
}

func plain(t testing.TB, m rueidis.RedisMessage) any {
	t.Helper()
	if m.IsArray() {
		rows := fixture.Must(m.ToArray())(t)
		out := make([]any, len(rows))
		for i, row := range rows {
			out[i] = plain(t, row)
		}
		return out
	}
	if m.IsInt64() {
		return fixture.Must(m.ToInt64())(t)
	}
	return fixture.Must(m.ToString())(t)
}

// logged counts what the log of the driver says.
func (r *rig) logged(part string) int { return strings.Count(r.log.String(), part) }

// TestQueue runs the whole suite on Redis. The other tests of this file hold Valkey and a
// Cluster to what depends on the server.
func TestQueue(t *testing.T) {
	t.Parallel()
	url := fixture.Address(t, fleet.VariableRedis)
	queuetest.Exercise(t, func(t *testing.T, test func(t *testing.T, q queue.Queue, age func(s queue.Stream, d time.Duration))) {
		r := newRig(t, url)
		test(t, r.q, r.age)
	})
}

// TestScripts holds each script to what its header says.
func TestScripts(t *testing.T) {
	t.Parallel()
	const far = "9000000000000000" // microseconds; in the year 2255
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		key, mark, group := r.key(), regroupedKey(r.prefix, r.s), r.group()
		run := r.run()
		want := func(what string, got any, want ...any) {
			t.Helper()
			var expected any = want
			if len(want) == 1 {
				expected = want[0]
			}
			if diff := gocmp.Diff(expected, got); diff != "" {
				t.Fatalf("%s (-want +got):\n%s", what, diff)
			}
		}
		two := []string{key, mark}
		one := []string{key}

		want("add nothing to no stream", r.eval(addEntries.text, one, group, "0", far, "1", "{}", "1"), int64(0), int64(0), int64(0))
		want("nothing made", r.eval("return redis.call('EXISTS', KEYS[1])", one), int64(0))
		want("add to no stream", r.eval(addEntries.text, one, group, "10", far, "1", "{}", "1"), int64(1), int64(1), int64(1))
		want("made with its group", r.eval("return redis.call('XINFO', 'GROUPS', KEYS[1])[1][2]", one), group)
		r.do("XGROUP", "DESTROY", key, group)
		want("add without a group", r.eval(addEntries.text, one, group, "10", far, "1", "{}", "1"), int64(-1), int64(0), int64(0))
		want("nothing added", r.eval("return redis.call('XLEN', KEYS[1])", one), int64(1))
		want("make over an entry", r.eval(makeGroup.text, two, group), int64(1))
		r.do("DEL", key, mark)
		want("make in no stream", r.eval(makeGroup.text, two, group, "a"), int64(-1))
		want("read in no stream", r.eval(readEntries.text, two, group, "a", "1"), []any{})
		want("claim in no stream", r.eval(claimEntries.text, one, group, "a", "0", "1", "", "10"), "", int64(0), []any{})
		want("adopt in no stream", r.eval(adoptEntries.text, one, group, "a", "0", "-", "10"), int64(0), "")
		want("nothing made", r.eval("return redis.call('EXISTS', KEYS[1], KEYS[2])", two), int64(0))
		r.do("XGROUP", "CREATE", key, group, "0", "MKSTREAM")
		want("make again", r.eval(makeGroup.text, two, group), int64(0))
		want("tell the run", r.eval(tellRun.text, one), run)
		want("no mark for an empty stream", r.eval("return redis.call('EXISTS', KEYS[1])", two[1:]), int64(0))
		want("add late", r.eval(addEntries.text, one, group, "10", "1000", "1", "{}", "1"), int64(0), int64(0), int64(0))
		want("add", r.eval(addEntries.text, one, group, "10", far, "1", "{}", "1"), int64(1), int64(1), int64(0))
		want("add to some, partly", r.eval(addEntries.text, one, group, "3", far, "2", "{}", "1", "3", "{}", "1", "4", "{}", "1"), int64(2), int64(0), int64(0))
		want("add to full", r.eval(addEntries.text, one, group, "3", far, "4", "{}", "1"), int64(0), int64(0), int64(0))

		stored := r.eval("return redis.call('XRANGE', KEYS[1], '-', '+')", one).([]any)
		want("fields", stored[0].([]any)[1], "key", "1", "message", "{}", "dispatch", "1", "run", run)
		id := func(i int) string { return stored[i].([]any)[0].(string) }

		want("read", r.eval(readEntries.text, two, group, "a", "1", "b", "5"),
			run, "", []any{int64(0), stored[:1], int64(1), stored[1:]})
		want("read nothing", r.eval(readEntries.text, two, group, "a", "1"), []any{})
		want("extend", r.eval(extendEntries.text, one, group, "b", id(0), id(1), "1-1"), []any{id(1)})
		want("extend nothing", r.eval(extendEntries.text, one, group, "c", id(0)), []any{})
		want("delivery counts stay", r.eval("return redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 9)[2][4]", one, group), int64(1))
		want("nothing to adopt", r.eval(adoptEntries.text, one, group, "c", "0", "-", "10"), int64(0), "")
		want("claim nothing", r.eval(claimEntries.text, one, group, "b", "60000", "5", "", "10"), "", int64(0), []any{})
		want("claim one", r.eval(claimEntries.text, one, group, "b", "0", "1", "", "10"), "("+id(0), int64(1), stored[:1])
		want("claim the rest", r.eval(claimEntries.text, one, group, "b", "0", "5", "("+id(0), "10"), "", int64(0), stored[1:])
		r.do("XGROUP", "DELCONSUMER", key, group, "b")
		want("adopt nothing young", r.eval(adoptEntries.text, one, group, "b", "60000", "-", "10"), int64(0), "")
		want("adopt two", r.eval(adoptEntries.text, one, group, "a", "0", "-", "2"), int64(2), "("+id(1))
		want("adopt the rest", r.eval(adoptEntries.text, one, group, "b", "0", "("+id(1), "2"), int64(1), "")
		want("adopt no more", r.eval(adoptEntries.text, one, group, "b", "0", "("+id(2), "2"), int64(0), "")
		want("continue behind others", r.eval(adoptEntries.text, one, group, "b", "0", "-", "2"), int64(0), "("+id(1))
		r.do("XCLAIM", key, group, "b", "0", id(1), "JUSTID")
		want("remove without heir", r.eval(removeConsumer.text, one, group, "b", "", "1"), int64(-1))
		want("remove, step 1", r.eval(removeConsumer.text, one, group, "b", "a", "1"), int64(1))
		want("remove, step 2", r.eval(removeConsumer.text, one, group, "b", "a", "1"), int64(1))
		want("remove, last step", r.eval(removeConsumer.text, one, group, "b", "a", "1"), int64(0))
		want("handing on counts no delivery", r.eval("return redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 9)[2][4]", one, group), int64(1))
		want("destroy refused", r.eval(destroyStream.text, two), int64(0))

		r.do("XGROUP", "DESTROY", key, group)
		want("make over entries", r.eval(makeGroup.text, two, group), int64(1))
		want("mark", r.eval("return redis.call('GET', KEYS[1])", two[1:]), id(2))
		want("read again", r.eval(readEntries.text, two, group, "a", "9"), run, id(2), []any{int64(0), stored})
		r.do("XDEL", key, id(0), id(1), id(2))
		want("destroy", r.eval(destroyStream.text, two), int64(2))
		want("destroy again", r.eval(destroyStream.text, two), int64(1))
		want("gone", r.eval("return redis.call('EXISTS', KEYS[1], KEYS[2])", two), int64(0))
	})
}

// TestAReadMayNameManyConsumers: as many reads as the settings allow, each
// with its own entry; Lua's stack is smaller than that.
func TestAReadMayNameManyConsumers(t *testing.T) {
	t.Parallel()
	const many = 6400
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		reads := make([]queue.ReadParams, many)
		for i := range reads {
			reads[i] = queue.ReadParams{Consumer: fmt.Sprintf("c%d", i), Count: 1}
		}
		r.add(0, many)
		got, err := r.q.Read(r.Context(), r.s, reads)
		if err != nil || len(got) != many {
			t.Fatalf("read %d entries, %v; want %d", len(got), err, many)
		}
		for i, e := range got {
			if e.Consumer != reads[i].Consumer || e.TargetID != reward.TargetID(i) || !e.FirstDelivery {
				t.Fatalf("entry %d is %+v", i, e)
			}
		}
	})
}

// TestManyRequestsAreReadLikeOne: several requests are commands of their own, and must tell
// first deliveries as the script for one does.
func TestManyRequestsAreReadLikeOne(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		read := func() (first []bool) {
			t.Helper()
			for _, e := range fixture.Must(r.q.Read(t.Context(), r.s, []queue.ReadParams{{Consumer: "a", Count: 1}, {Consumer: "b", Count: 9}}))(t) {
				first = append(first, e.FirstDelivery)
			}
			return first
		}
		want := func(what string, got []bool, want ...bool) {
			t.Helper()
			if !slices.Equal(got, want) {
				t.Errorf("%s: first deliveries %v, want %v", what, got, want)
			}
		}
		want("no stream", read())
		if exists := r.eval("return redis.call('EXISTS', KEYS[1])", []string{r.key()}); exists != int64(0) {
			t.Error("a read has created the stream")
		}
		r.add(0, 2)
		r.do("XADD", r.key(), "*", "key", "2", "message", "{}", "dispatch", "1", "run", strings.Repeat("0", 40))
		want("an entry of another run", read(), true, true, false)
		want("nothing", read())
		r.do("XGROUP", "DESTROY", r.key(), r.group())
		want("a group that was lost", read(), false, false, false)
		r.add(3, 2)
		want("entries added since", read(), true, true)
	})
}

func TestEntriesOfOtherClients(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		// Before there is a group, and with every kind of field missing.
		r.do("XADD", r.key(), "*", "hello", "world")
		r.do("XADD", r.key(), "*", "key", "seven", "message", "{}", "dispatch", "1")
		r.do("XADD", r.key(), "*", "key", "7", "message", "{", "dispatch", "1")
		r.add(8, 1)
		// These can be read, and are no first deliveries: this run of the server has not taken them.
		r.do("XADD", r.key(), "*", "key", "2", "message", "{}", "dispatch", "1", "run", strings.Repeat("0", 40))
		r.do("XADD", r.key(), "*", "key", "3", "message", "{}", "dispatch", "1")
		r.do("XADD", r.key(), "*", "key", "4", "message", "{}", "dispatch", "1", "run", "")
		got := r.read(10)
		if len(got) != 7 {
			t.Fatalf("got %+v", got)
		}
		for i, want := range []string{
			`{"hello":"world"}`,
			`{"key":"seven","message":"{}","dispatch":"1"}`,
			`{"key":"7","message":"{","dispatch":"1"}`,
		} {
			if got[i].Readable || got[i].FirstDelivery || string(got[i].Message) != want {
				t.Errorf("entry %d is %+v with %s, want %s", i, got[i], got[i].Message, want)
			}
		}
		if !got[3].Readable || !got[3].FirstDelivery {
			t.Errorf("our own entry is %+v", got[3])
		}
		for _, e := range got[4:] {
			if !e.Readable || e.FirstDelivery {
				t.Errorf("an entry without the stamp of this run is %+v", e)
			}
		}
		claimed, err := r.q.Claim(t.Context(), queue.ClaimParams{Stream: r.s, Consumer: "b", Count: 10})
		if err != nil || len(claimed.Entries) != 7 || claimed.Entries[0].Readable || string(claimed.Entries[0].Message) != `{"hello":"world"}` {
			t.Errorf("claimed %+v, %v", claimed, err)
		}
	})
}

func TestAMissingGroupIsMadeFromTheBeginning(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		for _, name := range []string{"Range", "Claim", "Create", "Extend", "Ack", "RemoveConsumer", "Consumers", "Info"} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, url)
				r.add(0, 3)
				held := r.read(1)
				r.do("XGROUP", "DESTROY", r.key(), r.group())
				fixture.OK(t, queuetest.Calls(t.Context(), r.q, r.s)[name]())
				r.add(3, 1)
				got := r.read(10)
				if len(got) != 4 || got[0].ID != held[0].ID {
					t.Fatalf("read %+v, want all four from the beginning", got)
				}
				// The first is in somebody's hand already, and nobody knows which
				// of the old ones are. The new one was added to the new group.
				for i, e := range got[:3] {
					if e.FirstDelivery {
						t.Errorf("entry %d of a group made anew is Mine: %+v", i, e)
					}
				}
				if !got[3].FirstDelivery {
					t.Errorf("what was added to the new group is Mine: %+v", got[3])
				}
			})
		}
		t.Run("StreamDeleted", func(t *testing.T) {
			t.Parallel()
			r := newRig(t, url)
			r.add(0, 2)
			r.read(1)
			r.do("DEL", r.key())
			if got := r.read(10); len(got) != 0 {
				t.Fatalf("read %+v from nothing", got)
			}
			r.do("DEL", r.key())
			r.add(5, 2)
			if got := r.read(10); len(got) != 2 || !got[0].FirstDelivery || got[0].TargetID != 5 {
				t.Fatalf("read %+v", got)
			}
		})
	})
}

// TestAClaimScansAFifthOfALongList: one claim of a long list of pending entries scans a
// fifth of the time in which they were added, and the claims of a lease, five, scan all.
func TestAClaimScansAFifthOfALongList(t *testing.T) {
	t.Parallel()
	const pending, scanMax = 101, 100
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		id := func(i int) string { return fmt.Sprintf("%d-0", 1000+i) }
		for i := range pending {
			r.do("XADD", r.key(), id(i), "key", fmt.Sprint(i+1), "message", "{}", "dispatch", "1")
		}
		if got := r.read(pending); len(got) != pending {
			t.Fatalf("read %d entries", len(got))
		}
		idle := map[string]bool{id(0): true, id(20): true, id(21): true, id(59): true, id(100): true}
		for id := range idle {
			r.do("XCLAIM", r.key(), r.group(), "dead", "0", id, "IDLE", "7200000", "JUSTID")
		}
		from := ""
		for range 5 {
			reply := r.eval(claimEntries.text, []string{r.key()}, r.group(), "c", "3600000", "50", from, fmt.Sprint(scanMax)).([]any)
			for _, entry := range reply[2].([]any) {
				delete(idle, entry.([]any)[0].(string))
			}
			next := reply[0].(string)
			first, last := cmp.Or(from, "-"), "+"
			if n, err := strconv.Atoi(next); err == nil {
				last = strconv.Itoa(n - 1)
			}
			scanned := len(r.eval("return redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2])", []string{r.key()}, first, last).([]any))
			if scanned > pending/5+1 {
				t.Errorf("the claim from %q to %q scanned %d of %d pending entries", from, next, scanned, pending)
			}
			from = next
		}
		if from != "" || len(idle) > 0 {
			t.Errorf("after five claims the next one continues at %q, and %v were not claimed", from, idle)
		}
	})
}

func TestAckLeavesNoOrphan(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		r.add(0, 2)
		got := r.read(2)
		// The server stopped between the two commands of an Ack.
		r.do("XDEL", r.key(), got[0].ID)
		claimed, err := r.q.Claim(t.Context(), queue.ClaimParams{Stream: r.s, Consumer: "b", Count: 10})
		if err != nil || len(claimed.Entries) != 1 || claimed.Entries[0].ID != got[1].ID {
			t.Fatalf("claimed %+v, %v", claimed, err)
		}
		info, err := r.q.Info(t.Context(), r.s)
		if err != nil || info.Len != 1 || info.Pending != 1 {
			t.Fatalf("Info is %+v, %v", info, err)
		}
	})
}

func TestAWrongTypeIsAnErrorAndChangesNothing(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		r := newRig(t, url)
		r.do("SET", r.key(), "not a stream")
		if _, err := r.q.Add(t.Context(), r.params(0, 1)); err == nil || !strings.Contains(err.Error(), r.key()) || !strings.Contains(err.Error(), "add_entries") {
			t.Errorf("Add: %v", err)
		}
		if _, err := r.q.Read(t.Context(), r.s, []queue.ReadParams{{Consumer: "a", Count: 1}}); err == nil {
			t.Error("Read gave no error")
		}
		if _, err := r.q.Destroy(t.Context(), r.s); err == nil {
			t.Error("Destroy gave no error")
		}
		if got := plain(t, r.do("GET", r.key())); got != "not a stream" {
			t.Errorf("the key holds %v", got)
		}
	})
}

func TestALostReplyIsAnErrorAndTheEntriesAreAddedOnce(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		p := newProxy()
		r := newRigVia(t, url, p)
		r.add(0, 1) // the script is loaded and the group made
		p.loseReplyOf("EVALSHA", addEntriesSHA(t, r))
		if _, err := r.q.Add(t.Context(), r.params(1, 3)); err == nil {
			t.Fatal("the reply was lost and Add gave no error")
		}
		if n := plain(t, r.do("XLEN", r.key())); n != int64(4) {
			t.Fatalf("the stream holds %v entries, want 4", n)
		}
		r.add(4, 1) // a new connection
	})
}

func addEntriesSHA(t *testing.T, r *rig) string {
	t.Helper()
	return plain(t, r.do("SCRIPT", "LOAD", addEntries.text)).(string)
}

func TestWakesComeBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	fixture.OnEachRedis(t, func(t *testing.T, url string) {
		p := newProxy()
		r := newRigVia(t, url, p)
		p.setDown(true)
		fixture.Until(t, "the outage is noticed", func() bool { return r.logged("Redis subscription unavailable") > 0 })
		ctx, cancel := context.WithTimeout(t.Context(), fixture.Patience)
		defer cancel()
		if _, err := r.q.Add(ctx, r.params(0, 1)); err == nil {
			t.Fatal("Add gave no error while the server is away")
		}
		fixture.Until(t, "several tries were made", func() bool { return p.refusals() >= 4 })
		if refused := p.refusals(); refused > 100 {
			t.Fatalf("%d tries: that is a busy loop", refused)
		}
		p.setDown(false)
		fixture.Until(t, "the subscription is back", func() bool { return r.logged("Redis subscription available again") > 0 })
		r.add(0, 1)
		select {
		case s := <-r.q.Wakes():
			if s != r.s {
				t.Fatalf("woken for %v", s)
			}
		case <-time.After(fixture.Patience):
			t.Fatal("no wake-up after the outage")
		}
		if u, back := r.logged("Redis subscription unavailable"), r.logged("Redis subscription available again"); u != 1 || back != 1 {
			t.Fatalf("one outage is logged once: %d unavailable, %d available again", u, back)
		}
	})
}

// proxy makes the driver's connections, and lets them misbehave on demand.
type proxy struct {
	mu      sync.Mutex // protects what follows
	down    bool
	refused int
	lose    []string // the command after which a connection is cut, once
	conns   map[*proxyConn]bool
}

// proxyConn is a connection of the driver. Once a reply is to be lost, nothing is read from
// it, and it is cut when that reply has come.
type proxyConn struct {
	net.Conn
	proxy *proxy
	lost  atomic.Bool
}

// mark is a command that follows the one whose reply is lost, and is in its own reply: when
// it comes back, the server has executed both.
const mark = "the-reply-is-lost"

func newProxy() *proxy { return &proxy{conns: map[*proxyConn]bool{}} }

func (p *proxy) dial(ctx context.Context, address string, dialer *net.Dialer, _ *tls.Config) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		p.refused++
		return nil, syscall.ECONNREFUSED
	}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &proxyConn{Conn: conn, proxy: p}
	p.conns[c] = true
	return c, nil
}

func (p *proxy) setDown(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = down
	if down {
		for conn := range p.conns {
			_ = conn.Close()
		}
		clear(p.conns)
	}
}

func (p *proxy) refusals() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// loseReplyOf cuts the connection that sends all of words, once, after the
// server has answered.
func (p *proxy) loseReplyOf(words ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = words
}

func (c *proxyConn) Write(b []byte) (int, error) {
	c.proxy.mu.Lock()
	lose := c.proxy.lose != nil && !slices.ContainsFunc(c.proxy.lose, func(word string) bool { return !bytes.Contains(b, []byte(word)) })
	if lose {
		c.proxy.lose = nil
		c.lost.Store(true)
	}
	c.proxy.mu.Unlock()
	n, err := c.Conn.Write(b)
	if lose && err == nil {
		_, err = fmt.Fprintf(c.Conn, "*2\r\n$4\r\nECHO\r\n$%d\r\n%s\r\n", len(mark), mark)
	}
	return n, err
}

func (c *proxyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if !c.lost.Load() {
		return n, err
	}
	dropped := slices.Clone(b[:n])
	for err == nil && !bytes.Contains(dropped, []byte(mark)) {
		n, err = c.Conn.Read(b)
		dropped = append(dropped, b[:n]...)
	}
	_ = c.Close()
	return 0, io.ErrUnexpectedEOF
}
