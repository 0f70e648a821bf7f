package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// schemathesisFiles say what is checked, how long, and what is not, and why.
//
//go:embed schemathesis.toml schemathesis_hooks.py
var schemathesisFiles embed.FS

const (
	// openapiWait bounds the whole of it; it takes a third of that.
	openapiWait = 10 * time.Minute
)

// openapi holds a running instance against its own description: schemathesis
// sends what the description allows and what it does not, and every answer has
// to be one that is described.
func openapi(ctx context.Context, r runner, res *result) {
	ctx, cancel := context.WithTimeout(ctx, openapiWait)
	defer cancel()
	dir, err := os.MkdirTemp("", "largesse-openapi-")
	if err != nil {
		res.fail("folder", err.Error())
		return
	}
	defer os.RemoveAll(dir)
	in, err := fleet.NewInstaller(r.out)
	if err != nil {
		res.fail("install", err.Error())
		return
	}
	tool, err := in.Schemathesis(ctx)
	if err != nil {
		res.fail("install schemathesis", err.Error())
		return
	}
	target, err := startInstance(ctx, r.root, dir)
	if err != nil {
		res.fail("start an instance", err.Error())
		return
	}
	defer target.stop()
	if err := target.seed(ctx); err != nil {
		res.fail("seed the instance", err.Error()+"\n"+target.log.text())
		return
	}
	res.passed++
	r.progress.update(res)
	stopPublishing := target.keepPublishing(ctx)
	judge(ctx, r, res, tool, dir, target)
	if err := stopPublishing(); err != nil {
		res.fail("records that nobody can read", err.Error())
	}
	if err := target.ended(); err != nil {
		res.fail("instance", err.Error()+"\n"+target.log.text())
		return
	}
	if err := target.balanced(ctx); err != nil {
		res.fail("books afterwards", err.Error()+"\n"+target.log.text())
		return
	}
	res.passed++
}

// usedUp are operations that may find nothing left to do: a call of
// /v1/dead-letters/replay or discard settles every dead letter at once, and comes
// when it comes. TestDeadLetterReplay of internal/api sees their good answers.
var usedUp = []string{"POST /v1/dead-letters/{id}/replay", "POST /v1/dead-letters/{id}/discard"}

// judge runs schemathesis and counts an operation as passed when nothing was
// found about it.
func judge(ctx context.Context, r runner, res *result, tool []string, dir string, target *instance) {
	report := filepath.Join(dir, "report.json")
	if err := os.CopyFS(dir, schemathesisFiles); err != nil {
		res.fail("schemathesis.toml", err.Error())
		return
	}
	args := slices.Concat(tool[1:], []string{
		"--config-file", filepath.Join(dir, "schemathesis.toml"), "run", target.server + "/openapi.json", "--no-color",
		"--report", "json", "--report-json-path", report, "--header", "Authorization: Bearer " + target.token,
	})
	var output []string
	err := fleet.Lines(ctx, dir, nil, func(line string) {
		if output = append(output, line); r.verbose {
			fmt.Fprintln(r.out, line)
		}
		r.progress.update(res)
	}, tool[0], args...)
	text, readErr := os.ReadFile(report)
	if readErr != nil {
		res.fail("schemathesis", fmt.Sprintf("%v\n%s", errors.Join(err, readErr), strings.Join(keepTail(output), "\n")))
		return
	}
	readReport(res, text, output, err)
}

// found is what is read of schemathesis's report.
type found struct {
	Complete   bool   `json:"complete"`
	StopReason string `json:"stop_reason"`
	Operations struct {
		Total  int `json:"total"`
		Tested int `json:"tested"`
	} `json:"operations"`
	Errors   []json.RawMessage            `json:"errors"`
	Warnings map[string][]json.RawMessage `json:"warnings"`
	// ValidRates counts, by operation and phase, what became of requests that
	// the description allows.
	ValidRates map[string]map[string]struct {
		Accepted int `json:"accepted"`
	} `json:"valid_rates"`
}

// readReport counts what a report says; text is what was printed.
func readReport(res *result, report []byte, output []string, runErr error) {
	var f found
	if err := json.Unmarshal(report, &f); err != nil {
		res.fail("report of schemathesis", fmt.Sprintf("%v\n%s", err, report))
		return
	}
	sections := failedSections(output)
	for _, s := range sections {
		res.fail(s.name, s.output)
	}
	tail := strings.Join(keepTail(output), "\n")
	if runErr != nil && len(sections) == 0 || runErr == nil && (len(sections) > 0 || len(f.Errors) > 0) {
		res.fail("schemathesis", fmt.Sprintf("%d errors, end %v\n%s", len(f.Errors), runErr, tail))
	}
	if !f.Complete || f.Operations.Tested == 0 || f.Operations.Tested != f.Operations.Total {
		res.fail("schemathesis", fmt.Sprintf("it tested %d of %d operations and says %q\n%s", f.Operations.Tested, f.Operations.Total, f.StopReason, tail))
	}
	for _, kind := range slices.Sorted(maps.Keys(f.Warnings)) {
		for _, warning := range f.Warnings[kind] {
			res.fail("warning "+kind, string(warning))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.ValidRates)) {
		accepted := 0
		for _, phase := range f.ValidRates[name] {
			accepted += phase.Accepted
		}
		if accepted == 0 && !slices.Contains(usedUp, name) {
			// An operation of which only refusals are seen is not tested.
			res.fail(name, "no request of it was ever accepted, so its good answers were not seen; seed what it needs")
			continue
		}
		if !slices.ContainsFunc(res.failures, func(f failure) bool { return f.name == name }) {
			res.passed++
		}
	}
}

// header of a section of what schemathesis prints.
var (
	partHeader    = regexp.MustCompile(`^=+ ([A-Z ]+) =+$`)
	sectionHeader = regexp.MustCompile(`^_+ (.+?) _+$`)
)

// failedSections are the parts FAILURES and ERRORS of what was printed, by
// operation.
func failedSections(output []string) []failure {
	var sections []failure
	part := ""
	for _, line := range output {
		if m := partHeader.FindStringSubmatch(line); m != nil {
			part = m[1]
			continue
		}
		if part != "FAILURES" && part != "ERRORS" {
			continue
		}
		if m := sectionHeader.FindStringSubmatch(line); m != nil {
			sections = append(sections, failure{name: m[1]})
		} else if n := len(sections); n > 0 {
			sections[n-1].output += line + "\n"
		}
	}
	return sections
}
