package pool

import (
	"fmt"
	"strings"
)

// ConsumerCount is how many consumers one instance keeps for a promotion of
// total targets, held between lowest and highest.
// [calculateConsumerCountPerInstance]
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

// consumerName is the name of one of an instance's consumers:
// {hostname}-{pid}-{index}.
func consumerName(instance string, index int) string { return fmt.Sprintf("%s-%d", instance, index) }

// InstanceOf is the instance that a consumer belongs to by its name; "" when it
// is no name of a consumer of ours.
func InstanceOf(consumer string) string {
	i := strings.LastIndexByte(consumer, '-')
	if i < 0 {
		return ""
	}
	return consumer[:i]
}
