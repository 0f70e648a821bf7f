package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/api"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/engine"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/parts"
	"github.com/largesse/largesse/internal/queue/redisstream"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/service"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/store/postgres"
	"github.com/largesse/largesse/internal/store/sqlite"
	"github.com/largesse/largesse/internal/store/storetest"
)

// verdict is the status of the one check of that name.
func verdict(t *testing.T, checks []Check, name string) CheckStatus {
	t.Helper()
	i := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("there is no check %s in %+v", name, checks)
	}
	return checks[i].Status
}

// onlyBut requires that the named checks have the status, and all others ok.
func onlyBut(t *testing.T, checks []Check, status CheckStatus, names ...string) {
	t.Helper()
	seen := map[string]bool{}
	for _, c := range checks {
		if slices.Contains(names, c.Name) && c.Status == status {
			seen[c.Name] = true
		} else if c.Status != CheckOK {
			t.Errorf("%+v", c)
		}
		if (c.Advice == "") != (c.Status == CheckOK) || c.Found == "" || strings.Contains(c.Found+c.Advice, "\n") {
			t.Errorf("%+v: a check that is not ok needs an advice, and each text is one line", c)
		}
	}
	for _, name := range names {
		if !seen[name] {
			t.Errorf("%s is not %s in %+v", name, status, checks)
		}
	}
}

// judged requires that the named check has the status, and all others ok.
func judged(t *testing.T, name string, checks []Check, want CheckStatus, check string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		if check == "" {
			onlyBut(t, checks, CheckOK)
		} else {
			onlyBut(t, checks, want, check)
		}
	})
}

func TestJudgeClock(t *testing.T) {
	t.Parallel()
	cfg := config.Default() // money.timeout 5s + lease 15s: the limit is 10s
	for _, tc := range []struct {
		ahead, trip time.Duration
		want        CheckStatus
	}{
		{0, time.Millisecond, CheckOK},
		{time.Second, 0, CheckOK},
		{-900 * time.Millisecond, 0, CheckOK},
		{4 * time.Second, 7 * time.Second, CheckOK},
		{1100 * time.Millisecond, 0, CheckWarn},
		{-1100 * time.Millisecond, 0, CheckWarn},
		{10 * time.Second, 0, CheckWarn},
		{10500 * time.Millisecond, 2 * time.Second, CheckWarn},
		{10001 * time.Millisecond, 0, CheckFail},
		{-10001 * time.Millisecond, 0, CheckFail},
	} {
		if c := judgeClock("clock", "its clock is", service.Clock{Ahead: tc.ahead, RoundTrip: tc.trip}, cfg); c.Status != tc.want {
			t.Errorf("%v ahead, round trip %v: %+v, want %s", tc.ahead, tc.trip, c, tc.want)
		}
	}
}

// TestJudgeClockSaysNoDirectionThatItDoesNotKnow: two looks at clocks that go
// alike say the same.
func TestJudgeClockSaysNoDirectionThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		ahead, trip time.Duration
		want        string
	}{
		{0, 0, "it is the same as this machine's, within 1ms"},
		{-80 * time.Microsecond, 300 * time.Microsecond, "it is the same as this machine's, within 1ms"},
		{900 * time.Microsecond, 100 * time.Microsecond, "it is the same as this machine's, within 1ms"},
		{12 * time.Millisecond, 80 * time.Millisecond, "it is the same as this machine's, within 52ms"},
		{3 * time.Millisecond, 2 * time.Millisecond, "it is 3ms ahead of this machine's (± 1ms)"},
		{-2 * time.Second, 2 * time.Millisecond, "it is 2s behind this machine's (± 1ms)"},
	} {
		if c := judgeClock("clock", "it is", service.Clock{Ahead: tc.ahead, RoundTrip: tc.trip}, config.Default()); c.Found != tc.want {
			t.Errorf("%v ahead, round trip %v: %q, want %q", tc.ahead, tc.trip, c.Found, tc.want)
		}
	}
}

