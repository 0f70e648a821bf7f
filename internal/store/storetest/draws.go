package storetest

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/store"
)

// draw gives a template a draw that takes entrants from `from` to `opens`.
func draw(from, opens time.Duration) func(*reward.CouponTemplate) {
	return func(t *reward.CouponTemplate) {
		t.OpensAt, t.Draw = fromNow(opens), reward.Draw{State: reward.DrawOpen, From: fromNow(from), Seed: []byte("seed")}
	}
}

func exerciseDraws(t *testing.T, open Open) {
	save := func(b *bundle, id reward.TemplateID, users ...string) bool {
		b.Helper()
		_, takes, err := b.EntrantSave(b.ctx, id, users)
		b.must(err)
		return takes
	}
	entrants := func(b *bundle, id reward.TemplateID, after string, limit int) []string {
		b.Helper()
		list := must(b.EntrantList(b.ctx, id, after, limit))(b)
		return append([]string{}, list...)
	}
	run(t, open, "TakesEntrantsInItsTime", func(b *bundle) {
		b.template(1, draw(-time.Hour, time.Hour))
		b.template(2, draw(time.Hour, 2*time.Hour))
		b.template(3, draw(-2*time.Hour, -time.Hour))
		b.template(4)
		same(b, "open", true, save(b, 1, "b", "é", "a", "B", "a"))
		same(b, "again", true, save(b, 1, "a", "c"))
		same(b, "nobody", true, save(b, 1))
		for id := reward.TemplateID(2); id <= 4; id++ {
			same(b, "not in its time", false, save(b, id, "a"))
			same(b, "nobody", []string{}, entrants(b, id, "", 9))
		}
		same(b, "by bytes", []string{"B", "a", "b"}, entrants(b, 1, "", 3))
		same(b, "next page", []string{"c", "é"}, entrants(b, 1, "b", 3))
		same(b, "past the end", []string{}, entrants(b, 1, "é", 3))
		has := must(b.EntrantHas(b.ctx, 1, []string{"a", "x", "é", "a", "\xff"}))(b)
		same(b, "noted", map[string]bool{"a": true, "é": true}, has)
		has = must(b.EntrantHas(b.ctx, 2, []string{"a"}))(b)
		same(b, "of another", map[string]bool{}, has)
		for _, bad := range []string{"\xff", "a\x00"} {
			_, _, err := b.EntrantSave(b.ctx, 1, []string{"z", bad})
			b.wantCode(err, reward.CodeInvalid)
		}
		same(b, "version", int64(0), b.stands(1).Version)
	})
	run(t, open, "TellsWhoHadEnteredBefore", func(b *bundle) {
		b.template(1, draw(-time.Hour, time.Hour))
		b.template(2, draw(time.Hour, 2*time.Hour))
		added := func(id reward.TemplateID, users ...string) []string {
			b.Helper()
			got, _, err := b.EntrantSave(b.ctx, id, users)
			b.must(err)
			out := []string{}
			for _, user := range slices.Sorted(maps.Keys(got)) {
				if got[user] {
					out = append(out, user)
				}
			}
			return out
		}
		same(b, "new", []string{"a", "é"}, added(1, "a", "é", "a"))
		same(b, "one is new", []string{"b"}, added(1, "a", "b"))
		same(b, "repeated", []string{}, added(1, "a", "b", "é"))
		same(b, "not in its time", []string{}, added(2, "a"))
	})
	run(t, open, "ClosesOnceTheTemplateIsOpen", func(b *bundle) {
		b.template(1, draw(-time.Hour, time.Hour))
		b.template(2, draw(-2*time.Hour, -time.Hour))
		b.template(3)
		b.own(2)
		for id, epoch := range map[reward.TemplateID]int64{1: 0, 2: 0, 3: 0} {
			before := b.stands(id)
			got := must(b.DrawClose(b.ctx, id, epoch))(b)
			same(b, "not closed", before, got)
			done := must(b.DrawDone(b.ctx, id, epoch, []byte("x")))(b)
			same(b, "not done", false, done)
			same(b, "kept", before, b.stands(id))
		}
		want := b.stands(2)
		want.Draw.State = reward.DrawClosed
		for range 2 {
			got := must(b.DrawClose(b.ctx, 2, 1))(b)
			same(b, "closed", want, got)
		}
		same(b, "takes no more", false, save(b, 2, "a"))
		done := must(b.DrawDone(b.ctx, 2, 0, []byte("x")))(b)
		same(b, "of another epoch", false, done)
		list := []byte{0, 1, 255}
		done = must(b.DrawDone(b.ctx, 2, 1, list))(b)
		same(b, "done", true, done)
		want.Draw.State, want.Draw.List = reward.DrawDone, list
		want.Version++
		same(b, "kept", want, b.stands(2))
		done = must(b.DrawDone(b.ctx, 2, 1, []byte("other")))(b)
		same(b, "done once", false, done)
		same(b, "kept", want, b.stands(2))
	})
	run(t, open, "ClosedTakesNobodyThoughItsTimeWereMovedBack", func(b *bundle) {
		b.template(1, draw(-2*time.Hour, -time.Hour))
		must(b.DrawClose(b.ctx, 1, 0))(b)
		_, err := b.TemplateChange(b.ctx, rules.TemplateChange{ID: 1, OpensAt: new(fromNow(time.Hour))})
		b.wantCode(err, reward.CodeConflict)
	})
	run(t, open, "ItsTimesAndTheModeStayOnceSomebodyAsked", func(b *bundle) {
		b.template(1, draw(-time.Hour, time.Hour))
		change := func(p rules.TemplateChange) error {
			p.ID = 1
			_, err := b.TemplateChange(b.ctx, p)
			return err
		}
		b.must(change(rules.TemplateChange{OpensAt: new(fromNow(2 * time.Hour)), Mode: new(reward.ModeKafka)}))
		b.wantCode(change(rules.TemplateChange{OpensAt: &time.Time{}}), reward.CodeInvalid)
		save(b, 1, "a")
		b.wantCode(change(rules.TemplateChange{OpensAt: new(fromNow(3 * time.Hour))}), reward.CodeConflict)
		b.wantCode(change(rules.TemplateChange{Mode: new(reward.ModeSync)}), reward.CodeConflict)
		b.must(change(rules.TemplateChange{OpensAt: new(b.stands(1).OpensAt), ClosesAt: new(fromNow(9 * time.Hour))}))
	})
	run(t, open, "ListsTheDrawsThatAUserEntered", func(b *bundle) {
		list := func(user string, limit int) []reward.TemplateID {
			b.Helper()
			got := must(b.DrawsEntered(b.ctx, user, limit))(b)
			ids := make([]reward.TemplateID, 0, len(got))
			for _, d := range got {
				same(b, "opens", b.stands(d.TemplateID).OpensAt, d.OpensAt)
				ids = append(ids, d.TemplateID)
			}
			return ids
		}
		var ids []reward.TemplateID // in the order of their opening; the first is not done
		for id := reward.TemplateID(1); len(ids) < 4; id++ {
			b.template(id, draw(-time.Hour, 300*time.Millisecond))
			if save(b, id, "a", fmt.Sprint("b", len(ids))) { // unless it has opened already
				ids = append(ids, id)
			}
		}
		same(b, "none is done", []reward.TemplateID{}, list("a", 9))
		for _, id := range ids[1:] {
			fixture.Until(b.TB, "the draw closes", func() bool {
				got := must(b.DrawClose(b.ctx, id, 0))(b)
				return got.Draw.State == reward.DrawClosed
			})
			must(b.DrawDone(b.ctx, id, 0, []byte("x")))(b)
		}
		same(b, "the latest opening first", []reward.TemplateID{ids[3], ids[2], ids[1]}, list("a", 9))
		same(b, "at most", []reward.TemplateID{ids[3], ids[2]}, list("a", 2))
		same(b, "of one user", []reward.TemplateID{ids[2]}, list("b2", 9))
		same(b, "not done", []reward.TemplateID{}, list("b0", 9))
		same(b, "of nobody", []reward.TemplateID{}, list("x\x00\xff", 9))
		same(b, "no limit", []reward.TemplateID{}, list("a", -1))
	})
	run(t, open, "WhoIsNotDrawnIsARow", func(b *bundle) {
		b.template(1, quantity(1))
		loser := ask("b", 2)
		loser.Reason = reward.ReasonNotDrawn
		same(b, "told", []string{"issued", reward.ReasonNotDrawn}, told(b.inOrder(1, ask("a", 1), loser)))
		same(b, "outcome", reward.ReasonNotDrawn, b.outcome("b").Reason)
	})
}

