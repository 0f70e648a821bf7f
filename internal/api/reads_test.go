package api

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

func TestReadLimits(t *testing.T) {
	t.Parallel()
	refused := func(t *testing.T, err error) {
		t.Helper()
		p, ok := errors.AsType[*web.Problem](err)
		if !ok || p.Status != 429 || p.Code != CodeRateLimited || p.RetryAfter < 1 {
			t.Errorf("the read ended with %+v, want 429 with Retry-After", err)
		}
	}
	fixture.OnFakeTime(t, "Reads", func(t *testing.T) {
		const each = 2
		l := newReadLimits(each)
		var leaves []func()
		for range each {
			leave := fixture.Must(l.enter(t.Context(), "a"))(t)
			leaves = append(leaves, leave)
		}
		entered, failed := make(chan func(), readsWaitingMax), make(chan error, readsWaitingMax)
		for range readsWaitingMax {
			go func() {
				leave, err := l.enter(t.Context(), "a")
				if err != nil {
					failed <- err
					return
				}
				entered <- leave
			}()
		}
		synctest.Wait()
		began := time.Now()
		_, err := l.enter(t.Context(), "a")
		refused(t, err)
		if waited := time.Since(began); waited != refusalPause {
			t.Errorf("it was refused after %v, want %v", waited, refusalPause)
		}
		other, err := l.enter(t.Context(), "b")
		if err != nil {
			t.Fatalf("another caller is refused: %v", err)
		}
		other()
		leaves[0]()
		synctest.Wait()
		if len(entered) != 1 {
			t.Fatalf("%d reads run in the place of one, want 1", len(entered))
		}
		(<-entered)()
		leaves[1]()
		synctest.Wait()
		for range readsWaitingMax - 1 {
			(<-entered)()
			synctest.Wait()
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		one := fixture.Must(l.enter(t.Context(), "c"))(t)
		two := fixture.Must(l.enter(t.Context(), "c"))(t)
		if _, err := l.enter(gone, "c"); !errors.Is(err, context.Canceled) {
			t.Errorf("the wait of a caller who left ended with %v, want %v", err, context.Canceled)
		}
		one()
		two()
		if len(failed) > 0 || len(l.callers) > 0 {
			t.Errorf("%d reads were refused, and %d callers are remembered, want none", len(failed), len(l.callers))
		}
	})
	fixture.OnFakeTime(t, "TheWaitHasAnEnd", func(t *testing.T) {
		l := newReadLimits(1)
		leave := fixture.Must(l.enter(t.Context(), "a"))(t)
		began := time.Now()
		_, err := l.enter(t.Context(), "a")
		refused(t, err)
		if waited := time.Since(began); waited != readWait {
			t.Errorf("it waited %v, want %v", waited, readWait)
		}
		leave()
	})
	t.Run("Exports", func(t *testing.T) {
		t.Parallel()
		l := newReadLimits(1)
		var leaves []func()
		for range exportsMax {
			leave := fixture.Must(l.enterExport("a"))(t)
			leaves = append(leaves, leave)
		}
		_, err := l.enterExport("a")
		refused(t, err)
		leaves[0]()
		leave, err := l.enterExport("a")
		if err != nil {
			t.Error(err)
		}
		leaves[0] = leave
		for _, leave := range leaves {
			leave()
		}
		if len(l.callers) > 0 {
			t.Errorf("%d callers are remembered, want none", len(l.callers))
		}
	})
}

// TestReadsOfShoppers lets reads of shoppers hang: they take no connection for reads from
// the staff, and those that find no place are told to come back.
func TestReadsOfShoppers(t *testing.T) {
	t.Parallel()
	fixture.OnFakeTime(t, "Lane", func(t *testing.T) {
		a := &API{reads: newReadLimits(4), shoppers: make(chan struct{}, shopperReads)}
		as := func(role auth.Role, name string) context.Context {
			return context.WithValue(t.Context(), callerKey{}, caller{Principal: auth.Principal{Name: name, Role: role}})
		}
		ended := make(chan error, shopperReads)
		for n := range shopperReads {
			go func() {
				ended <- a.read(as(auth.RoleShopper, fmt.Sprint("shopper", n)), func(ctx context.Context) error {
					if store.IsForViewer(ctx) {
						t.Error("a shopper reads through a connection of the staff")
					}
					<-ctx.Done()
					return ctx.Err()
				})
			}()
		}
		synctest.Wait()
		if err := a.read(as(auth.RoleViewer, "kim"), func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		err := a.read(as(auth.RoleShopper, "z"), func(context.Context) error { return nil })
		if p, ok := errors.AsType[*web.Problem](err); !ok || p.Status != 429 {
			t.Errorf("one shopper too many: %v", err)
		}
		for range shopperReads {
			if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a read that hangs ends with %v", err)
			}
		}
	})
}
