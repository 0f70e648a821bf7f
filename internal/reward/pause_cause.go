package reward

import (
	"regexp"
	"strings"
)

// pauseCauses tells why Largesse paused a promotion by the sentence that says it.
var pauseCauses = []struct {
	cause   string
	written *regexp.Regexp
}{
	{"budget", regexp.MustCompile(`^the next payout would exceed the budget`)},
	{"failures", regexp.MustCompile(`^\d+ of the last \d+ payouts that ended failed`)},
	{"approval", regexp.MustCompile(`^waits for an approval`)},
	{"ended", regexp.MustCompile(`^ended at `)},
	{"canary", regexp.MustCompile(`^the canary is bad`)},
	{"outcomes", regexp.MustCompile(`^outcomes of promotion`)},
	{"books", regexp.MustCompile(`\(reconciliation \d+\)$`)},
	{"provider", regexp.MustCompile(`^the provider responded|cannot be sent to the provider`)},
}

// PauseCause returns why a promotion is paused, for programs and for sentences in other
// languages: person, rejected, or a cause of pauseCauses. Without a pause, and for another
// sentence of Largesse, it is "".
func PauseCause(p *Promotion) string {
	switch {
	case p.Status != Paused:
		return ""
	case p.RejectedBy != "" && strings.HasPrefix(p.PauseReason, `rejected by "`):
		return "rejected"
	case p.PausedBy != "":
		return "person"
	}
	for _, c := range pauseCauses {
		if c.written.MatchString(p.PauseReason) {
			return c.cause
		}
	}
	return ""
}