func TestJudgePostgres(t *testing.T) {
	t.Parallel()
	good := postgres.Inspection{
		Version: "16.4", VersionNumber: 16_00_04, Encoding: "UTF8", Schema: "public", MayCreate: true,
		SchemaVersion: 3, SchemaKnown: 3, ConnectionsMax: 97, ConnectionsOthers: 10,
	}
	for name, tc := range map[string]struct {
		change    func(f *postgres.Inspection)
		instances int
		check     string
		want      CheckStatus
	}{
		"good":                     {func(*postgres.Inspection) {}, 3, "", CheckOK},
		"oldest":                   {func(f *postgres.Inspection) { f.VersionNumber = 15_00_00 }, 1, "", CheckOK},
		"untested":                 {func(f *postgres.Inspection) { f.VersionNumber = 14_00_09 }, 1, "database", CheckWarn},
		"too old":                  {func(f *postgres.Inspection) { f.VersionNumber = 12_00_09 }, 1, "database", CheckFail},
		"another encoding":         {func(f *postgres.Inspection) { f.Encoding = "SQL_ASCII" }, 1, "database.encoding", CheckFail},
		"standby":                  {func(f *postgres.Inspection) { f.InRecovery, f.ReadOnly = true, true }, 1, "database.writes", CheckFail},
		"read-only":                {func(f *postgres.Inspection) { f.ReadOnly = true }, 1, "database.writes", CheckFail},
		"never migrated":           {func(f *postgres.Inspection) { f.SchemaVersion = 0 }, 1, "database.schema", CheckWarn},
		"behind, may not create":   {func(f *postgres.Inspection) { f.SchemaVersion, f.MayCreate = 2, false }, 1, "database.schema", CheckFail},
		"up to date, may not":      {func(f *postgres.Inspection) { f.MayCreate = false }, 1, "", CheckOK},
		"ahead":                    {func(f *postgres.Inspection) { f.SchemaVersion = 4 }, 1, "database.schema", CheckFail},
		"no schema":                {func(f *postgres.Inspection) { f.Schema, f.SchemaVersion, f.MayCreate = "", 0, false }, 1, "database.schema", CheckFail},
		"clock":                    {func(f *postgres.Inspection) { f.Clock.Ahead = time.Minute }, 1, "database.clock", CheckFail},
		"not enough beside others": {func(f *postgres.Inspection) { f.ConnectionsOthers = 30 }, 3, "database.connections", CheckWarn},
		"not enough for instances": {func(*postgres.Inspection) {}, 4, "database.connections", CheckFail},
		"no second connection":     {func(f *postgres.Inspection) { f.Crowded = true }, 1, "database.connections", CheckFail},
		"fsync off":                {func(f *postgres.Inspection) { f.Unsafe = []string{"fsync = off"} }, 1, "database.durability", CheckWarn},
	} {
		f := good
		tc.change(&f)
		judged(t, name, judgePostgres(f, tc.instances, config.Default()), tc.want, tc.check)
	}
}

func TestJudgeInstances(t *testing.T) {
	t.Parallel()
	one := func(all []store.Instance) Check {
		t.Helper()
		checks := judgeInstances(all, "v1")
		if len(checks) != 1 {
			t.Fatalf("%+v", checks)
		}
		return checks[0]
	}
	same := []store.Instance{{Name: "a-1", Version: "v1", Alive: true}, {Name: "b-1", Version: "v1", Alive: true}}
	if c := one(same); c.Status != CheckOK || !strings.Contains(c.Found, "2 running: a-1, b-1") {
		t.Errorf("%+v", c)
	}
	if c := one(nil); c.Status != CheckOK {
		t.Errorf("%+v", c)
	}
	if c := one(append(same, store.Instance{Name: "c-1", Version: "v0", Alive: true})); c.Status != CheckWarn || !strings.Contains(c.Found, "c-1 runs v0") || strings.Contains(c.Found, "a-1") {
		t.Errorf("%+v", c)
	}

	troubled := slices.Clone(same)
	troubled[1].Troubles = []obs.Trouble{{Part: obs.PartProvider, Reason: "the provider does not answer"}}
	onlyBut(t, judgeInstances(troubled, "v1"), CheckWarn, "instances.degraded")
	for range listShown {
		troubled = append(troubled, troubled[1])
	}
	want := "b-1: the provider does not answer" + strings.Repeat("; b-1: the provider does not answer", listShown-1) + "; and 1 more"
	if checks := judgeInstances(troubled, "v1"); checks[1].Found != want {
		t.Errorf("%+v", checks)
	}

	// One that is not heard of any more neither runs nor has a say in versions.
	seen := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	lost := slices.Clone(same)
	for i := range 7 {
		lost = append(lost, store.Instance{Name: fmt.Sprintf("d-%d", i), Version: "v0", SeenAt: seen.Add(time.Duration(i) * time.Minute)})
	}
	checks := judgeInstances(lost, "v1")
	onlyBut(t, checks, CheckWarn, "instances.lost")
	want = "7 ended without a shutdown: d-6 was last seen at 2026-11-21T10:06:00Z, d-5 was last seen at 2026-11-21T10:05:00Z, " +
		"d-4 was last seen at 2026-11-21T10:04:00Z, d-3 was last seen at 2026-11-21T10:03:00Z, d-2 was last seen at 2026-11-21T10:02:00Z, and 2 more"
	if !strings.Contains(checks[0].Found, "2 running: a-1, b-1") || checks[1].Found != want {
		t.Errorf("%+v", checks)
	}
	checks = judgeInstances(lost[2:3], "v1")
	onlyBut(t, checks, CheckWarn, "instances.lost")
	if checks[0].Found != "no instance is running" || checks[1].Found != "1 ended without a shutdown: d-0 was last seen at 2026-11-21T10:00:00Z" {
		t.Errorf("%+v", checks)
	}
}

