package service

import (
	"crypto/tls"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/config/configtest"
)

func TestReloaded(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")

	t.Run("FailsWithItsFirstRead", func(t *testing.T) {
		t.Parallel()
		if r, err := NewReloaded(0, func() (int, error) { return 0, broken }, nil); !errors.Is(err, broken) || r != nil {
			t.Errorf("%v, error %v", r, err)
		}
	})

	onFakeTime(t, "ReadsAgainOnceTheValueIsOld", func(t *testing.T) {
		reads := 0
		r, err := NewReloaded(time.Second, func() (int, error) {
			reads++
			return reads, nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{1, 1, 2, 2, 3} { // at 0, 500, 1000, 1500 and 2000 ms
			if got := r.Get(); got != want {
				t.Errorf("read %d at %d ms, want %d", got, i*500, want)
			}
			time.Sleep(500 * time.Millisecond)
		}
	})

	onFakeTime(t, "KeepsTheLastGoodValueAndReadsAtMostOncePerAge", func(t *testing.T) {
		var fail error
		reads := 0
		var results []error
		r, err := NewReloaded(time.Second, func() (int, error) {
			reads++
			return reads, fail
		}, func(err error) { results = append(results, err) })
		if err != nil {
			t.Fatal(err)
		}
		fail = broken
		time.Sleep(time.Second)
		for range 3 {
			if got := r.Get(); got != 1 {
				t.Errorf("%d, want the last good value 1", got)
			}
		}
		fail = nil
		time.Sleep(time.Second)
		if got := r.Get(); got != 3 {
			t.Errorf("%d, want the third read", got)
		}
		if !slices.Equal(results, []error{broken, nil}) {
			t.Errorf("reported %v", results)
		}
	})

	t.Run("WithoutAnAgeEveryGetReads", func(t *testing.T) {
		t.Parallel()
		reads := 0 // the race detector shows reads that overlap
		r, err := NewReloaded(0, func() (int, error) {
			reads++
			return reads, nil
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for range 10 {
			group.Go(func() { r.Get() })
		}
		group.Wait()
		if got := r.Get(); got != 12 {
			t.Errorf("%d reads, want 12", got)
		}
	})
}

func TestTLSFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := configtest.IssueCert(t, dir, "one", time.Now().Add(time.Hour))
	_, otherKey := configtest.IssueCert(t, dir, "other", time.Now().Add(time.Hour))

	t.Run("ReadsCAsAndCertificate", func(t *testing.T) {
		t.Parallel()
		cfg, err := TLSFiles{Setting: "kafka", CA: cert, Cert: cert, Key: key}.Config()
		if err != nil {
			t.Fatal(err)
		}
		if cfg.RootCAs == nil || len(cfg.Certificates) != 1 || cfg.MinVersion != tls.VersionTLS12 {
			t.Errorf("RootCAs %v, %d certificates, minimum version %x", cfg.RootCAs, len(cfg.Certificates), cfg.MinVersion)
		}
		if cfg.ClientSessionCache != nil {
			t.Error("a resumed session would go on showing a certificate that was rotated")
		}
	})

	t.Run("TheZeroValueTrustsTheSystem", func(t *testing.T) {
		t.Parallel()
		cfg, err := TLSFiles{}.Config()
		if err != nil || cfg.RootCAs != nil || cfg.Certificates != nil {
			t.Errorf("%+v, error %v", cfg, err)
		}
	})

	for name, tc := range map[string]struct {
		files TLSFiles
		want  string
	}{
		"NoSuchCA":        {TLSFiles{CA: filepath.Join(dir, "none")}, "money.ca-file cannot be read"},
		"NoCA":            {TLSFiles{CA: key}, "money.ca-file holds no PEM certificate"},
		"KeyOfAnother":    {TLSFiles{Cert: cert, Key: otherKey}, "money.client-cert cannot be used with money.client-key"},
		"NoKey":           {TLSFiles{Cert: cert}, "money.client-cert cannot be used with money.client-key"},
		"NoCertificate":   {TLSFiles{Key: key}, "money.client-cert cannot be used with money.client-key"},
		"NoSuchCertAtAll": {TLSFiles{Cert: filepath.Join(dir, "none"), Key: key}, "money.client-cert cannot be used with money.client-key"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.files.Setting = "money"
			if cfg, err := tc.files.Config(); err == nil || !strings.HasPrefix(err.Error(), tc.want) || cfg != nil {
				t.Errorf("error %v, want %s…", err, tc.want)
			}
		})
	}
}
