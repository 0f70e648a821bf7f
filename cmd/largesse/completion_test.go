package main

import (
	"net"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/lab/fixture"
)

// offers are the words that the shell is offered, and the directive.
func offers(t *testing.T, environ []string, args ...string) []string {
	t.Helper()
	r := largesseRun(t.Context(), "", environ, append([]string{"__complete"}, args...)...)
	if r.code != exitDone {
		t.Errorf("%+v", r)
	}
	return strings.Split(strings.TrimSpace(r.stdout), "\n")
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	const (
		noFiles = ":4"
		files   = ":0"
	)
	promotions := answer{body: `{"items":[` + draftJSON + `,{"id":"12","name":"A\tB","status":"PAUSED"}]}`}
	templates := answer{body: `{"items":[` + strings.ReplaceAll(closedTemplate, "2020", "1999") + `]}`}
	env, _ := fakeServer(t, map[string]answer{
		promotionsURI: promotions,
		"GET /v1/promotions?limit=200&status=DRAFT": {body: `{"items":[` + draftJSON + `]}`},
		"GET /v1/coupon-templates?limit=200":        templates,
	})
	both := []string{"7\tSpring, DRAFT", "12\tA B, PAUSED", noFiles}
	template := []string{"42\tSpring, CLOSED", noFiles}
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"promotion show ", both},
		{"promotion watch ", both},
		{"promotion upload ", both},
		{"promotion upload 7 ", []string{files}},
		{"promotion resolve 7 ", []string{noFiles}},
		{"promotion export 1", both[1:]},
		{"promotion start ", []string{both[0], noFiles}},
		{"promotion show 7 ", []string{noFiles}},
		{"reconcile --promotion ", both},
		{"template close ", template},
		{"coupon issue ", template},
		{"coupon list --template ", template},
		{"user history u7 --template ", template},
		{"reconcile --template 5", []string{noFiles}},
		{"coupon use ", []string{noFiles}},
		{"version ", []string{noFiles}},
		{"promotion list --status d", []string{"draft", noFiles}},
		{"promotion create --file ", []string{files}},
	} {
		// The limit of the wait does not pass while a response is on its way.
		fixture.OnFakeTime(t, tt.args, func(t *testing.T) {
			got := offers(t, env, strings.Split(tt.args, " ")...)
			if tt.want[0] == "draft" {
				got = got[len(got)-2:] // the shell itself picks what begins as typed
				tt.want = []string{"cancelled", noFiles}
			}
			fixture.Equal(t, tt.want, got)
		})
	}

	t.Run("IsSilentWithoutAServer", func(t *testing.T) {
		t.Parallel()
		for _, server := range []string{"http://127.0.0.1:1", "no address"} {
			r := largesseRun(t.Context(), "", []string{"LARGESSE_SERVER=" + server}, "__completeNoDesc", "promotion", "show", "")
			if r.code != exitDone || r.stdout != noFiles+"\n" || strings.Contains(r.stderr, "refused") || strings.Contains(r.stderr, "address") {
				t.Errorf("%s: %+v", server, r)
			}
		}
	})

	t.Run("DoesNotWaitForASlowServer", func(t *testing.T) {
		t.Parallel()
		silent := fixture.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
		defer silent.Close()
		got := offers(t, []string{"LARGESSE_SERVER=http://" + silent.Addr().String()}, "template", "show", "")
		fixture.Equal(t, []string{noFiles}, got)
	})
}

// TestCompletionScripts: each shell has one, that calls this program back.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := largesseRun(t.Context(), "", nil, "completion", shell)
		if r.code != exitDone || !strings.Contains(r.stdout, "__complete") || r.stderr != "" {
			t.Errorf("%s: code %d, %d bytes, stderr %q", shell, r.code, len(r.stdout), r.stderr)
		}
	}
	if r := largesseRun(t.Context(), "", nil, "completion", "csh9"); r.code != exitWrongUse || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("%+v", r)
	}
}
