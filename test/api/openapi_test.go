//go:build ci

package api

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/lab/fleet"
	"github.com/largesse/largesse/test/instance"
)

// requirements pins all packages that pip installed for the newest schemathesis. To
// update it: python3 -m venv --without-pip env, pip --python env/bin/python install
// schemathesis, and pip --python env/bin/python freeze.
//
//go:embed schemathesis.txt
var requirements []byte

const (
	// unreadableTopic is where unreadable records become dead letters.
	unreadableTopic = "campaign-promotion-point-publish"
	// reported is the promotion whose upload has a report to read.
	reported = 2
	// unknown is the promotion with UNKNOWN payouts.
	unknown = 2700
)

// usedUp are operations that may never succeed here: the calls that replay or
// discard all dead letters can leave none for them, and the caller cannot approve
// promotions and templates that it has changed before. Without approval.above, no promotion
// waits for an approval. TestDeadLetterReplay, TestApprovals, TestAskApproval and
// TestQuantitiesNeedTwoPeople of internal/api cover their successful responses.
var usedUp = []string{
	"POST /v1/dead-letters/{id}/replay", "POST /v1/dead-letters/{id}/discard", "POST /v1/promotions/{id}/approve", "POST /v1/coupon-templates/{id}/approve",
	"POST /v1/promotions/{id}/ask-approval",
}

// TestOpenAPI compares a running instance with its own OpenAPI description.
// schemathesis sends requests that the description allows and requests that it does
// not allow; the description must contain every response. LARGESSE_SCHEMATHESIS_SEED
// and LARGESSE_SCHEMATHESIS_EXAMPLES replace the values of schemathesis.toml.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	install := fixture.Must(fleet.NewInstaller(t.Output()))(t)
	python := fixture.Must(install.PythonWith(t.Context(), "schemathesis", requirements))(t)
	// Without webhook.secret nothing calls the invented webhook addresses.
	in := instance.Start(t, map[string]string{"approval.codes-above": "100000"})
	upload := seed(t, in)
	stop := in.KeepPublishing(unreadableTopic, "unreadable \xff") // so that there is always an open dead letter
	report, output, err := schemathesis(t, python, in, upload)
	if err := stop(); err != nil {
		t.Errorf("publishing unreadable records: %v", err)
	}
	found := readReport(t, report, output, err)
	for _, name := range slices.Sorted(maps.Keys(found)) {
		t.Run(name, func(t *testing.T) {
			if found[name] != "" {
				t.Error(found[name])
			}
		})
	}
	balanced(t, in)
}

