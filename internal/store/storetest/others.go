package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

func exerciseReads(t *testing.T, open Open) {
	run(t, open, "HeadsLeaveOutWhatIsMissing", func(b *bundle) {
		b.running(1)
		b.running(2)
		b.saveQueued(1, 1, 2)
		b.saveReady(2, 1)
		list := must(b.PayoutGetMany(b.ctx, []store.PayoutID{
			{PromotionID: 2, TargetID: 1}, {PromotionID: 1, TargetID: 2}, {PromotionID: 1, TargetID: 99}, {PromotionID: 9, TargetID: 1},
		}))(b)
		sortPayouts(list)
		same(b, "heads", []reward.Payout{b.payout(1, 2), b.payout(2, 1)}, list)
		list = must(b.PayoutGetMany(b.ctx, nil))(b)
		same(b, "none", 0, len(list))
	})
	run(t, open, "GetSaysWhatIsMissing", func(b *bundle) {
		b.draft(1)
		_, _, err := b.PayoutGet(b.ctx, store.PayoutID{PromotionID: 1, TargetID: 5})
		b.wantCode(err, reward.CodePayoutNotFound)
		_, err = b.PromotionGet(b.ctx, 5)
		b.wantCode(err, reward.CodeNotFound)
		_, err = b.PromotionMove(b.ctx, store.PromotionMoveParams{ID: 5, From: statuses, To: reward.Running, Now: epoch})
		b.wantCode(err, reward.CodeNotFound)
		_, _, err = b.PromotionJudge(b.ctx, store.PromotionJudgeParams{ID: 5, Now: epoch})
		b.wantCode(err, reward.CodeNotFound)
		_, err = b.PromotionClose(b.ctx, 5)
		b.wantCode(err, reward.CodeNotFound)
		_, err = b.PayoutRetry(b.ctx, store.PayoutRetryParams{PromotionID: 5, Now: epoch})
		b.wantCode(err, reward.CodeNotFound)
		_, err = b.PayoutResolve(b.ctx, store.PayoutResolveParams{PayoutID: store.PayoutID{PromotionID: 1, TargetID: 5}, Now: epoch})
		b.wantCode(err, reward.CodePayoutNotFound)
	})
	run(t, open, "ListPagesAndFilters", func(b *bundle) {
		b.running(1)
		b.running(2)
		b.saveQueued(1, 0, 1, 2, 3, 4, 5)
		b.saveQueued(2, 3)
		for _, target := range []reward.TargetID{1, 3, 5} {
			b.finish(rules.Outcome{Ref: ref(1, target, 1), Kind: rules.OutcomeRefused, Code: map[bool]string{true: "A", false: "B"}[target == 3]})
		}
		list := func(p store.PayoutListParams) []reward.TargetID {
			b.Helper()
			p.PromotionID = 1
			page := must(b.PayoutList(b.ctx, p))(b)
			targets := make([]reward.TargetID, len(page))
			for i, got := range page {
				targets[i] = got.TargetID
			}
			return targets
		}
		after := func(target reward.TargetID) *reward.TargetID { return &target }
		failed := reward.Failed
		same(b, "first page, 0 included", []reward.TargetID{0, 1, 2, 3}, list(store.PayoutListParams{Limit: 4}))
		same(b, "second page", []reward.TargetID{4, 5}, list(store.PayoutListParams{Limit: 4, After: after(3)}))
		same(b, "past the end", []reward.TargetID{}, list(store.PayoutListParams{Limit: 4, After: after(5)}))
		same(b, "failed", []reward.TargetID{1, 3, 5}, list(store.PayoutListParams{Limit: 4, State: &failed}))
		same(b, "failed with a code", []reward.TargetID{5}, list(store.PayoutListParams{Limit: 4, State: &failed, Code: "B", After: after(1)}))
		same(b, "a code", []reward.TargetID{3}, list(store.PayoutListParams{Limit: 4, Code: "A"}))
	})
	run(t, open, "SummariesAreListedInOrder", func(b *bundle) {
		b.running(1)
		b.saveReady(1, 2, 5, 1, 3)
		list := must(b.SummaryList(b.ctx, 1, 10))(b)
		same(b, "summaries", 2, len(list))
		same(b, "first", 1, list[0].ID)
		same(b, "targets of the second", 2, list[1].Total())
		same(b, "amount of the second", 207, list[1].AmountTotal())
		list = must(b.SummaryList(b.ctx, 1, 1))(b)
		same(b, "limited", 1, len(list))
	})
}

