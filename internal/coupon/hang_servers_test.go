package coupon

import (
	"fmt"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// processOf returns the process ID of a Redis.
func processOf(t *testing.T, address string) int {
	t.Helper()
	pid, err := strconv.Atoi(info(t, address, "server")["process_id"])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// exerciseHang lets Redis hang while users request coupons. Everyone who was told that
// they wait must get a coupon; all coupons are issued, and no more. It returns how long
// it took until coupons were issued through the database.
func exerciseHang(t *testing.T, mode reward.IssueMode, lasts, fallbackAfter time.Duration) time.Duration {
	t.Helper()
	address := ownServer(t).Address()
	pid := processOf(t, address)
	signal := func(s syscall.Signal) {
		if err := syscall.Kill(pid, s); err != nil {
			t.Error(err)
		}
	}
	s := openServersAt(t, address)
	r := &rig{TB: t, servers: s, rows: s.rows(t)}
	r.start(func(c *FlowConfig) { c.FallbackAfter = fallbackAfter })
	r.start(func(c *FlowConfig) { c.FallbackAfter = fallbackAfter })
	const quantity, workers, each = 600, 8, 100
	id := r.create(reward.CouponTemplate{TotalQuantity: quantity, Mode: mode})
	var mu sync.Mutex // protects waiting, refused and issued
	var waiting, refused []string
	issued := 0 // at once, as in SYNC mode and through the database
	half := make(chan struct{})
	reached := sync.OnceFunc(func() { close(half) })
	var open sync.WaitGroup
	for worker := range workers {
		open.Go(func() {
			for n := range each {
				user := fmt.Sprintf("u%d-%d", worker, n)
				got, code := r.request(r.instances[n%2], id, user)
				mu.Lock()
				switch {
				case code == reward.CodeSoldOut:
					refused = append(refused, user)
				case code != "":
					t.Errorf("%s: %s", user, code)
				case got.Kind == StatusWaiting:
					waiting = append(waiting, user)
				default:
					issued++
				}
				if len(waiting)+issued >= quantity/3 {
					reached()
				}
				mu.Unlock()
			}
		})
	}
	<-half
	began := time.Now()
	signal(syscall.SIGSTOP)
	wake := time.AfterFunc(lasts, func() { signal(syscall.SIGCONT) })
	defer wake.Stop()
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	var moved time.Duration
	for moved == 0 && time.Since(began) < lasts {
		row, err := r.rows.TemplateGet(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if row.Path == reward.PathDatabase {
			moved = time.Since(began)
		}
		time.Sleep(5 * time.Millisecond) // polls a condition
	}
	open.Wait()
	for _, user := range waiting {
		if got := r.outcome(r.instances[0], id, user); got.Kind != StatusIssued {
			t.Errorf("%s was told to wait, and then: %+v", user, got)
		}
	}
	r.balanced(id)
	row, err := r.rows.TemplateGet(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if row.Live != quantity || len(refused) != workers*each-quantity {
		t.Errorf("%d of %d coupons are issued, %d users were refused", row.Live, quantity, len(refused))
	}
	t.Logf("Redis hung for %v; the database path began after %v; %d users waited in line, %d had one at once, %d were refused",
		lasts, moved, len(waiting), issued, len(refused))
	return moved
}

// TestPromisesHoldWhileRedisHangs checks that nobody loses a promised coupon while Redis
// hangs long enough for the database path, and too briefly for it.
func TestPromisesHoldWhileRedisHangs(t *testing.T) {
	t.Parallel()
	for _, mode := range []reward.IssueMode{reward.ModeStream, reward.ModeKafka, reward.ModeSync} {
		t.Run("WithTheDatabasePath"+string(mode), func(t *testing.T) {
			t.Parallel()
			if exerciseHang(t, mode, 5*time.Second, time.Second) == 0 {
				t.Error("no coupon was issued through the database")
			}
		})
	}
	t.Run("WithoutTheDatabasePath", func(t *testing.T) {
		t.Parallel()
		exerciseHang(t, reward.ModeStream, 2*time.Second, 30*time.Second)
	})
}