// schemathesis runs the tool, and returns its report and what it printed.
func schemathesis(t *testing.T, python string, in *instance.Instance, upload string) (report []byte, output []string, err error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"schemathesis.toml", "schemathesis_hooks.py"} {
		text := fixture.Must(os.ReadFile(name))(t)
		text = []byte(strings.ReplaceAll(string(text), "UPLOAD", upload))
		fixture.OK(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	args := []string{
		"-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run", in.URL + "/openapi.json", "--no-color",
		"--report", "json", "--report-json-path", "report.json", "--header", "Authorization: Bearer " + in.Token,
	}
	for variable, option := range map[string]string{"LARGESSE_SCHEMATHESIS_SEED": "--seed", "LARGESSE_SCHEMATHESIS_EXAMPLES": "--max-examples"} {
		if value := os.Getenv(variable); value != "" {
			args = append(args, option, value)
		}
	}
	err = fleet.Lines(t.Context(), dir, nil, func(line string) { output = append(output, line) }, python, args...)
	report, missing := os.ReadFile(filepath.Join(dir, "report.json"))
	if missing != nil {
		t.Fatalf("%v\n%s", errors.Join(err, missing), strings.Join(output, "\n"))
	}
	return report, output, err
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

// readReport returns what is wrong, by operation: "" is nothing. output is what
// schemathesis printed and runErr how it ended; what concerns the whole run has the name
// schemathesis.
func readReport(t *testing.T, report []byte, output []string, runErr error) map[string]string {
	t.Helper()
	var f found
	if err := json.Unmarshal(report, &f); err != nil {
		t.Fatalf("report of schemathesis: %v\n%s", err, report)
	}
	wrong := failedSections(output)
	if failed := len(wrong) > 0; (runErr != nil) != failed || !failed && len(f.Errors) > 0 {
		wrong["schemathesis"] += fmt.Sprintf("%d errors, end %v\n%s", len(f.Errors), runErr, fleet.Tail(strings.Join(output, "\n"), 50))
	}
	if !f.Complete || f.Operations.Tested == 0 || f.Operations.Tested != f.Operations.Total {
		wrong["schemathesis"] += fmt.Sprintf("it tested %d of %d operations; its reason to stop is %q", f.Operations.Tested, f.Operations.Total, f.StopReason)
	}
	for kind, warnings := range f.Warnings {
		for _, warning := range warnings {
			wrong["schemathesis"] += fmt.Sprintf("\nwarning %s: %s", kind, warning)
		}
	}
	for name, phases := range f.ValidRates {
		accepted := 0
		for _, phase := range phases {
			accepted += phase.Accepted
		}
		said := wrong[name]
		if accepted == 0 && !slices.Contains(usedUp, name) {
			// Without one, the successful responses of the operation are not tested.
			said += "no request of it succeeded; let seed create what it needs"
		}
		wrong[name] = said
	}
	return wrong
}

// Headers in the output of schemathesis.
var (
	partHeader    = regexp.MustCompile(`^=+ ([A-Z ]+) =+$`)
	sectionHeader = regexp.MustCompile(`^_+ (.+?) _+$`)
)

// failedSections returns the parts FAILURES and ERRORS of the output, by operation.
func failedSections(output []string) map[string]string {
	sections, part, name := map[string]string{}, "", ""
	for _, line := range output {
		if m := partHeader.FindStringSubmatch(line); m != nil {
			part, name = m[1], ""
		} else if part != "FAILURES" && part != "ERRORS" {
			continue
		} else if m := sectionHeader.FindStringSubmatch(line); m != nil {
			name = m[1]
			sections[name] += name + "\n"
		} else if name != "" {
			sections[name] += line + "\n"
		}
	}
	return sections
}

// seed fills the instance, and returns the ID of an upload with a report. The
// description's examples name the IDs 12345, 42 and u7; schemathesis.toml names those
// from 2000.
func seed(t *testing.T, in *instance.Instance) (upload string) {
	t.Helper()
	move := func(id int, moves ...string) {
		for _, m := range moves {
			in.Post(fmt.Sprintf("/v1/promotions/%d/%s", id, m), "")
		}
	}
	in.Promotion(in.Token, 12345, "POINT", "")
	in.Promotion(in.Token, 1, "POINT", `,"startsAt":"2100-01-01T00:00:00Z","canary":{"targets":1}`)
	m := regexp.MustCompile(`"uploadId":"(\d+)"`).FindStringSubmatch(in.Promotion(in.Token, reported, "VOUCHER", `,"voucherCode":"V-1000"`))
	if m == nil {
		t.Fatal("the upload has no ID")
	}
	move(reported, "start", "close")
	in.Await("/v1/promotions/2", `"status":"COMPLETED"`)
	// Announced with more targets than there are, a promotion stays RUNNING.
	started := []string{`{"promotionId":12345,"promotionType":"POINT","totalCount":100000}`}
	for n := range 5 {
		in.Promotion(in.Token, 2000+n, "POINT", "")                        // to start
		in.Promotion(in.Token, 2100+n, "POINT", "")                        // to delete
		in.Promotion(in.Maker, 2200+n, "POINT", "")                        // to approve
		in.Promotion(in.Token, 2300+n, "POINT", `,"weight":2`)             // to pause
		in.Promotion(in.Token, 2400+n, "POINT", "")                        // to resume
		move(2400+n, "start", "pause")                                     //
		in.Promotion(in.Token, 2500+n, "VOUCHER", `,"voucherCode":"V-10"`) // to cancel
		in.Promotion(in.Token, 2600+n, "POINT", "")                        // to close
		in.Promotion(in.Token, 2800+n, "POINT", "")                        // to reject
		started = append(started, fmt.Sprintf(`{"promotionId":%d,"promotionType":"POINT","totalCount":100000}`, 2300+n))
	}
	in.Publish("campaign-promotion-started", started...)
	in.Publish(unreadableTopic, "unreadable")
	in.Await("/v1/promotions/2304", `"status":"RUNNING".*"succeeded":[1-9]`)
	in.Await("/v1/dead-letters", `"status":"OPEN"`)
	in.UnknownPayouts(unknown)

	template := func(id int, more string, users ...string) {
		in.Post("/v1/coupon-templates", fmt.Sprintf(`{"id":%d,"name":"Drop %d"%s}`, id, id, more))
		for _, user := range users {
			in.Post(fmt.Sprintf("/v1/coupons/%d/issue", id), fmt.Sprintf(`{"userId":%q}`, user))
		}
	}
	for n := range 5 {
		in.Send(in.Maker, http.MethodPost, "/v1/coupon-templates", "application/json", fmt.Sprintf(`{"id":%d,"name":"To approve","totalQuantity":200000}`, 2900+n))
		template(3000+n, `,"totalQuantity":200000`) // to reject
	}
	template(42, `,"totalQuantity":1000,"perUserLimit":2`)
	var codes strings.Builder
	codes.WriteString("code\n")
	for n := range 1000 {
		fmt.Fprintf(&codes, "SUMMER-%d\n", n)
	}
	in.Send(in.Token, http.MethodPost, "/v1/coupon-templates/42/codes", "text/csv", codes.String())
	for _, user := range []string{"u1", "u2", "u7", "u7"} {
		in.Post("/v1/coupons/42/issue", fmt.Sprintf(`{"userId":%q}`, user))
	}
	template(43, `,"totalQuantity":10,"opensAt":"2100-01-01T00:00:00Z"`)
	template(44, `,"totalQuantity":10,"mode":"KAFKA"`, "u7")
	soon := time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339Nano)
	template(45, `,"totalQuantity":10,"opensAt":"`+soon+`","draw":{"from":"2000-01-01T00:00:00Z"}`, "u7", "u8")
	template(46, `,"totalQuantity":1,"mode":"SYNC","validForSeconds":1`, "u7")
	in.Await("/v1/coupon-templates/45", `"state":"DONE"`)
	template(47, `,"totalQuantity":100000,"perUserLimit":100,"mode":"KAFKA"`)
	leave(in, "/v1/coupons/47/issue", "/v1/issue-requests/47:leaver", "leaver")
	template(48, `,"totalQuantity":2`)
	in.Send(in.Token, http.MethodPost, "/v1/coupon-templates/48/codes", "text/csv", "code\nSPRING-1\nSPRING-2\n")
	in.Post("/v1/coupon-templates/44/close", "")
	in.Post("/v1/reconciliations", `{"promotionId":2}`)
	return m[1]
}

// leave makes a request of a user and lets the user leave the waiting line. It repeats
// both until the request was still in line.
func leave(in *instance.Instance, issue, request, user string) {
	for {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			in.Call(in.Token, http.MethodPost, issue, "application/json", fmt.Sprintf(`{"userId":%q}`, user))
		}()
		for waits := true; waits; {
			if status, _ := in.Call(in.Token, http.MethodDelete, request, "", ""); status < http.StatusBadRequest {
				<-answered
				return
			}
			select {
			case <-answered:
				waits = false
			default:
			}
		}
	}
}

// balanced expects that the books balance. It ignores the promotion with UNKNOWN payouts,
// which schemathesis resolves with invented outcomes.
func balanced(t *testing.T, in *instance.Instance) {
	t.Helper()
	answer := in.Post("/v1/reconciliations", "{}")
	var report struct {
		Checked int `json:"checked"`
		Drifts  []struct {
			PromotionID string `json:"promotionId"`
		} `json:"drifts"`
	}
	if err := json.Unmarshal([]byte(answer), &report); err != nil {
		t.Fatalf("%v: %s", err, answer)
	}
	for _, d := range report.Drifts {
		if d.PromotionID != strconv.Itoa(unknown) {
			t.Errorf("the books of promotion %s do not balance: %s", d.PromotionID, answer)
		}
	}
	if report.Checked == 0 {
		t.Errorf("the reconciliation compared no promotion: %s", answer)
	}
}
