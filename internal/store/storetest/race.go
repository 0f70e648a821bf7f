//go:build race

package storetest

// underRace reports whether the race detector watches the tests.
const underRace = true