func TestJudgeCodes(t *testing.T) {
	t.Parallel()
	if checks := judgeCodes(missingCodes([]reward.CouponTemplate{
		{ID: 1, TotalQuantity: 5}, {ID: 2, TotalQuantity: 5, CodesImported: 5}, {ID: 3, TotalQuantity: 5, CodesImported: 9, IssuedTotal: 6, Live: 2},
	})); len(checks) != 0 {
		t.Errorf("%+v", checks)
	}
	var templates []reward.CouponTemplate
	for id := range reward.TemplateID(listShown + 2) {
		templates = append(templates, reward.CouponTemplate{ID: id + 1, TotalQuantity: 5, CodesImported: 6, IssuedTotal: 5, Live: 3})
	}
	checks := judgeCodes(missingCodes(templates))
	onlyBut(t, checks, CheckWarn, "coupons.codes")
	if want := "too few imported codes are left for the quantity of template 1, 2, 3, 4, 5 and 2 more"; checks[0].Found != want {
		t.Errorf("%+v", checks)
	}

	path, now := filepath.Join(t.TempDir(), "rows.db"), time.Now()
	s := storetest.OpenFile(t, path, sqlite.Open)
	defer s.Close()
	for id := reward.TemplateID(1); id <= 2; id++ {
		importID := int64(id)
		_, err := s.TemplateCreate(t.Context(), reward.CouponTemplate{
			ID: id, Name: "x", TotalQuantity: 1, PerUserLimit: 1, Mode: reward.ModeStream, WhenRedisAway: reward.FallbackDatabase, CreatedAt: now,
		})
		err = errors.Join(err, s.CodesBegin(t.Context(), id, importID, now))
		_, staged := s.CodesStage(t.Context(), store.CodesStageParams{TemplateID: id, ImportID: importID, Codes: []string{"A"}, Now: now})
		_, published := s.CodesPublish(t.Context(), id, importID, 1, 0)
		fixture.OK(t, errors.Join(err, staged, published))
	}
	_, settled := s.CouponSettle(t.Context(), store.CouponSettleParams{
		TemplateID: 2, Now: now, Requests: []rules.CouponRequest{{UserID: "u", Ticket: 1, CouponID: 7, Code: "generated"}},
	})
	_, cancelled := s.CouponCancel(t.Context(), store.CouponCancelParams{TemplateID: 2, IDs: []reward.CouponID{7}, Now: now})
	facts, inspected := sqlite.Inspect(t.Context(), path)
	if err := errors.Join(settled, cancelled, inspected); err != nil || !slices.Equal(facts.CodesMissing, []reward.TemplateID{2}) {
		t.Fatalf("%+v, %v", facts, err)
	}
	onlyBut(t, judgeSQLite(path, facts), CheckWarn, "coupons.codes")
}