func exerciseUploads(t *testing.T, open Open) {
	run(t, open, "LiveFromOpenToClose", func(b *bundle) {
		b.draft(1)
		u := store.Upload{ID: 7, PromotionID: 1, LeasedUntil: at(60), CreatedAt: epoch, FileName: hostile}
		b.wantCode(b.UploadOpen(b.ctx, store.Upload{ID: 8, PromotionID: 9, LeasedUntil: at(60), CreatedAt: epoch}), reward.CodeNotFound)
		b.must(b.UploadOpen(b.ctx, u))
		b.must(b.UploadOpen(b.ctx, u)) // a repeat, as after a lost reply
		b.draft(2)
		other := u
		other.PromotionID = 2
		b.wantCode(b.UploadOpen(b.ctx, other), reward.CodeExists)
		b.must(b.UploadExtend(b.ctx, 7, at(90)))
		b.wantCode(b.UploadExtend(b.ctx, 8, at(90)), reward.CodeUploadNotFound)
		got := must(b.UploadGet(b.ctx, 1, 7))(b)
		u.LeasedUntil = at(90)
		same(b, "open", u, got)
		_, err := b.UploadGet(b.ctx, 2, 7)
		b.wantCode(err, reward.CodeUploadNotFound)

		u.Accepted, u.Duplicates, u.Conflicts, u.Rejected, u.Amount = 1, 2, 3, 4, 5
		u.Header = []string{"고객번호", "", hostile}
		b.must(b.UploadClose(b.ctx, u, at(50)))
		b.must(b.UploadClose(b.ctx, u, at(51)))
		got = must(b.UploadGet(b.ctx, 1, 7))(b)
		u.FinishedAt = at(50)
		same(b, "closed", u, got)
		more := u
		more.Accepted++
		b.wantCode(b.UploadClose(b.ctx, more, at(52)), reward.CodeIllegalState)
		b.wantCode(b.UploadExtend(b.ctx, 7, at(99)), reward.CodeIllegalState)
		b.wantCode(b.UploadOpen(b.ctx, u), reward.CodeExists)
		b.wantCode(b.UploadClose(b.ctx, store.Upload{ID: 8}, at(52)), reward.CodeUploadNotFound)
	})
	run(t, open, "ErrorsPageByLine", func(b *bundle) {
		b.draft(1)
		b.must(b.UploadOpen(b.ctx, store.Upload{ID: 7, PromotionID: 1, LeasedUntil: at(60), CreatedAt: epoch}))
		errs := []store.LineError{{Line: 9, Code: "A", Detail: hostile, Cells: []string{"", hostile}}, {Line: 2, Code: "B"}, {Line: 5, Code: "C", Cells: []string{}}}
		b.must(b.UploadAddErrors(b.ctx, 7, errs))
		b.must(b.UploadAddErrors(b.ctx, 7, []store.LineError{{Line: 2, Code: "AGAIN"}}))
		b.must(b.UploadAddErrors(b.ctx, 7, nil))
		b.wantCode(b.UploadAddErrors(b.ctx, 8, errs), reward.CodeUploadNotFound)
		list := must(b.UploadErrors(b.ctx, 7, 0, 2))(b)
		same(b, "first page", []store.LineError{errs[1], errs[2]}, list)
		list = must(b.UploadErrors(b.ctx, 7, 5, 2))(b)
		same(b, "second page", []store.LineError{errs[0]}, list)
	})
}

