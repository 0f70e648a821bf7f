//go:build nightly

package redisstream

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/redis"
)

// TestAClaimAmongManyPendingEntriesIsCheap measures the time of the server's one
// thread for the claims of a lease, with 100,000 pending entries in living hands
// and nothing to adopt. Before, each claim scanned all of them with XAUTOCLAIM.
func TestAClaimAmongManyPendingEntriesIsCheap(t *testing.T) {
	const pending, claims = 100_000, 5 // claims in a lease
	r := newRig(t, ownRedis(t))
	for from := 0; from < pending; from += 1000 {
		r.add(from, 1000)
		if got, err := r.q.Read(t.Context(), r.s, []queue.ReadParams{{Consumer: "a" + strconv.Itoa(from%8), Count: 1000}}); err != nil || len(got) != 1000 {
			t.Fatal(len(got), err)
		}
	}
	spent := func(what string, do func()) time.Duration {
		t.Helper()
		before := r.serverTime()
		do()
		took := r.serverTime() - before
		t.Logf("%s: %v", what, took)
		return took
	}
	scan := spent("five scans with XAUTOCLAIM", func() {
		for range claims {
			for cursor := "0-0"; ; {
				page := plain(t, r.do("XAUTOCLAIM", r.key(), r.group(), "c", "3600000", cursor, "COUNT", "100")).([]any)
				if cursor = page[0].(string); cursor == "0-0" {
					break
				}
			}
		}
	})
	var next string
	claim := spent("five claims", func() {
		for range claims {
			got, err := r.q.Claim(t.Context(), queue.ClaimParams{Stream: r.s, Consumer: "c", MinIdle: time.Hour, Count: 100, From: next})
			if err != nil || len(got.Entries) != 0 {
				t.Fatal(got, err)
			}
			next = got.Next
		}
	})
	if next != "" {
		t.Errorf("after %d claims the next one continues at %s, want all to be scanned", claims, next)
	}
	if claim*20 > scan {
		t.Errorf("the claims of a lease took %v of the server's time, scans took %v; want a twentieth at most", claim, scan)
	}

	// Every idle entry is found by the claims of a lease, wherever it is.
	all, err := r.q.Range(t.Context(), r.s, pending)
	if err != nil || len(all) != pending {
		t.Fatal(len(all), err)
	}
	want := map[string]bool{}
	for i := 0; i < pending; i += pending / 50 {
		r.do("XCLAIM", r.key(), r.group(), "dead", "0", all[i].ID, "IDLE", "7200000", "JUSTID")
		want[all[i].ID] = true
	}
	for range claims {
		got, err := r.q.Claim(t.Context(), queue.ClaimParams{Stream: r.s, Consumer: "c", MinIdle: time.Hour, Count: 100, From: next})
		if err != nil {
			t.Fatal(err)
		}
		next = got.Next
		for _, e := range got.Entries {
			delete(want, e.ID)
		}
	}
	if len(want) > 0 {
		t.Errorf("%d idle entries were not claimed within a lease", len(want))
	}
}

// serverTime returns the time that the server has spent in commands.
func (r *rig) serverTime() time.Duration {
	r.Helper()
	text := plain(r, r.do("INFO", "commandstats")).(string)
	var total int64
	for _, command := range []string{"evalsha", "eval", "xautoclaim"} {
		total += usecOf(redis.InfoValue(text, "cmdstat_"+command))
	}
	return time.Duration(total) * time.Microsecond
}

// usecOf reads the microseconds of a line of commandstats.
func usecOf(line string) int64 {
	_, rest, _ := strings.Cut(line, "usec=")
	text, _, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0 // never called
	}
	return n
}