func TestJudgeSQLite(t *testing.T) {
	t.Parallel()
	onlyBut(t, judgeSQLite("f", sqlite.Inspection{}), CheckOK)
	onlyBut(t, judgeSQLite("f", sqlite.Inspection{Exists: true, Checked: true, SchemaVersion: 2, SchemaKnown: 2}), CheckOK)
	onlyBut(t, judgeSQLite("f", sqlite.Inspection{Exists: true, SchemaVersion: 2, SchemaKnown: 2}), CheckOK)
	onlyBut(t, judgeSQLite("f", sqlite.Inspection{Exists: true, Checked: true, Fault: "row 3 missing", SchemaVersion: 2, SchemaKnown: 2}), CheckFail, "database")
	onlyBut(t, judgeSQLite("f", sqlite.Inspection{Exists: true, Checked: true, SchemaVersion: 1, SchemaKnown: 2}), CheckWarn, "database.schema")
}

func TestJudgeRedis(t *testing.T) {
	t.Parallel()
	hourly, none := "3600 1", ""
	good := redisstream.NodeInspection{Address: "r:6379", Server: "Redis 7.2.4", Policy: "noeviction", MemoryUsed: 79, MemoryMax: 100, AppendOnly: true}
	for name, tc := range map[string]struct {
		change func(n *redisstream.NodeInspection)
		check  string
		want   CheckStatus
	}{
		"good":              {func(*redisstream.NodeInspection) {}, "", CheckOK},
		"silent":            {func(n *redisstream.NodeInspection) { n.Err = errors.New("gone") }, "redis", CheckFail},
		"too old":           {func(n *redisstream.NodeInspection) { n.TooOld = errors.New("runs Redis 6") }, "redis", CheckFail},
		"evicts":            {func(n *redisstream.NodeInspection) { n.Policy = "allkeys-lru" }, "redis.eviction", CheckFail},
		"evicts volatile":   {func(n *redisstream.NodeInspection) { n.Policy = "volatile-ttl" }, "redis.eviction", CheckFail},
		"policy not told":   {func(n *redisstream.NodeInspection) { n.Policy = "" }, "redis.eviction", CheckWarn},
		"no limit":          {func(n *redisstream.NodeInspection) { n.MemoryMax = 0 }, "", CheckOK},
		"nearly full":       {func(n *redisstream.NodeInspection) { n.MemoryUsed = 81 }, "redis.memory", CheckWarn},
		"keeps nothing":     {func(n *redisstream.NodeInspection) { n.AppendOnly, n.Snapshots = false, &none }, "", CheckOK},
		"snapshots":         {func(n *redisstream.NodeInspection) { n.AppendOnly, n.Snapshots = false, &hourly }, "", CheckOK},
		"CONFIG is refused": {func(n *redisstream.NodeInspection) { n.AppendOnly = false }, "redis.persistence", CheckWarn},
		"replica":           {func(n *redisstream.NodeInspection) { n.Replica = true }, "redis.role", CheckFail},
		"replica of cluster": {func(n *redisstream.NodeInspection) {
			n.Replica, n.Cluster, n.ClusterState, n.SlotsServed = true, true, "ok", 16384
		}, "", CheckOK},
		"refuses writes":   {func(n *redisstream.NodeInspection) { n.Refusal = "MISCONF …" }, "redis.role", CheckFail},
		"denied":           {func(n *redisstream.NodeInspection) { n.Denied = []string{"XADD"} }, "redis.commands", CheckFail},
		"cluster down":     {func(n *redisstream.NodeInspection) { n.Cluster, n.ClusterState = true, "fail" }, "redis.cluster", CheckFail},
		"slots missing":    {func(n *redisstream.NodeInspection) { n.Cluster, n.ClusterState, n.SlotsServed = true, "ok", 16383 }, "redis.cluster", CheckFail},
		"cluster not told": {func(n *redisstream.NodeInspection) { n.Cluster = true }, "redis.cluster", CheckWarn},
		"clock":            {func(n *redisstream.NodeInspection) { n.Clock.Ahead = -2 * time.Second }, "redis.clock", CheckWarn},
	} {
		n := good
		tc.change(&n)
		judged(t, name, judgeRedis(redisstream.Inspection{Nodes: []redisstream.NodeInspection{n}}, config.Default()), tc.want, tc.check)
	}
	onlyBut(t, judgeRedis(redisstream.Inspection{}, config.Default()), CheckFail, "redis")
	deaf := redisstream.Inspection{Nodes: []redisstream.NodeInspection{good}, NoSubscribe: errors.New("NOPERM")}
	onlyBut(t, judgeRedis(deaf, config.Default()), CheckFail, "redis.wakes")
}

