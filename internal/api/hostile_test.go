package api

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

// serveHTTP puts a bundle's API behind a Server.
func (b *bundle) serveHTTP(t *testing.T, limits web.Limits, edit ...func(*web.ServerConfig)) *web.Server {
	t.Helper()
	cfg := web.ServerConfig{Listen: "127.0.0.1:0", AuthMode: auth.ModeNone, Limits: limits, Log: b.api.cfg.Log}
	for _, e := range edit {
		e(&cfg)
	}
	s := fixture.Must(web.NewServer(cfg))(t)
	fixture.OK(t, s.Start(t.Context(), b.api.Router))
	t.Cleanup(s.Stop)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	b.url, b.http = "http://"+s.Addr(), &http.Client{Transport: transport}
	return s
}

// drip sends a text and then more, byte by byte, until the server closes the connection.
// It returns what the server sent before that.
func drip(t *testing.T, conn net.Conn, text string) string {
	t.Helper()
	var writing sync.WaitGroup
	writing.Go(func() {
		pace := time.NewTicker(10 * time.Millisecond) // what makes it slow
		defer pace.Stop()
		for i := 0; ; i++ {
			next := byte('x')
			if i < len(text) {
				next = text[i]
			}
			if _, err := conn.Write([]byte{next}); err != nil {
				return
			}
			<-pace.C
		}
	})
	fixture.OK(t, conn.SetReadDeadline(time.Now().Add(fixture.Patience)))
	answer, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("still connected, having heard %q", answer)
	}
	_ = conn.Close()
	writing.Wait()
	return string(answer)
}

// others sends an ordinary request, like other callers in the meantime.
func (b *bundle) others(t *testing.T) {
	t.Helper()
	b.do(t, "GET", "/v1/promotions", nil).want(t, http.StatusOK)
}

// TestSlowSenders sends bodies that never end. Package web tests slow headers.
func TestSlowSenders(t *testing.T) {
	t.Parallel()
	slow := setup(t, func(c *Config) { c.BodyWait = 300 * time.Millisecond })
	slow.serveHTTP(t, web.Limits{Leftover: 300 * time.Millisecond})
	slow.store.promotion(t, 1, reward.Draft)
	for _, tc := range []struct{ name, sent, dripped, heard string }{
		{"BodyOfJSON", "POST /v1/promotions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n", `{"name":"`, `"BODY_TIMEOUT"`},
		{"BodyThatNobodyWants", "POST /v1/promotions/1/start HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n", "", `"BODY_TIMEOUT"`},
		{"BodyOfARead", "GET /v1/promotions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000\r\n\r\n", "", "200 OK"},
		{"BodyNowhere", "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", "f000\r\n", "404 Not Found"},
		{"BodyOfAStranger", "POST /v1/promotions HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 60000\r\n\r\n", "", "WRONG_HOST"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if heard := drip(t, slow.raw(t, tc.sent), tc.dripped); !strings.Contains(heard, tc.heard) {
				t.Errorf("heard %q, want %q", heard, tc.heard)
			}
			slow.others(t)
		})
	}
}

// TestWhatWaitsIsNotTakenForSlow: the time that a body had to come is not what
// the answer has.
func TestWhatWaitsIsNotTakenForSlow(t *testing.T) {
	t.Parallel()
	inMemory(t, func(t *testing.T, b *bundle) {
		b.shop.stand("42:u1", coupon.Status{Kind: coupon.StatusWaiting, RequestID: "42:u1", Ticket: 7, Rank: 3}, nil)
		began := time.Now()
		a := b.do(t, "POST", "/v1/coupons/42/issue", strings.NewReader(`{"userId":"u1"}`), "Content-Type", "application/json", "Prefer", "wait=1")
		if a.want(t, http.StatusAccepted); time.Since(began) != time.Second {
			t.Errorf("the answer was held for %s", time.Since(began))
		}
	}, func(c *Config) { c.BodyWait = 300 * time.Millisecond })
}

