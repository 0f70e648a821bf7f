package redisstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/queue"
)

const fieldRun = "run"

const (
	// extendMax and claimMax limit the entries of one step of Extend and Claim: the script
	// passes all IDs to one command, and Lua's stack is limited.
	extendMax, claimMax = 500, 500
	// scanMax is the longest pending list that one Claim scans in full. The
	// server needs about half a millisecond for it.
	scanMax    = 10_000
	adoptMax   = 100 // entries that one step of Adopt looks at
	adoptSteps = 10  // steps of one Adopt
)

// Add implements queue.Queue.
func (q *Queue) Add(ctx context.Context, p queue.AddParams) (int, error) {
	if len(p.Entries) == 0 {
		return 0, nil
	}
	args := make([]string, 0, 3+3*len(p.Entries))
	args = append(args, ConsumerGroup(q.prefix, p.Stream),
		strconv.Itoa(p.MaxLen), strconv.FormatInt(p.Deadline.UnixMicro(), 10))
	for _, e := range p.Entries {
		args = append(args, e.TargetID.String(), rueidis.BinaryString(e.Message), strconv.FormatInt(int64(e.Dispatch), 10))
	}
	var added, allRead, created int64
	err := q.withGroup(ctx, p.Stream, func() error {
		reply, err := run(ctx, q, addEntries, p.Stream, args, func(r rueidis.RedisResult) ([]int64, error) {
			reply, err := r.AsIntSlice()
			if err == nil && len(reply) != 3 {
				err = fmt.Errorf("the reply has %d elements", len(reply))
			}
			return reply, err
		})
		if err != nil {
			return err
		}
		if added, allRead, created = reply[0], reply[1], reply[2]; added < 0 {
			return errNoGroup
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if created == 1 {
		q.groupCreated(p.Stream)
	}
	if added > 0 && allRead == 1 {
		q.wake(ctx, p.Stream)
	}
	return int(added), nil
}

// Read implements queue.Queue. One request takes one script, which costs little if there is
// nothing to read, and which makes no difference between a missing stream and an empty one.
// More requests are commands of their own: a script would copy each entry twice.
func (q *Queue) Read(ctx context.Context, s queue.Stream, reads []queue.ReadParams) (out []queue.Entry, err error) {
	reads = slices.DeleteFunc(slices.Clone(reads), func(r queue.ReadParams) bool { return r.Count <= 0 })
	if len(reads) > 1 {
		if out, err = q.readMany(ctx, s, reads); !isNoGroup(err) {
			return out, err
		}
	}
	args := make([]string, 0, 1+2*len(reads))
	args = append(args, ConsumerGroup(q.prefix, s))
	for _, r := range reads {
		args = append(args, r.Consumer, strconv.Itoa(r.Count))
	}
	err = q.withGroup(ctx, s, func() (err error) {
		out, err = run(ctx, q, readEntries, s, args, func(r rueidis.RedisResult) ([]queue.Entry, error) { return decodeRead(r, reads) })
		return err
	})
	return out, err
}

// readMany sends a command for each consumer, and then asks for what decides about first
// deliveries: when the group was created again, and the run of the server. All commands
// have one connection and so one order. If the answers name the run of an entry, the
// server had it when the entry was delivered too, because a run never comes back. If an
// answer is missing, the entries are no first deliveries, so nobody charges them. Without a
// single entry, readMany returns the error.
func (q *Queue) readMany(ctx context.Context, s queue.Stream, reads []queue.ReadParams) ([]queue.Entry, error) {
	var consumers []queue.ReadParams
	for _, r := range reads {
		if last := len(consumers) - 1; last >= 0 && consumers[last].Consumer == r.Consumer {
			consumers[last].Count += r.Count
		} else {
			consumers = append(consumers, r)
		}
	}
	key, group, n := StreamKey(q.prefix, s), ConsumerGroup(q.prefix, s), len(consumers)
	cmds := make(rueidis.Commands, n, n+2)
	for i, c := range consumers {
		cmds[i] = q.client.B().Xreadgroup().Group(group, c.Consumer).Count(int64(c.Count)).Streams().Key(key).Id(">").Build()
	}
	cmds = append(cmds,
		q.client.B().Get().Key(regroupedKey(q.prefix, s)).Build(),
		q.client.B().Eval().Script(tellRun.text).Numkeys(1).Key(key).Build())
	replies := q.client.DoMulti(ctx, cmds...)
	var d decoder
	newestBefore, run := d.id(d.reply(replies[n])), d.reply(replies[n+1])
	known := d.err == nil && run != ""
	delivered, total := make([][]rueidis.RedisMessage, n), 0
	for i := range consumers {
		delivered[i] = d.delivered(replies[i])
		total += len(delivered[i])
	}
	out := make([]queue.Entry, 0, total)
	for i, c := range consumers {
		for _, row := range delivered[i] {
			e, entryRun := d.entry(row)
			e.Consumer = c.Consumer
			e.FirstDelivery = known && entryRun == run && newestBefore.before(d.id(e.ID))
			out = append(out, e)
		}
	}
	if d.err != nil && total == 0 {
		return nil, fmt.Errorf("redisstream: XREADGROUP %s: %w", key, d.err)
	}
	return out, nil
}

func decodeRead(r rueidis.RedisResult, reads []queue.ReadParams) ([]queue.Entry, error) {
	reply, err := r.ToArray()
	if err != nil || len(reply) == 0 {
		return nil, err
	}
	if len(reply) != 3 {
		return nil, fmt.Errorf("the reply has %d elements", len(reply))
	}
	var d decoder
	run, newestBefore, found := d.text(reply[0]), d.id(d.text(reply[1])), d.list(reply[2])
	if len(found)%2 != 0 {
		return nil, fmt.Errorf("the reply has %d elements of consumers and entries", len(found))
	}
	var out []queue.Entry
	for i := 0; i < len(found); i += 2 {
		place := d.number(found[i])
		if place < 0 || place >= int64(len(reads)) {
			return nil, fmt.Errorf("the reply names consumer %d of %d", place, len(reads))
		}
		for _, row := range d.list(found[i+1]) {
			e, entryRun := d.entry(row)
			e.Consumer = reads[place].Consumer
			e.FirstDelivery = entryRun != "" && entryRun == run && newestBefore.before(d.id(e.ID))
			out = append(out, e)
		}
	}
	if d.err != nil {
		return nil, d.err
	}
	return out, nil
}

type entryID struct{ millis, seq uint64 }

func parseEntryID(text string) (entryID, error) {
	millis, seq, _ := strings.Cut(text, "-")
	m, errMillis := strconv.ParseUint(millis, 10, 64)
	n, errSeq := strconv.ParseUint(seq, 10, 64)
	if err := errors.Join(errMillis, errSeq); err != nil {
		return entryID{}, fmt.Errorf("entry ID %q: %w", text, err)
	}
	return entryID{m, n}, nil
}

func (id entryID) before(other entryID) bool {
	return id.millis < other.millis || id.millis == other.millis && id.seq < other.seq
}

// at returns the time at which the entry was added, by the server's clock.
func (id entryID) at() time.Time {
	return time.UnixMilli(int64(id.millis)) //nolint:gosec // milliseconds fit
}

// Claim implements queue.Queue.
func (q *Queue) Claim(ctx context.Context, p queue.ClaimParams) (queue.Claimed, error) {
	out := queue.Claimed{Next: p.From}
	for more := p.Count > 0; more; more = more && len(out.Entries) < p.Count {
		args := []string{
			ConsumerGroup(q.prefix, p.Stream), p.Consumer, idleMillis(p.MinIdle),
			strconv.Itoa(min(p.Count-len(out.Entries), claimMax)), out.Next, strconv.Itoa(scanMax),
		}
		err := q.withGroup(ctx, p.Stream, func() error {
			page, err := run(ctx, q, claimEntries, p.Stream, args, func(r rueidis.RedisResult) (queue.Claimed, error) {
				reply, err := elements(r, 3)
				if err != nil {
					return queue.Claimed{}, err
				}
				var d decoder
				more = d.number(reply[1]) == 1
				return queue.Claimed{Next: d.text(reply[0]), Entries: d.entries(d.list(reply[2]), p.Consumer)}, d.err
			})
			if err == nil {
				out.Next, out.Entries = page.Next, append(out.Entries, page.Entries...)
			}
			return err
		})
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// Adopt implements queue.Queue. It looks at up to adoptSteps × adoptMax entries,
// whether it finds any to adopt or not: living entries may be older than those.
func (q *Queue) Adopt(ctx context.Context, p queue.AdoptParams) (next string, err error) {
	next, total := p.From, int64(0)
	for range adoptSteps {
		args := []string{
			ConsumerGroup(q.prefix, p.Stream), p.Consumer, idleMillis(p.MinAge), cmp.Or(next, "-"), strconv.Itoa(adoptMax),
		}
		to, err := run(ctx, q, adoptEntries, p.Stream, args, func(r rueidis.RedisResult) (string, error) {
			reply, err := elements(r, 2)
			if err != nil {
				return "", err
			}
			var d decoder
			total += d.number(reply[0])
			return d.text(reply[1]), d.err
		})
		if err != nil {
			return next, err
		}
		if next = to; next == "" {
			break
		}
	}
	if total > 0 {
		q.log.Info("entries without a consumer adopted", "promotion_id", p.Stream.PromotionID, "count", total)
	}
	return next, nil
}

// idleMillis rounds up and adds one: the server stores the time of delivery in
// whole milliseconds, rounded down, and a lease must not end early.
func idleMillis(d time.Duration) string {
	if d <= 0 {
		return "0"
	}
	return strconv.FormatInt((d+time.Millisecond-1).Milliseconds()+1, 10)
}

// Extend implements queue.Queue.
func (q *Queue) Extend(ctx context.Context, s queue.Stream, consumer string, ids []string) ([]string, error) {
	var owned []string
	for chunk := range slices.Chunk(ids, extendMax) {
		args := append([]string{ConsumerGroup(q.prefix, s), consumer}, chunk...)
		renewed, err := run(ctx, q, extendEntries, s, args, rueidis.RedisResult.AsStrSlice)
		if err != nil {
			return owned, err
		}
		owned = append(owned, renewed...)
	}
	return owned, nil
}

// Ack implements queue.Queue. It deletes an entry before it acknowledges it. If
// the server crashes between the two, XCLAIM drops the pending entry that
// no longer exists. In the other order, an entry that is no longer pending
// would stay forever.
func (q *Queue) Ack(ctx context.Context, s queue.Stream, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	key := StreamKey(q.prefix, s)
	replies := q.client.DoMulti(ctx,
		q.client.B().Xdel().Key(key).Id(ids...).Build(),
		q.client.B().Xack().Key(key).Group(ConsumerGroup(q.prefix, s)).Id(ids...).Build())
	for i, command := range []string{"XDEL", "XACK"} {
		if err := replies[i].Error(); err != nil {
			return fmt.Errorf("redisstream: %s %s: %w", command, key, err)
		}
	}
	return nil
}

// Range implements queue.Queue.
func (q *Queue) Range(ctx context.Context, s queue.Stream, count int) ([]queue.Entry, error) {
	if count <= 0 {
		return nil, nil
	}
	key := StreamKey(q.prefix, s)
	rows, err := q.client.Do(ctx, q.client.B().Xrange().Key(key).Start("-").End("+").Count(int64(count)).Build()).ToArray()
	d := decoder{err: err}
	out := d.entries(rows, "")
	if d.err != nil {
		return nil, fmt.Errorf("redisstream: XRANGE %s: %w", key, d.err)
	}
	return out, nil
}