func TestJudgeKafka(t *testing.T) {
	t.Parallel()
	good := bus.TopicInspection{
		Topic: bus.TopicPointPublish, Name: "x-" + bus.TopicPointPublish, Partitions: 12, Replicas: 3,
		Described: true, Retention: 7 * 24 * time.Hour,
	}
	for name, tc := range map[string]struct {
		change func(t *bus.TopicInspection)
		check  string
		want   CheckStatus
	}{
		"good":               {func(*bus.TopicInspection) {}, "", CheckOK},
		"missing":            {func(t *bus.TopicInspection) { *t = bus.TopicInspection{Topic: t.Topic, Name: t.Name, Missing: true} }, "kafka.topics", CheckWarn},
		"refused":            {func(t *bus.TopicInspection) { t.Err = errors.New("TOPIC_AUTHORIZATION_FAILED") }, "kafka.topics", CheckFail},
		"leaderless":         {func(t *bus.TopicInspection) { t.Leaderless = 1 }, "kafka.topics", CheckFail},
		"one partition":      {func(t *bus.TopicInspection) { t.Partitions = 1 }, "kafka.partitions", CheckWarn},
		"one is enough":      {func(t *bus.TopicInspection) { t.Topic, t.Partitions = bus.TopicStarted, 1 }, "", CheckOK},
		"one replica":        {func(t *bus.TopicInspection) { t.Replicas = 1 }, "kafka.replicas", CheckWarn},
		"for ever":           {func(t *bus.TopicInspection) { t.Retention = -1 }, "", CheckOK},
		"a day":              {func(t *bus.TopicInspection) { t.Retention = 24 * time.Hour }, "", CheckOK},
		"an hour":            {func(t *bus.TopicInspection) { t.Retention = time.Hour }, "kafka.retention", CheckWarn},
		"an hour of a retry": {func(t *bus.TopicInspection) { t.Topic, t.Retention = bus.TopicPointRetry, time.Hour }, "", CheckOK},
		"retention not told": {func(t *bus.TopicInspection) { t.Described, t.Retention = false, 0 }, "kafka.retention", CheckWarn},
		"compacted":          {func(t *bus.TopicInspection) { t.Compacted = true }, "kafka.retention", CheckFail},
	} {
		topic := good
		tc.change(&topic)
		judged(t, name, judgeKafka(bus.Inspection{Brokers: 3, Topics: []bus.TopicInspection{topic}}), tc.want, tc.check)
	}
	one := good
	one.Replicas = 1
	alone := judgeKafka(bus.Inspection{Brokers: 1, RoundTrip: time.Millisecond, Topics: []bus.TopicInspection{one}})
	onlyBut(t, alone, CheckOK)
	if alone[0].Found != "1 broker responds within 1ms" {
		t.Errorf("%+v", alone[0])
	}
	onlyBut(t, judgeKafka(bus.Inspection{Brokers: 3, Silent: []string{"b:9092: refused"}}), CheckFail, "kafka")
}

func TestJudgeDisk(t *testing.T) {
	t.Parallel()
	for free, want := range map[uint64]CheckStatus{2 << 30: CheckOK, 1 << 30: CheckOK, 1<<30 - 1: CheckWarn, 64<<20 - 1: CheckFail} {
		if c := judgeDisk("d", free); c.Status != want {
			t.Errorf("%d bytes: %+v, want %s", free, c, want)
		}
	}
}

