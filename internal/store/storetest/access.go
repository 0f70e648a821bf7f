package storetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// sum returns 32 bytes that stand for a text.
func sum(text string) []byte {
	h := sha256.Sum256([]byte(text))
	return h[:]
}

func exerciseViews(t *testing.T, open Open) {
	run(t, open, "ThoseThatExistOrderedByID", func(b *bundle) {
		b.running(7)
		b.draft(3)
		b.running(1<<63 - 1)
		b.saveQueued(7, 1, 2)
		views := func(ids ...reward.PromotionID) []store.PromotionView {
			b.Helper()
			list := must(b.PromotionViews(b.ctx, ids))(b)
			return append([]store.PromotionView{}, list...)
		}
		same(b, "promotions", []store.PromotionView{b.asRead(3), b.asRead(7), b.asRead(1<<63 - 1)}, views(1<<63-1, 5, 7, 3, 7, 0, -3))
		same(b, "queued of 7", int64(2), views(7)[0].Counts.Payouts[reward.Queued])
		same(b, "none of these", []store.PromotionView{}, views(4, 5))
		same(b, "none", []store.PromotionView{}, views())
	})
	run(t, open, "NoMoreThanABatch", func(b *bundle) {
		b.draft(1)
		ids := make([]reward.PromotionID, store.BatchMax)
		for i := range ids {
			ids[i] = reward.PromotionID(store.BatchMax - i)
		}
		list := must(b.PromotionViews(b.ctx, ids))(b)
		same(b, "found", 1, len(list))
		_, err := b.PromotionViews(b.ctx, append(ids, 1))
		b.wantCode(err, reward.CodeInvalid)
	})
}

// apiKey returns a key with every field set.
func apiKey(id int64) store.APIKey {
	return store.APIKey{
		ID: id, Name: hostile, Prefix: fmt.Sprintf("lg_%d", id), Hash: sum(fmt.Sprint("key ", id)), Role: "operator",
		CreatedAt: epoch, CreatedBy: "root " + hostile, ExpiresAt: at(3600),
	}
}

func (b *bundle) keyOf(hash []byte) store.APIKey {
	b.Helper()
	return must(b.APIKeyByHash(b.ctx, hash))(b)
}

