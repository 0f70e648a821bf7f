package main

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// browserFiles are the tests of the console.
//
//go:embed browser
var browserFiles embed.FS

// browserTimeout limits the long suite, also where other suites have the processors.
const browserTimeout = 20 * time.Minute

// browserFlags are the settings of the instance that the browser uses. Its provider may
// be slow while other suites run.
var browserFlags = []string{"--approval-above", "1000000", "--webhook-allow-private", "--money-timeout", "10s"}

// hostileRecord is an unreadable record. If a browser took it for markup, the page
// would know.
const hostileRecord = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>`

// browserShort uses the console in Chromium: it signs in, pays a promotion from a file,
// tries what a viewer may not do, and looks at every page.
func browserShort(ctx context.Context, r runner, res *result) { browserTests(ctx, r, res) }

// browserLong tries every flow too, and makes pictures of every page in all sizes,
// light and dark.
func browserLong(ctx context.Context, r runner, res *result) { browserTests(ctx, r, res, "--all") }

// browserOutcome is a line that the tests print: one of them has ended.
type browserOutcome struct {
	Name   string `json:"name"`
	Failed string `json:"failed"` // what is wrong, where, and the path of a picture; empty: nothing
}

func browserTests(ctx context.Context, r runner, res *result, more ...string) {
	ctx, cancel := context.WithTimeout(ctx, browserTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "largesse-browser-")
	if err != nil {
		res.fail("folder", err.Error())
		return
	}
	passed := false
	defer func() {
		if passed { // otherwise the pictures stay
			_ = os.RemoveAll(dir)
		}
	}()
	if err := os.CopyFS(dir, browserFiles); err != nil {
		res.fail("folder", err.Error())
		return
	}
	in, err := fleet.NewInstaller(r.out)
	if err != nil {
		res.fail("install", err.Error())
		return
	}
	node, chromium, modules, err := in.Browser(ctx)
	if err != nil {
		res.fail("install", err.Error())
		return
	}
	at := filepath.Join(dir, "browser")
	// Node looks for modules where the program is.
	if err := os.Symlink(modules, filepath.Join(at, "node_modules")); err != nil {
		res.fail("folder", err.Error())
		return
	}
	pictures := filepath.Join(dir, "pictures")
	if keep := os.Getenv("LARGESSE_PICTURES"); keep != "" {
		if pictures, err = filepath.Abs(keep); err != nil {
			res.fail("LARGESSE_PICTURES", err.Error())
			return
		}
	}
	target, err := startInstance(ctx, r.root, dir, browserFlags...)
	if err != nil {
		res.fail("start an instance", err.Error())
		return
	}
	defer target.stop()
	if err := target.seedBrowser(ctx); err != nil {
		res.fail("seed", err.Error()+"\n"+target.log.text())
		return
	}
	args := append([]string{
		filepath.Join(at, "run.mjs"), "--server", target.server, "--money", target.money, "--token", target.token,
		"--binary", filepath.Join(dir, "largesse"),
		"--chromium", chromium, "--pictures", pictures, "--only", r.run,
	}, more...)
	failures, said := 0, printed{}
	err = fleet.Lines(ctx, at, nil, func(line string) {
		var o browserOutcome
		if err := json.Unmarshal([]byte(line), &o); err != nil || o.Name == "" {
			said.add(line)
			return
		}
		if o.Failed == "" {
			res.pass()
			return
		}
		failures++
		res.failTest(testName{Test: o.Name}, o.Failed)
	}, node, args...)
	if err != nil && failures == 0 {
		failures++
		res.fail("run.mjs", err.Error()+"\n"+said.text())
	}
	if err := target.ended(); err != nil {
		failures++
		res.fail("instance", err.Error()+"\n"+target.log.text())
	}
	passed = failures == 0
}

// seedBrowser fills the instance with what the tests do not make themselves: unreadable
// records and payouts of which nobody knows whether they were paid.
func (in *instance) seedBrowser(ctx context.Context) error {
	kafka, err := in.publisher()
	if err != nil {
		return fmt.Errorf("connect to Kafka: %w", err)
	}
	defer kafka.Close()
	for n, end := range []string{" \xff", " \x00\x1b[31m\u202e", strings.Repeat("x", 10_000)} {
		if err := publish(ctx, kafka, "campaign-promotion-point-publish", hostileRecord+strconv.Itoa(n)+end); err != nil {
			return err
		}
	}
	s := &seeding{ctx: ctx, in: in}
	s.until("/v1/dead-letters", `"status":"OPEN"`)
	s.send("", http.MethodPut, in.money+"/faults", "application/json", `{"resetBeforeRate":1}`)
	s.promotion(in.token, 2700, "POINT", "", "start")
	s.until("/v1/promotions/"+unknownPromotion, `"status":"COMPLETED".*"unknown":30`)
	s.send("", http.MethodPut, in.money+"/faults", "application/json", `{"refuseRate":0.2}`)
	return s.err
}