// TestLookAtMoney checks providers with every kind of response to a lookup.
func TestLookAtMoney(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		body   string
		want   CheckStatus
	}{
		{http.StatusNotFound, `{"code":"NOT_FOUND"}`, CheckOK},
		{http.StatusOK, `{"transactionKey":"t"}`, CheckOK},
		{http.StatusNotFound, `page not found`, CheckFail},
		{http.StatusOK, `<html>`, CheckFail},
		{http.StatusOK, `{}`, CheckFail},
		{http.StatusCreated, `{"transaction":"t"}`, CheckFail},
		{http.StatusBadGateway, ``, CheckWarn},
		{http.StatusUnauthorized, ``, CheckFail},
		{http.StatusForbidden, `{"code":"NO"}`, CheckFail},
	} {
		asked := make(chan string, 10)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked <- r.Method + " " + r.URL.Path
			w.WriteHeader(tc.status)
			_, _ = w.Write([]byte(tc.body))
		}))
		cfg := config.Default()
		cfg.Money.URL = server.URL
		onlyOne := lookAtMoney(t.Context(), cfg)
		server.Close()
		if onlyOne[0].Status != tc.want {
			t.Errorf("%d %q: %+v, want %s", tc.status, tc.body, onlyOne, tc.want)
		}
		if keyless := tc.want == CheckFail && tc.status < 300; keyless != strings.Contains(onlyOne[0].Advice, "transactionKey") {
			t.Errorf("%d %q: the advice is %q", tc.status, tc.body, onlyOne[0].Advice)
		}
		if len(asked) != 1 || <-asked != "GET /v1/transactions/0:0" {
			t.Errorf("%d: more requests than one lookup", tc.status)
		}
	}
	cfg := config.Default()
	if v := verdict(t, lookAtMoney(t.Context(), cfg), "money"); v != CheckFail {
		t.Errorf("without a provider: %s", v)
	}
	cfg.Roles = []string{config.RoleAPI}
	if v := verdict(t, lookAtMoney(t.Context(), cfg), "money"); v != CheckOK {
		t.Errorf("without a provider and without the role %s: %s", config.RolePayout, v)
	}
}

// files lists the files in a directory and below it, with sizes.
func files(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	fixture.OK(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			all[path] = info.Size()
		}
		return err
	}))
	return all
}

// closedDir returns a directory that only this user may enter.
func closedDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	fixture.OK(t, parts.MakeDataDir(dir))
	return dir
}

func TestLookAtEmbedded(t *testing.T) {
	t.Parallel()
	look := func(t *testing.T, cfg config.Config) []Check {
		return slices.Concat(lookAtData(t.Context(), cfg), lookAtDatabase(t.Context(), cfg, "devel"), lookAtKafka(t.Context(), cfg))
	}

	t.Run("NothingThereYet", func(t *testing.T) {
		t.Parallel()
		cfg := config.Default()
		cfg.Data.Dir = filepath.Join(t.TempDir(), "a", "b")
		onlyBut(t, look(t, cfg), CheckOK)
		if _, err := os.Stat(filepath.Dir(cfg.Data.Dir)); err == nil {
			t.Error("the directory was created")
		}
	})

	t.Run("ChangesNothing", func(t *testing.T) {
		t.Parallel()
		cfg := config.Default()
		cfg.Data.Dir = closedDir(t)
		fixture.OK(t, engine.Migrate(t.Context(), cfg, nil))
		before := files(t, cfg.Data.Dir)
		onlyBut(t, look(t, cfg), CheckOK)
		if after := files(t, cfg.Data.Dir); !maps.Equal(before, after) {
			t.Errorf("before %v, after %v", before, after)
		}
		lock := fixture.Must(parts.LockDir(cfg.Data.Dir, "later-1"))(t)
		lock.Release()
	})

	t.Run("InUseIsNoFault", func(t *testing.T) {
		t.Parallel()
		cfg := config.Default()
		cfg.Data.Dir = closedDir(t)
		lock := fixture.Must(parts.LockDir(cfg.Data.Dir, "holder-7"))(t)
		defer lock.Release()
		rows := fixture.Must(parts.OpenStore(t.Context(), cfg, "holder-7", nil, obs.Log{}))(t)
		defer rows.Close()
		fixture.OK(t, rows.Migrate(t.Context()))
		l := fixture.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
		defer l.Close()
		cfg.Kafka.EmbeddedListen = l.Addr().String()
		checks := look(t, cfg)
		onlyBut(t, checks, CheckOK)
		if !strings.Contains(checks[0].Found, "in use by holder-7") {
			t.Errorf("%+v", checks[0])
		}
	})

	t.Run("ATakenPort", func(t *testing.T) {
		t.Parallel()
		l := fixture.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
		defer l.Close()
		cfg := config.Default()
		cfg.Data.Dir, cfg.Kafka.EmbeddedListen = closedDir(t), l.Addr().String()
		onlyBut(t, look(t, cfg), CheckFail, "kafka")
	})

	t.Run("AFileInPlaceOfTheDirectory", func(t *testing.T) {
		t.Parallel()
		cfg := config.Default()
		cfg.Data.Dir = filepath.Join(t.TempDir(), "file")
		fixture.OK(t, os.WriteFile(cfg.Data.Dir, nil, 0o600))
		if v := verdict(t, look(t, cfg), "data"); v != CheckFail {
			t.Error(v)
		}
	})

	t.Run("ADirectoryThatCannotBeCreated", func(t *testing.T) {
		t.Parallel()
		dangling := filepath.Join(t.TempDir(), "link")
		fixture.OK(t, os.Symlink(filepath.Join(t.TempDir(), "nowhere", "x"), dangling))
		for _, dir := range []string{dangling, filepath.Join(dangling, "a", "b"), "/dev/null/a", "/proc/largesse/a"} {
			if c := lookAtDir(dir); c.Status != CheckFail || !strings.Contains(c.Found, dir) || c.Advice == "" {
				t.Errorf("%s: %+v", dir, c)
			}
			if err := os.MkdirAll(dir, 0o750); err == nil {
				t.Errorf("%s was created, so this test tests nothing", dir)
			}
		}
	})

	t.Run("ADamagedDatabase", func(t *testing.T) {
		t.Parallel()
		cfg := config.Default()
		cfg.Data.Dir = t.TempDir()
		fixture.OK(t, engine.Migrate(t.Context(), cfg, nil))
		f := fixture.Must(os.OpenFile(parts.SQLitePath(cfg), os.O_RDWR, 0))(t)
		// Everything behind the page that lists the tables.
		info := fixture.Must(f.Stat())(t)
		const page = 4096
		fixture.Must(f.WriteAt(slices.Repeat([]byte{0xAB}, int(info.Size())-page), page))(t)
		f.Close()
		if v := verdict(t, look(t, cfg), "database"); v != CheckFail {
			t.Error(v)
		}
	})
}