func exerciseAPIKeys(t *testing.T, open Open) {
	run(t, open, "AreFoundByTheirHash", func(b *bundle) {
		want := apiKey(1<<63 - 1)
		given := want
		given.LastUsedAt, given.RevokedAt, given.RevokedBy = at(1), at(2), "nobody" // the store ignores these
		given.CreatedAt = epoch.In(time.FixedZone("KST", 9*60*60)).Add(time.Nanosecond)
		given.ExpiresAt = want.ExpiresAt.In(given.CreatedAt.Location())
		b.must(b.APIKeyCreate(b.ctx, given))
		got := b.keyOf(want.Hash)
		same(b, "key", want, got)
		same(b, "zone", "UTC", got.CreatedAt.Location().String())
		same(b, "zone of the end", "UTC", got.ExpiresAt.Location().String())

		lasting := store.APIKey{ID: 1, Hash: sum("lasting"), CreatedAt: at(1)}
		b.must(b.APIKeyCreate(b.ctx, lasting))
		same(b, "one that never expires", lasting, b.keyOf(lasting.Hash))
		for _, hash := range [][]byte{sum("another"), lasting.Hash[:31], append(sum("lasting"), 0), {}, nil} {
			_, err := b.APIKeyByHash(b.ctx, hash)
			b.wantCode(err, reward.CodeAPIKeyNotFound)
		}
	})
	run(t, open, "AreMadeOnce", func(b *bundle) {
		want := apiKey(1)
		b.must(b.APIKeyCreate(b.ctx, want))
		other := apiKey(2)
		other.ID = 1
		b.wantCode(b.APIKeyCreate(b.ctx, other), reward.CodeExists)
		other = apiKey(2)
		other.Hash = want.Hash
		b.wantCode(b.APIKeyCreate(b.ctx, other), reward.CodeExists)
		same(b, "the first one stays", want, b.keyOf(want.Hash))
		same(b, "keys", []int64{1}, b.keyIDs(0, 9))
	})
	run(t, open, "RefuseWhatCannotBeStoredAsItIs", func(b *bundle) {
		for _, spoil := range []func(*store.APIKey){
			func(k *store.APIKey) { k.ID = 0 },
			func(k *store.APIKey) { k.ID = -1 },
			func(k *store.APIKey) { k.Hash = nil },
			func(k *store.APIKey) { k.Hash = k.Hash[:31] },
			func(k *store.APIKey) { k.Name = "nul\x00" },
			func(k *store.APIKey) { k.Prefix = "\xff" },
			func(k *store.APIKey) { k.Role = "\xff" },
			func(k *store.APIKey) { k.CreatedBy = "nul\x00" },
		} {
			k := apiKey(1)
			spoil(&k)
			b.wantCode(b.APIKeyCreate(b.ctx, k), reward.CodeInvalid)
		}
		same(b, "keys", []int64{}, b.keyIDs(0, 9))
		b.must(b.APIKeyCreate(b.ctx, apiKey(1)))
		_, err := b.APIKeyRevoke(b.ctx, 1, "nul\x00", at(1))
		b.wantCode(err, reward.CodeInvalid)
		same(b, "kept", apiKey(1), b.keyOf(apiKey(1).Hash))
	})
	run(t, open, "AreListedNewestFirst", func(b *bundle) {
		for _, id := range shuffled([]int64{1, 2, 3, 5, 8}) {
			b.must(b.APIKeyCreate(b.ctx, apiKey(id)))
		}
		same(b, "first page", []int64{8, 5}, b.keyIDs(0, 2))
		same(b, "second page", []int64{3, 2}, b.keyIDs(5, 2))
		same(b, "last page", []int64{1}, b.keyIDs(2, 2))
		same(b, "past the end", []int64{}, b.keyIDs(1, 2))
		same(b, "none", []int64{}, b.keyIDs(0, 0))
		list := must(b.APIKeyList(b.ctx, 3, 1))(b)
		same(b, "as it was made", []store.APIKey{apiKey(2)}, list)
	})
	run(t, open, "AreRevokedForGood", func(b *bundle) {
		for id := int64(1); id <= 2; id++ {
			b.must(b.APIKeyCreate(b.ctx, apiKey(id)))
		}
		want := apiKey(1)
		want.RevokedAt, want.RevokedBy = at(5), hostile
		for n := range 3 {
			by := hostile
			if n > 0 {
				by = "another"
			}
			got := must(b.APIKeyRevoke(b.ctx, 1, by, at(5+n).Add(time.Nanosecond)))(b)
			same(b, "revoked", want, got)
			same(b, "as it is read", want, b.keyOf(want.Hash))
		}
		same(b, "the other one", apiKey(2), b.keyOf(apiKey(2).Hash))
		_, err := b.APIKeyRevoke(b.ctx, 3, "kim", at(5))
		b.wantCode(err, reward.CodeAPIKeyNotFound)
	})
	run(t, open, "KeepTheirLatestUse", func(b *bundle) {
		for id := int64(1); id <= 3; id++ {
			b.must(b.APIKeyCreate(b.ctx, apiKey(id)))
		}
		must(b.APIKeyRevoke(b.ctx, 3, "kim", at(1)))(b)
		want := func(one, two, three time.Time) {
			b.Helper()
			same(b, "first", one, b.keyOf(apiKey(1).Hash).LastUsedAt)
			same(b, "second", two, b.keyOf(apiKey(2).Hash).LastUsedAt)
			same(b, "third", three, b.keyOf(apiKey(3).Hash).LastUsedAt)
		}
		b.must(b.APIKeyUsed(b.ctx, nil))
		want(time.Time{}, time.Time{}, time.Time{})
		b.must(b.APIKeyUsed(b.ctx, map[int64]time.Time{1: at(60), 3: at(120).Add(time.Nanosecond), 9: at(60)}))
		want(at(60), time.Time{}, at(120))
		b.must(b.APIKeyUsed(b.ctx, map[int64]time.Time{1: at(180), 2: at(60), 3: at(60), 9: at(60)}))
		want(at(180), at(60), at(120))
		same(b, "keys", []int64{3, 2, 1}, b.keyIDs(0, 9))
		used := apiKey(1)
		used.LastUsedAt = at(180)
		same(b, "nothing else changes", used, b.keyOf(used.Hash))
	})
	run(t, open, "ManyAtOnceMakeRevokeAndUse", func(b *bundle) {
		const workers = 8
		var made, revoked atomic.Int64
		for id := int64(1); id <= 20; id++ {
			b.must(b.APIKeyCreate(b.ctx, apiKey(id)))
		}
		b.must(together(workers, func(w int) error {
			k := apiKey(100 + int64(w))
			k.Hash = sum("one for all")
			switch err := b.APIKeyCreate(b.ctx, k); {
			case err == nil:
				made.Add(1)
			case !reward.HasCode(err, reward.CodeExists):
				return err
			}
			by := fmt.Sprint("worker ", w)
			got, err := b.APIKeyRevoke(b.ctx, 1, by, at(w))
			if err != nil {
				return err
			}
			if got.RevokedBy == by {
				revoked.Add(1)
			}
			for n := range 10 {
				used := make(map[int64]time.Time)
				for id := int64(1); id <= 20; id++ {
					used[id] = at(10*w + (n+w)%10) // the latest of all is at 79
				}
				if err := b.APIKeyUsed(b.ctx, used); err != nil {
					return err
				}
			}
			return nil
		}))
		same(b, "made", int64(1), made.Load())
		same(b, "revoked by", int64(1), revoked.Load())
		for id := int64(1); id <= 20; id++ {
			same(b, "last used", at(79), b.keyOf(apiKey(id).Hash).LastUsedAt)
		}
	})
}

