//go:build nightly

package test

import (
	"testing"
	"time"

	"github.com/largesse/largesse/internal/money/moneysim"
)

// TestNightlyAMillionCodes: an import streams. The second million codes takes no more
// memory than the first, which fills the page cache of SQLite.
func TestNightlyAMillionCodes(t *testing.T) {
	const codes, flat = 1_000_000, 32 << 20
	for _, name := range []string{"Embedded", "Servers"} {
		t.Run(name, func(t *testing.T) { //nolint:paralleltest // they measure
			args := []string{"--data-dir", t.TempDir()}
			if name == "Embedded" {
				_, simURL := startSim(t, moneysim.Faults{})
				args = append(args, "--money-url", simURL)
			} else {
				args = append(append(args, onServers(t)...), "--roles", "api,issuer,housekeeping")
			}
			p := serve(t, args...)
			var ids []string
			var peaks []int64
			for range 2 {
				began := time.Now()
				ids = append(ids, importsCodes(t, p.api, codes))
				peaks = append(peaks, memory(t, p.cmd.Process.Pid, "VmHWM"))
				t.Logf("%d codes in %.1f s; at most %d MB so far", codes, time.Since(began).Seconds(), peaks[len(peaks)-1]>>20)
			}
			if more := peaks[1] - peaks[0]; more > flat {
				t.Errorf("the second million codes took %d MB more than the first", more>>20)
			}
			for _, id := range ids {
				givesCodes(t, p.api, id, 0, 20)
			}
		})
	}
}
