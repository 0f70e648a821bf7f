package bus_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/bus/bustest"
	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestEmbeddedBroker(t *testing.T) {
	t.Parallel()
	bustest.ExerciseEmbedded(t)
}

func startBroker(t *testing.T, dir string) *bus.Broker {
	t.Helper()
	broker, err := bus.StartBroker(t.Context(), bus.BrokerConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	return broker
}

// inMemory starts a broker for a client in the same synctest bubble.
func inMemory(t *testing.T) (*bus.Broker, *bus.Client) {
	t.Helper()
	network := &kfake.VirtualNetwork{}
	broker, err := bus.StartBroker(t.Context(), bus.BrokerConfig{
		Dir: t.TempDir(), Listen: "127.0.0.1:9092", ListenOn: network.Listen, Dial: network.DialContext,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Close)
	dial := func(ctx context.Context, kind, address string) (net.Conn, error) {
		conn, err := network.DialContext(ctx, kind, address)
		if err != nil { // as TCP says it
			err = &net.OpError{Op: "dial", Net: kind, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		return conn, err
	}
	client, err := bus.Open(t.Context(), bus.Config{Brokers: []string{broker.Addr()}, Dial: dial, Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return broker, client
}

func openClient(t *testing.T, addr string) *bus.Client {
	t.Helper()
	client, err := bus.Open(t.Context(), bus.Config{Brokers: []string{addr}, Partitions: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func numbered(from, n int) []bus.Record {
	var out []bus.Record
	for i := from; i < from+n; i++ {
		out = append(out, bus.Record{Topic: bus.TopicPointPublish, Key: []byte(strconv.Itoa(i)), Value: []byte(strconv.Itoa(i))})
	}
	return out
}

// consume has a listener of the group handle n records, and returns the
// values after its clean stop.
func consume(t *testing.T, client *bus.Client, n int) map[string]int {
	t.Helper()
	var mu sync.Mutex
	values := map[string]int{}
	enough := make(chan struct{})
	l, err := bus.NewListener(client, bus.ListenerConfig{
		Group: bus.GroupPoint, Topic: bus.TopicPointPublish,
		Handle: func(_ context.Context, records []bus.Record) error {
			mu.Lock()
			defer mu.Unlock()
			before := len(values)
			for _, r := range records {
				values[string(r.Value)]++
			}
			if before < n && len(values) >= n {
				close(enough)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Start(t.Context())
	defer l.Stop()
	select {
	case <-enough:
	case <-time.After(fixture.Patience):
		mu.Lock()
		defer mu.Unlock()
		t.Fatalf("%d of %d records came within %s", len(values), n, fixture.Patience)
	}
	l.Stop()
	return values
}

// wantExactly fails unless the values are from..from+n-1, once each.
func wantExactly(t *testing.T, values map[string]int, from, n int) {
	t.Helper()
	if len(values) != n {
		t.Errorf("%d different records came, %d were wanted", len(values), n)
	}
	for i := from; i < from+n; i++ {
		if values[strconv.Itoa(i)] != 1 {
			t.Errorf("record %d came %d times, once was wanted", i, values[strconv.Itoa(i)])
		}
	}
}

func publish(t *testing.T, client *bus.Client, records []bus.Record) {
	t.Helper()
	if err := bus.NewPublisher(client).Publish(t.Context(), records); err != nil {
		t.Fatal(err)
	}
}

func TestBrokerKeepsLogAndCommitsOverARestart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker := startBroker(t, dir)
	client := openClient(t, broker.Addr())
	if err := client.EnsureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish(t, client, numbered(0, 100))
	wantExactly(t, consume(t, client, 100), 0, 100)
	publish(t, client, numbered(100, 50))
	client.Close()
	broker.Close()
	broker.Close()

	again := openClient(t, startBroker(t, dir).Addr())
	lags, err := again.Lag(t.Context(), bus.GroupPoint, bus.TopicPointPublish)
	if err != nil {
		t.Fatal(err)
	}
	if lags[bus.TopicPointPublish] != 50 {
		t.Errorf("the lag after the restart is %d, 50 was wanted", lags[bus.TopicPointPublish])
	}
	topics, err := again.Lags(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []int64{50, 0, 0, 0, 0}
	for i, topic := range topics {
		if topic.Records != want[i] {
			t.Errorf("lag %+v, %d records were wanted", topic, want[i])
		}
	}
	if len(topics) != len(want) || topics[0].Topic != bus.TopicPointPublish || topics[0].Group != bus.GroupPoint {
		t.Errorf("topics %+v", topics)
	}
	wantExactly(t, consume(t, again, 50), 100, 50)
}

// TestLagsEndWithTheirContext: while no broker answers, a caller waits no longer than its
// context.
func TestLagsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	fixture.FakesKafka(t)
	synctest.Test(t, func(t *testing.T) {
		broker, client := inMemory(t)
		broker.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if lags, err := client.Lags(ctx); err == nil {
			t.Errorf("without a broker, the lags are %+v", lags)
		}
	})
}

func TestBrokerKeepsLogAndCommitsOverAKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), self)
	child.Env = append(os.Environ(), childDir+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the child said no address: %v", err)
	}
	client := openClient(t, strings.TrimSpace(addr))
	if err := client.EnsureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish(t, client, numbered(0, 200))
	wantExactly(t, consume(t, client, 200), 0, 200)
	publish(t, client, numbered(200, 100))
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var killed *exec.ExitError
	if err := child.Wait(); !errors.As(err, &killed) {
		t.Fatalf("the child ended with %v, a kill was wanted", err)
	}
	client.Close()

	wantExactly(t, consume(t, openClient(t, startBroker(t, dir).Addr()), 100), 200, 100)
}

func TestBrokerDropsRecordsPastRetention(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker := startBroker(t, dir)
	client := openClient(t, broker.Addr())
	if err := client.EnsureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := numbered(0, 10)
	for i := range old {
		old[i].At = time.Now().Add(-bus.DefaultRetention - time.Hour)
	}
	publish(t, client, old)
	publish(t, client, numbered(10, 10))
	client.Close()
	broker.Close()

	// It trims when it starts, so that a broker that never runs for long does
	// not grow for ever.
	wantExactly(t, consume(t, openClient(t, startBroker(t, dir).Addr()), 10), 10, 10)
}

func TestBrokerListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"0.0.0.0:0", ":9092", "192.0.2.1:9092", "nonsense"} {
		broker, err := bus.StartBroker(t.Context(), bus.BrokerConfig{Dir: t.TempDir(), Listen: listen})
		if err == nil {
			broker.Close()
			t.Errorf("%q was taken as an address to listen on", listen)
		}
	}
}

func TestBrokerSaysThatItsAddressIsTaken(t *testing.T) {
	t.Parallel()
	first := startBroker(t, t.TempDir())
	second, err := bus.StartBroker(t.Context(), bus.BrokerConfig{Dir: t.TempDir(), Listen: first.Addr()})
	if err == nil {
		second.Close()
		t.Fatal("two brokers listen on one address")
	}
	if !strings.Contains(err.Error(), first.Addr()) {
		t.Errorf("the error does not name the address: %v", err)
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	t.Run("no broker answers", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			// It accepts and says nothing.
			dial := func(context.Context, string, string) (net.Conn, error) {
				silent, _ := net.Pipe()
				return silent, nil
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			began := time.Now()
			client, err := bus.Open(ctx, bus.Config{Brokers: []string{"127.0.0.1:9092"}, Dial: dial})
			if err == nil {
				client.Close()
				t.Fatal("a silent address was taken for a broker")
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %s to say so", took)
			}
		})
	})
	t.Run("no brokers", func(t *testing.T) {
		t.Parallel()
		if _, err := bus.Open(t.Context(), bus.Config{}); err == nil {
			t.Error("a client without brokers was opened")
		}
	})
}

func TestNothingHangsWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	fixture.FakesKafka(t)
	synctest.Test(t, func(t *testing.T) {
		broker, client := inMemory(t)
		if err := client.EnsureTopics(t.Context()); err != nil {
			t.Fatal(err)
		}
		publish(t, client, numbered(0, 1))
		handled := make(chan struct{}, 1)
		l, err := bus.NewListener(client, bus.ListenerConfig{
			Group: bus.GroupPoint, Topic: bus.TopicPointPublish,
			Handle: func(context.Context, []bus.Record) error {
				handled <- struct{}{}
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		l.Start(t.Context())
		defer l.Stop()
		b, err := bus.NewBroadcast(client, bus.BroadcastConfig{
			Topic: bus.TopicStarted, Handle: func(context.Context, []bus.Record) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		b.Start(t.Context())
		defer b.Stop()
		<-handled
		<-b.Ready()
		broker.Close()

		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		for name, step := range map[string]func(){
			"Publish": func() {
				err := bus.NewPublisher(client).Publish(ctx, numbered(1, 10))
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Publish to no broker: %v", err)
				}
			},
			"Ping": func() {
				if err := client.Ping(ctx); err == nil {
					t.Error("Ping succeeded without a broker")
				}
			},
			"Listener.Stop":  l.Stop,
			"Broadcast.Stop": b.Stop,
		} {
			began := time.Now()
			step()
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("%s took %s without a broker", name, took)
			}
		}
	})
}

func TestPartsGoOnWhenTheBrokerIsBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker := startBroker(t, dir)
	addr := broker.Addr()
	client := openClient(t, addr)
	if err := client.EnsureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	values := make(chan string, 100)
	l, err := bus.NewListener(client, bus.ListenerConfig{
		Group: bus.GroupPoint, Topic: bus.TopicPointPublish,
		Handle: func(_ context.Context, records []bus.Record) error {
			for _, r := range records {
				values <- string(r.Value)
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Start(t.Context())
	defer l.Stop()
	for i := range 3 {
		publish(t, client, numbered(i, 1))
		for {
			// A record may come twice: its commit was lost with the broker.
			var got string
			select {
			case got = <-values:
			case <-time.After(fixture.Patience):
				t.Fatalf("record %d did not come within %s", i, fixture.Patience)
			}
			if got == strconv.Itoa(i) {
				break
			}
		}
		broker.Close()
		broker, err = bus.StartBroker(t.Context(), bus.BrokerConfig{Dir: dir, Listen: addr})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(broker.Close)
	}
}

// A client of another make is served: it knows the broker by its address only.
func TestBrokerServesAnyClient(t *testing.T) {
	t.Parallel()
	broker := startBroker(t, t.TempDir())
	if err := openClient(t, broker.Addr()).EnsureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()), kgo.DisableIdempotentWrite(), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.ProduceSync(t.Context(), &kgo.Record{Topic: bus.TopicStarted, Value: []byte("{}")}).FirstErr(); err != nil {
		t.Error(err)
	}
}