func (b *bundle) keyIDs(before int64, limit int) []int64 {
	b.Helper()
	list := must(b.APIKeyList(b.ctx, before, limit))(b)
	ids := []int64{}
	for _, k := range list {
		ids = append(ids, k.ID)
	}
	return ids
}

// auditLine returns a line with every field set.
func auditLine(id int64) store.AuditLine {
	return store.AuditLine{
		ID: id, At: at(int(id % 1000)), Actor: "kim " + hostile, Role: "admin", Action: "start-promotion", Subject: "/v1/promotions/12",
		Detail: `{"name":"nul\u0000 ` + hostile + `"}`, RequestID: "r1", Address: "2001:db8::7", KeyID: 1<<63 - 1, TokenSubject: "sub " + hostile,
	}
}

func (b *bundle) audit(p store.AuditListParams) []store.AuditLine {
	b.Helper()
	if p.Limit == 0 {
		p.Limit = 100
	}
	return must(b.AuditList(b.ctx, p))(b)
}

func (b *bundle) auditIDs(p store.AuditListParams) []int64 {
	b.Helper()
	ids := []int64{}
	for _, l := range b.audit(p) {
		ids = append(ids, l.ID)
	}
	return ids
}

func exerciseAudits(t *testing.T, open Open) {
	run(t, open, "LinesAreBegunAndEnded", func(b *bundle) {
		open, empty := auditLine(1<<63-2), store.AuditLine{ID: 1, At: epoch}
		empty.Detail = strings.Repeat("x", 1<<20)
		given := open
		given.At = open.At.In(time.FixedZone("KST", 9*60*60)).Add(time.Nanosecond)
		given.EndedAt, given.Status, given.Code = at(9), 200, "MADE_UP" // the store ignores these
		b.must(b.AuditBegin(b.ctx, given))
		b.must(b.AuditBegin(b.ctx, empty))
		got := b.audit(store.AuditListParams{Limit: 2})
		same(b, "begun", []store.AuditLine{open}, got[:1])
		if got[1] != empty {
			b.Fatal("the second line differs")
		}
		same(b, "zone", "UTC", got[0].At.Location().String())

		ended := open
		ended.EndedAt, ended.Status, ended.Code = at(10), 409, "ILLEGAL_STATE"
		b.must(b.AuditEnd(b.ctx, open.ID, 409, "ILLEGAL_STATE", at(10).Add(time.Nanosecond)))
		b.must(b.AuditEnd(b.ctx, open.ID, 200, "", at(11))) // it has ended already
		b.must(b.AuditEnd(b.ctx, 77, 200, "", at(11)))      // unknown
		got = b.audit(store.AuditListParams{})
		same(b, "lines", 2, len(got))
		same(b, "ended", ended, got[0])
		same(b, "zone of the end", "UTC", got[0].EndedAt.Location().String())
		if got[1] != empty {
			b.Fatal("the second line was changed")
		}
		for id, status := range map[int64]int{2: 422, 3: 503} {
			long := auditLine(id)
			long.Detail = strings.Repeat("é", 2*store.AuditRefusedMax)
			b.must(b.AuditBegin(b.ctx, long))
			b.must(b.AuditEnd(b.ctx, id, status, "MADE_UP", at(12)))
		}
		got = b.audit(store.AuditListParams{Before: 4, Limit: 2})
		same(b, "details of a failure and a refusal", []int{4 * store.AuditRefusedMax, 2 * store.AuditRefusedMax}, []int{len(got[0].Detail), len(got[1].Detail)})
		b.must(b.AuditBegin(b.ctx, auditLine(4)))
		for id := range int64(5) {
			b.must(b.AuditDrop(b.ctx, id+2)) // the others have ended, or are unknown
		}
		same(b, "left", []int64{open.ID, 3, 2, 1}, b.auditIDs(store.AuditListParams{}))
		b.must(b.AuditEnd(b.ctx, empty.ID, 0, "bad\x00\xff", at(12)))
		last := b.audit(store.AuditListParams{Before: 2})[0]
		same(b, "code", reward.SanitizeText("bad\x00\xff"), last.Code)
		same(b, "ended without an answer", at(12), last.EndedAt)
	})
	run(t, open, "ALineIsBegunOnce", func(b *bundle) {
		b.must(b.AuditBegin(b.ctx, auditLine(1)))
		other := auditLine(1)
		other.Actor = "another"
		b.wantCode(b.AuditBegin(b.ctx, other), reward.CodeExists)
		same(b, "lines", []store.AuditLine{auditLine(1)}, b.audit(store.AuditListParams{}))
	})
	run(t, open, "OldLinesAreForgotten", func(b *bundle) {
		for id := range int64(6) {
			l := auditLine(id + 1)
			l.At = at(int(id))
			b.must(b.AuditBegin(b.ctx, l))
		}
		for _, step := range []struct {
			before time.Time
			limit  int
			want   int
			left   []int64
		}{
			{at(0), 10, 0, []int64{6, 5, 4, 3, 2, 1}},
			{at(5), 0, 0, []int64{6, 5, 4, 3, 2, 1}},
			{at(4), 2, 2, []int64{6, 5, 4, 3}},
			{at(4), 10, 2, []int64{6, 5}},
			{at(4), 10, 0, []int64{6, 5}},
		} {
			n := must(b.AuditForget(b.ctx, step.before, step.limit))(b)
			same(b, "removed", step.want, n)
			same(b, "left", step.left, b.auditIDs(store.AuditListParams{}))
		}
	})
	run(t, open, "RefuseWhatCannotBeStoredAsItIs", func(b *bundle) {
		for _, spoil := range []func(*store.AuditLine){
			func(l *store.AuditLine) { l.ID = 0 },
			func(l *store.AuditLine) { l.ID = -1 },
			func(l *store.AuditLine) { l.Actor = "nul\x00" },
			func(l *store.AuditLine) { l.Role = "\xff" },
			func(l *store.AuditLine) { l.TokenSubject = "nul\x00" },
			func(l *store.AuditLine) { l.Action = "\xff" },
			func(l *store.AuditLine) { l.Subject = "nul\x00" },
			func(l *store.AuditLine) { l.Detail = "nul\x00" },
			func(l *store.AuditLine) { l.RequestID = "\xff" },
			func(l *store.AuditLine) { l.Address = "nul\x00" },
		} {
			l := auditLine(1)
			spoil(&l)
			b.wantCode(b.AuditBegin(b.ctx, l), reward.CodeInvalid)
		}
		same(b, "lines", []int64{}, b.auditIDs(store.AuditListParams{}))
		b.must(b.AuditBegin(b.ctx, store.AuditLine{ID: 1, At: epoch}))
		for _, p := range []store.AuditListParams{{Actor: "\x00"}, {Action: "\xff"}, {Subject: "nul\x00/"}} {
			p.Limit = 9
			_, err := b.AuditList(b.ctx, p)
			b.wantCode(err, reward.CodeInvalid)
		}
	})
	run(t, open, "ListPagesAndFilters", func(b *bundle) {
		subjects := []string{
			1: "/v1/promotions/12", 2: "/v1/promotions/12/", 3: "/v1/promotions/12/pause", 4: "/v1/promotions/120/pause",
			5: "/v1/promotions/1", 6: "/v1/promotions/12/targets/é 한국어", 7: "/v1/promotions/12/\U0010FFFF", 8: "/v1/promotions/12.5",
			9: "/V1/promotions/12/pause", 10: "/v1/promotions/%", 11: "", 12: "/", 13: "v1/promotions/12/", 14: "/v1/promotions/120",
		}
		for id := range int64(len(subjects)) {
			if id == 0 {
				continue
			}
			b.must(b.AuditBegin(b.ctx, store.AuditLine{
				ID: id, At: epoch, Subject: subjects[id], Actor: fmt.Sprint("a", id%3), Action: fmt.Sprint("act", id%2),
			}))
		}
		for _, test := range []struct {
			name string
			p    store.AuditListParams
			want []int64
		}{
			{"first page", store.AuditListParams{Limit: 3}, []int64{14, 13, 12}},
			{"next page", store.AuditListParams{Limit: 3, Before: 12}, []int64{11, 10, 9}},
			{"past the end", store.AuditListParams{Before: 1}, []int64{}},
			{"one", store.AuditListParams{Subject: "/v1/promotions/12"}, []int64{1}},
			{"of none", store.AuditListParams{Subject: "/v1/promotions"}, []int64{}},
			{"below one", store.AuditListParams{Subject: "/v1/promotions/12/"}, []int64{7, 6, 3, 2}},
			{"below one, first page", store.AuditListParams{Subject: "/v1/promotions/12/", Limit: 2}, []int64{7, 6}},
			{"below one, next page", store.AuditListParams{Subject: "/v1/promotions/12/", Before: 6, Limit: 2}, []int64{3, 2}},
			{"below one, by an actor", store.AuditListParams{Subject: "/v1/promotions/12/", Actor: "a0"}, []int64{6, 3}},
			{"below one, an action", store.AuditListParams{Subject: "/v1/promotions/12/", Action: "act1"}, []int64{7, 3}},
			{"below all of a kind", store.AuditListParams{Subject: "/v1/promotions/"}, []int64{14, 10, 8, 7, 6, 5, 4, 3, 2, 1}},
			{"no pattern", store.AuditListParams{Subject: "/v1/promotions/%"}, []int64{10}},
			{"below a pattern", store.AuditListParams{Subject: "/v1/promotions/%/"}, []int64{}},
			{"below the root", store.AuditListParams{Subject: "/", Limit: 2}, []int64{14, 12}},
			{"an actor", store.AuditListParams{Actor: "a1"}, []int64{13, 10, 7, 4, 1}},
			{"an actor, next page", store.AuditListParams{Actor: "a1", Before: 10, Limit: 2}, []int64{7, 4}},
			{"another's case", store.AuditListParams{Actor: "A1"}, []int64{}},
			{"the beginning of an actor", store.AuditListParams{Actor: "a"}, []int64{}},
			{"an action", store.AuditListParams{Action: "act0", Limit: 3}, []int64{14, 12, 10}},
			{"all three", store.AuditListParams{Actor: "a1", Action: "act0", Subject: "/v1/promotions/120/pause"}, []int64{4}},
			{"two that exclude each other", store.AuditListParams{Action: "act0", Subject: "/v1/promotions/12"}, []int64{}},
			{"no room", store.AuditListParams{Limit: -1}, []int64{}},
		} {
			same(b, test.name, test.want, b.auditIDs(test.p))
		}
	})
}

