package largesse_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse"
	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

const (
	module = "github.com/largesse/largesse"
	// namesMax limits the number of exported names of the root package.
	namesMax = 16
)

// TestTheFaceShowsNothingOfTheHouse checks that other modules can use the root
// package: it has few names, and no type of internal/ in any of them.
func TestTheFaceShowsNothingOfTheHouse(t *testing.T) {
	t.Parallel()
	pkg := checkedPackage(t)
	var names []string
	for _, name := range pkg.Scope().Names() {
		object := pkg.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		names = append(names, name)
		walk := typeWalk{t: t, seen: map[types.Type]bool{}}
		walk.visit(name, object.Type())
	}
	want := []string{
		"Charge", "Config", "Engine", "ErrFailed", "ErrMisconfigured", "ErrNotCharged", "ErrNotSent", "ErrRefused", "ErrThrottled",
		"New", "Option", "Provider", "ProviderError", "WithLogger", "WithProvider",
	}
	if diff := cmp.Diff(want, names); diff != "" || len(names) > namesMax {
		t.Errorf("%d exported names (-want +got):\n%s", len(names), diff)
	}
}

// checkedPackage returns the root package with its types. It reads the types of its
// imports from the export data of the compiler, with the tag of the tests, so that
// nothing is compiled again.
func checkedPackage(t *testing.T) *types.Package {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-tags", "synctests", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}", ".")
	list.Stderr = os.Stderr
	text, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	exports := map[string]string{}
	for line := range strings.Lines(string(text)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		exports[path] = file
	}
	fset := token.NewFileSet()
	paths := fixture.Must(filepath.Glob("*.go"))(t)
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file := fixture.Must(parser.ParseFile(fset, path, nil, parser.SkipObjectResolution))(t)
		files = append(files, file)
	}
	check := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})}
	return fixture.Must(check.Check(module, fset, files, nil))(t)
}

// typeWalk visits the types that a program meets when it uses a name.
type typeWalk struct {
	t    *testing.T
	seen map[types.Type]bool
}

func (w *typeWalk) visit(where string, typ types.Type) {
	if w.seen[typ] {
		return
	}
	w.seen[typ] = true
	switch typ := typ.(type) {
	case *types.Named:
		object := typ.Obj()
		if object.Pkg() == nil {
			return
		}
		path := object.Pkg().Path()
		if strings.Contains(path, "internal") {
			w.t.Errorf("%s shows %s", where, typ)
		}
		for arg := range typ.TypeArgs().Types() {
			w.visit(where, arg)
		}
		if !strings.HasPrefix(path, module) {
			return
		}
		for method := range typ.Methods() {
			if method.Exported() {
				w.visit(where+"."+method.Name(), method.Type())
			}
		}
		w.visit(where, typ.Underlying())
	case *types.Alias:
		w.visit(where, types.Unalias(typ))
	case *types.Struct:
		for field := range typ.Fields() {
			if field.Exported() || field.Embedded() {
				w.visit(where+"."+field.Name(), field.Type())
			}
		}
	case *types.Interface:
		for method := range typ.Methods() {
			w.visit(where+"."+method.Name(), method.Type())
		}
	case *types.Signature:
		for _, tuple := range []*types.Tuple{typ.Params(), typ.Results()} {
			for v := range tuple.Variables() {
				w.visit(where+"("+v.Name()+")", v.Type())
			}
		}
	case *types.Map:
		w.visit(where, typ.Key())
		w.visit(where, typ.Elem())
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
		w.visit(where, typ.Elem())
	}
}

