package pool

import (
	"fmt"
	"strings"
)

// ConsumerCount returns how many consumers one instance runs for a promotion with
// total targets: at least lowest and at most highest.
func ConsumerCount(total int64, lowest, highest int) int {
	n := 32
	switch {
	case total <= 100:
		n = 1
	case total <= 1_000:
		n = 2
	case total <= 10_000:
		n = 4
	case total <= 100_000:
		n = 8
	case total <= 500_000:
		n = 16
	}
	return min(max(n, lowest), highest)
}

// consumerName returns the name of a consumer: {hostname}-{pid}-{index}.
func consumerName(instance string, index int) string { return fmt.Sprintf("%s-%d", instance, index) }

// InstanceOf returns the instance that a consumer's name contains, or "" if the
// name has another form.
func InstanceOf(consumer string) string {
	i := strings.LastIndexByte(consumer, '-')
	if i < 0 {
		return ""
	}
	return consumer[:i]
}