const (
	claimLease = 30 * time.Second
	claimKept  = 10 * time.Minute
)

// claim asks for a key, for the request `body`, reserving id.
func claim(key, body string, id int64, now time.Time) store.IdempotencyBeginParams {
	return store.IdempotencyBeginParams{
		Key: sum(key), Fingerprint: sum(body), ID: id, Lease: claimLease, Kept: claimKept, Now: now,
	}
}

func (b *bundle) begin(p store.IdempotencyBeginParams) store.IdempotencyRecord {
	b.Helper()
	return must(b.IdempotencyBegin(b.ctx, p))(b)
}

func (b *bundle) finishKey(key string, begunAt time.Time, answer string) bool {
	b.Helper()
	return must(b.IdempotencyFinish(b.ctx, sum(key), begunAt, []byte(answer)))(b)
}

func exerciseIdempotencies(t *testing.T, open Open) {
	fresh := func(body string, id int64, now time.Time) store.IdempotencyRecord {
		return store.IdempotencyRecord{Claimed: true, ID: id, Fingerprint: sum(body), FirstAt: now, BegunAt: now}
	}
	unclaimed := func(r store.IdempotencyRecord) store.IdempotencyRecord {
		r.Claimed, r.Again = false, false
		return r
	}
	done := func(r store.IdempotencyRecord, answer string) store.IdempotencyRecord {
		r = unclaimed(r)
		r.Done, r.Answer = true, []byte(answer)
		return r
	}
	micro := time.Microsecond

	run(t, open, "TheFirstOneClaimsAndAnswers", func(b *bundle) {
		first := b.begin(claim("k", "a", 1<<63-1, epoch.In(time.FixedZone("KST", 9*60*60)).Add(time.Nanosecond)))
		same(b, "claimed", fresh("a", 1<<63-1, epoch), first)
		same(b, "zone", "UTC", first.BegunAt.Location().String())
		same(b, "owned", unclaimed(first), b.begin(claim("k", "a", 2, at(1))))
		same(b, "another key", fresh("a", 3, at(1)), b.begin(claim("K", "a", 3, at(1))))

		answer := "\x00\xff" + hostile + strings.Repeat("x", 1<<20)
		same(b, "at another time", false, b.finishKey("k", at(1), "wrong"))
		same(b, "another key", false, b.finishKey("x", epoch, "wrong"))
		same(b, "finished", true, b.finishKey("k", epoch.Add(time.Nanosecond), answer))
		got := b.begin(claim("k", "a", 4, at(2)))
		if !bytes.Equal(got.Answer, []byte(answer)) {
			b.Fatal("the answer differs")
		}
		got.Answer = nil
		want := done(first, "")
		want.Answer = nil
		same(b, "done", want, got)
		same(b, "the same answer again", true, b.finishKey("k", epoch, answer))
		same(b, "another answer", false, b.finishKey("k", epoch, "another"))
		b.must(b.IdempotencyDrop(b.ctx, sum("k"), epoch))
		same(b, "still done, and long after the lease", true, b.begin(claim("k", "a", 5, at(500))).Done)
		same(b, "the other key", unclaimed(fresh("a", 3, at(1))), b.begin(claim("K", "a", 6, at(2))))
	})
	run(t, open, "NoAnswerIsAnAnswerToo", func(b *bundle) {
		for _, key := range []string{"empty", "nil"} {
			b.begin(claim(key, "a", 1, epoch))
			answer := []byte{}
			if key == "nil" {
				answer = nil
			}
			for range 2 {
				kept := must(b.IdempotencyFinish(b.ctx, sum(key), epoch, answer))(b)
				same(b, "finished", true, kept)
			}
			got := b.begin(claim(key, "a", 2, at(99)))
			same(b, "done", true, got.Done)
			same(b, "claimed", false, got.Claimed)
			same(b, "bytes", 0, len(got.Answer))
		}
	})
	run(t, open, "AnotherRequestUnderAKeyNeverClaimsIt", func(b *bundle) {
		first := b.begin(claim("k", "a", 1, epoch))
		for _, seconds := range []int{0, 1, 31, 599} {
			same(b, "another request", unclaimed(first), b.begin(claim("k", "b", 2, at(seconds))))
		}
		same(b, "their own again", true, b.begin(claim("k", "a", 3, at(599))).Claimed)
		same(b, "finished", true, b.finishKey("k", at(599), "x"))
		got := b.begin(claim("k", "b", 4, at(600)))
		same(b, "fingerprint", sum("a"), got.Fingerprint)
		same(b, "claimed", false, got.Claimed)
	})
	run(t, open, "ALapsedClaimIsTakenOverWithWhatWasReserved", func(b *bundle) {
		first := b.begin(claim("k", "a", 1, epoch))
		same(b, "not yet expired", unclaimed(first), b.begin(claim("k", "a", 2, at(30))))
		expired := at(30).Add(micro)
		want := store.IdempotencyRecord{Claimed: true, Again: true, ID: 1, Fingerprint: sum("a"), FirstAt: epoch, BegunAt: expired}
		same(b, "taken over", want, b.begin(claim("k", "a", 3, expired)))
		same(b, "owned", unclaimed(want), b.begin(claim("k", "a", 4, at(60))))
		same(b, "the one before is too late", false, b.finishKey("k", epoch, "late"))
		b.must(b.IdempotencyDrop(b.ctx, sum("k"), epoch))
		same(b, "still owned", unclaimed(want), b.begin(claim("k", "a", 5, at(60))))
		want.BegunAt = at(61)
		same(b, "and again", want, b.begin(claim("k", "a", 6, at(61))))
		same(b, "finished", true, b.finishKey("k", at(61), "x"))
		same(b, "done", done(want, "x"), b.begin(claim("k", "a", 7, at(200))))
	})
	run(t, open, "AReleasedKeyIsClaimedAtOnce", func(b *bundle) {
		first := b.begin(claim("k", "a", 1, epoch))
		b.must(b.IdempotencyRelease(b.ctx, sum("k"), at(1)))
		b.must(b.IdempotencyRelease(b.ctx, sum("x"), epoch))
		same(b, "released by a stranger", unclaimed(first), b.begin(claim("k", "a", 2, at(1))))
		b.must(b.IdempotencyRelease(b.ctx, sum("k"), epoch))
		same(b, "another request", false, b.begin(claim("k", "b", 3, at(1))).Claimed)
		same(b, "the one before is too late", false, b.finishKey("k", epoch, "late"))
		// The clock of the next caller may be behind.
		want := store.IdempotencyRecord{Claimed: true, Again: true, ID: 1, Fingerprint: sum("a"), FirstAt: epoch, BegunAt: at(-2)}
		same(b, "taken over", want, b.begin(claim("k", "a", 4, at(-2))))
		same(b, "owned", unclaimed(want), b.begin(claim("k", "a", 5, at(1))))
		same(b, "finished", true, b.finishKey("k", at(-2), "x"))
		b.must(b.IdempotencyRelease(b.ctx, sum("k"), at(-2)))
		same(b, "done", done(want, "x"), b.begin(claim("k", "a", 6, at(1))))
	})
	run(t, open, "WhatIsLetGoIsFree", func(b *bundle) {
		first := b.begin(claim("k", "a", 1, epoch))
		b.must(b.IdempotencyDrop(b.ctx, sum("k"), at(1)))
		b.must(b.IdempotencyDrop(b.ctx, sum("x"), epoch))
		same(b, "not by others", unclaimed(first), b.begin(claim("k", "a", 2, at(1))))
		for range 2 {
			b.must(b.IdempotencyDrop(b.ctx, sum("k"), epoch))
		}
		same(b, "finished by a stranger", false, b.finishKey("k", epoch, "late"))
		same(b, "known once it is free", false, must(b.IdempotencyKnown(b.ctx, sum("k")))(b))
		same(b, "free for any request", fresh("b", 3, at(1)), b.begin(claim("k", "b", 3, at(1))))
		same(b, "known while it is in progress", true, must(b.IdempotencyKnown(b.ctx, sum("k")))(b))
		same(b, "known while another is", false, must(b.IdempotencyKnown(b.ctx, sum("x")))(b))
	})
	run(t, open, "WhatWasKeptLongEnoughIsForgotten", func(b *bundle) {
		b.begin(claim("done", "a", 1, epoch))
		same(b, "finished", true, b.finishKey("done", epoch, "x"))
		b.begin(claim("expired", "a", 2, epoch))
		b.begin(claim("held", "a", 3, epoch))
		held := b.begin(claim("held", "a", 4, at(580)))
		same(b, "taken over", int64(3), held.ID)
		same(b, "kept for as long", true, b.begin(claim("done", "a", 5, at(600))).Done)

		late := at(600).Add(micro)
		same(b, "forgotten answer, another request", fresh("b", 6, late), b.begin(claim("done", "b", 6, late)))
		same(b, "forgotten claim, another request", fresh("b", 7, late), b.begin(claim("expired", "b", 7, late)))
		same(b, "owned by another caller", unclaimed(held), b.begin(claim("held", "a", 8, late)))
		same(b, "of another request", unclaimed(held), b.begin(claim("held", "b", 8, late)))
		same(b, "which the owner can finish", true, b.finishKey("held", at(580), "y"))
		same(b, "forgotten with it", fresh("a", 9, late), b.begin(claim("held", "a", 9, late)))
		same(b, "late", false, b.finishKey("done", epoch, "x"))
	})
	run(t, open, "WithoutKeysOf32BytesNothingWorks", func(b *bundle) {
		for _, p := range []store.IdempotencyBeginParams{
			{}, {Key: sum("k")}, {Fingerprint: sum("a")}, {Key: sum("k")[:31], Fingerprint: sum("a")}, {Key: sum("k"), Fingerprint: []byte("a")},
		} {
			p.ID, p.Lease, p.Kept, p.Now = 1, claimLease, claimKept, epoch
			if r, err := b.IdempotencyBegin(b.ctx, p); err == nil {
				b.Fatalf("%+v was claimed: %+v", p, r)
			}
		}
		same(b, "claimed", fresh("a", 1, epoch), b.begin(claim("k", "a", 1, epoch)))
	})
	exerciseClaimRaces(t, open)
}