func TestFloodsOfHeaders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.serveHTTP(t, web.Limits{})
	var many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, "X-%d: 1\r\n", i)
	}
	for name, tc := range map[string]struct{ request, code string }{
		"OneBig":     {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", "HEADERS_TOO_LARGE"},
		"Many":       {"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + many.String() + "\r\n", "TOO_MANY_HEADERS"},
		"LongURL":    {"GET /v1/promotions?cursor=" + strings.Repeat("x", 64<<10) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", "HEADERS_TOO_LARGE"},
		"LongMethod": {strings.Repeat("X", 64<<10) + " / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HEADERS_TOO_LARGE"},
		"TheSecond":  {"GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\n" + many.String() + "\r\n", "TOO_MANY_HEADERS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := b.raw(t, "")
			go func() { _, _ = io.WriteString(conn, tc.request) }() // it may be cut before all is written
			fixture.OK(t, conn.SetReadDeadline(time.Now().Add(fixture.Patience)))
			answers := bufio.NewReader(conn)
			var res *http.Response
			var body []byte
			var err error
			for res == nil || res.StatusCode == http.StatusNotFound {
				if res, err = http.ReadResponse(answers, nil); err != nil {
					t.Fatal(err)
				}
				if body, err = io.ReadAll(res.Body); err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
			}
			if res.StatusCode != http.StatusRequestHeaderFieldsTooLarge || !strings.Contains(string(body), `"`+tc.code+`"`) || res.Header.Get("Content-Type") != web.ProblemType {
				t.Errorf("%v %s", res, body)
			}
			asserted.Store(tc.code, true) // the request was not read yet, so that it has no ID
			b.others(t)
		})
	}
	t.Run("Endless", func(t *testing.T) {
		t.Parallel()
		conn := b.raw(t, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
		sent := 0
		for sent < 64<<20 {
			n, err := conn.Write(bytes.Repeat([]byte("X-A: 1\r\n"), 1000))
			if sent += n; err != nil {
				break
			}
		}
		if sent >= 64<<20 {
			t.Error("64 MiB of headers were taken")
		}
	})
	t.Run("WhatIsUsualPasses", func(t *testing.T) {
		t.Parallel()
		headers := []string{}
		for i := range 80 {
			headers = append(headers, fmt.Sprintf("X-%d", i), "1")
		}
		for range 3 { // on one connection
			b.do(t, "GET", "/v1/promotions", nil, headers...).want(t, http.StatusOK)
		}
		b.do(t, "GET", "/v1/promotions", nil, "X-Token", strings.Repeat("x", 12<<10)).want(t, http.StatusOK)
		b.do(t, "GET", "/v1/promotions?cursor="+strings.Repeat("x", 12<<10), nil).wantProblem(t, http.StatusBadRequest, "MALFORMED")
	})
}

// TestABodyIsNoHead: what comes before a request is read is told apart, however
// the bytes arrive.
func TestABodyIsNoHead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.serveHTTP(t, web.Limits{})
	id := b.create(t, `{"name":"x","type":"POINT","amount":5}`)
	var file strings.Builder
	file.WriteString("targetId\n\n")
	for i := range 1000 {
		fmt.Fprint(&file, i, strings.Repeat("\n", 100)) // empty lines, like that at the end of a head
	}
	request := fmt.Sprintf("POST /v1/promotions/%s/targets HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\nContent-Length: %d\r\n\r\n%s", id, file.Len(), file.String())
	for _, before := range []string{"", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", request} {
		conn := b.raw(t, "")
		go func() { _, _ = io.WriteString(conn, before+request+before) }() // all at once
		fixture.OK(t, conn.SetReadDeadline(time.Now().Add(fixture.Patience)))
		answers := bufio.NewReader(conn)
		for range 1 + 2*min(1, len(before)) {
			res, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
				t.Errorf("%v, %v", res, err)
			}
			_ = res.Body.Close()
		}
	}
}