// Everything wrong is said at once, and nothing is opened.
func TestNewReportsEverything(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	pays := largesse.WithProvider(bankProvider{&bank{}})
	for name, tc := range map[string]struct {
		cfg  largesse.Config
		opts []largesse.Option
		want []string // beginnings, in order; nil: no error
	}{
		"Provider":     {largesse.Config{}, []largesse.Option{pays}, nil},
		"MoneyURL":     {largesse.Config{MoneyURL: "http://127.0.0.1:1"}, nil, nil},
		"BothPay":      {largesse.Config{MoneyURL: "http://127.0.0.1:1"}, []largesse.Option{pays}, nil},
		"NobodyPays":   {largesse.Config{}, nil, []string{"money.url is not set and there is no WithProvider"}},
		"NilsAreUnset": {largesse.Config{}, []largesse.Option{largesse.WithProvider(nil), largesse.WithLogger(nil)}, []string{"money.url is not set"}},
		"NobodyNeedsToPay": {largesse.Config{
			DatabaseURL: "postgres://h/db", RedisURL: "redis://h", KafkaBrokers: []string{"h:9092", "i:9092"}, Settings: map[string]string{"roles": "api"},
		}, nil, nil},
		"NobodyConsumes": {largesse.Config{Settings: map[string]string{"roles": "api"}}, nil, []string{"redis.url is empty"}},
		"Everything": {
			largesse.Config{
				DatabaseURL: "mysql://h", RedisURL: "http://h", Listen: "0.0.0.0:8080", KafkaBrokers: []string{"h"}, DataDir: dir,
				Settings: map[string]string{
					"data.dir": "elsewhere", "log.level": "debug", "money.timeout": "soon", "redis.strem.max-len": "5", "roles": "king",
				},
			},
			[]largesse.Option{pays},
			[]string{
				"log.level (Config.Settings) has no effect here", "data.dir (Config.Settings) is also set by Config.DataDir",
				"redis.strem.max-len (Config.Settings) is not a setting", "money.timeout = \"soon\" (Config.Settings) must be a duration",
				"database.url = \"xxxxx\" (Config.DatabaseURL) must start with postgres://", "redis.url",
				"kafka.brokers = \"h\" (Config.KafkaBrokers) has \"h\"", "http.listen = \"0.0.0.0:8080\" (Config.Listen) must be a loopback address",
				"roles = \"king\" (Config.Settings) has the unknown role",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := tc.cfg
			if cfg.DataDir == "" {
				cfg.DataDir = dir
			}
			engine, err := largesse.New(cfg, tc.opts...)
			if tc.want == nil {
				if err != nil || engine == nil {
					t.Fatalf("New = %v", err)
				}
				return
			}
			if err == nil || engine != nil {
				t.Fatalf("New = %v, %v", engine, err)
			}
			rest := err.Error()
			for _, part := range tc.want {
				i := strings.Index(rest, part)
				if part = strings.Replace(part, "xxxxx", "mysql://h", 1); i < 0 {
					i = strings.Index(rest, part)
				}
				if i < 0 {
					t.Errorf("%q is not said, or not in its place: %v", part, err)
					continue
				}
				rest = rest[i:]
			}
		})
	}
	t.Cleanup(func() {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("New has made %s", dir)
		}
	})
}

// embed runs an engine until the test ends, or end is called.
func embed(t *testing.T, cfg largesse.Config, opts ...largesse.Option) (e *largesse.Engine, end func() error) {
	t.Helper()
	if cfg.DataDir == "" {
		cfg.DataDir = t.TempDir()
	}
	e = fixture.Must(largesse.New(cfg, opts...))(t)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	end = sync.OnceValue(func() error {
		stop()
		return <-ended
	})
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	return e, end
}

func TestRunOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	lines := slog.New(slog.NewTextHandler(&log, nil))
	dir := t.TempDir()
	e, end := embed(t, largesse.Config{DataDir: dir, Listen: "127.0.0.1:0"}, largesse.WithProvider(bankProvider{&bank{}}), largesse.WithLogger(lines))
	fixture.Must(e.Client().Ready(t.Context()))(t)
	if err := e.Run(t.Context()); err == nil {
		t.Error("Run ran twice")
	}
	// The folder belongs to the first.
	second := fixture.Must(largesse.New(largesse.Config{DataDir: dir}, largesse.WithProvider(bankProvider{&bank{}})))(t)
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "in use by another process") || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second engine on the same folder: %v", err)
	}
	if _, err := second.Client().Ready(t.Context()); err == nil {
		t.Error("an engine that could not start is ready")
	}
	if err := end(); err != nil {
		t.Errorf("Run = %v", err)
	}
	if err := e.Run(t.Context()); err == nil {
		t.Error("Run ran again")
	}
	if _, err := e.Client().Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "has stopped") {
		t.Errorf("a call after the end: %v", err)
	}
	answer := httptest.NewRecorder()
	e.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody))
	if answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), "UNAVAILABLE") || answer.Header().Get("Retry-After") == "" {
		t.Errorf("after the end: %d %s", answer.Code, answer.Body)
	}
	if !strings.Contains(log.String(), "component=engine") {
		t.Errorf("the logger got %q", log.String())
	}
}

