package lab

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/reward"
)

// PayoutBench measures payouts per second, compared with a bare pipeline of the same commands.
type PayoutBench struct {
	Targets     int // in the file
	SlowTargets int // paid through the slow provider; 0: that run is skipped
}

const (
	slowLatency = 200 * time.Millisecond
	slowOpen    = 2000
)

// Run measures.
func (p PayoutBench) Run(ctx context.Context, b Bench) (f Figures, err error) {
	err = b.run(ctx, false, func(s *stage) error { return p.measure(ctx, s, &f) })
	return f, err
}

func (p PayoutBench) measure(ctx context.Context, s *stage, f *Figures) error {
	fast, err := p.pay(ctx, s, "fast", p.Targets, &provider{})
	if err != nil {
		return err
	}
	took, err := p.payBare(ctx, s)
	if err != nil {
		return err
	}
	uploaded, copied, err := p.load(ctx, s)
	if err != nil {
		return err
	}
	f.note("machine", fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version()))
	f.add("targets", float64(p.Targets), number(int64(p.Targets))+" from a file, provider in this process")
	f.add("engine, from upload to the last final row", fast.rate, fmt.Sprintf("%.1f s, %s payouts/s", fast.took.Seconds(), number(int64(fast.rate))))
	bareRate := float64(p.Targets) / took.Seconds()
	f.add("bare pipeline of the same commands", bareRate, fmt.Sprintf("%.1f s, %s payouts/s", took.Seconds(), number(int64(bareRate))))
	f.add("ratio", fast.rate/bareRate, fmt.Sprintf("%.2f (at least 0.40)", fast.rate/bareRate))
	f.add("upload of the file to a draft", float64(p.Targets)/uploaded.Seconds(), fmt.Sprintf("%.1f s", uploaded.Seconds()))
	f.add("COPY of the same rows into the table of the bare pipeline", float64(p.Targets)/copied.Seconds(), fmt.Sprintf("%.1f s", copied.Seconds()))
	f.add("upload ÷ COPY", copied.Seconds()/uploaded.Seconds(), fmt.Sprintf("%.2f", copied.Seconds()/uploaded.Seconds()))
	f.add("peak memory of the process", float64(fast.memory), number(fast.memory>>20)+" MB (under 300)")
	f.add("peak entries in Redis", float64(fast.entries),
		fmt.Sprintf("%s (max-len %s)", number(fast.entries), number(int64(config.Default().Redis.Stream.MaxLen))))
	f.correct("correct", fast.verdict, fast.correct)
	if p.SlowTargets == 0 {
		return nil
	}
	through := &provider{latency: slowLatency, total: int64(p.SlowTargets)}
	slow, err := p.pay(ctx, s, "slow", p.SlowTargets, through)
	if err != nil {
		return err
	}
	ideal, rate := slowOpen/slowLatency.Seconds(), through.middleRate()
	f.add(fmt.Sprintf("provider of %v, %s calls in flight", slowLatency, number(through.openMax.Load())), rate,
		fmt.Sprintf("%s payouts/s between 10 and 90 %% of %s", number(int64(rate)), number(int64(p.SlowTargets))))
	f.add("share of in flight ÷ latency", rate/ideal, fmt.Sprintf("%.2f (at least 0.90)", rate/ideal))
	f.correct("correct with the slow provider", slow.verdict, slow.correct)
	return nil
}

// load measures the time to upload the file, and to copy the same rows.
func (p PayoutBench) load(ctx context.Context, s *stage) (uploaded, copied time.Duration, err error) {
	all, stop, err := s.start(ctx, "upload", 1, &provider{}, func(*config.Config) {})
	if err != nil {
		return 0, 0, err
	}
	defer stop()
	api, err := client.New("http://"+all[0].Addr(), client.Options{})
	if err != nil {
		return 0, 0, err
	}
	file, _, err := s.targets(p.Targets)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = file.Close() }()
	made, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "Bench upload", Type: "POINT"})
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if _, err := api.UploadTargets(ctx, made.ID, file, client.UploadOptions{}); err != nil {
		return 0, 0, err
	}
	uploaded = time.Since(began)
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return 0, 0, err
	}
	copied, err = Bare{PostgresURL: s.database}.Copy(ctx, file)
	return uploaded, copied, err
}

// payRun holds the measurements of one run of the engine.
type payRun struct {
	took    time.Duration // from the first uploaded byte to the last final row
	rate    float64       // payouts per second in that time
	correct bool
	verdict string
	peaks
}

// pay uploads first with a slow provider: it measures the provider's share, not the upload.
func (p PayoutBench) pay(ctx context.Context, s *stage, run string, targets int, through *provider) (res payRun, err error) {
	all, stop, err := s.start(ctx, run, 1, through, func(cfg *config.Config) {
		if cfg.Redis.Stream.InFlightPerConsumer = 64; through.latency > 0 {
			cfg.Redis.Stream.InFlightPerConsumer = slowOpen / 16
		}
	})
	if err != nil {
		return res, err
	}
	defer stop()
	file, workload, err := s.targets(targets)
	if err != nil {
		return res, err
	}
	defer func() { _ = file.Close() }()
	api, err := client.New("http://"+all[0].Addr(), client.Options{})
	if err != nil {
		return res, err
	}
	made, err := api.CreatePromotion(ctx, client.NewPromotion{Name: "Bench " + run, Type: "POINT"})
	if err != nil {
		return res, err
	}
	id, err := reward.ParsePromotionID(made.ID)
	if err != nil {
		return res, err
	}
	watching, stopWatch := context.WithCancel(ctx)
	seen := make(chan peaks, 1)
	go func() { seen <- watchPeaks(watching, all[0].Queue(), id) }()
	defer stopWatch()
	began := time.Now()
	upload := func() error {
		_, err := api.UploadTargets(ctx, made.ID, file, client.UploadOptions{})
		return err
	}
	if through.latency > 0 {
		err = upload()
	}
	if err == nil {
		_, err = api.StartPromotion(ctx, made.ID)
	}
	if err == nil && through.latency == 0 {
		err = upload()
	}
	if err != nil {
		return res, err
	}
	last, correct, detail, err := s.settled(ctx, run, api, all[0], made.ID, workload, through)
	if err != nil {
		return res, err
	}
	stopWatch()
	res.peaks, res.correct, res.verdict = <-seen, correct, "every target was paid once: "+detail
	if !correct {
		res.verdict = "NO: " + detail
	}
	res.took = last.FinishedAt.Sub(began)
	res.rate = float64(targets) / res.took.Seconds()
	return res, nil
}

// payBare processes the same targets without any guarantee.
func (p PayoutBench) payBare(ctx context.Context, s *stage) (time.Duration, error) {
	file, _, err := s.targets(p.Targets)
	if err != nil {
		return 0, err
	}
	defer func() { _ = file.Close() }()
	return Bare{PostgresURL: s.database, RedisURL: s.Redis, Prefix: s.name + "-"}.Run(ctx, file, p.Targets)
}
