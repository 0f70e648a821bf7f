package store

import "hash/fnv"

// Holder returns the instance that a piece of work belongs to: the one whose name
// has, together with the number of the piece, the highest hash. If an instance
// joins or ends, only the pieces that it gets or had change hands. Without
// instances it is empty.
func Holder(piece uint64, instances []string) string {
	best, top := "", uint64(0)
	for _, name := range instances {
		h := fnv.New64a()
		_, _ = h.Write([]byte(name)) // never fails
		if sum := mixed(h.Sum64() + piece); best == "" || sum > top {
			best, top = name, sum
		}
	}
	return best
}

// mixed spreads a difference in any bit over all bits.
func mixed(x uint64) uint64 {
	x = (x ^ x>>31) * 0x9e3779b97f4a7c15
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return x ^ x>>32
}
