package house

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// The layers of the module. A package imports only packages of lower layers, and the
// packages of its own layer that its row in packages names.
const (
	ground  = iota // shared types and services
	seams          // rows, work, messages, money, and the pools over them
	flows          // payouts and coupons
	gateway        // the HTTP API
	wiring         // settings, the engine, and the lab
	binary         // the public package, and cmd
)

type room struct {
	floor int
	// only lists the packages of this module that the package may import. nil: all
	// lower layers, except drivers and simulators.
	only []string
}

var groundRooms = []string{"internal/reward", "internal/service", "internal/obs", "internal/tracing"}

func with(extra ...string) []string { return slices.Concat(groundRooms, extra) }

// forDrivers lists the packages that only drivers may import, in addition to their
// interface and groundRooms. A package below an interface is for its drivers.
var forDrivers = []string{"internal/redis", "internal/store/rows"}

// forDriversOf lists what the drivers of one interface and its suite may also import.
var forDriversOf = map[string][]string{"internal/store": {"internal/rules"}}

// packages is the map of packages. Drivers, such as internal/store/postgres, are not in
// it: they may import their interface, the ground layer and the packages for drivers.
var packages = map[string]room{
	"internal/reward": {ground, []string{}},
	// The built web console: files.
	"console":          {ground, []string{}},
	"internal/service": {ground, []string{"internal/reward"}},
	"internal/obs":     {ground, []string{"internal/reward"}},
	"internal/tracing": {ground, []string{"internal/reward", "internal/service", "internal/obs"}},
	// Why a call over the network failed, in words.
	"internal/netfault": {ground, []string{}},
	// The allowed changes of a row: pure functions, for the store and for flows.
	"internal/rules": {ground, []string{"internal/reward"}},
	// The Redis client: only for drivers.
	"internal/redis": {ground, []string{"internal/service", "internal/obs"}},

	"internal/store":    {seams, with("internal/rules")},
	"internal/queue":    {seams, with()},
	"internal/gate":     {seams, with()},
	"internal/bus":      {seams, with()},
	"internal/money":    {seams, with("internal/netfault")},
	"internal/auth":     {seams, with("internal/store")},
	"internal/governor": {seams, with()},
	"internal/pool":     {seams, with("internal/queue", "internal/store")},
	"internal/webhook":  {seams, with("internal/netfault", "internal/store")},
	// The statements that both drivers of the store share.
	"internal/store/rows": {seams, with("internal/store", "internal/rules")},

	"internal/payout":   {flows, nil},
	"internal/campaign": {flows, nil},
	"internal/books":    {flows, nil},
	"internal/coupon":   {flows, nil},

	// The plumbing below the API knows no operation.
	"internal/web": {flows, with("internal/auth")},
	"internal/api": {gateway, nil},

	"internal/lab": {wiring, with("internal/store", "internal/queue", "internal/gate", "internal/bus", "internal/money",
		"internal/pool", "internal/payout", "internal/coupon", "client")},
	"internal/config": {wiring, with("internal/auth", "internal/bus", "internal/money")},
	"internal/engine": {wiring, with("console", "internal/config", "internal/store", "internal/queue", "internal/gate", "internal/bus", "internal/money",
		"internal/pool", "internal/payout", "internal/campaign", "internal/books", "internal/coupon", "internal/web", "internal/webhook", "internal/api", "internal/auth",
		"internal/governor", "internal/governor/redisrate",
		"internal/store/postgres", "internal/store/sqlite", "internal/queue/redisstream", "internal/gate/redisgate")},

	"client":       {ground, []string{}},
	".":            {binary, with("client", "internal/config", "internal/engine", "internal/money")},
	"cmd/largesse": {binary, with("client", "internal/config", "internal/engine", "internal/lab", "internal/money/moneysim")},
	"scripts/up":   {binary, []string{"internal/lab/fleet"}},
	// Patches of the product that its tests must find.
	"scripts/mutations": {binary, []string{}},
	"scripts/release":   {binary, []string{}},

	// The real servers for the suites do not depend on what uses them.
	"internal/lab/fleet": {seams, with()},
	// What tests borrow of those servers: only for tests, and for suites.
	"internal/lab/fixture": {seams, with("internal/lab/fleet", "internal/redis")},

	// Whole-product tests and tests of the repository: only test files.
	"internal/house": {binary, []string{}},
	"test":           {binary, []string{}},
	"test/api":       {binary, []string{}},
	"test/instance":  {binary, with("internal/config", "internal/engine", "internal/lab/fixture", "internal/money/moneysim")},
	"test/console":   {binary, []string{}},

	// The models of the protocols are only for tests. They share no code with what they
	// model: sharing a mistake would hide it. All use the same explorer.
	"internal/models/code":    {ground, []string{}},
	"internal/models/explore": {ground, []string{}},
	"internal/models/coupon":  {ground, []string{}},
	"internal/models/payout":  {ground, []string{}},

	// The simulator represents an external system: sharing a type with
	// the client would let both be wrong in the same way.
	"internal/money/moneysim": {seams, []string{"internal/service", "internal/obs"}},
}