func TestHostileJSON(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.serveHTTP(t, web.Limits{})
	var others strings.Builder
	for i := range 3900 {
		fmt.Fprintf(&others, `"a%04d":0,`, i)
	}
	for name, tc := range map[string]struct {
		body   string
		status int
		code   string
	}{
		"Huge":           {`{"name":"` + strings.Repeat("x", 200<<10) + `"}`, 413, "BODY_TOO_LARGE"},
		"JustTooLarge":   {`{"name":"` + strings.Repeat("x", bodyMax) + `"}`, 413, "BODY_TOO_LARGE"},
		"DeepArrays":     {strings.Repeat("[", bodyMax-1), 400, "MALFORMED"},
		"DeepObjects":    {strings.Repeat(`{"a":`, bodyMax/5-1), 400, "MALFORMED"},
		"DeepInAField":   {`{"name":` + strings.Repeat("[", 63) + strings.Repeat("]", 63) + `}`, 422, "INVALID"},
		"TooDeep":        {`{"name":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, 400, "MALFORMED"},
		"ManyFields":     {`{` + strings.Repeat(`"ab":0,`, bodyMax/8-2) + `"b":0}`, 400, "MALFORMED"},
		"HugeNumber":     {`{"amount":` + strings.Repeat("9", bodyMax-100) + `}`, 400, "MALFORMED"},
		"NumberOfPowers": {`{"amount":1e999999999}`, 400, "MALFORMED"},
		"LongName":       {`{"` + strings.Repeat("x", bodyMax-100) + `":1}`, 422, "INVALID"},
		"OtherFields":    {`{` + others.String() + `"z":0}`, 422, "INVALID"},
		"LongString":     {`{"name":"` + strings.Repeat("x", bodyMax-100) + `"}`, 422, "INVALID"},
		"LongType":       {`{"name":"x","type":"` + strings.Repeat("x", bodyMax-100) + `"}`, 422, "INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := b.json(t, "POST", "/v1/promotions", tc.body)
			if a.status != tc.status || !strings.Contains(a.body, `"`+tc.code+`"`) || len(a.body) > 16<<10 {
				t.Errorf("%d %.300s, want %d %s", a.status, a.body, tc.status, tc.code)
			}
		})
	}
}

// TestUploadPlaces: an upload without a place waits, and takes nothing.
func TestUploadPlaces(t *testing.T) {
	t.Parallel()
	inMemory(t, func(t *testing.T, b *bundle) {
		id := b.create(t, `{"name":"x","type":"POINT","amount":5}`)
		path := "/v1/promotions/" + id + "/targets"
		head := "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/csv\r\nContent-Length: 1000000\r\n\r\ntargetId\n"
		// A client that has sent almost nothing takes no place.
		b.raw(t, head)
		if r := b.upload(t, path, "targetId\n1\n").result(t); r.Accepted != 1 {
			t.Errorf("%+v", r)
		}
		holder := b.raw(t, head+strings.Repeat("2\n", uploadBytesMin))
		synctest.Wait() // the server has the bytes, but may not have counted them yet
		waited := make(chan answer, 1)
		go func() { waited <- b.upload(t, path, "targetId\n3\n") }()
		b.others(t)
		time.Sleep(uploadSlotTimeout / 2)
		if len(waited) > 0 {
			t.Fatalf("with all places taken: %+v", <-waited)
		}
		_ = holder.Close()
		if r := (<-waited).result(t); r.Accepted != 1 {
			t.Errorf("%+v", r)
		}
	}, func(c *Config) { c.UploadsMost = 1 })
}

// pacedSender sends so many bytes after each pause, and respects deadlines.
type pacedSender struct {
	http.ResponseWriter
	pauses   []time.Duration
	bytes    int
	deadline time.Time
}

func (s *pacedSender) SetReadDeadline(t time.Time) error {
	s.deadline = t
	return nil
}

func (s *pacedSender) Read(p []byte) (int, error) {
	if len(s.pauses) == 0 {
		return 0, io.EOF
	}
	pause := s.pauses[0]
	s.pauses = s.pauses[1:]
	if left := time.Until(s.deadline); left < pause {
		time.Sleep(left)
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(pause)
	return min(s.bytes, len(p)), nil
}

// TestGuardedBody: with 10 s and 32 bytes per second, 320 bytes have to come within
// 10 s of the sender's time.
func TestGuardedBody(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		bytes  int
		pauses []time.Duration
		busy   time.Duration // between two reads
		whole  bool
	}{
		"Steady":                 {320, slices.Repeat([]time.Duration{9 * time.Second}, 10), 0, true},
		"MakesNoProgress":        {5000, []time.Duration{time.Second, 11 * time.Second}, 0, false},
		"ByteByByte":             {1, slices.Repeat([]time.Duration{time.Second}, 100), 0, false},
		"JustFastEnough":         {33, slices.Repeat([]time.Duration{time.Second}, 100), 0, true},
		"JustTooSlow":            {31, slices.Repeat([]time.Duration{time.Second}, 100), 0, false},
		"WeAreBusyForLonger":     {33, slices.Repeat([]time.Duration{time.Second}, 100), time.Minute, true},
		"BusyIsNoExcuse":         {31, slices.Repeat([]time.Duration{time.Second}, 100), time.Minute, false},
		"ALittleIsAWholeFileToo": {1, slices.Repeat([]time.Duration{time.Second}, 9), 0, true},
	} {
		fixture.OnFakeTime(t, name, func(t *testing.T) {
			sender := &pacedSender{pauses: tc.pauses, bytes: tc.bytes}
			body := newGuardedBody(sender, &http.Request{Body: io.NopCloser(sender)}, 10*time.Second)
			for {
				_, err := body.Read(make([]byte, 8<<10))
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					if tc.whole || !reward.HasCode(err, web.CodeBodyTimeout) {
						t.Error(err)
					}
					return
				}
				time.Sleep(tc.busy)
			}
			if !tc.whole {
				t.Error("it was taken")
			}
		})
	}
}