// exerciseClaimRaces checks that exactly one of many concurrent callers gets a
// key, whatever made the key free.
func exerciseClaimRaces(t *testing.T, open Open) {
	const workers, rounds = 24, 8
	// race lets every worker claim each key. It returns which worker got it,
	// and what the others saw.
	race := func(b *bundle, now time.Time, more func(w, round int) error) (won, lost [rounds][]store.IdempotencyRecord) {
		b.Helper()
		var mu sync.Mutex // guards won, lost
		b.must(together(workers, func(w int) error {
			for round := range rounds {
				if more != nil && w == 0 {
					if err := more(w, round); err != nil {
						return err
					}
					continue
				}
				r, err := b.IdempotencyBegin(b.ctx, claim(fmt.Sprint(round), "a", int64(1000*(w+1)+round), now))
				if err != nil {
					return err
				}
				mu.Lock()
				if r.Claimed {
					won[round] = append(won[round], r)
				} else {
					lost[round] = append(lost[round], r)
				}
				mu.Unlock()
			}
			return nil
		}))
		return won, lost
	}
	one := func(b *bundle, now time.Time, again bool) [rounds]store.IdempotencyRecord {
		b.Helper()
		var winners [rounds]store.IdempotencyRecord
		won, lost := race(b, now, nil)
		for round := range rounds {
			same(b, "winners", 1, len(won[round]))
			winner := won[round][0]
			same(b, "again", again, winner.Again)
			same(b, "begun", now, winner.BegunAt)
			winners[round] = winner
			winner.Claimed, winner.Again = false, false
			for _, r := range lost[round] {
				same(b, "what the others see", winner, r)
			}
		}
		return winners
	}
	run(t, open, "OneGetsAKeyAndOneTakesItOver", func(b *bundle) {
		first := one(b, epoch, false)
		over := one(b, at(60), true)
		for round := range rounds {
			same(b, "reserved", first[round].ID, over[round].ID)
			same(b, "first begun", epoch, over[round].FirstAt)
		}
		forgotten := one(b, at(700), false)
		for round := range rounds {
			same(b, "first begun", at(700), forgotten[round].FirstAt)
			b.must(b.IdempotencyDrop(b.ctx, sum(fmt.Sprint(round)), at(700)))
		}
		one(b, at(701), false)
	})
	run(t, open, "AFinishOrATakeover", func(b *bundle) {
		for round := range rounds {
			b.begin(claim(fmt.Sprint(round), "a", 1, epoch))
		}
		var finished [rounds]bool // written by the worker that finishes the key
		won, lost := race(b, at(60), func(_, round int) (err error) {
			finished[round], err = b.IdempotencyFinish(b.ctx, sum(fmt.Sprint(round)), epoch, []byte("x"))
			return err
		})
		for round := range rounds {
			want := 1
			if finished[round] {
				want = 0
			}
			same(b, fmt.Sprintf("winners, finished %t", finished[round]), want, len(won[round]))
			for _, r := range lost[round] {
				same(b, "done, if it was finished", finished[round], r.Done)
			}
		}
	})
}

