package test

import (
	"os"
	"strings"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/doctor"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/queue/redisstream"
)

// TestTheACLOfTheDocsSuffices pays a promotion, issues coupons in both modes, and loads
// the gate of a drop again, as the Redis user of docs/redis.md.
func TestTheACLOfTheDocsSuffices(t *testing.T) {
	t.Parallel()
	page := fixture.Must(os.ReadFile("docs/redis.md"))(t)
	const prefix = "promo:"
	_, rules, _ := strings.Cut(string(page), "redis-cli ACL SETUSER largesse on '>PASSWORD' ")
	rules, _, _ = strings.Cut(rules, "\n")
	rules = strings.ReplaceAll(strings.ReplaceAll(rules, "'", ""), "PREFIX", prefix)
	if rules != redisstream.ACL(prefix) {
		t.Fatalf("docs/redis.md says %q, doctor %q", rules, redisstream.ACL(prefix))
	}

	server := fixture.Own(t, fleet.NewRedis)
	admin := fixture.RedisClient(t, server.Address())
	defer admin.Close()
	do := func(words ...string) {
		t.Helper()
		if err := admin.Do(t.Context(), admin.B().Arbitrary(words...).Build()).Error(); err != nil {
			t.Fatalf("%v: %v", words, err)
		}
	}
	do(append([]string{"ACL", "SETUSER", "largesse", "on", ">secret"}, strings.Fields(rules)...)...)
	url := strings.Replace(server.Address(), "redis://", "redis://largesse:secret@", 1)
	r := newRig(t, servers, moneysim.Faults{}, func(cfg *config.Config) { cfg.Redis.URL, cfg.Redis.KeyPrefix = url, prefix }, patient)

	checks := fixture.Must(doctor.Run(t.Context(), doctor.Params{Settings: config.LoadParams{Flags: map[string]string{
		"redis.url": url, "redis.key-prefix": prefix, "data.dir": t.TempDir(), "money.url": r.simURL,
	}}}))(t)
	for _, c := range checks {
		if strings.HasPrefix(c.Name, "redis") && c.Status == doctor.CheckFail {
			t.Errorf("%+v", c)
		}
	}

	id, workload := r.create(200, false, client.NewPromotion{})
	stream, sync := r.template(client.NewTemplate{}), r.template(client.NewTemplate{Mode: "SYNC"})
	for _, template := range []string{stream, sync} {
		r.issue(template, 0, 20)
	}
	r.balance(id, workload)
	do("FLUSHALL")
	fixture.Until(t, "the gate is loaded again", func() bool {
		got, err := r.api.Template(t.Context(), stream)
		return err == nil && got.Path == "GATE" && len(r.degraded()) == 0
	})
	r.issue(stream, 20, 20)
	fewer := int64(900)
	if _, err := r.api.ChangeTemplate(t.Context(), stream, client.TemplateChange{TotalQuantity: &fewer}); err != nil {
		t.Error(err)
	}
	for template, n := range map[string]int{stream: 40, sync: 20} {
		fixture.Until(t, "nobody waits", func() bool { return r.waiting(template) == 0 })
		r.onePerUser(template, n)
	}
	r.stop()
	if text := r.lines.String(); strings.Contains(text, "NOPERM") {
		t.Error("the ACL lacks a command: NOPERM is in the log")
	}
}
