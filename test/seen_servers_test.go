package test

import "testing"

func TestSeenFromOutsideServers(t *testing.T) {
	t.Parallel()
	exerciseSeen(t, servers("LARGESSE_TEST_REDIS"))
}
