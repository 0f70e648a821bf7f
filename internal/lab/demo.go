package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/obs"
)

// demoFaults are the faults of the demo's provider.
var demoFaults = moneysim.Faults{LatencyMs: 20, JitterMs: 10, ErrorRate: 0.02, LostReplyRate: 0.01, RefuseRate: 0.002}

const (
	demoMalformed = 5
	demoPoll      = 250 * time.Millisecond
	// Somebody in the console may add a fourth of the targets, who are paid within
	// about twenty seconds.
	demoAddedShare   = 4
	demoAddedSeconds = 20
	demoAddedRateMin = 100
)

// Demo pays two campaigns and runs a coupon drop on the embedded engines, and checks the
// books.
type Demo struct {
	Targets, Coupons, Shoppers int
	// Keep keeps the server running afterwards, until it is interrupted. Open first says
	// where its console is, and implies Keep.
	Keep, Open bool
	Dir        string    // for the data; empty: a temporary one, removed at the end
	Version    string    // of the instance
	Out        io.Writer // receives the report for people
	Show       func() Screen
	// Done receives the result, before the server is kept running.
	Done func(DemoResult) error
}

// Screen shows the progress of some activities.
type Screen interface {
	Update(activity string, done, total int64)
	Close()
	// Live reports whether it can show a value that rises and falls.
	Live() bool
}

// demoRun is one run of the demo.
type demoRun struct {
	Demo
	result      DemoResult
	sim         *moneysim.Server
	simURL      string
	site        *demoSite
	client      *client.Client
	voucherID   int64 // ID of the campaign that Kafka delivers
	deadLetters int   // dead letters that existed before the run
	added       int   // campaigns that people asked for in the console
}

func (d *demoRun) say(format string, args ...any) { _, _ = fmt.Fprintf(d.Out, format+"\n", args...) }

// endingWriter ends the demo when its output is closed, as in "demo | head", so
// that it cleans up as after any other end.
type endingWriter struct {
	io.Writer
	end context.CancelCauseFunc
}

func (w endingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	if err != nil {
		w.end(fmt.Errorf("write the output: %w", err))
	}
	return n, err
}

// Run runs the demo. It returns an error unless every invariant holds.
func (demo Demo) Run(ctx context.Context) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	d := &demoRun{Demo: demo}
	d.Out = endingWriter{d.Out, end}
	err := d.play(ctx)
	switch cause := context.Cause(ctx); {
	case cause == nil:
		return err
	case !errors.Is(cause, context.Canceled):
		return cause
	case err != nil && !errors.Is(err, errUnbalanced):
		return errors.New("interrupted: run it again, or with --data to continue where it stopped")
	}
	return err
}

// errUnbalanced reports that the books do not balance.
var errUnbalanced = errors.New("the books do not balance: see the broken invariants above")