func exerciseLeases(t *testing.T, open Open) {
	run(t, open, "OneOwnerAtATime", func(b *bundle) {
		take := func(owner string, ttl time.Duration) store.Lease {
			b.Helper()
			return must(b.LeaseTake(b.ctx, store.LeaseTakeParams{Name: "data", Owner: owner, TTL: ttl}))(b)
		}
		first := take("a", time.Hour)
		same(b, "taken", true, first.OK)
		same(b, "owner", "a", first.Owner)
		if left := time.Until(first.Until); left < 50*time.Minute || left > 70*time.Minute {
			b.Fatalf("the lease of an hour ends in %s", left)
		}
		same(b, "not by another", store.Lease{Owner: "a", Until: first.Until}, take("b", time.Hour))
		renewed := take("a", 2*time.Hour)
		if !renewed.OK || !renewed.Until.After(first.Until) {
			b.Fatalf("renewed: %+v after %+v", renewed, first)
		}
		b.must(b.LeaseRelease(b.ctx, "data", "b"))
		same(b, "not released by another", false, take("b", time.Hour).OK)
		b.must(b.LeaseRelease(b.ctx, "data", "a"))
		same(b, "released", true, take("b", time.Hour).OK)
		same(b, "lapsed at once", true, take("b", -time.Second).OK)
		same(b, "taken over", true, take("c", time.Hour).OK)
	})
	run(t, open, "HoldersAreListedByPrefix", func(b *bundle) {
		for _, l := range []store.LeaseTakeParams{
			{Name: "coupon:1", Owner: "b", TTL: time.Hour},
			{Name: "coupon:2", Owner: "é", TTL: time.Hour},
			{Name: "coupon:3", Owner: "b", TTL: time.Hour},
			{Name: "coupon:4", Owner: "B", TTL: time.Hour},
			{Name: "coupon:5", Owner: "lapsed", TTL: -time.Second},
			{Name: "coupon:", Owner: "c", TTL: time.Hour},
			{Name: "coupon", Owner: "shorter", TTL: time.Hour},
			{Name: "Coupon:1", Owner: "other", TTL: time.Hour},
			{Name: "c%u_", Owner: "pattern", TTL: time.Hour},
		} {
			must(b.LeaseTake(b.ctx, l))(b)
		}
		holders := func(prefix string) []string {
			b.Helper()
			l := must(b.LeaseTake(b.ctx, store.LeaseTakeParams{Name: "~", Owner: "asks", TTL: time.Hour, Among: prefix}))(b)
			return append([]string{}, l.Holders...)
		}
		same(b, "by bytes, each once", []string{"B", "b", "c", "é"}, holders("coupon:"))
		same(b, "of a pattern", []string{"pattern"}, holders("c%"))
		same(b, "including its own", []string{"asks"}, holders("~"))
		same(b, "not asked", []string{}, holders(""))
		same(b, "of none", []string{}, holders("x"))
		b.must(b.LeaseRelease(b.ctx, "coupon:2", "é"))
		same(b, "released", []string{"B", "b", "c"}, holders("coupon:"))
		_, err := b.LeaseTake(b.ctx, store.LeaseTakeParams{Name: "~", Owner: "asks", TTL: time.Hour, Among: "\xff"})
		b.wantCode(err, reward.CodeInvalid)
	})
}

