package main

import "slices"

// figure is one measurement of a bench, or a statement about its run.
type figure struct {
	Name string `json:"name"`
	// Value is the number, or nil without one. Text is the same for people,
	// with its unit.
	Value *float64 `json:"value,omitempty"`
	Text  string   `json:"text"`
	// Kept reports whether a limit was kept or a run was correct; nil: neither
	// applies.
	Kept *bool `json:"kept,omitempty"`
}

// figures collects what a bench prints at its end.
type figures []figure

func (f *figures) note(name, text string) { *f = append(*f, figure{Name: name, Text: text}) }

func (f *figures) add(name string, value float64, text string) {
	*f = append(*f, figure{Name: name, Value: &value, Text: text})
}

// judge adds a measurement that has a limit.
func (f *figures) judge(name string, value float64, text string, kept bool) {
	*f = append(*f, figure{Name: name, Value: &value, Text: text, Kept: &kept})
}

// correct adds whether a run was correct.
func (f *figures) correct(name, text string, correct bool) {
	*f = append(*f, figure{Name: name, Text: text, Kept: &correct})
}

// kept reports whether every limit was kept and every run was correct.
func (f *figures) kept() bool {
	return !slices.ContainsFunc(*f, func(one figure) bool { return one.Kept != nil && !*one.Kept })
}

// printFigures prints the measurements of a bench.
func (c *cli) printFigures(f figures) error {
	if c.output == outputJSON {
		return c.printJSON(map[string]any{"figures": f, "kept": f.kept()})
	}
	d := details{out: c.stdout}
	for _, one := range f {
		d.add(one.Name, one.Text)
	}
	return d.flush()
}
