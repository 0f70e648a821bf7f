package lab

import "slices"

// Balanced reports whether every invariant holds.
func (a *Account) Balanced() bool {
	return !slices.ContainsFunc(a.Verdicts, func(v Verdict) bool { return !v.Holds })
}
