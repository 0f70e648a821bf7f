package redisstream

import (
	"net/url"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/redis"
)

// TestAMasterThatIsMasterAgainTellsWhatItTookBefore: a server loses a delivery
// to a failover and is made the master again without a restart, as Sentinel
// does it. Its run id is what it was; what it took before is no first delivery.
func TestAMasterThatIsMasterAgainTellsWhatItTookBefore(t *testing.T) {
	t.Parallel()
	first, second := newRig(t, fixture.Own(t, fleet.NewRedis).Address()), newRig(t, fixture.Own(t, fleet.NewRedis).Address())
	for _, r := range []*rig{first, second} {
		r.do("CONFIG", "SET", "repl-diskless-sync-delay", "0")
	}
	second.follow(first)
	runID := first.info("run_id")
	first.add(1, 1)
	fixture.Until(t, "the entry is on the replica", func() bool {
		return second.eval("return redis.call('EXISTS', KEYS[1])", []string{first.key()}) == int64(1)
	})

	second.do("REPLICAOF", "NO", "ONE")
	if got := first.read(1); len(got) != 1 || !got[0].FirstDelivery {
		t.Fatalf("read on the first master: %+v", got)
	}
	first.follow(second) // its delivery is forgotten
	first.do("REPLICAOF", "NO", "ONE")
	if got := first.read(1); len(got) != 1 || got[0].FirstDelivery {
		t.Errorf("what was read before is given out as %+v, want it once more and not Mine", got)
	}
	if got := first.info("run_id"); got != runID {
		t.Errorf("the run id was %s and is %s: this test is about one that stays", runID, got)
	}
	first.add(2, 1)
	if got := first.read(1); len(got) != 1 || !got[0].FirstDelivery {
		t.Errorf("what the new master takes is read as %+v, want Mine", got)
	}
}

// follow makes the rig's server a replica that has all that master has.
func (r *rig) follow(master *rig) {
	r.Helper()
	for address := range master.raw.Nodes() {
		u := url.URL{Host: address}
		r.do("REPLICAOF", u.Hostname(), u.Port())
	}
	fixture.Until(r, "the replica has caught up", func() bool { return r.info("master_link_status") == "up" })
}

// info is a value of INFO.
func (r *rig) info(name string) string {
	r.Helper()
	text := fixture.Must(r.raw.Do(r.Context(), r.raw.B().Info().Build()).ToString())(r)
	return redis.InfoValue(text, name)
}
