package redisstream

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

// The client's refresher of cluster slots sleeps through Close, for a second
// at most, and what closes its spare connections to a Cluster for five; nothing
// else may be left.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

func TestKeys(t *testing.T) {
	t.Parallel()
	s := queue.Stream{Type: reward.Voucher, PromotionID: 12345}
	for _, c := range []struct{ got, want string }{
		{StreamKey("", s), "campaign-promotion-stream:VOUCHER:12345"},
		{ConsumerGroup("", s), "campaign-promotion-group:VOUCHER:12345"},
		{StreamKey("test:", s), "test:campaign-promotion-stream:VOUCHER:12345"},
		{ConsumerGroup("test:", s), "test:campaign-promotion-group:VOUCHER:12345"},
		{regroupedKey("test:", s), "{test:campaign-promotion-stream:VOUCHER:12345}:regrouped"},
		{wakeChannel("test:"), "test:campaign-promotion-wake"},
		{streamName(s), "VOUCHER:12345"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

func TestParseStreamName(t *testing.T) {
	t.Parallel()
	want := queue.Stream{Type: reward.Point, PromotionID: 7}
	if got, ok := parseStreamName("POINT:7"); !ok || got != want {
		t.Errorf("got %v, %v", got, ok)
	}
	for _, name := range []string{"", "POINT", "POINT:", "POINT:0", "POINT:07", "OTHER:7", "POINT:7:8"} {
		if got, ok := parseStreamName(name); ok {
			t.Errorf("%q was read as %v", name, got)
		}
	}
}

func TestCheckVersion(t *testing.T) {
	t.Parallel()
	for info, want := range map[string]string{
		"redis_version:7.0.0\r\n":                           "",
		"# Server\r\nredis_version:8.10.1\r\nx:y\r\n":       "",
		"redis_version:7.2.4\r\nvalkey_version:7.2.0\r\n":   "",
		"redis_version:7.2.4\r\nvalkey_version:9.1.2\r\n":   "",
		"redis_version:6.2.14\r\n":                          `runs Redis "6.2.14"; 7.0 or later is needed`,
		"redis_version:255.255.255\r\nvalkey_version:7.1\n": "runs Valkey 7.1; 7.2 or later is needed",
		"nothing": `runs Redis ""; 7.0 or later is needed`,
	} {
		got := ""
		if err := checkVersion(info); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %q, want %q", info, got, want)
		}
	}
}

func TestClientOption(t *testing.T) {
	t.Parallel()
	t.Run("SeveralAddresses", func(t *testing.T) {
		t.Parallel()
		o, err := clientOption("rediss://u:p@one:1, rediss://two:2")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(o.InitAddress, []string{"one:1", "two:2"}) || o.Username != "u" || o.Password != "p" {
			t.Errorf("addresses %v, user %s", o.InitAddress, o.Username)
		}
		if o.TLSConfig == nil || o.TLSConfig.ServerName != "" {
			t.Error("each node of a Cluster is checked by its own name")
		}
		if !o.DisableRetry || !o.DisableCache || o.ConnWriteTimeout != replyTimeout {
			t.Error("commands must be sent once, without a client-side cache, and with a bound")
		}
	})
	for name, url := range map[string]string{
		"ByParameters": "rediss://u:p@one:1?master_set=pay&addr=two:2",
		"ByCommas":     "rediss://u:p@one:1?master_set=pay,rediss://two:2",
		"ByCommasEach": "rediss://u:p@one:1?master_set=pay,rediss://two:2?master_set=pay",
	} {
		t.Run("Sentinels"+name, func(t *testing.T) {
			t.Parallel()
			o, err := clientOption(url)
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
		o, err := clientOption("rediss://one:1")
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
			_, err := clientOption(url)
			if err == nil || !strings.HasPrefix(err.Error(), "redis.url") {
				t.Fatalf("the error is %v", err)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Fatalf("the error shows the password: %v", err)
			}
		})
	}
}

func TestOpenRefusesBracesInThePrefix(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), Config{URL: "redis://127.0.0.1:1", KeyPrefix: "{a}"})
	if err == nil || !strings.Contains(err.Error(), "redis.key-prefix") {
		t.Fatalf("the error is %v", err)
	}
}

func TestOpenSaysWhatIsAway(t *testing.T) {
	t.Parallel()
	_, err := Open(t.Context(), Config{URL: "redis://user:secret@127.0.0.1:1"})
	if err == nil || !strings.Contains(err.Error(), "127.0.0.1:1") || strings.Contains(err.Error(), "secret") {
		t.Fatalf("the error is %v", err)
	}
}

// TestOpenSaysWhatIsNoRedis points redis.url to servers of other kinds.
func TestOpenSaysWhatIsNoRedis(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	silent, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hangsUp := make(chan struct{})
	go func() {
		defer close(hangsUp)
		for {
			conn, err := silent.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	defer func() { silent.Close(); <-hangsUp }()
	for address, want := range map[string]string{
		web.Listener.Addr().String(): "does not speak Redis's protocol: ",
		silent.Addr().String():       "does not speak Redis's protocol, or wants TLS (rediss://): ",
	} {
		cfg := Config{URL: "redis://user:secret@" + address}
		_, looked := Look(t.Context(), cfg)
		_, opened := Open(t.Context(), cfg)
		for _, err := range []error{looked, opened} {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), address) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%v, want %q", err, want)
			}
		}
	}
}

func TestIdleMillisNeverEndsALeaseEarly(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-1: "0", 0: "0", 1: "2", time.Millisecond: "2", time.Millisecond + 1: "3", 15 * time.Second: "15001",
	} {
		if got := idleMillis(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestEntryIDs(t *testing.T) {
	t.Parallel()
	texts := []string{"0-0", "0-1", "9-9", "10-0", "1700000000000-2", "1700000000000-10"}
	for i, a := range texts {
		for j, b := range texts {
			x, errX := parseEntryID(a)
			y, errY := parseEntryID(b)
			if errX != nil || errY != nil {
				t.Fatal(errX, errY)
			}
			if x.before(y) != (i < j) {
				t.Errorf("%s before %s is %v", a, b, x.before(y))
			}
		}
	}
	for _, text := range []string{"", "1", "-1", "1-", "a-1", "1-a"} {
		if _, err := parseEntryID(text); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
