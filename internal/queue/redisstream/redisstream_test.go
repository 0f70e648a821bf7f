package redisstream

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/queue"
	"github.com/largesse/largesse/internal/reward"
)

func TestMain(m *testing.M) { fixture.Main(m) }

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
	if got, err := queue.ParseStreamName("POINT:7"); err != nil || got != want {
		t.Errorf("got %v, %v", got, err)
	}
	for _, name := range []string{"", "POINT", "POINT:", "POINT:0", "POINT:07", "OTHER:7", "POINT:7:8"} {
		if got, err := queue.ParseStreamName(name); err == nil {
			t.Errorf("%q was read as %v", name, got)
		}
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{
		"redis.key-prefix": {URL: "redis://127.0.0.1:1", KeyPrefix: "{a}"},
		"127.0.0.1:1":      {URL: "redis://user:secret@127.0.0.1:1"},
	} {
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("the error is %v", err)
		}
	}
}

// TestOpenSaysWhatIsNoRedis points redis.url to servers of other kinds.
func TestOpenSaysWhatIsNoRedis(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	silent := fixture.Must(new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0"))(t)
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
		_, looked := Inspect(t.Context(), cfg)
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
