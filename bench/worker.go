package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// inFlight is how many calls to the provider every engine may have in flight.
const inFlight = 2048

// job is what a worker process does. It gets it as JSON in its arguments.
type job struct {
	Engine          string
	Database, Redis string
	Dir             string // has the file of targets and the ledger, and stays when the worker is killed
	Targets         int
	Promotions      int           // that share the targets
	Delay           time.Duration // of the provider
	LosesReplies    bool          // the provider loses the reply to one charge in 100
	LoadsFirst      bool          // all targets are loaded before the first is paid
	Resumed         bool          // an earlier worker loaded the targets and was killed
}

const begun = "begun" // what a worker prints when it begins

func (j job) ledgerFile() string { return filepath.Join(j.Dir, "ledger") }

// targetsFile returns the path of the targets of a promotion. The first is 0.
func (j job) targetsFile(promotion int) string {
	return filepath.Join(j.Dir, fmt.Sprintf("targets-%d.csv", promotion))
}

// workerMain is the main function of a worker process. Its first argument is "prepare", which
// creates tables and queues, or "work", which pays the targets and continues until it is killed.
func workerMain(ctx context.Context, args []string) error {
	var j job
	if err := json.Unmarshal([]byte(args[1]), &j); err != nil {
		return err
	}
	e, err := engineNamed(j.Engine)
	if err != nil {
		return err
	}
	if args[0] == "prepare" {
		return e.prepare(ctx, j)
	}
	p, err := newProvider(j)
	if err != nil {
		return err
	}
	return e.work(ctx, j, p)
}

// run loads the targets and works, at once or one after the other.
func (j job) run(ctx context.Context, load, work func(context.Context) error) error {
	fmt.Println(begun)
	switch {
	case j.Resumed:
		return work(ctx)
	case j.LoadsFirst:
		if err := load(ctx); err != nil {
			return err
		}
		return work(ctx)
	}
	ended := make(chan error, 2)
	go func() {
		if err := load(ctx); err != nil {
			ended <- err
		}
	}()
	go func() { ended <- work(ctx) }()
	return <-ended
}

// target is a line of the file.
type target struct {
	ID     int64
	User   string
	Amount int64
}

// writeTargets writes the files of targets. Their IDs are from 1 to j.Targets.
func (j job) writeTargets() error {
	each := j.Targets / j.Promotions
	for i := range j.Promotions {
		if err := writeTargets(j.targetsFile(i), i*each+1, (i+1)*each); err != nil {
			return err
		}
	}
	return nil
}

func writeTargets(path string, first, last int) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	fmt.Fprintln(w, "targetId,userId,amount")
	for i := first; i <= last; i++ {
		fmt.Fprintf(w, "%d,user-%d,%d\n", i, i, 100+i%900)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return file.Close()
}

// eachBatch passes the targets of the file on in batches of up to 1,000.
func (j job) eachBatch(pass func([]target) error) error {
	file, err := os.Open(j.targetsFile(0))
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Scan() // header
	for {
		batch, err := readBatch(lines)
		if err != nil || len(batch) == 0 {
			return err
		}
		if err := pass(batch); err != nil {
			return err
		}
	}
}

func readBatch(lines *bufio.Scanner) (batch []target, err error) {
	for len(batch) < 1000 && lines.Scan() {
		cells := strings.Split(lines.Text(), ",")
		t := target{User: cells[1]}
		if t.ID, err = strconv.ParseInt(cells[0], 10, 64); err != nil {
			return nil, err
		}
		if t.Amount, err = strconv.ParseInt(cells[2], 10, 64); err != nil {
			return nil, err
		}
		batch = append(batch, t)
	}
	return batch, lines.Err()
}

// eachTarget calls pass for each target of the file, for many at a time: a client that adds
// one entry per round trip is fast only this way.
func (j job) eachTarget(ctx context.Context, atOnce int, pass func(target) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	targets := make(chan target, atOnce)
	done := make(chan struct{})
	for range atOnce {
		go func() {
			defer func() { done <- struct{}{} }()
			for t := range targets {
				if err := pass(t); err != nil {
					cancel(err)
				}
			}
		}()
	}
	err := j.eachBatch(func(batch []target) error {
		for _, t := range batch {
			select {
			case targets <- t:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	close(targets)
	for range atOnce {
		<-done
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}