// isSuite reports whether a package is a conformance suite or only for tests.
func isSuite(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(name, "internal/") && strings.HasSuffix(base, "test")
}

// isDriver reports whether a package is an implementation of the interface above it.
func isDriver(name string) bool {
	return strings.HasPrefix(name, "internal/") && strings.Count(name, "/") == 2
}

// mayImport returns "", or a sentence that says where the code should go.
func mayImport(from, to string) string {
	if isSuite(to) {
		return fmt.Sprintf("%s imports the suite %s: suites are imported from _test.go files only", from, to)
	}
	plan, known := packages[from]
	if !known && isDriver(from) {
		seam := path.Dir(from)
		shared := slices.Contains(forDrivers, to) && (!isDriver(to) || path.Dir(to) == seam)
		if to == seam || slices.Contains(groundRooms, to) || shared || slices.Contains(forDriversOf[seam], to) {
			return ""
		}
		return fmt.Sprintf("%s imports %s: it stands behind the seam %s and may import that and the ground floor (%s); what it needs of %s belongs into the seam, or into its caller",
			from, to, seam, strings.Join(groundRooms, ", "), to)
	}
	if !known {
		return fmt.Sprintf("%s has no place in the plan: a new room needs a page in docs/adr/ (what it owns, what it may import, how it stops) and a line in packages of internal/house/arrows_test.go", from)
	}
	if plan.only != nil {
		if slices.Contains(plan.only, to) {
			return ""
		}
		may := "nothing of this module"
		if len(plan.only) > 0 {
			may = "of this module only " + strings.Join(plan.only, ", ")
		}
		return fmt.Sprintf("%s imports %s: it may import %s; move what both need down to one of those, or let %s declare the few methods it calls and have them handed in", from, to, may, from)
	}
	if isDriver(to) {
		return fmt.Sprintf("%s imports the driver %s: it should take the seam %s, and internal/engine hands the driver in", from, to, path.Dir(to))
	}
	if slices.Contains(forDrivers, to) {
		return fmt.Sprintf("%s imports %s, which is there for drivers alone: it should take a seam, and internal/engine hands the driver in", from, to)
	}
	target, known := packages[to]
	if known && strings.HasPrefix(to, "internal/") && target.floor < plan.floor {
		return ""
	}
	return fmt.Sprintf("%s (floor %d) imports %s (floor %d): arrows point down only; move what both need to a lower floor, or let %s declare the few methods it calls and have them handed in",
		from, plan.floor, to, target.floor, from)
}

func TestArrowsPointDown(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, file := range tree(t) {
		if file.test() {
			continue
		}
		from := file.room()
		seen[from] = true
		for _, to := range file.imports(t) {
			if isSuite(from) {
				// A suite may use other suites' helpers, its interface and the
				// ground floor.
				seam := path.Dir(from)
				if to == seam || isSuite(to) || to == "internal/lab/fixture" || slices.Contains(groundRooms, to) || slices.Contains(forDriversOf[seam], to) {
					continue
				}
				t.Errorf("%s: the suite %s imports %s: a suite knows its seam and the ground floor, so that any driver can use it", file.path, from, to)
				continue
			}
			if sentence := mayImport(from, to); sentence != "" {
				t.Errorf("%s: %s", file.path, sentence)
			}
		}
	}
	for _, from := range slices.Sorted(maps.Keys(seen)) {
		if _, known := packages[from]; !known && !isDriver(from) {
			t.Errorf("%s has no place in the plan: a new room needs a page in docs/adr/ and a line in packages of internal/house/arrows_test.go", from)
		}
	}
	if len(seen) < len(groundRooms) {
		t.Fatalf("only %d packages found: the source was not read", len(seen))
	}
}

