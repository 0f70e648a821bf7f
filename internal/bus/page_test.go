package bus

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// TestTheKafkaPageIsComplete: docs/kafka.md names every topic, group and header that
// other systems can meet.
func TestTheKafkaPageIsComplete(t *testing.T) {
	t.Parallel()
	page := fixture.Must(os.ReadFile(filepath.Join("..", "..", "docs", "kafka.md")))(t)
	names := append([]string{
		GroupPoint, GroupVoucher, GroupPointRetry, GroupVoucherRetry, GroupCouponIssue,
	}, Topics...)
	for _, h := range DeadLetterRecord(Record{}, "", "", Record{}.At).Headers {
		names = append(names, h.Key)
	}
	for _, name := range names {
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/kafka.md does not name %s", name)
		}
	}
}
