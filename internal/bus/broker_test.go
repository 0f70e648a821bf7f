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
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

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
	broker := fixture.Must(bus.StartBroker(t.Context(), bus.BrokerConfig{Dir: dir}))(t)
	t.Cleanup(broker.Close)
	return broker
}

// inMemory starts a broker for a client in the same synctest bubble.
func inMemory(t *testing.T) (*bus.Broker, *bus.Client) {
	t.Helper()
	network := &kfake.VirtualNetwork{}
	broker := fixture.Must(bus.StartBroker(t.Context(), bus.BrokerConfig{
		Dir: t.TempDir(), Listen: "127.0.0.1:9092", ListenOn: network.Listen, Dial: network.DialContext,
	}))(t)
	t.Cleanup(broker.Close)
	dial := func(ctx context.Context, kind, address string) (net.Conn, error) {
		conn, err := network.DialContext(ctx, kind, address)
		if err != nil { // as TCP says it
			err = &net.OpError{Op: "dial", Net: kind, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		}
		return conn, err
	}
	client := fixture.Must(bus.Open(t.Context(), bus.Config{Brokers: []string{broker.Addr()}, Dial: dial, Partitions: 2}))(t)
	t.Cleanup(client.Close)
	return broker, client
}

func openClient(t *testing.T, addr string) *bus.Client {
	t.Helper()
	client := fixture.Must(bus.Open(t.Context(), bus.Config{Brokers: []string{addr}, Partitions: 2}))(t)
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

// listen starts a listener of a group. The test need not stop it.
func listen(t *testing.T, client *bus.Client, group string, handle func([]bus.Record)) *bus.Listener {
	t.Helper()
	l := fixture.Must(bus.NewListener(client, bus.ListenerConfig{
		Group: group, Topic: bus.TopicPointPublish,
		Handle: func(_ context.Context, records []bus.Record) error {
			handle(records)
			return nil
		},
	}))(t)
	l.Start(t.Context())
	t.Cleanup(l.Stop)
	return l
}

// broadcast starts a broadcast of the started topic, and waits until it has read it.
func broadcast(t *testing.T, client *bus.Client) *bus.Broadcast {
	t.Helper()
	b := fixture.Must(bus.NewBroadcast(client, bus.BroadcastConfig{
		Topic: bus.TopicStarted, Handle: func(context.Context, []bus.Record) error { return nil },
	}))(t)
	b.Start(t.Context())
	t.Cleanup(b.Stop)
	select {
	case <-b.Ready():
	case <-time.After(fixture.Patience):
		t.Fatal("the started topic was not read")
	}
	return b
}

// consume has a listener of the group handle n records, and returns the
// values after its clean stop.
func consume(t *testing.T, client *bus.Client, n int) map[string]int {
	t.Helper()
	handled := make(chan []bus.Record, 1000)
	l := listen(t, client, bus.GroupPoint, func(records []bus.Record) { handled <- records })
	values := map[string]int{}
	patience := time.After(fixture.Patience)
	for len(values) < n {
		select {
		case records := <-handled:
			count(values, records)
		case <-patience:
			t.Fatalf("%d of %d records came within %s", len(values), n, fixture.Patience)
		}
	}
	l.Stop()
	for len(handled) > 0 {
		count(values, <-handled)
	}
	return values
}

func count(values map[string]int, records []bus.Record) {
	for _, r := range records {
		values[string(r.Value)]++
	}
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
	fixture.OK(t, client.Publish(t.Context(), records))
}

// TestBrokerKeepsLogAndCommits has a broker that is killed, and one that is closed.
func TestBrokerKeepsLogAndCommits(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T, dir string) (addr string, end func()){
		"OverARestart": func(t *testing.T, dir string) (string, func()) {
			t.Helper()
			broker := startBroker(t, dir)
			return broker.Addr(), func() { broker.Close(); broker.Close() }
		},
		"OverAKill": startChild,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			addr, end := start(t, dir)
			client := openClient(t, addr)
			fixture.OK(t, client.EnsureTopics(t.Context()))
			publish(t, client, numbered(0, 200))
			wantExactly(t, consume(t, client, 200), 0, 200)
			publish(t, client, numbered(200, 100))
			client.Close()
			end()

			again := openClient(t, startBroker(t, dir).Addr())
			lag, err := again.Lag(t.Context(), bus.GroupPoint, bus.TopicPointPublish)
			if err != nil || lag != 100 {
				t.Errorf("the lag afterwards is %v, %v; 100 was wanted", lag, err)
			}
			topics, err := again.Lags(t.Context())
			if err != nil || len(topics) != 5 || topics[0].Topic != bus.TopicPointPublish || topics[0].Group != bus.GroupPoint {
				t.Fatalf("topics %+v, %v", topics, err)
			}
			for i, topic := range topics {
				if want := []int64{100, 0, 0, 0, 0}[i]; topic.Records != want {
					t.Errorf("lag %+v, %d records were wanted", topic, want)
				}
			}
			wantExactly(t, consume(t, again, 100), 200, 100)
		})
	}
}

// startChild starts a process with a broker, which end kills.
func startChild(t *testing.T, dir string) (addr string, end func()) {
	t.Helper()
	self := fixture.Must(os.Executable())(t)
	child := exec.CommandContext(t.Context(), self)
	child.Env = append(os.Environ(), childDir+"="+dir)
	child.Stderr = os.Stderr
	out := fixture.Must(child.StdoutPipe())(t)
	fixture.OK(t, child.Start())
	addr = fixture.Must(bufio.NewReader(out).ReadString('\n'))(t)
	return strings.TrimSpace(addr), func() {
		fixture.OK(t, child.Process.Kill())
		var killed *exec.ExitError
		if err := child.Wait(); !errors.As(err, &killed) {
			t.Fatalf("the child ended with %v, a kill was wanted", err)
		}
	}
}

func TestBrokerDropsRecordsPastRetention(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker := startBroker(t, dir)
	client := openClient(t, broker.Addr())
	fixture.OK(t, client.EnsureTopics(t.Context()))
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
		fixture.OK(t, client.EnsureTopics(t.Context()))
		publish(t, client, numbered(0, 1))
		handled := make(chan struct{}, 1)
		l := listen(t, client, bus.GroupPoint, func([]bus.Record) { handled <- struct{}{} })
		b := broadcast(t, client)
		<-handled
		broker.Close()

		for name, step := range map[string]func(ctx context.Context){
			"Publish": func(ctx context.Context) {
				err := client.Publish(ctx, numbered(1, 10))
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Publish to no broker: %v", err)
				}
			},
			"Ping": func(ctx context.Context) {
				if err := client.Ping(ctx); err == nil {
					t.Error("Ping succeeded without a broker")
				}
			},
			"Lags": func(ctx context.Context) {
				if lags, err := client.Lags(ctx); err == nil {
					t.Errorf("without a broker, the lags are %+v", lags)
				}
			},
			"Listener.Stop":  func(context.Context) { l.Stop() },
			"Broadcast.Stop": func(context.Context) { b.Stop() },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			began := time.Now()
			step(ctx)
			cancel()
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
	fixture.OK(t, client.EnsureTopics(t.Context()))
	values := make(chan string, 100)
	listen(t, client, bus.GroupPoint, func(records []bus.Record) {
		for _, r := range records {
			values <- string(r.Value)
		}
	})
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
		var err error
		if broker, err = bus.StartBroker(t.Context(), bus.BrokerConfig{Dir: dir, Listen: addr}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(broker.Close)
	}
}
