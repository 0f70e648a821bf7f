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

// fieldRun is the field with the server run that stored the entry.
const fieldRun = "run"

// extendMax limits the entries of one step of Extend: the script passes all IDs
// to one command, and Lua's stack is limited.
const extendMax = 500

const (
	claimMax = 500 // entries of one step of Claim, for the same reason
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
	key := StreamKey(q.prefix, p.Stream)
	args := make([]string, 0, 3+3*len(p.Entries))
	args = append(args, ConsumerGroup(q.prefix, p.Stream),
		strconv.Itoa(p.MaxLen), strconv.FormatInt(p.Deadline.UnixMicro(), 10))
	for _, e := range p.Entries {
		args = append(args, e.TargetID.String(), rueidis.BinaryString(e.Message), strconv.FormatInt(int64(e.Dispatch), 10))
	}
	var added, allRead, created int64
	err := q.withGroup(ctx, p.Stream, func() (bool, error) {
		reply, err := addEntries.Exec(ctx, q.client, []string{key}, args).AsIntSlice()
		if err == nil && len(reply) != 3 {
			err = fmt.Errorf("the reply has %d elements", len(reply))
		}
		if err != nil {
			return false, fmt.Errorf("redisstream: add_entries %s: %w", key, err)
		}
		added, allRead, created = reply[0], reply[1], reply[2]
		return added < 0, nil
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

// Read implements queue.Queue.
func (q *Queue) Read(ctx context.Context, s queue.Stream, reads []queue.ReadParams) ([]queue.Entry, error) {
	reads = slices.DeleteFunc(slices.Clone(reads), func(r queue.ReadParams) bool { return r.Count <= 0 })
	key := StreamKey(q.prefix, s)
	keys := []string{key, regroupedKey(q.prefix, s)}
	args := make([]string, 0, 1+2*len(reads))
	args = append(args, ConsumerGroup(q.prefix, s))
	for _, r := range reads {
		args = append(args, r.Consumer, strconv.Itoa(r.Count))
	}
	var out []queue.Entry
	err := q.withGroup(ctx, s, func() (bool, error) {
		reply, err := readEntries.Exec(ctx, q.client, keys, args).ToArray()
		if isNoGroup(err) {
			return true, nil
		}
		if err == nil {
			out, err = decodeRead(reply, reads)
		}
		if err != nil {
			return false, fmt.Errorf("redisstream: read_entries %s: %w", key, err)
		}
		return false, nil
	})
	return out, err
}

// decodeRead decodes the reply of read_entries.
func decodeRead(reply []rueidis.RedisMessage, reads []queue.ReadParams) ([]queue.Entry, error) {
	if len(reply) == 0 {
		return nil, nil
	}
	if len(reply) != 3 {
		return nil, fmt.Errorf("the reply has %d elements", len(reply))
	}
	run, errRun := reply[0].ToString()
	regrouped, errRegrouped := reply[1].ToString()
	found, errFound := reply[2].ToArray()
	if err := errors.Join(errRun, errRegrouped, errFound); err != nil {
		return nil, err
	}
	if len(found)%2 != 0 {
		return nil, fmt.Errorf("the reply has %d elements of consumers and entries", len(found))
	}
	var newestBefore entryID
	if regrouped != "" {
		var err error
		if newestBefore, err = parseEntryID(regrouped); err != nil {
			return nil, err
		}
	}
	var out []queue.Entry
	for i := 0; i < len(found); i += 2 {
		place, err := found[i].AsInt64()
		if err != nil {
			return nil, err
		}
		if place < 0 || place >= int64(len(reads)) {
			return nil, fmt.Errorf("the reply names consumer %d of %d", place, len(reads))
		}
		rows, err := found[i+1].ToArray()
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			e, entryRun, err := decodeEntry(row)
			if err != nil {
				return nil, err
			}
			id, err := parseEntryID(e.ID)
			if err != nil {
				return nil, err
			}
			e.Consumer = reads[place].Consumer
			e.FirstDelivery = entryRun != "" && entryRun == run && newestBefore.before(id)
			out = append(out, e)
		}
	}
	return out, nil
}

// decodeEntry decodes [id, [name, value, …]].
func decodeEntry(row rueidis.RedisMessage) (e queue.Entry, run string, err error) {
	parts, err := row.ToArray()
	if err != nil {
		return queue.Entry{}, "", err
	}
	if len(parts) != 2 {
		return queue.Entry{}, "", fmt.Errorf("an entry has %d elements", len(parts))
	}
	id, errID := parts[0].ToString()
	fields, errFields := parts[1].AsStrSlice()
	if err := errors.Join(errID, errFields); err != nil {
		return queue.Entry{}, "", err
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i] == fieldRun {
			run = fields[i+1]
		}
	}
	return queue.DecodeFields(id, fields), run, nil
}

// entryID orders the entries of one stream.
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
	key := StreamKey(q.prefix, p.Stream)
	out := queue.Claimed{Next: p.From}
	for more := p.Count > 0; more; {
		args := []string{
			ConsumerGroup(q.prefix, p.Stream), p.Consumer, idleMillis(p.MinIdle),
			strconv.Itoa(min(p.Count-len(out.Entries), claimMax)), out.Next, strconv.Itoa(scanMax),
		}
		err := q.withGroup(ctx, p.Stream, func() (bool, error) {
			reply, err := claimEntries.Exec(ctx, q.client, []string{key}, args).ToArray()
			if isNoGroup(err) {
				return true, nil
			}
			var page []queue.Entry
			if err == nil {
				out.Next, more, page, err = decodeClaim(reply, p.Consumer)
			}
			if err != nil {
				return false, fmt.Errorf("redisstream: claim_entries %s: %w", key, err)
			}
			out.Entries = append(out.Entries, page...)
			return false, nil
		})
		if err != nil {
			return out, err
		}
		more = more && len(out.Entries) < p.Count
	}
	return out, nil
}

