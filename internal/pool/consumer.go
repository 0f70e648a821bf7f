package pool

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