func TestRunEndsBeforeItBegins(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	e := fixture.Must(largesse.New(largesse.Config{DataDir: dir}, largesse.WithProvider(bankProvider{&bank{}})))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("Run has opened something")
	}
}

func TestCallsWaitForRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := fixture.Must(largesse.New(largesse.Config{DataDir: t.TempDir()}, largesse.WithProvider(bankProvider{&bank{}})))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := e.Client().Ready(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "Run has not started the instance") {
			t.Errorf("Ready = %v", err)
		}
	})
}

// With keys asked for, calls in process need none, and others do.
func TestClientIsAnAdmin(t *testing.T) {
	t.Parallel()
	e, _ := embed(t, largesse.Config{Settings: map[string]string{"auth.mode": "apikey", "http.rate-limit": "1"}}, largesse.WithProvider(bankProvider{&bank{}}))
	api := e.Client()
	for n := range 5 {
		fixture.Must(api.CreateAPIKey(t.Context(), client.NewAPIKey{Name: fmt.Sprint("till ", n), Role: "viewer"}))(t)
	}
	p, err := api.CreatePromotion(t.Context(), client.NewPromotion{Name: "spring", Type: "POINT", Amount: 1})
	if err != nil || p.CreatedBy != "in-process" {
		t.Errorf("%+v, %v", p, err)
	}
	server := httptest.NewServer(e.Handler())
	defer server.Close()
	outside := fixture.Must(client.New(server.URL, client.Options{}))(t)
	var problem *client.Problem
	if _, err := outside.Promotion(t.Context(), p.ID); !errors.As(err, &problem) || problem.Status != http.StatusUnauthorized {
		t.Errorf("without a key: %v", err)
	}
}

// A mounted handler works under any host name and below any prefix, including event
// streams, and its Location headers lead back to it.
func TestHandlerIsMounted(t *testing.T) {
	t.Parallel()
	e, end := embed(t, largesse.Config{}, largesse.WithProvider(bankProvider{&bank{}}))
	fixture.Must(e.Client().Ready(t.Context()))(t)
	mux := http.NewServeMux()
	mux.Handle("/rewards/", http.StripPrefix("/rewards", e.Handler()))
	server := httptest.NewServer(mux)
	defer server.Close()

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/rewards/v1/promotions", strings.NewReader(`{"name":"spring","type":"POINT","amount":5}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "shop.example"
	req.Header.Set("Content-Type", "application/json")
	res, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	location, err := res.Location()
	if err != nil || res.StatusCode != http.StatusCreated || !strings.HasPrefix(location.Path, "/rewards/v1/promotions/") || res.Header.Get("Location") != location.Path {
		t.Fatalf("%d, Location %q, %v", res.StatusCode, res.Header.Get("Location"), err)
	}
	for _, page := range []string{"/rewards/docs", "/rewards/openapi.json", "/rewards/metrics", "/rewards/healthz", location.Path} {
		res, err := server.Client().Get(server.URL + page)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s: %d", page, res.StatusCode)
		}
	}
	// A reader of events hears of the end.
	events, err := server.Client().Get(server.URL + location.Path + "/events")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	first := make([]byte, 6)
	if _, err := io.ReadFull(events.Body, first); err != nil || string(first) != "retry:" {
		t.Fatalf("events begin with %q, %v", first, err)
	}
	if err := end(); err != nil {
		t.Errorf("Run = %v", err)
	}
	_, _ = io.Copy(io.Discard, events.Body) // it ends
}

// flaky is a provider that answers by target.
type flaky struct {
	bank
	calls sync.Map // number of charges by key
}

