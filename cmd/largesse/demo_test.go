package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// onceWriter ends ctx by its first write, or fails like a closed pipe.
type onceWriter struct {
	end context.CancelFunc
	err error
}

func (w onceWriter) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	w.end()
	return len(p), nil
}

//nolint:paralleltest // TMPDIR belongs to the process
func TestDemo(t *testing.T) {
	t.Run("BalancesItsBooks", func(t *testing.T) {
		temp := t.TempDir()
		t.Setenv("TMPDIR", temp)
		r := largesseRun(t.Context(), "", nil, "demo", "--targets", "1", "--shoppers", "20", "--coupons", "3")
		if r.code != exitDone || strings.Contains(r.stdout, "BROKEN") {
			t.Fatalf("%+v", r)
		}
		if held := "Its hold ends: it is CANCELLED (HOLD_EXPIRED). ben gets the place and confirms: ISSUED."; !strings.Contains(r.stdout, held) {
			t.Errorf("the output does not show a hold that ends:\n%s", r.stdout)
		}
		for _, wrong := range []string{" 1 rows", " 1 targets", "(1 rows", "reportUrl", "/report"} {
			if strings.Contains(r.stdout, wrong) {
				t.Errorf("the output has %q:\n%s", wrong, r.stdout)
			}
		}
		mustBeEmpty(t, temp)
	})

	for _, tc := range []struct {
		name   string
		err    error
		stderr string
	}{
		{"TidiesUpWhenNobodyReads", syscall.EPIPE, ""},
		{"SaysHowToGoOnWhenInterrupted", nil, "largesse: interrupted: run it again, or with --data to continue where it stopped\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var stderr bytes.Buffer
			code := run(ctx, []string{"demo", "--targets", "1000", "--shoppers", "20"}, world{stdout: onceWriter{cancel, tc.err}, stderr: &stderr})
			if code != exitFailed || stderr.String() != tc.stderr {
				t.Errorf("code %d, stderr %q", code, &stderr)
			}
			mustBeEmpty(t, temp)
		})
	}
}

func mustBeEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("%v is left in %s (%v)", left, dir, err)
	}
}

func TestBars(t *testing.T) {
	t.Parallel()
	t.Run("TellsNoRateBeforeThereIsOne", func(t *testing.T) {
		t.Parallel()
		if got := rateAndLeft(20_000, 20_000, 40*time.Microsecond); got != "" {
			t.Errorf("%q", got)
		}
		if got := rateAndLeft(5_000, 20_000, time.Second); got != "5,000/s, 3s left" {
			t.Errorf("%q", got)
		}
	})
	t.Run("WritesLinesOffATerminal", func(t *testing.T) {
		t.Parallel()
		var out bytes.Buffer
		b := newBars(world{stdout: &out, stderr: io.Discard})
		b.Update("points", 0, 2000)
		b.Update("points", 2000, 2000)
		b.Close()
		if got := out.String(); !strings.Contains(got, "0 of 2,000") || !strings.Contains(got, "2,000 of 2,000") {
			t.Errorf("%q", got)
		}
	})
}
