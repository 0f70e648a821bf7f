package redis

import (
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for info, want := range map[string]string{
		"redis_version:7.0.0\r\n":                           "",
		"# Server\r\nredis_version:8.10.1\r\nx:y\r\n":       "",
		"redis_version:7.2.4\r\nvalkey_version:7.2.0\r\n":   "",
		"redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n":   "",
		"redis_version:6.2.14\r\n":                          `runs Redis "6.2.14"; 7.0 or later is required`,
		"redis_version:255.255.255\r\nvalkey_version:7.1\n": "runs Valkey 7.1; 7.2 or later is required",
		"nothing": `runs Redis ""; 7.0 or later is required`,
	} {
		got := ""
		if err := CheckVersion(info); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", info, got, want)
		}
	}
}

func TestOption(t *testing.T) {
	t.Parallel()
	t.Run("SeveralAddresses", func(t *testing.T) {
		t.Parallel()
		o, err := Config{URL: "rediss://u:p@one:1/, rediss://two:2"}.Option()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(o.InitAddress, []string{"one:1", "two:2"}) || o.Username != "u" || o.Password != "p" {
			t.Errorf("addresses %v, user %s", o.InitAddress, o.Username)
		}
		if o.TLSConfig == nil || o.TLSConfig.ServerName != "" {
			t.Error("each node of a Cluster is checked by its own name")
		}
		if !o.DisableRetry || !o.DisableCache || o.ConnWriteTimeout != replyTimeout || o.Dialer.KeepAlive != keepAlive {
			t.Error("commands must be sent once, without a client-side cache, and with bounds")
		}
	})
	for name, url := range map[string]string{
		"ByParameters": "rediss://u:p@one:1?master_set=pay&addr=two:2",
		"ByCommas":     "rediss://u:p@one:1/?master_set=pay,rediss://two:2",
		"ByCommasEach": "rediss://u:p@one:1?master_set=pay,rediss://two:2?master_set=pay",
	} {
		t.Run("Sentinels"+name, func(t *testing.T) {
			t.Parallel()
			o, err := Config{URL: url}.Option()
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(o.InitAddress, []string{"one:1", "two:2"}) || o.Sentinel.MasterSet != "pay" {
				t.Errorf("addresses %v, master %q", o.InitAddress, o.Sentinel.MasterSet)
			}
			if o.TLSConfig.ServerName != "" || o.Sentinel.TLSConfig == nil || o.Sentinel.TLSConfig.ServerName != "" {
				t.Error("the master and each Sentinel are reached by TLS and checked by their own names")
			}
			if o.Password != "p" || o.Sentinel.Password != "" {
				t.Error("the password is the master's and not told to Sentinels")
			}
			if o.Sentinel.TopologyRefreshInterval != masterRefresh || o.Sentinel.Dialer.Timeout == 0 {
				t.Error("a failover that was not heard of must be found, and a Sentinel that is away must not be waited for")
			}
		})
	}
	t.Run("OneAddress", func(t *testing.T) {
		t.Parallel()
		o, err := Config{URL: "rediss://one:1"}.Option()
		if err != nil || o.TLSConfig.ServerName != "one" || o.Sentinel.MasterSet != "" {
			t.Errorf("options %+v, %v", o, err)
		}
	})
	for name, url := range map[string]string{
		"LateMaster":  "redis://user:secret@host:1,redis://user:secret@host:2?master_set=pay",
		"TwoMasters":  "redis://user:secret@host:1?master_set=pay,redis://user:secret@host:2?master_set=other",
		"Empty":       "",
		"OtherScheme": "http://user:secret@host:1",
		"BadPort":     "redis://user:secret@host:port",
		"Mixed":       "redis://user:secret@host:1,rediss://user:secret@host:2",
		"BadSecond":   "redis://user:secret@host:1,host:2",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Config{URL: url}.Option()
			if err == nil || !strings.HasPrefix(err.Error(), "redis.url") {
				t.Fatalf("the error is %v", err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Fatalf("the error shows the password: %v", err)
			}
		})
	}
}
