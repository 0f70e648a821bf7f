package redisstream

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/redis"
	"github.com/largesse/largesse/internal/reward"
)

// manyStreams is so many that some are on each node of a Cluster of three.
const manyStreams = 60

func streamOf(i int) queue.Stream {
	return queue.Stream{Type: []reward.PromotionType{reward.Point, reward.Voucher}[i%2], PromotionID: reward.PromotionID(i + 1)}
}

func (r *rig) paramsOf(s queue.Stream, n int) queue.AddParams {
	p := r.params(0, n)
	p.Stream = s
	return p
}

// TestStreamsAreSpreadOverTheCluster takes many streams through all that
// happens to one, while each is where its slot says.
func TestStreamsAreSpreadOverTheCluster(t *testing.T) {
	t.Parallel()
	r := newRig(t, fixture.Address(t, fleet.VariableRedisCluster))
	ctx := t.Context()
	woken := map[queue.Stream]bool{}
	for i := range manyStreams {
		s := streamOf(i)
		if added, err := r.q.Add(ctx, r.paramsOf(s, 3)); err != nil || added != 3 {
			t.Fatalf("added %d to %v, %v", added, s, err)
		}
		if exists, err := r.q.Create(ctx, s, []string{"a", "b"}); err != nil || !exists {
			t.Fatal(exists, err)
		}
	}
	timeout := time.NewTimer(fixture.Patience)
	defer timeout.Stop()
	for len(woken) < manyStreams {
		select {
		case s := <-r.q.Wakes():
			woken[s] = true
		case <-timeout.C:
			t.Fatalf("woken for %d of %d streams", len(woken), manyStreams)
		}
	}

	// The server and redis.Slot are of one opinion, and every node has its part.
	for i := range manyStreams {
		for _, key := range []string{StreamKey(r.prefix, streamOf(i)), regroupedKey(r.prefix, streamOf(i))} {
			if slot := plain(t, r.do("CLUSTER", "KEYSLOT", key)); slot != int64(redis.Slot(key)) {
				t.Fatalf("%s is in slot %d, says the server %v", key, redis.Slot(key), slot)
			}
		}
	}
	if counts := r.keysByNode(); len(counts) != 3 || slices.Min(counts) == 0 {
		t.Fatalf("keys by node: %v", counts)
	}

	for i := range manyStreams {
		r.finish(streamOf(i))
	}
	if counts := r.keysByNode(); slices.Max(counts) != 0 {
		t.Errorf("keys left by node: %v", counts)
	}
}

// keysByNode counts the rig's keys at each node.
func (r *rig) keysByNode() []int {
	r.Helper()
	var counts []int
	for _, node := range r.raw.Nodes() {
		n := 0
		for cursor := uint64(0); ; {
			page, err := node.Do(r.Context(), node.B().Scan().Cursor(cursor).Match("*"+r.prefix+"*").Count(1000).Build()).AsScanEntry()
			if err != nil {
				r.Fatal(err)
			}
			n += len(page.Elements)
			if cursor = page.Cursor; cursor == 0 {
				break
			}
		}
		counts = append(counts, n)
	}
	return counts
}

// finish takes three new entries to their end, by way of a lost group, a
// renewed lease, a removed consumer and a claim, and destroys the stream.
func (r *rig) finish(s queue.Stream) {
	r.Helper()
	ctx := r.Context()
	check := func(what string, err error, holds bool) {
		r.Helper()
		if err != nil || !holds {
			r.Fatalf("%v: %s: %v", s, what, err)
		}
	}
	got, err := r.q.Read(ctx, s, []queue.ReadParams{{Consumer: "a", Count: 1}, {Consumer: "b", Count: 1}})
	check("two are read as new", err, len(got) == 2 && got[0].FirstDelivery && got[1].FirstDelivery)
	r.do("XGROUP", "DESTROY", StreamKey(r.prefix, s), ConsumerGroup(r.prefix, s))
	got, err = r.q.Read(ctx, s, []queue.ReadParams{{Consumer: "a", Count: 2}, {Consumer: "b", Count: 2}})
	check("with the group lost, three are read as not Mine", err,
		len(got) == 3 && !slices.ContainsFunc(got, func(e queue.Entry) bool { return e.FirstDelivery }))
	owned, err := r.q.Extend(ctx, s, "a", []string{got[0].ID, got[1].ID, got[2].ID})
	check("two leases are renewed", err, len(owned) == 2)
	removed, err := r.q.RemoveConsumer(ctx, s, "b", "a")
	check("a consumer is removed", err, removed)
	consumers, err := r.q.Consumers(ctx, s)
	check("its entry went to the other", err, len(consumers) == 1 && consumers[0].Pending == 3)
	claimed, err := r.q.Claim(ctx, queue.ClaimParams{Stream: s, Consumer: "c", Count: 10})
	check("three are claimed", err, len(claimed.Entries) == 3)
	info, err := r.q.Info(ctx, s)
	check("three are pending", err, info.Len == 3 && info.Pending == 3)
	entries, err := r.q.Range(ctx, s, 10)
	check("three are there", err, len(entries) == 3)
	gone, err := r.q.Destroy(ctx, s)
	check("the stream is not destroyed yet", err, !gone)
	err = r.q.Ack(ctx, s, []string{claimed.Entries[0].ID, claimed.Entries[1].ID, claimed.Entries[2].ID})
	check("they are acknowledged", err, true)
	gone, err = r.q.Destroy(ctx, s)
	check("the stream is destroyed", err, gone)
}

