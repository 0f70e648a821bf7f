// Command mount serves Largesse below /rewards/ of its own HTTP server, behind its
// own middleware. With -check, it sends itself a few requests and exits.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/largesse/largesse"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "address of the server")
	check := flag.Bool("check", false, "send the server a few requests, then exit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *listen, *check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run serves until ctx ends, or with check until the requests are answered.
func run(ctx context.Context, listen string, check bool) error {
	dir, err := os.MkdirTemp("", "largesse-mount-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	// No Money API listens at this address. The engine would call it only for the
	// first payout.
	engine, err := largesse.New(largesse.Config{DataDir: dir, MoneyURL: "http://127.0.0.1:9"}, largesse.WithLogger(logger))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/rewards/", http.StripPrefix("/rewards", requireStaff(engine.Handler())))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "the shop") })
	ln, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(ln) }()
	defer server.Close()

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- engine.Run(ctx) }()
	if !check {
		fmt.Printf("the shop is at http://%s/, its rewards at /rewards/docs for staff\n", ln.Addr())
		return <-ended
	}
	_, err = engine.Client().Ready(ctx) // waits until Run has started the instance
	if err == nil {
		err = ask("http://" + ln.Addr().String())
	}
	stop()
	return errors.Join(err, <-ended)
}

// requireStaff admits only staff. A real program would use its own sessions.
func requireStaff(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "staff" {
			w.Header().Set("WWW-Authenticate", `Basic realm="rewards"`)
			http.Error(w, "staff only", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ask creates a promotion through the mounted API and follows its Location.
func ask(server string) error {
	for _, question := range []struct{ method, path, body, password string }{
		{http.MethodGet, "/", "", ""},
		{http.MethodGet, "/rewards/v1/promotions", "", ""},
		{http.MethodPost, "/rewards/v1/promotions", `{"name":"spring","type":"POINT","amount":100}`, "staff"},
		{http.MethodGet, "/rewards/docs", "", "staff"},
	} {
		res, err := send(question.method, server+question.path, question.body, question.password)
		if err != nil {
			return err
		}
		fmt.Println(question.method, question.path, res.StatusCode)
		if at, err := res.Location(); err == nil {
			res, err := send(http.MethodGet, at.String(), "", "staff")
			if err != nil {
				return err
			}
			fmt.Println("GET its Location", res.StatusCode)
		}
	}
	return nil
}

func send(method, url, body, password string) (*http.Response, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if password != "" {
		req.SetBasicAuth("ann", password)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res, err
}
