package redisstream

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/queue"
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

// TestANodeOfAClusterGoesAwayAndComesBack breaks a Cluster of its own.
func TestANodeOfAClusterGoesAwayAndComesBack(t *testing.T) {
	t.Parallel()
	cluster := ownCluster(t)
	r := newRig(t, cluster.Address())
	fixture.OK(t, r.q.Ping(t.Context()))
	for i := range manyStreams {
		fixture.Must(r.q.Add(t.Context(), r.paramsOf(streamOf(i), 1)))(t)
	}

	away := cluster.Nodes()[1]
	fixture.OK(t, away.Kill())
	fixture.Until(t, "Ping tells that a node is away", func() bool { return r.ping() != nil })
	for range 10 { // whichever node is asked
		if r.ping() == nil {
			t.Fatal("Ping finds nothing wrong while a node is away")
		}
	}

	fixture.OK(t, away.Start(t.Context()))
	fixture.OK(t, cluster.WaitOK(t.Context()))
	fixture.Until(t, "Ping is content again", func() bool { return r.ping() == nil })

	// What the node had is gone; the rest is there, and was taken by the same
	// run. New work goes everywhere.
	lost, kept := 0, 0
	for i := range manyStreams {
		s := streamOf(i)
		read := func() []queue.Entry {
			return fixture.Must(r.q.Read(t.Context(), s, []queue.ReadParams{{Consumer: "a", Count: 10}}))(t)
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
		fixture.Must(r.q.Add(t.Context(), r.paramsOf(later, 1)))(t)
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
	fixture.OK(t, replica.Kill())
	for range 10 {
		if err := r.ping(); err != nil {
			t.Fatalf("without a replica: %v", err)
		}
	}
	fixture.OK(t, replica.Start(t.Context()))
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
	rows := fixture.Must(slots.ToArray())(t)
	var counts []int
	for _, row := range rows {
		parts := fixture.Must(row.ToArray())(t)
		counts = append(counts, len(parts)-2)
	}
	return counts
}

// ownCluster is a Cluster for a test that breaks it.
func ownCluster(t *testing.T) *fleet.Cluster {
	t.Helper()
	fixture.Address(t, fleet.VariableRedisCluster) // skips with -short
	in := fixture.Must(fleet.Look())(t)
	cluster := fixture.Must(fleet.NewRedisCluster(t.Context(), in))(t)
	t.Cleanup(func() {
		if err := cluster.Remove(); err != nil {
			t.Error(err)
		}
	})
	fixture.OK(t, cluster.Start(t.Context()))
	return cluster
}