func TestRoomsHaveGoodNames(t *testing.T) {
	t.Parallel()
	bad := []string{"util", "utils", "common", "models", "model", "helpers", "helper", "misc", "shared", "base"}
	for _, file := range tree(t) {
		from := file.room()
		if strings.HasPrefix(from, "internal/") && strings.Count(from, "/") > 2 {
			t.Errorf("%s: there is no third level under internal/: a second-level folder is a driver, a simulator or a suite and holds its files itself", file.path)
		}
		for _, name := range []string{path.Base(from), strings.TrimSuffix(file.ast.Name.Name, "_test")} {
			if slices.Contains(bad, name) {
				t.Errorf("%s: %q says nothing about what is inside; put the code where it is used, or name the room for what it owns", file.path, name)
			}
		}
	}
}

// The rule itself is checked, so that a mistake in it cannot allow everything.
func TestArrowRules(t *testing.T) {
	t.Parallel()
	good := [][2]string{
		{"internal/payout", "internal/store"},
		{"internal/payout", "internal/pool"},
		{"internal/api", "internal/payout"},
		{"internal/api", "internal/web"},
		{"internal/web", "internal/auth"},
		{"internal/store/postgres", "internal/store"},
		{"internal/store/sqlite", "internal/store/rows"},
		{"internal/store/rows", "internal/store"},
		{"internal/store/postgres", "internal/rules"},
		{"internal/store", "internal/rules"},
		{"internal/payout", "internal/rules"},
		{"internal/queue/redisstream", "internal/obs"},
		{"internal/gate/redisgate", "internal/redis"},
		{"internal/pool", "internal/queue"},
		{"internal/lab", "client"},
		{"internal/config", "internal/auth"},
		{"internal/engine", "internal/config"},
		{"internal/engine", "internal/queue/redisstream"},
		{".", "internal/engine"},
		{"cmd/largesse", "internal/engine"},
		{"scripts/up", "internal/lab/fleet"},
	}
	for _, arrow := range good {
		if sentence := mayImport(arrow[0], arrow[1]); sentence != "" {
			t.Errorf("refused: %s", sentence)
		}
	}
	wrong := [][2]string{
		{"internal/reward", "internal/service"},
		{"internal/service", "internal/obs"},
		{"internal/queue", "internal/payout"},
		{"internal/queue", "internal/store"},
		{"internal/queue", "internal/redis"},
		{"internal/payout", "internal/redis"},
		{"internal/payout", "internal/coupon"},
		{"internal/payout", "internal/campaign"},
		{"internal/payout", "internal/books"},
		{"internal/campaign", "internal/payout"},
		{"internal/books", "internal/payout"},
		{"internal/coupon", "internal/payout"},
		{"internal/payout", "internal/api"},
		{"internal/payout", "internal/web"},
		{"internal/web", "internal/api"},
		{"internal/web", "internal/payout"},
		{"internal/web", "internal/store"},
		{"internal/payout", "internal/store/sqlite"},
		{"internal/payout", "internal/lab"},
		{"internal/payout", "."},
		{"internal/payout", "client"},
		{"internal/store/postgres", "internal/store/sqlite"},
		{"internal/store/postgres", "internal/queue"},
		{"internal/queue/redisstream", "internal/store/rows"},
		{"internal/payout", "internal/store/rows"},
		{"internal/store", "internal/store/rows"},
		{"internal/store/rows", "internal/store/postgres"},
		{".", "internal/store/rows"},
		{"internal/queue/redisstream", "internal/rules"},
		{"internal/rules", "internal/store"},
		{"internal/rules", "internal/service"},
		{"internal/pool", "internal/rules"},
		{"internal/money", "internal/money/moneysim"},
		{"internal/money/moneysim", "internal/money"},
		{"internal/models/payout", "internal/rules"},
		{"internal/payout", "internal/models/payout"},
		{"internal/payout", "internal/store/storetest"},
		{"internal/payout", "internal/config"},
		{"internal/api", "internal/config"},
		{"internal/config", "internal/api"},
		{"internal/config", "internal/engine"},
		{"internal/engine", "."},
		{"internal/engine", "internal/queue/queuetest"},
		{"internal/engine", "internal/lab"},
		{"internal/engine", "internal/lab/fleet"},
		{".", "internal/queue/redisstream"},
		{".", "internal/lab"},
		{"internal/lab", "internal/lab/fleet"},
		{"internal/lab/fleet", "internal/lab"},
		{"cmd/largesse", "internal/store"},
		{"internal/helpers", "internal/reward"},
		{"internal/api", "internal/attic"},
	}
	for _, arrow := range wrong {
		if mayImport(arrow[0], arrow[1]) == "" {
			t.Errorf("%s may import %s, and must not", arrow[0], arrow[1])
		}
	}
}
