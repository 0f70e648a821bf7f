// Package largesse issues rewards at scale: payouts that a campaign pushes to
// its targets through a slow provider, with books that balance.
package largesse
