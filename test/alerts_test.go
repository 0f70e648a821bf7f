//go:build ci

package test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestAlertRules fires every alert with the series of testdata/alerts.yaml. promtool also
// checks the syntax of the rules.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	const series = "test/testdata/alerts.yaml"
	promtool := installedPromtool(t)
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", alertsFile}, {"test", "rules", series}} {
		if text, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, text)
		}
	}
	text := fixture.Must(os.ReadFile(series))(t)
	for _, rule := range alertRules(t) {
		if !strings.Contains(string(text), `{alertname="`+rule.Alert+`"}`) {
			t.Errorf("no series of %s fires %s", series, rule.Alert)
		}
	}
}
