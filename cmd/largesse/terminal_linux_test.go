package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/mattn/go-runewidth"
	"golang.org/x/sys/unix"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// terminal is a pseudo-terminal, as a program has it.
type terminal struct {
	*os.File
	person *os.File    // the other end: what is written there was typed
	seen   chan string // all that was to be read there, once the file is closed
}

// openTerminal opens a terminal of a size; 0, 0 is one that does not tell.
func openTerminal(t *testing.T, columns, rows uint16) *terminal {
	t.Helper()
	person := fixture.Must(os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { person.Close() })
	fd := int(person.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}
	if err != nil {
		t.Fatal(err)
	}
	file := fixture.Must(os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	term := &terminal{file, person, make(chan string, 1)}
	go func() {
		var all strings.Builder
		buffer := make([]byte, 4096)
		for {
			n, err := person.Read(buffer)
			all.Write(buffer[:n])
			if err != nil { // EIO: nobody has it open any more
				break
			}
		}
		term.seen <- strings.ReplaceAll(all.String(), "\r\n", "\n")
	}()
	return term
}

// end closes the terminal and returns what was seen on it.
func (term *terminal) end(t *testing.T) string {
	t.Helper()
	fixture.OK(t, term.Close())
	return <-term.seen
}

// onTerminal runs the command line with stdout and stderr on a terminal.
func onTerminal(t *testing.T, ctx context.Context, columns, rows uint16, environ []string, args ...string) (code int, seen string) {
	t.Helper()
	term := openTerminal(t, columns, rows)
	code = run(ctx, args, world{stdin: strings.NewReader(""), stdout: term.File, stderr: term.File, environ: environ})
	return code, term.end(t)
}

const promotionsURI = "GET /v1/promotions?limit=200"

func longPromotions() map[string]answer {
	long := strings.Replace(runningJSON, `"name":"Spring"`, `"name":"`+strings.Repeat("very ", 20)+`long"`, 1)
	return map[string]answer{promotionsURI: {body: `{"items":[` + long + `,` + draftJSON + `]}`}}
}

func TestTerminal(t *testing.T) {
	t.Parallel()

	t.Run("CutsWhatDoesNotFit", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, longPromotions())
		code, seen := onTerminal(t, t.Context(), 70, 24, env, "promotion", "list")
		lines := strings.Split(strings.TrimSuffix(seen, "\n"), "\n")
		if code != exitDone || len(lines) != 3 || !strings.Contains(lines[1], "7   very ve…  POINT ") {
			t.Errorf("code %d, %q", code, seen)
		}
		for _, line := range lines {
			if runewidth.StringWidth(line) > 70 {
				t.Errorf("%q is wider than the terminal", line)
			}
		}
	})

	t.Run("CutsNothingThatIsPiped", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, longPromotions())
		term := openTerminal(t, 70, 24)
		var out strings.Builder
		code := run(t.Context(), []string{"promotion", "list"}, world{stdout: &out, stderr: term.File, environ: env})
		if seen := term.end(t); code != exitDone || seen != "" || !strings.Contains(out.String(), strings.Repeat("very ", 20)+"long") {
			t.Errorf("code %d, on the terminal %q, piped %q", code, seen, &out)
		}
	})

	t.Run("CutsNoJSON", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, longPromotions())
		code, seen := onTerminal(t, t.Context(), 40, 24, env, "promotion", "list", "--output", "json")
		if code != exitDone || strings.Contains(seen, "…") || !strings.Contains(seen, strings.Repeat("very ", 20)+"long") {
			t.Errorf("code %d, %q", code, seen)
		}
	})

	t.Run("CutsNothingWhereTheSizeIsNotKnown", func(t *testing.T) {
		t.Parallel()
		env, _ := fakeServer(t, longPromotions())
		code, seen := onTerminal(t, t.Context(), 0, 0, env, "promotion", "list")
		if code != exitDone || strings.Contains(seen, "…") || strings.Count(seen, "\n") != 3 {
			t.Errorf("code %d, %q", code, seen)
		}
	})

	t.Run("WrapsWhatADoctorAdvises", func(t *testing.T) {
		t.Parallel()
		code, seen := onTerminal(t, t.Context(), 80, 24, nil, "doctor", "--data-dir", t.TempDir(), "--money-url", "http://127.0.0.1:1", "--listen", "127.0.0.1:0")
		if code != exitFailed || strings.Contains(seen, "…") {
			t.Errorf("code %d, %q", code, seen)
		}
		table, _, _ := strings.Cut(seen, "largesse: ")
		for line := range strings.Lines(table) {
			if runewidth.StringWidth(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%q is wider than the terminal", line)
			}
		}
	})
}

