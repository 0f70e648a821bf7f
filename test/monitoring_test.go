package test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/largesse/largesse/internal/lab/fixture"
)

const (
	alertsFile    = "deploy/prometheus/largesse.yaml"
	dashboardFile = "deploy/grafana/largesse.json"
)

// alertRule is a rule of alertsFile.
type alertRule struct {
	Alert       string            `yaml:"alert"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

func alertRules(t *testing.T) []alertRule {
	t.Helper()
	text := fixture.Must(os.ReadFile(alertsFile))(t)
	var file struct {
		Groups []struct {
			Rules []alertRule `yaml:"rules"`
		} `yaml:"groups"`
	}
	fixture.OK(t, yaml.Unmarshal(text, &file))
	var rules []alertRule
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

var (
	metricRow    = regexp.MustCompile("(?m)^\\| `(largesse_[a-z_]+)` \\| ([a-z]+) \\|([^|]*)\\|(.*)$")
	metricUse    = regexp.MustCompile(`\b(largesse_[a-z_]+)(?:\{([^}]*)\})?`)
	labelMatcher = regexp.MustCompile(`([a-z_]+)\s*(=~|!=|=|!~)\s*"([^"]*)"`)
	grouping     = regexp.MustCompile(`\b(?:by|on|without)\s*\(([^)]*)\)`)
	labelUse     = regexp.MustCompile(`(?:\{\{\s*(?:\$labels\.)?)([a-z_]+)\s*\}\}`)
)

// metricPage is a row of docs/metrics.md, which a test of internal/obs compares with
// what is registered.
type metricPage struct{ kind, labels, text string }

func metricPages(t *testing.T) map[string]metricPage {
	t.Helper()
	text := fixture.Must(os.ReadFile("docs/metrics.md"))(t)
	pages := map[string]metricPage{}
	for _, row := range metricRow.FindAllStringSubmatch(string(text), -1) {
		pages[row[1]] = metricPage{row[2], row[3], row[4]}
	}
	return pages
}

// checkQuery returns what is wrong with the names, labels and label values of a
// query, and with the labels that its texts show.
func checkQuery(pages map[string]metricPage, query string, texts ...string) (wrong []string, used []string) {
	labels := []string{"job", "instance", "le"}
	for _, use := range metricUse.FindAllStringSubmatch(query, -1) {
		name := use[1]
		page, exists := pages[name]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); !exists && base != name && pages[base].kind == "histogram" {
				page, exists, name = pages[base], true, base
			}
		}
		if !exists {
			wrong = append(wrong, "there is no metric "+name)
			continue
		}
		used = append(used, name)
		for _, label := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(page.labels, -1) {
			labels = append(labels, label[1])
		}
		for _, m := range labelMatcher.FindAllStringSubmatch(use[2], -1) {
			if !strings.Contains(page.labels, "`"+m[1]+"`") {
				wrong = append(wrong, name+" has no label "+m[1])
			}
			for value := range strings.SplitSeq(m[3], "|") {
				if strings.ToUpper(value) == value && !strings.ContainsAny(value, ".0123456789") && !strings.Contains(page.text, "`"+value+"`") {
					wrong = append(wrong, "docs/metrics.md does not name "+m[1]+" "+value+" of "+name)
				}
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			if label = strings.TrimSpace(label); label != "" && !slices.Contains(labels, label) {
				wrong = append(wrong, "nothing in the query has the label "+label)
			}
		}
	}
	for _, text := range texts {
		for _, use := range labelUse.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(labels, use[1]) {
				wrong = append(wrong, "nothing in the query has the label "+use[1]+", which its text shows")
			}
		}
	}
	return wrong, used
}

// TestAlertsAndDashboardNameWhatExists: a metric, label or value that was renamed is
// noticed, and the dashboard shows every metric.
func TestAlertsAndDashboardNameWhatExists(t *testing.T) {
	t.Parallel()
	pages := metricPages(t)
	seen := map[string]bool{}
	for _, rule := range alertRules(t) {
		if seen[rule.Alert] || !strings.HasPrefix(rule.Alert, "Largesse") {
			t.Errorf("%s: an alert needs a name of its own that begins with Largesse", rule.Alert)
		}
		seen[rule.Alert] = true
		if severity := rule.Labels["severity"]; severity != "page" && severity != "ticket" {
			t.Errorf("%s has the severity %q", rule.Alert, severity)
		}
		if rule.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", rule.Alert)
		}
		page, anchor, _ := strings.Cut(rule.Annotations["page"], "#")
		if text, err := os.ReadFile(page); err != nil || anchor != strings.ToLower(rule.Alert) || !strings.Contains(string(text), "\n## "+rule.Alert+"\n") {
			t.Errorf("%s names %q, which is no section about it: %v", rule.Alert, rule.Annotations["page"], err)
		}
		wrong, _ := checkQuery(pages, rule.Expr, rule.Annotations["summary"])
		for _, w := range wrong {
			t.Errorf("%s: %s: %s", alertsFile, rule.Alert, w)
		}
	}
	text := fixture.Must(os.ReadFile(dashboardFile))(t)
	var dashboard struct {
		Panels []struct {
			ID                       int
			Type, Title, Description string
			Targets                  []struct{ Expr, LegendFormat string }
		}
	}
	fixture.OK(t, json.Unmarshal(text, &dashboard))
	ids, shown := map[int]bool{}, map[string]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("%s: the ID of %s is used twice", dashboardFile, p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("%s: %s has no description or no query", dashboardFile, p.Title)
		}
		for _, target := range p.Targets {
			wrong, used := checkQuery(pages, target.Expr, target.LegendFormat)
			for _, w := range wrong {
				t.Errorf("%s: %s: %s", dashboardFile, p.Title, w)
			}
			for _, name := range used {
				shown[name] = true
			}
		}
	}
	for name := range pages {
		if !shown[name] {
			t.Errorf("%s does not show %s", dashboardFile, name)
		}
	}
}
