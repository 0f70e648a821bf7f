package house

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/dustin/go-humanize"

	"github.com/largesse/largesse/internal/config"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/pool"
)

// TestScalingPage recomputes the table of docs/scaling.md.
func TestScalingPage(t *testing.T) {
	t.Parallel()
	const (
		instances = 4
		perSecond = 5 // calls of 200 ms, one after the other
	)
	page := fixture.Must(os.ReadFile("docs/scaling.md"))(t)
	stream := config.Default().Redis.Stream
	for _, targets := range []int64{1_000, 10_000, 100_000, 500_000, 1_000_000, 2_000_000} {
		n := pool.ConsumerCount(targets, stream.MinConsumerPerInstance, stream.MaxConsumerPerInstance)
		one := int64(instances * n * perSecond)
		many := one * int64(stream.InFlightPerConsumer)
		row := fmt.Sprintf("| %s | %d | %d | %s | %s | %s | %s |", humanize.Comma(targets), n, instances*n,
			humanize.Comma(one), minutes(targets, one), humanize.Comma(many), minutes(targets, many))
		if !strings.Contains(string(page), row+"\n") {
			t.Errorf("docs/scaling.md lacks the row\n%s", row)
		}
	}
}

func minutes(targets, rate int64) string {
	seconds := float64(targets) / float64(rate)
	if seconds < 60 {
		return fmt.Sprintf("%.1f s", seconds)
	}
	return fmt.Sprintf("%.1f min", seconds/60)
}
