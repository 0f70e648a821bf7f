package house

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

// A mermaidLine matches the lines that one kind of Mermaid diagram may have. Our
// diagrams use a small part of the language, and the check knows no more.
var mermaidLines = map[string][]*regexp.Regexp{
	"stateDiagram-v2": {
		regexp.MustCompile(`^state "[^"]+" as \w+$`),
		stateEdge,
	},
	"sequenceDiagram": {
		regexp.MustCompile(`^participant \w+ as [^:;]+$`),
		regexp.MustCompile(`^\w+(->>|-->>)\w+: [^;#]+$`),
		regexp.MustCompile(`^Note (over|left of|right of) \w+(,\w+)?: [^;#]+$`),
		regexp.MustCompile(`^(alt|loop|opt|else) [^;#]+$`),
		regexp.MustCompile(`^end$`),
	},
	"flowchart LR": {regexp.MustCompile(`^` + flowNode + `( (-->|-- [^-]+ -->|-\. [^-]+ \.->) ` + flowNode + `)*$`)},
}

const flowNode = `\w+(\[\[[^\[\]]+\]\]|\[\([^()]+\)\]|\[[^\[\]()]+\]|\["[^"]+"\]|\{\{"[^"]+"\}\}|\{\{[^{}"]+\}\})?`

var stateEdge = regexp.MustCompile(`^(\[\*\]|\w+) --> (\[\*\]|\w+)(?:: [^:;]+)?$`)

// mermaid returns the diagrams of a page, each with its lines.
func mermaid(page string) [][]string {
	var all [][]string
	inside := false
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		switch {
		case line == "```mermaid":
			all, inside = append(all, nil), true
		case line == "```":
			inside = false
		case inside && line != "":
			all[len(all)-1] = append(all[len(all)-1], line)
		}
	}
	return all
}

// wrongInDiagram returns what is wrong with a diagram: lines that its kind does
// not have, and blocks without an end.
func wrongInDiagram(lines []string) []string {
	if len(lines) < 2 || mermaidLines[lines[0]] == nil {
		return []string{fmt.Sprintf("%q is no diagram of a kind that the check knows", lines)}
	}
	var wrong []string
	open := 0
	for _, line := range lines[1:] {
		if !slices.ContainsFunc(mermaidLines[lines[0]], func(r *regexp.Regexp) bool { return r.MatchString(line) }) {
			wrong = append(wrong, fmt.Sprintf("%q is no line of a %s", line, lines[0]))
		}
		switch word, _, _ := strings.Cut(line, " "); word {
		case "alt", "loop", "opt":
			open++
		case "end":
			open--
		}
	}
	if open != 0 {
		wrong = append(wrong, fmt.Sprintf("%d blocks have no end", open))
	}
	return wrong
}

// TestDiagrams checks that the Mermaid diagrams of all pages can be drawn.
func TestDiagrams(t *testing.T) {
	t.Parallel()
	found := map[string]int{}
	proseFiles(t, func(page string, text []byte) {
		if filepath.Ext(page) != ".md" {
			return
		}
		for i, diagram := range mermaid(string(text)) {
			for _, wrong := range wrongInDiagram(diagram) {
				t.Errorf("%s, diagram %d: %s", page, i+1, wrong)
			}
			if len(diagram) > 0 {
				found[diagram[0]]++
			}
		}
	})
	for kind := range mermaidLines {
		if found[kind] < 3 {
			t.Errorf("only %d diagrams of the kind %s were found", found[kind], kind)
		}
	}
}

// edges returns the edges of the first state diagram below a heading, without
// their labels.
func edges(t *testing.T, page, heading string) map[string]bool {
	t.Helper()
	text := fixture.Must(os.ReadFile(page))(t)
	_, below, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found || len(mermaid(below)) == 0 {
		t.Fatalf("%s has no diagram below %s", page, heading)
	}
	all := map[string]bool{}
	for _, line := range mermaid(below)[0] {
		if match := stateEdge.FindStringSubmatch(line); match != nil {
			all[match[1]+" --> "+match[2]] = true
		}
	}
	return all
}

// sameEdges reports edges that only the page or only the code has.
func sameEdges(t *testing.T, page, code map[string]bool) {
	t.Helper()
	for edge := range page {
		if !code[edge] {
			t.Errorf("the diagram has %s, the rules do not", edge)
		}
	}
	for edge := range code {
		if !page[edge] {
			t.Errorf("the rules have %s, the diagram does not", edge)
		}
	}
}

var both = []bool{false, true}