// exerciseIdempotencyForgotten checks that each claim removes a limited number
// of expired keys, and no others.
func exerciseIdempotencyForgotten(b *arena) {
	want := func(rows int) {
		b.Helper()
		same(b.bundle, "stored", rows, b.stored("idempotency_keys"))
	}
	const old = store.IdempotencyForgets + 50
	for n := range old {
		key := fmt.Sprint("old ", n)
		b.begin(claim(key, "a", 1, epoch))
		if n%2 == 0 {
			same(b.bundle, "finished", true, b.finishKey(key, epoch, "x"))
		}
	}
	b.begin(claim("held", "a", 1, epoch))
	b.begin(claim("young", "a", 1, at(300)))
	b.begin(claim("held", "a", 1, at(590)))
	want(old + 2)
	// An expired key counts as unknown, even if this call removes other keys.
	key := fmt.Sprint("old ", old-2)
	same(b.bundle, "claimed", store.IdempotencyRecord{Claimed: true, ID: 2, Fingerprint: sum("b"), FirstAt: at(610), BegunAt: at(610)},
		b.begin(claim(key, "b", 2, at(610))))
	want(52)
	same(b.bundle, "finished", true, b.finishKey(key, at(610), "y"))
	b.begin(claim("new", "a", 1, at(610)))
	want(4) // these 2, held and young
	b.begin(claim("new", "a", 1, at(621)))
	want(3) // the lease of held has ended
	b.begin(claim("new", "a", 1, at(2000)))
	want(1)
}
