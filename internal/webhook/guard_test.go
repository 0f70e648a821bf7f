package webhook

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestCheckAddress(t *testing.T) {
	t.Parallel()
	const always, private, public = "always refused", "refused unless private addresses are allowed", "allowed"
	for address, want := range map[string]string{
		"93.184.216.34": public, "1.1.1.1": public, "172.32.0.1": public, "100.128.0.1": public, "2606:4700::1111": public,
		"64:ff9b::5db8:d822": public, "::ffff:93.184.216.34": public, "2002:5db8:d822::1": public,

		"127.0.0.1": private, "127.255.255.254": private, "10.1.2.3": private, "172.16.0.1": private, "172.31.255.255": private,
		"192.168.0.1": private, "100.64.0.1": private, "100.127.255.255": private, "192.0.2.1": private, "198.18.0.1": private, "198.51.100.9": private,
		"203.0.113.7": private, "240.0.0.1": private, "192.88.99.1": private, "192.0.0.8": private, "0.1.2.3": private,
		"::1": private, "fd00::1": private, "fc00::1": private, "2001:db8::1": private, "2001::1": private, "3fff::1": private,
		"::ffff:127.0.0.1": private, "::ffff:10.0.0.1": private, "64:ff9b::7f00:1": private, "64:ff9b::a00:1": private,
		"64:ff9b:1::a00:1": private, "2002:7f00:1::1": private, "2002:c0a8:101::1": private, "::127.0.0.1": private, "100::1": private,
		"fec0::1": private, "5f00::1": private,

		"169.254.169.254": always, "169.254.0.1": always, "fe80::1": always, "fe80::1%lo": always, "::ffff:169.254.169.254": always,
		"64:ff9b::a9fe:a9fe": always, "2002:a9fe:a9fe::1": always, "::169.254.169.254": always, "fd00:ec2::254": always,
		"fd20:ce::254": always, "100.100.100.200": always, "168.63.129.16": always, "192.0.0.192": always,
		"0.0.0.0": always, "::": always, "224.0.0.1": always, "239.1.2.3": always, "ff02::1": always, "ff05::2": always, "255.255.255.255": always,
	} {
		ip := netip.MustParseAddr(address)
		got := public
		if err := CheckAddress(ip, false); err != nil {
			if got = private; CheckAddress(ip, true) != nil {
				got = always
			}
			if !errors.Is(err, errRefusedAddress) {
				t.Errorf("%s: %v", address, err)
			}
		}
		if got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
	if CheckAddress(netip.Addr{}, true) == nil {
		t.Error("no address at all is allowed")
	}
}

// names resolves every host name, with the next of its addresses each time.
type names struct {
	addresses []netip.Addr
	asked     atomic.Int64
}

// resolver returns a resolver that asks n instead of a server.
func (n *names) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return n.conn(), nil
	}}
}

func (n *names) conn() net.Conn {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		for {
			var size [2]byte // a net.Conn that is no net.PacketConn has the framing of TCP
			if _, err := io.ReadFull(far, size[:]); err != nil {
				return
			}
			query := make([]byte, int(size[0])<<8|int(size[1]))
			if _, err := io.ReadFull(far, query); err != nil {
				return
			}
			answer := n.answer(query)
			if _, err := far.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil { //nolint:gosec // it is short
				return
			}
		}
	}()
	return near
}

