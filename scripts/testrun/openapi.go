package main

import (
	"bytes"
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
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// schemathesisFiles configure the checks and give the reason for each exception.
//
//go:embed schemathesis.toml schemathesis_hooks.py
var schemathesisFiles embed.FS

// openapiTimeout limits the suite, which takes a third of it.
const openapiTimeout = 24 * time.Minute

// openapi compares a running instance with its own OpenAPI description.
// schemathesis sends requests that the description allows and requests that it
// does not allow; the description must contain every response.
func openapi(ctx context.Context, r runner, res *result) {
	ctx, cancel := context.WithTimeout(ctx, openapiTimeout)
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
	res.pass()
	stopPublishing := target.keepPublishing(ctx)
	judge(ctx, r, res, tool, dir, target)
	if err := stopPublishing(); err != nil {
		res.fail("publishing unreadable records", err.Error())
	}
	if err := target.ended(); err != nil {
		res.fail("instance", err.Error()+"\n"+target.log.text())
		return
	}
	if err := target.balanced(ctx); err != nil {
		res.fail("books afterwards", err.Error()+"\n"+target.log.text())
		return
	}
	res.pass()
}

// usedUp are operations that may never succeed here: the calls that replay or
// discard all dead letters can leave none for them, and the caller cannot approve
// promotions that it has changed before. TestDeadLetterReplay and TestApprovals of
// internal/api cover their successful responses.
var usedUp = []string{"POST /v1/dead-letters/{id}/replay", "POST /v1/dead-letters/{id}/discard", "POST /v1/promotions/{id}/approve"}

// judge runs schemathesis. An operation without a finding passes.
func judge(ctx context.Context, r runner, res *result, tool []string, dir string, target *instance) {
	report := filepath.Join(dir, "report.json")
	settings := filepath.Join(dir, "schemathesis.toml")
	err := os.CopyFS(dir, schemathesisFiles)
	if err == nil {
		err = fillIn(settings, "UPLOAD", target.uploadID)
	}
	if err != nil {
		res.fail("schemathesis.toml", err.Error())
		return
	}
	args := slices.Concat(tool[1:], []string{
		"--config-file", settings, "run", target.server + "/openapi.json", "--no-color",
		"--report", "json", "--report-json-path", report, "--header", "Authorization: Bearer " + target.token,
	})
	if r.seed != 0 {
		args = append(args, "--seed", strconv.Itoa(r.seed))
	}
	var output []string
	err = fleet.Lines(ctx, dir, nil, func(line string) {
		if output = append(output, line); r.verbose {
			fmt.Fprintln(r.out, line)
		}
	}, tool[0], args...)
	text, readErr := os.ReadFile(report)
	if readErr != nil {
		res.fail("schemathesis", fmt.Sprintf("%v\n%s", errors.Join(err, readErr), strings.Join(keepEnds(output), "\n")))
		return
	}
	readReport(res, text, output, err)
}

// fillIn replaces a word in a file.
func fillIn(file, word, with string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, bytes.ReplaceAll(text, []byte(word), []byte(with)), 0o600)
}

// found is the part of schemathesis's report that readReport uses.
type found struct {
	Complete   bool   `json:"complete"`
	StopReason string `json:"stop_reason"`
	Operations struct {
		Total  int `json:"total"`
		Tested int `json:"tested"`
	} `json:"operations"`
	Errors   []json.RawMessage            `json:"errors"`
	Warnings map[string][]json.RawMessage `json:"warnings"`
	// ValidRates counts, by operation and phase, the responses to requests that the
	// description allows.
	ValidRates map[string]map[string]struct {
		Accepted int `json:"accepted"`
	} `json:"valid_rates"`
}

// readReport counts the findings of a report. output is what schemathesis printed
// and runErr how it ended.
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
	ends := strings.Join(keepEnds(output), "\n")
	if runErr != nil && len(sections) == 0 || runErr == nil && (len(sections) > 0 || len(f.Errors) > 0) {
		res.fail("schemathesis", fmt.Sprintf("%d errors, end %v\n%s", len(f.Errors), runErr, ends))
	}
	if !f.Complete || f.Operations.Tested == 0 || f.Operations.Tested != f.Operations.Total {
		res.fail("schemathesis", fmt.Sprintf("it tested %d of %d operations; its reason to stop is %q\n%s", f.Operations.Tested, f.Operations.Total, f.StopReason, ends))
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
			// Without one, the successful responses of the operation are not tested.
			res.fail(name, "no request of it succeeded; let seed create what it needs")
			continue
		}
		if !slices.ContainsFunc(res.failures, func(f failure) bool { return f.name == name }) {
			res.pass()
		}
	}
}

// Headers in the output of schemathesis.
var (
	partHeader    = regexp.MustCompile(`^=+ ([A-Z ]+) =+$`)
	sectionHeader = regexp.MustCompile(`^_+ (.+?) _+$`)
)

// failedSections returns the parts FAILURES and ERRORS of the output, by
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
