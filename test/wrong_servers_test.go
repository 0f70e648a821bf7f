package test

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/gate/redisgate"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
)

// promise is a row of the table of servers that answer, and refuse.
type promise struct {
	parts  []string // of degraded
	words  string   // of the server, in the reason of each
	doctor string   // check of doctor that fails; empty: none
}

// promises reads the table of docs/guarantees.md, by what is wrong.
func promises(t *testing.T) map[string]promise {
	t.Helper()
	page, err := os.ReadFile("docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "<!-- begin refusals -->")
	table, _, ended := strings.Cut(table, "<!-- end refusals -->")
	if !found || !ended {
		t.Fatal("docs/guarantees.md has no table of refusals")
	}
	rows := make(map[string]promise)
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) < 4 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") || strings.Contains(cells[1], "`degraded`") {
			continue
		}
		p := promise{words: strings.Trim(cells[2], " `"), doctor: strings.Trim(cells[3], " `–")}
		for part := range strings.SplitSeq(cells[1], ",") {
			p.parts = append(p.parts, strings.Trim(part, " `"))
		}
		rows[strings.TrimSpace(cells[0])] = p
	}
	return rows
}

// TestAServerThatAnswersAndRefuses breaks Redis in each way of the table in
// docs/guarantees.md. The instance says what does not work in the server's own words, and
// doctor fails; coupons are issued through the database; and everything works again
// afterwards.
func TestAServerThatAnswersAndRefuses(t *testing.T) {
	t.Parallel()
	redis := fixture.Own(t, fleet.NewRedis)
	admin := fixture.RedisClient(t, redis.Address())
	defer admin.Close()
	do := func(words ...string) {
		t.Helper()
		if err := admin.Do(t.Context(), admin.B().Arbitrary(words...).Build()).Error(); err != nil {
			t.Fatalf("%v: %v", words, err)
		}
	}
	do("ACL", "SETUSER", "largesse", "on", ">secret", "~*", "&*", "+@all")
	url := strings.Replace(redis.Address(), "redis://", "redis://largesse:secret@", 1)
	r := newRig(t, servers, moneysim.Faults{}, func(cfg *config.Config) { cfg.Redis.URL = url }, patient)
	templateID := r.template(client.NewTemplate{})
	number, err := strconv.ParseInt(templateID, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	line := redisgate.LineKey(r.cfg.Redis.KeyPrefix, reward.TemplateID(number))
	issued := 0
	issue := func(n int) { r.issue(templateID, issued, n); issued += n }
	issue(5)
	fixture.Until(t, "nobody waits", func() bool { return r.waiting(templateID) == 0 })

	faults := map[string]struct {
		broken, repaired func()
		coupons          bool // also affects coupons
	}{
		"Redis lacks replicas (`min-replicas-to-write`)": {
			func() { do("CONFIG", "SET", "min-replicas-to-write", "1") },
			func() { do("CONFIG", "SET", "min-replicas-to-write", "0") }, true,
		},
		"the Redis user may not run scripts": {
			func() { do("ACL", "SETUSER", "largesse", "-@scripting") },
			func() { do("ACL", "SETUSER", "largesse", "+@scripting") }, true,
		},
		"Redis has become a replica": {
			func() { do("REPLICAOF", "127.0.0.1", "1") },
			func() { do("REPLICAOF", "NO", "ONE") }, true,
		},
		"another program has stored something under a key of a gate": {
			func() { do("DEL", line); do("SET", line, "mine") },
			func() { do("DEL", line) }, true,
		},
		"another program has stored something under the key of a work stream": {
			func() {
				made, err := r.api.CreatePromotion(t.Context(), client.NewPromotion{Name: "external", Type: "POINT"})
				if err != nil {
					t.Fatal(err)
				}
				id, err := reward.ParsePromotionID(made.ID)
				if err != nil {
					t.Fatal(err)
				}
				key := redisstream.StreamKey(r.cfg.Redis.KeyPrefix, queue.Stream{Type: reward.Point, PromotionID: id})
				do("SET", key, "mine")
				file := strings.NewReader("targetId,userId,amount\n1,ann,100\n")
				if _, err := r.api.UploadTargets(t.Context(), made.ID, file, client.UploadOptions{}); err != nil {
					t.Fatal(err)
				}
				if _, err := r.api.StartPromotion(t.Context(), made.ID); err != nil {
					t.Fatal(err)
				}
			},
			func() {
				keys, err := admin.Do(t.Context(), admin.B().Keys().Pattern(r.cfg.Redis.KeyPrefix+"campaign-promotion-stream:*").Build()).AsStrSlice()
				if err != nil {
					t.Fatal(err)
				}
				for _, key := range keys {
					do("DEL", key)
				}
			}, false,
		},
	}
	table := promises(t)
	for name := range table {
		if _, tested := faults[name]; !tested {
			t.Errorf("the table promises something of %q, which nobody tests", name)
		}
	}
	for name, fault := range faults {
		want, promised := table[name]
		if !promised {
			t.Errorf("the table says nothing of %q", name)
			continue
		}
		fault.broken()
		fixture.Until(t, name+": /readyz names "+strings.Join(want.parts, ", ")+" with "+want.words, func() bool {
			ready, err := r.api.Ready(t.Context())
			return err == nil && !slices.ContainsFunc(want.parts, func(part string) bool {
				return !slices.ContainsFunc(ready.Troubles, func(x client.Trouble) bool { return x.Part == part && strings.Contains(x.Reason, want.words) })
			})
		})
		if want.doctor != "" {
			checks, err := engine.Doctor(context.WithoutCancel(t.Context()), engine.DoctorParams{Settings: config.LoadParams{Flags: map[string]string{
				"redis.url": url, "redis.key-prefix": r.cfg.Redis.KeyPrefix, "data.dir": t.TempDir(), "money.url": r.simURL,
			}}})
			failed := slices.IndexFunc(checks, func(c engine.Check) bool {
				return c.Name == want.doctor && c.Status == engine.CheckFail && c.Advice != ""
			})
			if err != nil || failed < 0 {
				t.Errorf("%s: doctor says %+v, %v; want %s to fail", name, checks, err, want.doctor)
			}
		}
		if fault.coupons {
			issue(3)
			if got, err := r.api.Template(t.Context(), templateID); err != nil || got.Path != "DATABASE" {
				t.Errorf("%s: path %s, %v, want DATABASE", name, got.Path, err)
			}
		}
		fault.repaired()
		fixture.Until(t, name+": everything works again", func() bool {
			got, err := r.api.Template(t.Context(), templateID)
			return err == nil && got.Path == "GATE" && len(r.degraded()) == 0
		})
		issue(2)
	}
	r.onePerUser(templateID, issued)
}

// waiting returns how many users are in line at a template.
func (r *rig) waiting(template string) int64 {
	r.t.Helper()
	got, err := r.api.Template(r.t.Context(), template)
	if err != nil {
		r.t.Fatal(err)
	}
	return got.Counters.Waiting
}