// play runs the whole demo.
func (d *demoRun) play(ctx context.Context) error {
	if d.Dir == "" {
		dir, err := os.MkdirTemp("", "largesse-demo-")
		if err != nil {
			return fmt.Errorf("create a directory for the demo: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		d.Dir = dir
	}
	closeAll, err := d.start(ctx)
	if err != nil {
		return err
	}
	defer closeAll()
	if d.Open {
		d.Keep = true
		d.invite()
	}
	began := time.Now()
	accounts, err := d.pay(ctx)
	if err != nil {
		return err
	}
	d.report(ctx, accounts, time.Since(began))
	if err := d.drop(ctx); err != nil {
		return err
	}
	if err := d.hold(ctx); err != nil {
		return err
	}
	d.result.Balanced = d.balanced()
	if d.Keep {
		d.result.Server = "http://" + d.site.addr
	}
	if err := d.Done(d.result); err != nil {
		return err
	}
	if d.Keep {
		d.say("\nThe server keeps running at http://%s until you press Ctrl-C. Try in another terminal:", d.site.addr)
		d.say("  export LARGESSE_SERVER=http://%s", d.site.addr)
		d.say("  go run ./cmd/largesse promotion list   # if it is installed: largesse promotion list")
		d.say("  go run ./cmd/largesse template list")
		if err := d.goOn(ctx); err != nil {
			return err
		}
	}
	if !d.balanced() {
		return errUnbalanced
	}
	return nil
}

// balanced reports whether all invariants hold that were checked so far.
func (d *demoRun) balanced() bool {
	return !slices.ContainsFunc(d.result.Invariants, func(v Verdict) bool { return !v.Holds })
}

// goOn does what people ask for in the console, until the demo ends.
func (d *demoRun) goOn(ctx context.Context) error {
	for {
		d.site.allowKills()
		var err error
		select {
		case <-d.site.people:
			err = d.payMore(ctx)
		case <-d.site.drops:
			if err = d.site.calm(ctx); err == nil {
				err = d.drop(ctx)
			}
		case err := <-d.site.lost:
			return err
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// payMore pays people that somebody added in the console, and checks the books.
func (d *demoRun) payMore(ctx context.Context) error {
	c, err := d.addPeople(ctx)
	if err != nil {
		return err
	}
	campaigns, err := d.watch(ctx, []*campaign{c}, nil)
	if err != nil {
		return err
	}
	if err := d.check(ctx, campaigns); err != nil {
		return err
	}
	d.say("\nInvariants")
	d.judged(titled(campaigns))
	return nil
}

// addPeople creates and starts a campaign for more people. It is slow enough to watch.
func (d *demoRun) addPeople(ctx context.Context) (*campaign, error) {
	if err := d.site.calm(ctx); err != nil {
		return nil, err
	}
	d.added++
	var file bytes.Buffer
	workload, err := WriteTargets(&file, d.site.more, false)
	if err != nil {
		return nil, err
	}
	title := fmt.Sprintf("more people %d", d.added)
	p, err := d.client.CreatePromotion(ctx, client.NewPromotion{Name: "Demo: " + title, Type: "POINT", RatePerSecond: max(d.site.more/demoAddedSeconds, demoAddedRateMin)})
	if err != nil {
		return nil, fmt.Errorf("create the campaign for more people: %w", err)
	}
	if _, err := d.client.UploadTargets(ctx, p.ID, &file, client.UploadOptions{}); err != nil {
		return nil, fmt.Errorf("upload more people: %w", err)
	}
	if _, err := d.client.StartPromotion(ctx, p.ID); err != nil {
		return nil, fmt.Errorf("start the campaign for more people: %w", err)
	}
	return &campaign{title: title, id: p.ID, workload: workload, targets: d.site.more}, nil
}

// start starts the provider and the engine.
func (d *demoRun) start(ctx context.Context) (closeAll func(), err error) {
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of --data: %w", err)
	}
	logFile, err := os.Create(filepath.Join(d.Dir, "largesse.log"))
	if err != nil {
		return nil, fmt.Errorf("open the demo's log: %w", err)
	}
	log, err := obs.NewLog(logFile, "info", "text")
	if err != nil {
		return nil, err
	}
	if d.sim, d.simURL, err = startMoney(demoFaults, uint64(time.Now().UnixNano())); err != nil {
		return nil, err
	}
	cfg := config.Default()
	cfg.Data.Dir = d.Dir
	cfg.HTTP.Listen = "127.0.0.1:0"
	cfg.Money.URL = d.simURL
	// The provider runs in this process, so unknown outcomes can be settled
	// within seconds.
	cfg.Money.Timeout = 2 * time.Second
	cfg.Money.SettleAfter = 2 * time.Second
	cfg.Redis.Stream.LeaseSeconds = 4
	d.site, err = openSite(ctx, cfg, d.Version, d.sim, max(d.Targets/demoAddedShare, 1), log)
	if err != nil {
		d.sim.Close()
		return nil, err
	}
	d.client, err = client.New("http://"+d.site.addr, client.Options{})
	if err != nil {
		return nil, err
	}
	return func() {
		d.site.close()
		d.sim.Close()
		_ = logFile.Close()
	}, nil
}

// invite prints where to watch the demo, and how to disturb it.
func (d *demoRun) invite() {
	d.say("Watch and steer it in the console: http://%s/", d.site.addr)
	d.say("Its bar at the bottom breaks the provider, kills the instance, adds people and opens drops.\n")
}

// campaign is one promotion of the demo.
type campaign struct {
	title    string
	id       string
	workload Workload
	targets  int
	upload   *client.UploadResult // only of the campaign from a file
	account  Account
}

func (d *demoRun) pay(ctx context.Context) ([]*campaign, error) {
	d.say("Largesse pays points to %s from a file, and vouchers to %[1]s from Kafka messages.", countOf(int64(d.Targets), "target"))
	d.say("The simulated provider needs %d ms per call, fails %g %% of the calls, loses %g %% of its\nresponses and refuses %g %% of the targets.\n",
		demoFaults.LatencyMs, demoFaults.ErrorRate*100, demoFaults.LostReplyRate*100, demoFaults.RefuseRate*100)
	points, err := d.uploadPoints(ctx)
	if err != nil {
		return nil, err
	}
	// An ID as an upstream system would assign it, different in each run on the
	// same data.
	d.voucherID = time.Now().Unix()
	d.deadLetters, err = d.countDeadLetters(ctx)
	if err != nil {
		return nil, err
	}
	vouchers := &campaign{title: "vouchers from Kafka", id: fmt.Sprint(d.voucherID), targets: d.Targets}
	campaigns := []*campaign{points, vouchers}
	published := make(chan error, 1)
	go func() {
		var err error
		vouchers.workload, err = Publishing{
			Brokers: d.site.instance().Brokers(), PromotionID: d.voucherID, Voucher: true, Targets: d.Targets, Malformed: demoMalformed,
		}.Publish(ctx)
		published <- err
	}()
	if _, err := d.client.StartPromotion(ctx, points.id); err != nil {
		return nil, fmt.Errorf("start the campaign of points: %w", err)
	}
	campaigns, err = d.watch(ctx, campaigns, published)
	if err != nil {
		return nil, err
	}
	return campaigns, d.check(ctx, campaigns)
}

// check compares the books of both sides, while nobody kills the instance.
func (d *demoRun) check(ctx context.Context, campaigns []*campaign) error {
	if err := d.site.calm(ctx); err != nil {
		return err
	}
	ledger, err := ReadLedger(ctx, d.simURL)
	if err != nil {
		return err
	}
	for _, c := range campaigns {
		if c.account, err = CheckBooks(ctx, d.client, c.id, c.workload, ledger); err != nil {
			return err
		}
	}
	return nil
}

// uploadPoints writes the file, creates the campaign and uploads its targets.
func (d *demoRun) uploadPoints(ctx context.Context) (*campaign, error) {
	path := filepath.Join(d.Dir, "targets.csv")
	file, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("create the file of targets: %w", err)
	}
	defer func() { _ = file.Close() }()
	workload, err := WriteTargets(file, d.Targets, true)
	if err != nil {
		return nil, fmt.Errorf("write the file of targets: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	p, err := d.client.CreatePromotion(ctx, client.NewPromotion{Name: "Demo: points for everyone", Type: "POINT"})
	if err != nil {
		return nil, fmt.Errorf("create the campaign of points: %w", err)
	}
	res, err := d.client.UploadTargets(ctx, p.ID, file, client.UploadOptions{FileName: filepath.Base(path)})
	if err != nil {
		return nil, fmt.Errorf("upload the targets: %w", err)
	}
	d.say("Uploaded %s: %s accepted, %s, %s rejected. The accepted targets are worth %s points.",
		path, number(res.Accepted), countOf(res.Duplicates, "duplicate"), number(res.Rejected), number(res.Amount))
	return &campaign{title: "points from a file", id: p.ID, workload: workload, targets: d.Targets, upload: &res}, nil
}

// watch shows the progress of the campaigns until nothing is open, and adds campaigns
// that people ask for. The instance may be killed once everything is published.
func (d *demoRun) watch(ctx context.Context, campaigns []*campaign, published <-chan error) ([]*campaign, error) {
	show := d.Show()
	defer show.Close()
	for _, c := range campaigns {
		show.Update(c.title, 0, int64(c.targets))
	}
	if published == nil {
		d.site.allowKills()
	}
	for {
		open := 0
		for _, c := range campaigns {
			done, err := d.progress(ctx, c, show)
			if err != nil {
				return nil, err
			}
			if !done {
				open++
			}
		}
		if open == 0 && published == nil {
			return campaigns, nil
		}
		select {
		case err := <-published:
			if err != nil {
				return nil, fmt.Errorf("publish the campaign of vouchers: %w", err)
			}
			published = nil
			d.site.allowKills()
		case <-d.site.people:
			c, err := d.addPeople(ctx)
			if err != nil {
				return nil, err
			}
			campaigns = append(campaigns, c)
			if published == nil {
				d.site.allowKills()
			}
		case <-time.After(demoPoll):
		case err := <-d.site.lost:
			return nil, err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// progress shows the progress of a campaign, and reports whether nothing of it is open.
// While the instance is down, everything is.
func (d *demoRun) progress(ctx context.Context, c *campaign, show Screen) (done bool, err error) {
	kills, _ := d.site.disturbance()
	p, err := d.client.Promotion(ctx, c.id)
	if now, up := d.site.disturbance(); err != nil && (now != kills || !up) {
		return false, nil
	}
	if problem, ok := errors.AsType[*client.Problem](err); ok && problem.Status == 404 {
		return false, nil // its Kafka records are not read yet
	}
	if err != nil {
		return false, fmt.Errorf("read the campaign %s: %w", c.title, err)
	}
	show.Update(c.title, p.Counts.Done(), int64(c.targets))
	return p.Status == "COMPLETED" && p.Counts.Unknown == 0, nil
}

// report prints the books of both sides and the verdicts.
func (d *demoRun) report(ctx context.Context, campaigns []*campaign, took time.Duration) {
	w := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, cell func(c *campaign) any) {
		_, _ = fmt.Fprintf(w, "%s\t", name)
		for _, c := range campaigns {
			_, _ = fmt.Fprintf(w, "%v\t", cell(c))
		}
		_, _ = fmt.Fprintln(w)
	}
	d.say("")
	row("", func(c *campaign) any { return c.title })
	row("lines or records sent", func(c *campaign) any {
		return number(int64(c.workload.Good + c.workload.Bad + c.workload.Repeat))
	})
	row("accepted", func(c *campaign) any { return number(c.account.Promotion.TotalCount) })
	row("repeated", func(c *campaign) any { return number(int64(c.workload.Repeat)) })
	row("rejected", func(c *campaign) any { return number(int64(c.workload.Bad)) })
	row("succeeded", func(c *campaign) any { return number(c.account.Promotion.Counts.Succeeded) })
	row("failed (refused)", func(c *campaign) any { return number(c.account.Promotion.Counts.Failed) })
	row("attempts", func(c *campaign) any { return number(c.account.Attempts) })
	row("amount paid, Largesse's books", func(c *campaign) any { return number(c.account.Promotion.AmountSucceeded) })
	row("amount paid, provider's books", func(c *campaign) any { return number(c.account.Charged) })
	row("charges, provider's books", func(c *campaign) any { return number(c.account.Charges) })
	_ = w.Flush()

	stats := d.sim.Stats()
	d.say("\nThe provider received %s, %s of them for a key that it had already charged.",
		countOf(stats.Requests, "request"), number(stats.DuplicateKeys))
	d.reasons(campaigns)
	d.say("\nInvariants")
	d.judged(d.verdicts(ctx, campaigns))
	var paid int64
	for _, c := range campaigns {
		paid += c.account.Promotion.Counts.Succeeded
	}
	d.say("\nPaid %s in %.1f s.", countOf(paid, "target"), took.Seconds())
	d.result.Seconds = took.Seconds()
	for _, c := range campaigns {
		d.result.Campaigns = append(d.result.Campaigns, c.result())
	}
}

// judged prints verdicts and stores them.
func (d *demoRun) judged(verdicts []Verdict) {
	for _, v := range verdicts {
		d.say("  %s  %s (%s)", v.Mark(), v.Invariant, v.Detail)
	}
	d.result.Invariants = append(d.result.Invariants, verdicts...)
}

// DemoResult is the result of the demo, for scripts.
type DemoResult struct {
	Balanced   bool             `json:"balanced"`
	Seconds    float64          `json:"seconds"` // time of the payouts
	Campaigns  []CampaignResult `json:"campaigns"`
	Drop       DropResult       `json:"drop"`
	Invariants []Verdict        `json:"invariants"`
	Server     string           `json:"server,omitempty"` // with --keep
}

// CampaignResult holds the books of one campaign on both sides.
type CampaignResult struct {
	Title         string         `json:"title"`
	ID            string         `json:"id"`
	Accepted      int64          `json:"accepted"`
	Repeated      int            `json:"repeated"`
	Rejected      int            `json:"rejected"`
	Rejects       map[string]int `json:"rejects"` // by code
	Succeeded     int64          `json:"succeeded"`
	Failed        int64          `json:"failed"`
	Attempts      int64          `json:"attempts"`
	AmountPaid    int64          `json:"amountPaid"`
	AmountCharged int64          `json:"amountCharged"` // by the provider's ledger
	Charges       int64          `json:"charges"`       // by the provider's ledger
}

func (c *campaign) result() CampaignResult {
	p := c.account.Promotion
	return CampaignResult{
		Title: c.title, ID: c.id, Accepted: p.TotalCount, Repeated: c.workload.Repeat, Rejected: c.workload.Bad, Rejects: c.workload.Rejects,
		Succeeded: p.Counts.Succeeded, Failed: p.Counts.Failed, Attempts: c.account.Attempts,
		AmountPaid: p.AmountSucceeded, AmountCharged: c.account.Charged, Charges: c.account.Charges,
	}
}

// reasons prints why lines and records were rejected.
func (d *demoRun) reasons(campaigns []*campaign) {
	d.say("\nRejected, by reason")
	for _, c := range campaigns {
		codes := make([]string, 0, len(c.workload.Rejects))
		for code, n := range c.workload.Rejects {
			if n > 0 {
				codes = append(codes, code+" "+number(int64(n)))
			}
		}
		slices.Sort(codes)
		if len(codes) == 0 {
			codes = []string{"none"}
		}
		d.say("  %s: %s", c.title, strings.Join(codes, ", "))
		if c.upload == nil {
			continue
		}
		for i, e := range c.upload.Errors {
			if i == 3 {
				if d.Keep {
					d.say("    … all of them: %s", c.upload.ReportURL)
				} else {
					d.say("    … run with --keep to read all of them")
				}
				break
			}
			d.say("    line %d: %s: %s", e.Line, e.Code, e.Detail)
		}
	}
}

// titled returns the invariants of each campaign.
func titled(campaigns []*campaign) []Verdict {
	var out []Verdict
	for _, c := range campaigns {
		for _, v := range c.account.Verdicts {
			v.Invariant = c.title + ": " + v.Invariant
			out = append(out, v)
		}
	}
	return out
}

// verdicts returns the invariants of both campaigns and of the rejections.
func (d *demoRun) verdicts(ctx context.Context, campaigns []*campaign) []Verdict {
	out := titled(campaigns)
	points, vouchers := campaigns[0], campaigns[1]
	out = append(out, Verdict{
		Invariant: "all invalid lines are rejected, and no others",
		Holds:     points.upload.Rejected == int64(points.workload.Bad) && points.upload.Duplicates == int64(points.workload.Repeat),
		Detail:    fmt.Sprintf("rejected %d of %d, repeated %d of %d", points.upload.Rejected, points.workload.Bad, points.upload.Duplicates, points.workload.Repeat),
	})
	dead, err := d.countDeadLetters(ctx)
	dead -= d.deadLetters
	return append(out, Verdict{
		Invariant: "all malformed records are dead letters, and no others",
		Holds:     err == nil && dead == vouchers.workload.Bad,
		Detail:    fmt.Sprintf("%d of %d", dead, vouchers.workload.Bad),
	})
}

func (d *demoRun) countDeadLetters(ctx context.Context) (int, error) {
	n := 0
	for _, err := range d.client.DeadLetters(ctx, client.DeadLetterFilter{}) {
		if err != nil {
			return 0, fmt.Errorf("count the dead letters: %w", err)
		}
		n++
	}
	return n, nil
}