func exerciseRefusals(t *testing.T, open Open) {
	note := func(b *bundle, reason string, second int) {
		b.Helper()
		b.must(b.RefusalRecord(b.ctx, 1, reason, at(second)))
	}
	list := func(b *bundle, limit int) []store.Refusal {
		b.Helper()
		got := must(b.RefusalList(b.ctx, 1, limit))(b)
		return append([]store.Refusal{}, got...)
	}
	interval := func(reason string, since, until int) store.Refusal {
		r := store.Refusal{Reason: reason, Since: at(since)}
		if until > 0 {
			r.Until = at(until)
		}
		return r
	}
	run(t, open, "AreIntervals", func(b *bundle) {
		before := b.template(1)
		note(b, "", 1)
		same(b, "nothing", []store.Refusal{}, list(b, 9))
		note(b, reward.CodeSoldOut, 2)
		note(b, reward.CodeSoldOut, 3)
		same(b, "lasts", []store.Refusal{interval(soldOut, 2, 0)}, list(b, 9))
		note(b, "", 4)
		note(b, "", 5)
		same(b, "ended", []store.Refusal{interval(soldOut, 2, 4)}, list(b, 9))
		note(b, reward.CodeSoldOut, 6)
		note(b, reward.CodeClosed, 7)
		note(b, reward.CodeClosed, 8)
		want := []store.Refusal{interval(reward.CodeClosed, 7, 0), interval(soldOut, 6, 7), interval(soldOut, 2, 4)}
		same(b, "the latest first", want, list(b, 9))
		same(b, "at most", want[:2], list(b, 2))
		same(b, "template", before, b.stands(1))
	})
	run(t, open, "ManyNotesOfOneThingAreOne", func(b *bundle) {
		b.template(1)
		b.must(together(8, func(int) error { return b.RefusalRecord(b.ctx, 1, reward.CodeSoldOut, at(2)) }))
		same(b, "intervals", []store.Refusal{interval(soldOut, 2, 0)}, list(b, 9))
	})
}