// closedTemplate is a template that is over.
const closedTemplate = `{"id":"42","name":"Spring","totalQuantity":10,"mode":"STREAM","path":"GATE","closesAt":"2020-01-01T00:00:00Z","createdAt":"2020-01-01T00:00:00Z",
	"counters":{"totalQuantity":10,"stock":6,"count":4,"issuedTotal":4}}`

func TestWatchOnATerminal(t *testing.T) {
	t.Parallel()
	answers := map[string]answer{"GET /v1/coupon-templates/42": {body: closedTemplate}}
	watch := func(t *testing.T, size uint16, environ ...string) (code int, seen string) {
		t.Helper()
		env, _ := fakeServer(t, answers)
		return onTerminal(t, t.Context(), size, size, append(env, environ...), "template", "watch", "42")
	}

	t.Run("DrawsABar", func(t *testing.T) {
		t.Parallel()
		if code, seen := watch(t, 80); code != exitDone || !strings.Contains(seen, "Spring ") || !strings.Contains(seen, "█") || !strings.Contains(seen, "\x1b[32m") {
			t.Errorf("code %d, %q", code, seen)
		}
	})

	t.Run("HasNoColoursWhenToldSo", func(t *testing.T) {
		t.Parallel()
		if code, seen := watch(t, 80, "NO_COLOR=1"); code != exitDone || !strings.Contains(seen, "█") || strings.Contains(seen, "\x1b[3") || strings.Contains(seen, "\x1b[9") {
			t.Errorf("code %d, %q", code, seen)
		}
	})

	lines := func(t *testing.T, size uint16, environ ...string) {
		t.Helper()
		if code, seen := watch(t, size, environ...); code != exitDone || seen != "CLOSED 40% of 10, live 4, waiting 0, stock 6\n" {
			t.Errorf("code %d, %q", code, seen)
		}
	}

	t.Run("WritesLinesWhereTheSizeIsNotKnown", func(t *testing.T) {
		t.Parallel()
		lines(t, 0)
	})

	t.Run("WritesLinesOnADumbTerminal", func(t *testing.T) {
		t.Parallel()
		lines(t, 80, "TERM=dumb")
	})
}

func TestUploadOnATerminal(t *testing.T) {
	t.Parallel()
	env, _ := fakeServer(t, map[string]answer{"POST /v1/promotions/7/targets?fileName=targets.csv": {body: `{"accepted":2,"amount":300}`}})
	file := writeTargets(t, "targets.csv", "targetId\n1\n2\n")
	code, seen := onTerminal(t, t.Context(), 80, 24, env, "promotion", "upload", "7", file)
	if code != exitDone || !strings.Contains(seen, "uploading ") || !strings.HasSuffix(seen, "2 accepted (amount 300), 0 duplicates, 0 conflicts, 0 rejected\n") {
		t.Errorf("code %d, %q", code, seen)
	}
}

func TestConfirmOnATerminal(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]int{"y\n": exitDone, "n\n": exitFailed, "\n": exitFailed} {
		t.Run(strconv.Quote(said), func(t *testing.T) {
			t.Parallel()
			env, _ := fakeServer(t, map[string]answer{"POST /v1/dead-letters/discard": {body: `{"count":3}`}})
			term := openTerminal(t, 80, 24)
			ctx, cancel := context.WithTimeoutCause(t.Context(), fixture.Patience, errors.New("nobody answered"))
			defer cancel()
			var stderr strings.Builder
			answered := make(chan int, 1)
			go func() {
				answered <- run(ctx, []string{"deadletter", "discard", "--all"}, world{stdin: term.File, stdout: &strings.Builder{}, stderr: &stderr, environ: env})
			}()
			fixture.Must(term.person.WriteString(said))(t)
			if code := <-answered; code != want || !strings.HasPrefix(stderr.String(), "This will discard all open dead letters. Continue? [y/N] ") {
				t.Errorf("code %d, stderr %q", code, &stderr)
			}
			term.end(t)
		})
	}
}
