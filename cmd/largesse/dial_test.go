package main

import (
	"context"
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestPatientDial(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, tc := range []struct {
		name     string
		err      error
		up       time.Duration // when somebody listens; 0 = never
		wantErr  bool
		wantTook time.Duration
	}{
		{name: "WaitsForAServerThatStarts", err: refused, up: time.Second, wantTook: time.Second},
		{name: "GivesUpAtLast", err: refused, wantErr: true, wantTook: 3 * time.Second},
		{name: "DoesNotWaitForOtherErrors", err: errors.New("no such host"), wantErr: true},
	} {
		fixture.OnFakeTime(t, tc.name, func(t *testing.T) {
			began := time.Now()
			dial := patientDial(func(context.Context, string, string) (net.Conn, error) {
				if tc.up > 0 && time.Since(began) >= tc.up {
					return nil, nil //nolint:nilnil // a connection is not looked at here
				}
				return nil, tc.err
			}, serverPatience)
			_, err := dial(t.Context(), "tcp", "127.0.0.1:8080")
			if took := time.Since(began); (err != nil) != tc.wantErr || took != tc.wantTook {
				t.Errorf("error %v after %v, want an error: %v, after %v", err, took, tc.wantErr, tc.wantTook)
			}
		})
	}

	t.Run("EndsWithItsContext", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := patientDial(func(context.Context, string, string) (net.Conn, error) { return nil, refused }, time.Hour)(ctx, "tcp", "x")
		if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("error %v", err)
		}
	})
}