// TestANodeOfAClusterGoesAwayAndComesBack breaks a Cluster of its own.
func TestANodeOfAClusterGoesAwayAndComesBack(t *testing.T) {
	t.Parallel()
	cluster := ownCluster(t)
	r := newRig(t, cluster.Address())
	if err := r.q.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range manyStreams {
		if _, err := r.q.Add(t.Context(), r.paramsOf(streamOf(i), 1)); err != nil {
			t.Fatal(err)
		}
	}

	away := cluster.Nodes()[1]
	if err := away.Kill(); err != nil {
		t.Fatal(err)
	}
	fixture.Until(t, "Ping tells that a node is away", func() bool { return r.ping() != nil })
	for range 10 { // whichever node is asked
		if r.ping() == nil {
			t.Fatal("Ping finds nothing wrong while a node is away")
		}
	}

	if err := away.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := cluster.WaitOK(t.Context()); err != nil {
		t.Fatal(err)
	}
	fixture.Until(t, "Ping is content again", func() bool { return r.ping() == nil })

	// What the node had is gone; the rest is there, and was taken by the same
	// run. New work goes everywhere.
	lost, kept := 0, 0
	for i := range manyStreams {
		s := streamOf(i)
		read := func() []queue.Entry {
			got, err := r.q.Read(t.Context(), s, []queue.ReadParams{{Consumer: "a", Count: 10}})
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		switch got := read(); {
		case len(got) == 0:
			lost++
		case len(got) == 1 && got[0].FirstDelivery:
			kept++
		default:
			t.Errorf("%v: read %+v", s, got)
		}
		if added, err := r.q.Add(t.Context(), r.paramsOf(s, 1)); err != nil || added != 1 {
			t.Fatalf("added %d to %v, %v", added, s, err)
		}
		if got := read(); len(got) != 1 || !got[0].FirstDelivery {
			t.Errorf("%v: what was added later is read as %+v", s, got)
		}
	}
	if lost == 0 || kept == 0 {
		t.Errorf("%d streams lost, %d kept", lost, kept)
	}
	// So do wakes: the node that had the subscription may have been the one.
	later := streamOf(manyStreams)
	fixture.Until(t, "wakes arrive", func() bool {
		// A connection from before the outage may break at its first use.
		if err := r.raw.Do(t.Context(), r.raw.B().Del().Key(StreamKey(r.prefix, later)).Build()).Error(); err != nil {
			return false
		}
		if _, err := r.q.Add(t.Context(), r.paramsOf(later, 1)); err != nil {
			t.Fatal(err)
		}
		for {
			select {
			case s := <-r.q.Wakes():
				if s == later {
					return true
				}
			default:
				return false
			}
		}
	})
}

func (r *rig) ping() error {
	ctx, cancel := context.WithTimeout(r.Context(), fixture.Patience)
	defer cancel()
	return r.q.Ping(ctx)
}

// TestAReplicaThatIsAwayIsNoOutage makes the third node a replica of the first.
func TestAReplicaThatIsAwayIsNoOutage(t *testing.T) {
	t.Parallel()
	cluster := ownCluster(t)
	before := newRig(t, cluster.Address())
	at := func(i int, command string) rueidis.RedisMessage {
		t.Helper()
		node := before.raw.Nodes()[strings.TrimPrefix(cluster.Nodes()[i].Address(), "redis://")]
		if node == nil {
			t.Fatalf("%s: the client does not know node %d", command, i)
		}
		reply, err := node.Do(t.Context(), node.B().Arbitrary(strings.Fields(command)...).Build()).ToMessage()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		return reply
	}
	first := plain(t, at(0, "CLUSTER MYID")).(string)
	at(2, "CLUSTER FLUSHSLOTS")
	at(0, "CLUSTER DELSLOTSRANGE 10922 16383")
	at(0, "CLUSTER ADDSLOTSRANGE 10922 16383")
	at(0, "CLUSTER BUMPEPOCH") // what the first says of its slots is newer than what was
	at(2, "CLUSTER REPLICATE "+first)
	fixture.Until(t, "all know the replica", func() bool {
		// A replica that has received nothing counts for none.
		if before.raw.Do(t.Context(), before.raw.B().Set().Key("bar").Value("of the first node").Build()).Error() != nil {
			return false
		}
		for i := range cluster.Nodes() {
			if !slices.Equal(nodesByRange(t, at(i, "CLUSTER SLOTS")), []int{2, 1, 2}) {
				return false
			}
		}
		return true
	})

	r := newRig(t, cluster.Address())
	if n := len(r.q.client.Nodes()); n != 3 {
		t.Fatalf("the driver knows %d nodes, want the replica among them", n)
	}
	replica := cluster.Nodes()[2]
	if err := replica.Kill(); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := r.ping(); err != nil {
			t.Fatalf("without a replica: %v", err)
		}
	}
	if err := replica.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	fixture.Until(t, "it is reached again", func() bool {
		for _, client := range []rueidis.Client{before.raw, r.raw} {
			for _, node := range client.Nodes() {
				if node.Do(t.Context(), node.B().Ping().Build()).Error() != nil {
					return false
				}
			}
		}
		return true
	})
}

// nodesByRange counts the nodes of each range of slots.
func nodesByRange(t *testing.T, slots rueidis.RedisMessage) []int {
	t.Helper()
	rows, err := slots.ToArray()
	if err != nil {
		t.Fatal(err)
	}
	var counts []int
	for _, row := range rows {
		parts, err := row.ToArray()
		if err != nil {
			t.Fatal(err)
		}
		counts = append(counts, len(parts)-2)
	}
	return counts
}

// ownCluster is a Cluster for a test that breaks it.
func ownCluster(t *testing.T) *fleet.Cluster {
	t.Helper()
	fixture.Address(t, fleet.VariableRedisCluster) // skips with -short
	in, err := fleet.Look()
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := fleet.NewRedisCluster(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Remove(); err != nil {
			t.Error(err)
		}
	})
	if err := cluster.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return cluster
}
