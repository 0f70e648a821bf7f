//go:build ci

package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

//nolint:paralleltest // TMPDIR belongs to the process
func TestDemoConsole(t *testing.T) {
	t.Run("DoesWhatItsButtonsSayAndClosesTheBooks", func(t *testing.T) {
		t.Setenv("TMPDIR", t.TempDir())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out, code := startDemo(ctx, "--targets", "400", "--shoppers", "20", "--coupons", "3")
		var said []string
		var buttons sync.WaitGroup
		served, more := 0, false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said = append(said, lines.Text())
			if _, address, found := strings.Cut(lines.Text(), "in the console: "); found {
				buttons.Go(func() { disturbDemo(t, strings.TrimSuffix(address, "/")) })
			}
			if strings.HasPrefix(lines.Text(), "Served ") {
				served++
			}
			more = more || strings.Contains(lines.Text(), "more people 1: nothing else was charged")
			// The demo grants a wish while it pays or at the end.
			if served == 2 && more {
				buttons.Wait()
				cancel()
			}
		}
		buttons.Wait()
		if got := <-code; got != exitDone || slices.ContainsFunc(said, func(l string) bool { return strings.Contains(l, "BROKEN") }) {
			t.Errorf("code %d:\n%s", got, strings.Join(said, "\n"))
		}
	})
}

// disturbDemo presses the buttons of the console.
func disturbDemo(t *testing.T, server string) {
	t.Helper()
	press := func(action string, header ...string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server+"/demo/"+action, http.NoBody)
		if err != nil {
			t.Error(err)
			return 0
		}
		if len(header) > 0 {
			if req.Header.Set(header[0], header[1]); header[0] == "Host" {
				req.Host = header[1]
			}
		}
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	for _, refused := range []struct {
		action, header, value string
		status                int
	}{
		{"break-provider", "Origin", "https://evil.example", http.StatusForbidden},
		{"break-provider", "Host", "evil.example:80", http.StatusMisdirectedRequest},
		{"break-everything", "Accept", "*/*", http.StatusNotFound},
	} {
		if got := press(refused.action, refused.header, refused.value); got != refused.status {
			t.Errorf("%s with %s %s: %d, want %d", refused.action, refused.header, refused.value, got, refused.status)
		}
	}
	if got := pageAt(t, server+"/demo"); got != `{"providerBroken":false,"instanceUp":true,"people":100}`+"\n" {
		t.Errorf("before anything: %s", got)
	}
	press("break-provider")
	for _, wish := range []string{"add-people", "open-drop"} {
		if got := press(wish); got != http.StatusOK {
			t.Errorf("%s: %d", wish, got)
		}
	}
	// While the demo uploads and publishes, it refuses.
	for press("kill-instance") == http.StatusConflict {
		runtime.Gosched()
	}
	if got := pageAt(t, server+"/demo"); got != `{"providerBroken":true,"instanceUp":false,"people":100}`+"\n" {
		t.Errorf("broken and killed: %s", got)
	}
	if got := pageAt(t, server+"/v1/promotions"); !strings.Contains(got, "the instance is not up") {
		t.Errorf("the API of a killed instance: %s", got)
	}
	if got := pageAt(t, server); !strings.Contains(got, "<title>Largesse</title>") {
		t.Errorf("the console of a killed instance: %s", got)
	}
	if started, repaired := press("start-instance"), press("repair-provider"); started != http.StatusOK || repaired != http.StatusOK {
		t.Errorf("start: %d, repair: %d", started, repaired)
	}
}

// pageAt reads a page.
func pageAt(t *testing.T, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Error(err)
		return ""
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// startDemo starts a demo that serves the console. It returns what it prints, and the
// channel of its exit code.
func startDemo(ctx context.Context, flags ...string) (said io.Reader, code <-chan int) {
	out, in := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"demo", "--open"}, flags...), world{stdout: in, stderr: io.Discard})
		_ = in.Close()
	}()
	return out, ended
}