func (p *flaky) Charge(ctx context.Context, c largesse.Charge) (string, error) {
	n, _ := p.calls.LoadOrStore(c.Key, new(int))
	first := *n.(*int) == 0 // a key is charged by one caller at a time
	*n.(*int)++
	switch tx, _ := p.credit(c.Key, "", c.Amount); {
	case c.TargetID == 1:
		return tx, nil
	case c.TargetID == 2:
		return "", &largesse.ProviderError{Err: largesse.ErrRefused, Code: "CLOSED", Message: "account closed"}
	case c.TargetID == 3: // paid, and does not say so
		return "", errors.New("connection reset")
	case c.TargetID == 4 && first:
		panic("a bug")
	case c.TargetID == 5 && first:
		<-ctx.Done() // hangs
		return "", ctx.Err()
	case c.TargetID == 6 && first:
		return "", fmt.Errorf("bank: %w", largesse.ErrNotSent)
	case c.TargetID == 7 && first:
		return "", &largesse.ProviderError{Err: largesse.ErrThrottled, RetryAfter: 10 * time.Millisecond}
	case c.TargetID == 8 && first:
		return "", largesse.ErrFailed
	default:
		return tx, c.Confirm()
	}
}

func (p *flaky) Lookup(_ context.Context, key string) (string, error) {
	if tx := p.find(key); tx != "" {
		return tx, nil
	}
	return "", largesse.ErrNotCharged
}

// Whatever a provider answers, each target is paid once or refused.
func TestEveryAnswerOfAProvider(t *testing.T) {
	t.Parallel()
	provider := &flaky{}
	e, _ := embed(t, largesse.Config{Settings: map[string]string{"money.timeout": "200ms", "money.settle-after": "300ms"}}, largesse.WithProvider(provider))
	api := e.Client()
	p, err := api.CreatePromotion(t.Context(), client.NewPromotion{Name: "spring", Type: "POINT", Amount: 10})
	if err != nil {
		t.Fatal(err)
	}
	var file strings.Builder
	file.WriteString("targetId,userId\n")
	for i := 1; i <= 9; i++ {
		fmt.Fprintf(&file, "%d,u%d\n", i, i)
	}
	if res, err := api.UploadTargets(t.Context(), p.ID, strings.NewReader(file.String()), client.UploadOptions{}); err != nil || res.Accepted != 9 {
		t.Fatalf("%+v, %v", res, err)
	}
	fixture.Must(api.StartPromotion(t.Context(), p.ID))(t)
	fixture.Until(t, "the promotion is settled", func() bool {
		if p, err = api.Promotion(t.Context(), p.ID); err != nil {
			t.Fatalf("%+v, %v", p, err)
		}
		return p.Status == "COMPLETED" && p.Counts.Unknown == 0
	})
	var states []string
	for payout, err := range api.Payouts(t.Context(), p.ID, client.PayoutFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		state := payout.State
		if payout.State == "SUCCEEDED" && payout.TransactionKey != "tx-"+p.ID+":"+payout.TargetID {
			state += " with the key " + payout.TransactionKey
		}
		if payout.ErrorCode == "CLOSED" {
			state += " closed"
		}
		states = append(states, payout.TargetID+" "+state)
	}
	slices.Sort(states)
	want := []string{
		"1 SUCCEEDED", "2 FAILED closed", "3 SUCCEEDED", "4 SUCCEEDED", "5 SUCCEEDED", "6 SUCCEEDED", "7 SUCCEEDED", "8 SUCCEEDED", "9 SUCCEEDED",
	}
	fixture.Equal(t, want, states)
}

// A provider whose settings are wrong pauses the promotion.
func TestAMisconfiguredProviderPauses(t *testing.T) {
	t.Parallel()
	e, _ := embed(t, largesse.Config{}, largesse.WithProvider(misconfigured{}))
	api := e.Client()
	p, err := api.CreatePromotion(t.Context(), client.NewPromotion{Name: "spring", Type: "VOUCHER", VoucherCode: "V", Amount: 1})
	if err != nil {
		t.Fatal(err)
	}
	fixture.Must(api.UploadTargets(t.Context(), p.ID, strings.NewReader("targetId\n1\n"), client.UploadOptions{}))(t)
	fixture.Must(api.StartPromotion(t.Context(), p.ID))(t)
	for p, err = range api.WatchPromotion(t.Context(), p.ID, client.WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Status == "PAUSED" {
			break
		}
	}
	if p.Status != "PAUSED" || !strings.Contains(p.PauseReason, "bad certificate") {
		t.Errorf("%+v", p)
	}
}

type misconfigured struct{}

func (misconfigured) Charge(context.Context, largesse.Charge) (string, error) {
	return "", &largesse.ProviderError{Err: largesse.ErrMisconfigured, Message: "bad certificate"}
}

func (misconfigured) Lookup(context.Context, string) (string, error) {
	return "", largesse.ErrNotCharged
}
