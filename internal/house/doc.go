// Package house has the tests of the repository itself: which package may import which,
// the names and the prose of code and docs, links, diagrams, and what tests may do.
package house