// answer returns the response to a query: the query up to the end of its question, and
// an address if it asks for IPv4.
func (n *names) answer(query []byte) []byte {
	const header = 12
	end := header
	for query[end] != 0 { // labels with their lengths
		end += int(query[end]) + 1
	}
	asksIPv4 := query[end+2] == 1
	end += 5
	answer := bytes.Clone(query[:end])
	copy(answer[2:4], []byte{0x81, 0x80})            // a response without an error
	copy(answer[6:header], []byte{0, 0, 0, 0, 0, 0}) // no answers, and nothing else
	if asksIPv4 {
		at := n.addresses[int(n.asked.Add(1)-1)%len(n.addresses)].As4()
		answer[7] = 1
		answer = append(answer, 0xc0, header, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		answer = append(answer, at[:]...)
	}
	return answer
}

// TestNamesThatChange checks that the address is judged that is dialled, each time.
func TestNamesThatChange(t *testing.T) {
	t.Parallel()
	var heard atomic.Int64
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { heard.Add(1) }))
	t.Cleanup(receiver.Close)
	_, port, err := net.SplitHostPort(receiver.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	// The first answer is public. Its connection fails below, so nothing leaves.
	name := &names{addresses: []netip.Addr{netip.MustParseAddr("93.184.216.34"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")}}
	errNoNetwork := errors.New("the test has no network")
	transport := func(allowPrivate bool) *http.Transport {
		check := control(allowPrivate)
		return newTransport(&net.Dialer{Resolver: name.resolver(), Control: func(network, address string, c syscall.RawConn) error {
			if err := check(network, address, c); err != nil || strings.HasPrefix(address, "127.") {
				return err
			}
			return errNoNetwork
		}})
	}
	guarded, open := transport(false), transport(true)
	post := func(tr *http.Transport) (int, error) {
		return Post(t.Context(), tr, "http://hooks.example:"+port+"/x", http.Header{}, []byte("{}"))
	}
	for i, want := range []error{errNoNetwork, errPrivate, errMetadata, errNoNetwork, errPrivate, errMetadata} {
		if status, err := post(guarded); !errors.Is(err, want) {
			t.Errorf("call %d: status %d, %v, want %v", i, status, err, want)
		}
	}
	if heard.Load() != 0 {
		t.Error("a private receiver was called")
	}
	for i, want := range []error{errNoNetwork, nil, errMetadata} {
		if status, err := post(open); !errors.Is(err, want) {
			t.Errorf("call %d with private addresses: status %d, %v, want %v", i, status, err, want)
		}
	}
	if heard.Load() != 1 {
		t.Errorf("the private receiver was called %d times, want once", heard.Load())
	}
}

func TestHostileReceivers(t *testing.T) {
	t.Parallel()
	call := func(t *testing.T, respond http.HandlerFunc) (int, error) {
		t.Helper()
		receiver := httptest.NewServer(respond)
		t.Cleanup(receiver.Close)
		return Post(t.Context(), NewTransport(true), receiver.URL, http.Header{}, []byte("{}"))
	}

	t.Run("ARedirectIsNotFollowed", func(t *testing.T) {
		t.Parallel()
		var calls atomic.Int64
		status, err := call(t, func(w http.ResponseWriter, r *http.Request) {
			calls.Add(1)
			http.Redirect(w, r, "http://169.254.169.254/latest/meta-data/", http.StatusFound)
		})
		if status != http.StatusFound || err == nil || calls.Load() != 1 {
			t.Errorf("status %d, %v, %d calls", status, err, calls.Load())
		}
	})

	t.Run("AHugeAnswerIsCutOff", func(t *testing.T) {
		t.Parallel()
		taken := make(chan int, 1)
		status, err := call(t, func(w http.ResponseWriter, _ *http.Request) {
			n := 0
			for n < 1<<30 {
				m, err := w.Write(bytes.Repeat([]byte("x"), 4096))
				if n += m; err != nil {
					break
				}
			}
			taken <- n
		})
		if n := <-taken; status != http.StatusOK || err != nil || n >= 1<<30 {
			t.Errorf("status %d, %v, %d bytes", status, err, n)
		}
	})

	t.Run("HugeHeadersAreRefused", func(t *testing.T) {
		t.Parallel()
		if status, err := call(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}); err == nil {
			t.Errorf("status %d", status)
		}
	})

	t.Run("TheEnvironmentsProxyIsNotUsed", func(t *testing.T) {
		t.Parallel()
		if NewTransport(false).Proxy != nil {
			t.Error("the transport has a proxy")
		}
	})
}

// TestASlowAnswerEnds runs on fake time.
func TestASlowAnswerEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, drip := range map[string]string{"Headers": "", "Body": "HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"} {
			near, far := net.Pipe()
			var serving sync.WaitGroup
			asked := make(chan struct{}) // a response before its request is an error
			serving.Go(func() {
				defer close(asked)
				if _, err := far.Read(make([]byte, 1)); err == nil {
					serving.Go(func() { _, _ = io.Copy(io.Discard, far) })
				}
			})
			serving.Go(func() {
				defer far.Close()
				<-asked
				if _, err := far.Write([]byte(drip)); err != nil {
					return
				}
				for {
					time.Sleep(time.Second)
					if _, err := far.Write([]byte("H")); err != nil {
						return
					}
				}
			})
			tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil }, DisableKeepAlives: true}
			began := time.Now()
			status, err := Post(t.Context(), tr, "http://hooks.example/", http.Header{}, []byte("{}"))
			if took := time.Since(began); took != Timeout || (drip == "") != (err != nil) {
				t.Errorf("%s: status %d, %v after %v", name, status, err, took)
			}
			serving.Wait()
		}
	})
}
