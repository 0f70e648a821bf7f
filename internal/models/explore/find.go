package explore

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
)

// test is a testing.T.
type test interface {
	Helper()
	Log(args ...any)
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Found is what a run found, in words.
type Found struct {
	Breach   string // "" for none
	Steps    int    // to the state that breaks it, or from which a breach follows without faults
	Complete bool   // the run saw every state
	Text     string // the size of the run, and the trace
}

// Find runs a model as Run does. A model may have a method Trace that returns the lines
// of a result; otherwise they are its steps, and the state after them.
func Find[S comparable, L any](ctx context.Context, m Model[S, L], limit int) Found {
	r := Run(ctx, m, limit)
	f := Found{Breach: r.Breach, Steps: len(r.Path), Complete: r.Complete}
	f.Text = fmt.Sprintf("%d states, %d steps, depth %d, stuck %d, complete %v", r.States, r.Transitions, r.Depth, r.Stuck, r.Complete)
	if r.Breach != "" {
		var lines []string
		if own, ok := m.(interface {
			Trace(found Result[S, L]) []string
		}); ok {
			lines = own.Trace(r)
		} else {
			for _, l := range r.Path {
				lines = append(lines, fmt.Sprint(l))
			}
			for _, l := range r.Calm {
				lines = append(lines, fmt.Sprint("then: ", l))
			}
			lines = append(lines, Show(r.Last))
		}
		f.Text += "\n     " + strings.Join(lines, "\n     ")
	}
	if r.Beyond {
		f.Steps++
		f.Text += "\n     the next step breaks it"
	}
	return f
}

// Holds requires that a run saw every state, and that none breaks an invariant.
func (f Found) Holds(t test) {
	t.Helper()
	if f.Breach != "" || !f.Complete {
		t.Errorf("%s: %s", f.Breach, f.Text)
	}
	t.Log(f.Text)
}

// Breaks requires that a run has a breach after a number of steps, and logs its trace.
func (f Found) Breaks(t test, breach string, steps int) {
	t.Helper()
	if f.Breach != breach || f.Steps != steps {
		t.Fatalf("%q after %d steps, want %q after %d: %s", f.Breach, f.Steps, breach, steps, f.Text)
	}
	t.Logf("%s, after %d steps: %s", f.Breach, f.Steps, f.Text)
}

// Page returns docs/dev/models.md.
func Page(t test) string {
	t.Helper()
	page, err := os.ReadFile("../../../docs/dev/models.md")
	if err != nil {
		t.Fatalf("%v", err)
	}
	return string(page)
}

// OnPage reports whether docs/dev/models.md has a row of a table that begins with cells
// and ends with others.
func OnPage(t test, begins, ends string) bool {
	t.Helper()
	return regexp.MustCompile(`(?m)^\| ` + begins + ` \| .* ` + regexp.QuoteMeta(ends) + `$`).MatchString(Page(t))
}

// Words lists the numbers of what has names, as "crash, 2× flush".
func Words(names []string, numbers []uint8, none string) string {
	var words []string
	for kind, n := range numbers {
		switch {
		case n == 1:
			words = append(words, names[kind])
		case n > 1:
			words = append(words, fmt.Sprintf("%d× %s", n, names[kind]))
		}
	}
	if len(words) == 0 {
		return none
	}
	return strings.Join(words, ", ")
}

// Show describes a state in one line: its fields and elements that are not zero.
func Show(state any) string { return show(reflect.ValueOf(state)) }

func show(v reflect.Value) string {
	var parts []string
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Field(i); !field.IsZero() {
				parts = append(parts, v.Type().Field(i).Name+" "+show(field))
			}
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case reflect.Array:
		for i := range v.Len() {
			if e := v.Index(i); !e.IsZero() {
				parts = append(parts, fmt.Sprint(i, ": ")+show(e))
			}
		}
		return "[" + strings.Join(parts, ", ") + "]"
	default:
		return fmt.Sprintf("%+v", v)
	}
}
