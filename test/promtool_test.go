//go:build ci || nightly

package test

import (
	"testing"

	"github.com/largesse/largesse/internal/lab/fleet"
)

// installedPromtool returns the path of promtool.
func installedPromtool(t *testing.T) string {
	t.Helper()
	in, err := fleet.NewInstaller(t.Output())
	if err != nil {
		t.Fatal(err)
	}
	path, err := in.Promtool(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return path
}