// Adopt implements queue.Queue. It looks at up to adoptSteps × adoptMax entries,
// whether it finds any to adopt or not: living entries may be older than those.
func (q *Queue) Adopt(ctx context.Context, p queue.AdoptParams) (next string, err error) {
	key, next, total := StreamKey(q.prefix, p.Stream), p.From, int64(0)
	for range adoptSteps {
		args := []string{
			ConsumerGroup(q.prefix, p.Stream), p.Consumer, idleMillis(p.MinAge), cmp.Or(next, "-"), strconv.Itoa(adoptMax),
		}
		reply, err := adoptEntries.Exec(ctx, q.client, []string{key}, args).ToArray()
		if err == nil && len(reply) != 2 {
			err = fmt.Errorf("the reply has %d elements", len(reply))
		}
		if err != nil {
			return next, fmt.Errorf("redisstream: adopt_entries %s: %w", key, err)
		}
		adopted, errAdopted := reply[0].AsInt64()
		to, errNext := reply[1].ToString()
		if err := errors.Join(errAdopted, errNext); err != nil {
			return next, fmt.Errorf("redisstream: adopt_entries %s: %w", key, err)
		}
		total += adopted
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

// decodeClaim decodes the reply of claim_entries.
func decodeClaim(reply []rueidis.RedisMessage, consumer string) (next string, more bool, out []queue.Entry, err error) {
	if len(reply) != 3 {
		return "", false, nil, fmt.Errorf("the reply has %d elements", len(reply))
	}
	next, errNext := reply[0].ToString()
	full, errFull := reply[1].AsInt64()
	rows, errRows := reply[2].ToArray()
	if err := errors.Join(errNext, errFull, errRows); err != nil {
		return "", false, nil, err
	}
	for _, row := range rows {
		e, _, err := decodeEntry(row)
		if err != nil {
			return "", false, nil, err
		}
		e.Consumer = consumer
		out = append(out, e)
	}
	return next, full == 1, out, nil
}

// Extend implements queue.Queue.
func (q *Queue) Extend(ctx context.Context, s queue.Stream, consumer string, ids []string) ([]string, error) {
	key := StreamKey(q.prefix, s)
	var owned []string
	for chunk := range slices.Chunk(ids, extendMax) {
		args := append([]string{ConsumerGroup(q.prefix, s), consumer}, chunk...)
		renewed, err := extendEntries.Exec(ctx, q.client, []string{key}, args).AsStrSlice()
		if err != nil {
			return owned, fmt.Errorf("redisstream: extend_entries %s: %w", key, err)
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
	if err != nil {
		return nil, fmt.Errorf("redisstream: XRANGE %s: %w", key, err)
	}
	out := make([]queue.Entry, 0, len(rows))
	for _, row := range rows {
		e, _, err := decodeEntry(row)
		if err != nil {
			return nil, fmt.Errorf("redisstream: XRANGE %s: %w", key, err)
		}
		out = append(out, e)
	}
	return out, nil
}