// TestDiagramOfPayouts compares the diagram of the states of a payout with what
// the rules do to each state.
func TestDiagramOfPayouts(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	// Saving and dispatching are statements of the stores.
	code := map[string]bool{
		"[*] --> READY": true, "[*] --> QUEUED": true, "[*] --> CANCELLED": true, "READY --> QUEUED": true, "RETRYING --> QUEUED": true,
	}
	note := func(from, to rules.Row) {
		if from.State != to.State {
			code[from.State.String()+" --> "+to.State.String()] = true
		}
	}
	for state := reward.Ready; state <= reward.Cancelled; state++ {
		for _, status := range []reward.PromotionStatus{reward.Running, reward.PromotionCancelled} {
			p := reward.Promotion{Status: status, MaxRetries: 1}
			for _, called := range both {
				row := rules.Row{Payout: reward.Payout{State: state, Dispatch: 1, MaybeCalled: called}}
				for kind := rules.OutcomePaid; kind <= rules.OutcomeCancelled; kind++ {
					for _, yes := range both {
						for _, tried := range []int32{0, 9} {
							row.Attempts = tried
							o := rules.Outcome{Ref: reward.Ref{Dispatch: 1}, Kind: kind, Sent: yes, GiveUp: yes, TransactionKey: "t"}
							next, _, _ := rules.Finish(row, o, p, time.Second, now)
							note(row, next)
						}
					}
				}
				for kind := rules.WithdrawReturn; kind <= rules.WithdrawCancel; kind++ {
					for _, yes := range both {
						w := rules.Withdrawal{Kind: kind, Dispatch: 1, Before: now, MaybeCalled: yes}
						next, _ := rules.Withdraw(row, w, p, time.Second, now)
						note(row, next)
					}
				}
				for _, yes := range both {
					l := rules.Lookup{Ref: reward.Ref{Dispatch: 1}, Found: yes, NotFound: !yes, TransactionKey: "t", BeganAt: now, NextAt: now}
					next, _, _ := rules.Settle(row, l, p, rules.Terms{}, now)
					note(row, next)
					if next, _, _, err := rules.Resolve(row, rules.Resolution{Paid: yes, TransactionKey: "t"}, now); err == nil {
						note(row, next)
					}
				}
				next, _ := rules.Retry(row, "", now)
				note(row, next)
			}
		}
	}
	sameEdges(t, edges(t, "docs/explanation/payouts.md", "States of a payout"), code)
}

// TestDiagramOfCoupons compares the edges between the states of a coupon with
// the rules.
func TestDiagramOfCoupons(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	page := edges(t, "docs/explanation/coupons.md", "States of a request and its coupon")
	code := map[string]bool{
		"none --> WAITING": true, "WAITING --> ISSUED": true, "WAITING --> HELD": true, "WAITING --> REJECTED": true, "WAITING --> LEFT": true,
		"HELD --> ISSUED":    true, // a statement of the stores, tested by storetest
		"ISSUED --> EXPIRED": true, // by the clock
	}
	for status := reward.CouponIssued; status <= reward.CouponHeld; status++ {
		c := reward.Coupon{Status: status, ExpiresAt: now.Add(time.Hour), HeldUntil: now.Add(time.Hour)}
		for to, err := range map[string]error{"USED": rules.CheckUse(&c, now), "CANCELLED": rules.CheckCancel(&c, now)} {
			if err == nil && status.String() != to {
				code[status.String()+" --> "+to] = true
			}
		}
	}
	sameEdges(t, page, code)
}

// TestDiagramOfPromotions compares the states of a promotion, and those edges
// that rules make, with the code. The operations of people are in
// internal/campaign.
func TestDiagramOfPromotions(t *testing.T) {
	t.Parallel()
	page := edges(t, "docs/explanation/payouts.md", "States of a promotion")
	all := []reward.PromotionStatus{reward.Draft, reward.Running, reward.Paused, reward.Completed, reward.PromotionCancelled}
	code := map[string]bool{"[*] --> DRAFT": true}
	for _, status := range all {
		from := reward.Promotion{Status: status}
		if p := rules.Reopen(from); p.Status != status {
			code[fmt.Sprintf("%s --> %s", status, p.Status)] = true
		}
		if p, done := rules.Complete(from, reward.Counts{}, rules.Blockers{}, time.Unix(1, 0)); done && p.Status != status {
			code[fmt.Sprintf("%s --> %s", status, p.Status)] = true
		}
	}
	actions := fixture.Must(os.ReadFile("internal/campaign/promotions.go"))(t)
	word := map[string]reward.PromotionStatus{
		"Draft": reward.Draft, "Running": reward.Running, "Paused": reward.Paused, "Completed": reward.Completed, "PromotionCancelled": reward.PromotionCancelled,
	}
	action := regexp.MustCompile(`action\{"\w+", \[\]reward\.PromotionStatus\{([^}]*)\}, reward\.(\w+)\}`)
	for _, match := range action.FindAllStringSubmatch(string(actions), -1) {
		for from := range strings.SplitSeq(match[1], ", ") {
			code[fmt.Sprintf("%s --> %s", word[strings.TrimPrefix(from, "reward.")], word[match[2]])] = true
		}
	}
	sameEdges(t, page, code)
}