func exerciseInstances(t *testing.T, open Open) {
	beat := func(b *bundle, i store.Instance, ttl time.Duration) {
		b.Helper()
		alive := must(b.InstanceHeartbeat(b.ctx, i, ttl))(b)
		list := must(b.InstanceList(b.ctx))(b)
		list = slices.DeleteFunc(list, func(i store.Instance) bool { return !i.Alive })
		same(b, "alive", len(list), alive)
	}
	// list reads the instances without the times of the database, which must be
	// between two times of this process.
	list := func(b *bundle) []store.Instance {
		b.Helper()
		got := must(b.InstanceList(b.ctx))(b)
		for n := range got {
			if !b.recent(got[n].SeenAt) {
				b.Fatalf("%q was seen at %s", got[n].Name, got[n].SeenAt)
			}
			got[n].SeenAt, got[n].AliveUntil = time.Time{}, time.Time{}
		}
		return got
	}
	run(t, open, "TellWhoseApprovalsDiffer", func(b *bundle) {
		for name, approvals := range map[string]string{"a": "above: 100", "b": "above: 100", "c": "above: 0", "d": hostile} {
			ttl := time.Hour
			if name == "d" {
				ttl = -time.Second
			}
			beat(b, store.Instance{Name: name, StartedAt: epoch, Approvals: approvals}, ttl)
		}
		for approvals, want := range map[string]string{"above: 100": "[c]", "above: 0": "[a b]", "": "[a b c]"} {
			others := must(b.InstanceOtherApprovals(b.ctx, approvals))(b)
			same(b, "others", want, fmt.Sprint(others))
		}
		beat(b, store.Instance{Name: "c", StartedAt: epoch, Approvals: "above: 100"}, time.Hour)
		others := must(b.InstanceOtherApprovals(b.ctx, "above: 100"))(b)
		same(b, "nobody", 0, len(others))
	})
	run(t, open, "TellWhatTheyDo", func(b *bundle) {
		want := store.Instance{
			Name: hostile, Version: "v1 " + hostile, Roles: []string{"payout", hostile, "<&>\u2028"}, StartedAt: epoch, Alive: true,
			Pools: []store.InstancePool{
				{PromotionID: 1, Type: reward.Point, Consumers: 5, Pending: 7, StartedAt: at(1)},
				{PromotionID: 1<<63 - 1, Type: reward.Voucher, StartedAt: at(2).Add(time.Nanosecond)},
			},
			Troubles: []obs.Trouble{{Part: hostile, Reason: "why " + hostile, Since: at(3)}, {Part: "store", Since: at(4)}},
			Governor: &store.InstanceGovernor{Limit: 100, InFlight: 7, Waiting: 3, BreakerOpen: true, RatesUnshared: true, BlockedUntil: at(5)},
		}
		given := want
		given.SeenAt, given.AliveUntil, given.Alive = at(5), at(6), false // the store ignores these
		given.StartedAt = epoch.In(time.FixedZone("KST", 9*60*60))
		beat(b, given, time.Hour)
		same(b, "instances", []store.Instance{want}, list(b))
		got := must(b.InstanceList(b.ctx))(b)
		same(b, "alive for", time.Hour, got[0].AliveUntil.Sub(got[0].SeenAt))
		same(b, "zone", "UTC", got[0].StartedAt.Location().String())
		same(b, "zone of a pool", "UTC", got[0].Pools[0].StartedAt.Location().String())

		next := store.Instance{Name: hostile, Version: "v2", Roles: []string{}, StartedAt: at(9), Alive: true}
		beat(b, next, 2*time.Hour)
		same(b, "after the next beat", []store.Instance{next}, list(b))
		later := must(b.InstanceList(b.ctx))(b)
		if later[0].SeenAt.Before(got[0].SeenAt) || !later[0].AliveUntil.After(got[0].AliveUntil) {
			b.Fatalf("seen %s, alive until %s; before it was %s, %s",
				later[0].SeenAt, later[0].AliveUntil, got[0].SeenAt, got[0].AliveUntil)
		}
	})
	run(t, open, "DieOnce", func(b *bundle) {
		dead := func() []string {
			b.Helper()
			return must(b.InstanceReportDead(b.ctx))(b)
		}
		beat(b, store.Instance{Name: "a", StartedAt: epoch}, time.Hour)
		for _, name := range []string{"c", "b"} {
			beat(b, store.Instance{Name: name, StartedAt: epoch}, -time.Second)
		}
		same(b, "dead", []string{"b", "c"}, dead())
		same(b, "dead, reported again", 0, len(dead()))
		beat(b, store.Instance{Name: "b", StartedAt: epoch}, time.Hour)
		same(b, "alive again", 0, len(dead()))
		beat(b, store.Instance{Name: "b", StartedAt: epoch}, -time.Second)
		same(b, "dead again", []string{"b"}, dead())
	})
	run(t, open, "AreListedByTheBytesOfTheirNames", func(b *bundle) {
		names := []string{"", " a", "A", "Z", "a", "a-10", "a-2", "b", "z", "é", "한국어", "🎁"}
		for _, name := range shuffled(names) {
			beat(b, store.Instance{Name: name, StartedAt: epoch}, time.Hour)
		}
		var got []string
		for _, i := range list(b) {
			got = append(got, i.Name)
		}
		same(b, "names", names, got)
		living := must(b.InstanceAlive(b.ctx))(b)
		same(b, "names of the living", names, living)
	})
	run(t, open, "AreDeadAfterTheirTimeAndComeBack", func(b *bundle) {
		alive := func() []bool {
			b.Helper()
			var alive []bool
			for _, i := range list(b) {
				alive = append(alive, i.Alive)
			}
			return alive
		}
		beat(b, store.Instance{Name: "a", StartedAt: epoch}, time.Hour)
		beat(b, store.Instance{Name: "b", StartedAt: epoch}, -time.Second)
		beat(b, store.Instance{Name: "c", StartedAt: epoch}, 0)
		same(b, "alive", []bool{true, false, false}, alive())
		living := must(b.InstanceAlive(b.ctx))(b)
		same(b, "names of the living", []string{"a"}, living)
		beat(b, store.Instance{Name: "b", StartedAt: epoch}, time.Hour)
		beat(b, store.Instance{Name: "a", StartedAt: epoch}, -time.Second)
		same(b, "alive", []bool{false, true, false}, alive())
	})
	run(t, open, "WhoEndedInOrderIsForgotten", func(b *bundle) {
		same(b, "none", 0, len(list(b)))
		beat(b, store.Instance{Name: "a", StartedAt: epoch}, time.Hour)
		beat(b, store.Instance{Name: "a' OR 'a' = 'a", StartedAt: epoch}, time.Hour)
		b.must(b.InstanceRemove(b.ctx, "a' OR 'a' = 'a"))
		b.must(b.InstanceRemove(b.ctx, "A"))
		left := list(b)
		same(b, "left", 1, len(left))
		same(b, "left", "a", left[0].Name)
		b.must(b.InstanceRemove(b.ctx, "a"))
		b.must(b.InstanceRemove(b.ctx, "a"))
		same(b, "none left", 0, len(list(b)))
	})
	run(t, open, "RefuseWhatCannotBeStoredAsItIs", func(b *bundle) {
		for _, i := range []store.Instance{
			{Name: "nul\x00"},
			{Name: "\xff"},
			{Name: "a", Version: "\xff"},
			{Name: "a", Roles: []string{"nul\x00"}},
			{Name: "a", Pools: []store.InstancePool{{Type: "\xff"}}},
			{Name: "a", Pools: []store.InstancePool{{Type: "nul\x00"}}},
			{Name: "a", Troubles: []obs.Trouble{{Part: "\xff"}}},
			{Name: "a", Troubles: []obs.Trouble{{Reason: "nul\x00"}}},
		} {
			_, err := b.InstanceHeartbeat(b.ctx, i, time.Hour)
			b.wantCode(err, reward.CodeInvalid)
		}
		b.wantCode(b.InstanceRemove(b.ctx, "nul\x00"), reward.CodeInvalid)
		same(b, "instances", 0, len(list(b)))
	})
}