func TestLookAtHTTP(t *testing.T) {
	t.Parallel()
	look := func(address string, roles ...string) Check {
		t.Helper()
		cfg := config.Default()
		cfg.HTTP.Listen, cfg.Roles = address, roles
		checks := lookAtHTTP(t.Context(), cfg)
		if len(checks) != 1 || checks[0].Name != "http" || (checks[0].Advice == "") != (checks[0].Status == CheckOK) {
			t.Fatalf("%+v", checks)
		}
		return checks[0]
	}
	listen := func(handler http.Handler) string {
		server := httptest.NewServer(handler)
		t.Cleanup(server.Close)
		return server.Listener.Addr().String()
	}
	other := listen(http.NotFoundHandler())
	otherAPI := listen(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"info":{"title":"Petstore","version":"1"}}`))
	}))
	ours := listen(api.New(api.Config{Promotions: campaign.NewPromotions(campaign.PromotionsConfig{}), Version: "v7.0.0"}))
	free := fixture.FreeAddress(t)
	for _, tc := range []struct {
		address string
		roles   []string
		status  CheckStatus
		found   string
	}{
		{free, []string{config.RoleAPI}, CheckOK, "the API can listen on " + free},
		{"127.0.0.1:0", []string{config.RoleAPI}, CheckOK, "the API uses any free port of 127.0.0.1"},
		{ours, []string{config.RoleAPI}, CheckOK, "the API of a running instance (version 7.0.0) listens on " + ours},
		{other, []string{config.RoleAPI}, CheckWarn, "http.listen " + other + " is in use by another program"},
		{otherAPI, []string{config.RoleAPI}, CheckWarn, "http.listen " + otherAPI + " is in use by another program"},
		{other, []string{config.RolePayout}, CheckOK, "http.listen is not needed without the role api"},
	} {
		if c := look(tc.address, tc.roles...); c.Status != tc.status || c.Found != tc.found {
			t.Errorf("%+v, want %s %q", c, tc.status, tc.found)
		}
	}
	if c := look("192.0.2.1:81", config.RoleAPI); c.Status != CheckFail {
		t.Errorf("an address of another machine: %+v", c)
	}
}

// TestLookAtProbes checks that a port in use is a warning, unless an instance uses it.
func TestLookAtProbes(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Data.Dir, cfg.Money.URL = closedDir(t), "http://127.0.0.1:9"
	cfg.HTTP.Listen, cfg.HTTP.ProbeListen, cfg.Kafka.EmbeddedListen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	onlyBut(t, lookAtHTTP(t.Context(), cfg), CheckOK)
	cfg.HTTP.ProbeListen = fixture.FreeAddress(t)
	e := fixture.Must(engine.New(cfg, obs.Log{}))(t)
	fixture.OK(t, e.Start(t.Context()))
	defer e.Stop()
	checks := lookAtHTTP(t.Context(), cfg)
	onlyBut(t, checks, CheckOK)
	if want := "the listener for probes of a running instance listens on " + cfg.HTTP.ProbeListen; checks[1].Found != want {
		t.Errorf("%+v, want %q", checks[1], want)
	}
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	cfg.HTTP.ProbeListen = other.Listener.Addr().String()
	onlyBut(t, lookAtHTTP(t.Context(), cfg), CheckWarn, "http.probes")
}

// TestDoctor looks at whole configurations.
func TestDoctor(t *testing.T) {
	t.Parallel()

	t.Run("ContinuesDespiteWrongSettings", func(t *testing.T) {
		t.Parallel()
		checks := fixture.Must(Run(t.Context(), Params{Settings: config.LoadParams{Flags: map[string]string{
			"data.dir": t.TempDir(), "redis.stream.lease-seconds": "3", "redis.url": "http://:sekret@nowhere", "roles": "api", "log.level": "loud", "http.listen": "127.0.0.1:0",
		}}}))(t)
		for name, want := range map[string]CheckStatus{
			"settings": CheckFail, "settings.lease": CheckFail, "redis": CheckWarn, "database": CheckOK, "data": CheckOK, "kafka": CheckOK, "money": CheckOK,
		} {
			if v := verdict(t, checks, name); v != want {
				t.Errorf("%s is %s, want %s", name, v, want)
			}
		}
		for _, c := range checks {
			if strings.Contains(c.Found+c.Advice, "sekret") {
				t.Errorf("a password is shown: %+v", c)
			}
		}
	})

	t.Run("NeedsItsFile", func(t *testing.T) {
		t.Parallel()
		if checks, err := Run(t.Context(), Params{Settings: config.LoadParams{File: filepath.Join(t.TempDir(), "none.yaml")}}); err == nil {
			t.Errorf("%+v", checks)
		}
	})

	t.Run("SilentServersAreGivenUp", func(t *testing.T) {
		t.Parallel()
		silent := fixture.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
		defer silent.Close() // it takes connections and says nothing
		taken := make(chan struct{}, 1)
		go func() {
			for {
				conn, err := silent.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				select {
				case taken <- struct{}{}:
				default:
				}
			}
		}()
		cfg := config.Default()
		cfg.Database.URL, cfg.Redis.URL = "postgres://u@"+silent.Addr().String()+"/x", "redis://"+silent.Addr().String()
		cfg.Kafka.Brokers, cfg.Money.URL = []string{silent.Addr().String()}, "http://"+silent.Addr().String()
		for name, look := range map[string]func(context.Context, config.Config) []Check{
			"database": func(ctx context.Context, cfg config.Config) []Check { return lookAtDatabase(ctx, cfg, "") },
			"redis":    lookAtRedis, "kafka": lookAtKafka, "money": lookAtMoney,
		} {
			select {
			case <-taken: // a connection of the last check
			default:
			}
			ctx, cancel := context.WithCancel(t.Context())
			go func() { <-taken; cancel() }()
			onlyBut(t, look(ctx, cfg), CheckFail, name)
			cancel()
		}
	})

	t.Run("ClosedPortsAreToldWithoutPasswords", func(t *testing.T) {
		t.Parallel()
		const closed = "127.0.0.1:1"
		checks := fixture.Must(Run(t.Context(), Params{Settings: config.LoadParams{Flags: map[string]string{
			"database.url": "postgres://u:sekret@" + closed + "/x", "redis.url": "redis://u:sekret@" + closed,
			"kafka.brokers": closed, "money.url": "http://" + closed, "http.listen": "127.0.0.1:0",
		}}}))(t)
		onlyBut(t, checks, CheckFail, "database", "redis", "kafka", "money")
		for _, c := range checks {
			if strings.Contains(c.Found+c.Advice, "sekret") {
				t.Errorf("a password is shown: %+v", c)
			}
			if c.Status == CheckFail && !strings.Contains(c.Found, closed) {
				t.Errorf("%+v does not say where", c)
			}
		}
	})
}