// exerciseInstancesForgotten checks that an instance is listed for a day after its last
// heartbeat, and that the next heartbeat of another instance then removes it. It moves
// heartbeats back, because the clock is that of the database.
func exerciseInstancesForgotten(a *arena) {
	beat := func(name string) {
		a.Helper()
		must(a.InstanceHeartbeat(a.ctx, store.Instance{Name: name, StartedAt: epoch}, 48*time.Hour))(a)
	}
	moveBack := func(name string, ago time.Duration) {
		a.Helper()
		now := must(a.Clock(a.ctx))(a)
		a.must(a.raw.Exec(fmt.Sprintf(`UPDATE instances SET seen_at = %s WHERE name = '%s'`, a.raw.Moment(now.Add(-ago).UTC()), name)))
	}
	want := func(listed, rows int) {
		a.Helper()
		same(a.bundle, "listed", listed, instances(a.bundle))
		same(a.bundle, "stored", rows, a.stored("instances"))
	}
	for _, name := range []string{"a", "b", "c"} {
		beat(name)
	}
	moveBack("a", store.InstanceRetention-time.Minute)
	moveBack("b", store.InstanceRetention+time.Second)
	want(2, 3)
	beat("c")
	want(2, 2)
	moveBack("a", store.InstanceRetention+time.Second)
	beat("a") // back after a day
	want(2, 2)
}
