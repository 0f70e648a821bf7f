package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
)

// Report has the figures of a run, and where they are from.
type Report struct {
	Commit   string            `json:"commit"`
	Date     time.Time         `json:"date"`
	Machine  string            `json:"machine"`
	Servers  string            `json:"servers"`
	Versions map[string]string `json:"versions"` // of the modules that are compared
	Targets  int               `json:"targets"`
	Results  []Result          `json:"results"`
	Own      []OwnFigures      `json:"own,omitempty"`
}

// OwnFigures has the figures of a benchmark of largesse bench.
type OwnFigures struct {
	Benchmark string   `json:"benchmark"`
	Figures   []Figure `json:"figures"`
}

// Figure is one of them.
type Figure struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Result has the turns of an engine in a scenario.
type Result struct {
	Engine   string `json:"engine"`
	Scenario string `json:"scenario"`
	Turns    []Turn `json:"turns"`
}

func newReport(ctx context.Context, targets int) *Report {
	r := &Report{Commit: "unknown", Date: time.Now().UTC().Truncate(time.Second), Targets: targets, Versions: map[string]string{}}
	if out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=12").Output(); err == nil {
		r.Commit = strings.TrimSpace(string(out))
	}
	r.Machine = fmt.Sprintf("%d cores, %s", runtime.NumCPU(), runtime.Version())
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			switch m.Path {
			case "github.com/riverqueue/river", "github.com/hibiken/asynq", "github.com/ThreeDotsLabs/watermill", "github.com/ThreeDotsLabs/watermill-redisstream":
				r.Versions[filepath.Base(m.Path)] = m.Version
			}
		}
	}
	return r
}

// add adds a turn.
func (r *Report) add(engine, scenario string, t Turn) {
	i := slices.IndexFunc(r.Results, func(one Result) bool { return one.Engine == engine && one.Scenario == scenario })
	if i < 0 {
		i = len(r.Results)
		r.Results = append(r.Results, Result{Engine: engine, Scenario: scenario})
	}
	r.Results[i].Turns = append(r.Results[i].Turns, t)
}

// sort puts the results in the order of the engines.
func (r *Report) sort() {
	order := func(name string) int { return slices.IndexFunc(engines, func(e engine) bool { return e.name == name }) }
	slices.SortStableFunc(r.Results, func(a, b Result) int { return order(a.Engine) - order(b.Engine) })
}

// of returns the results of a scenario.
func (r *Report) of(scenario string) (all []Result) {
	for _, one := range r.Results {
		if one.Scenario == scenario {
			all = append(all, one)
		}
	}
	return all
}

// spread returns the median, the least and the greatest of a figure.
func (r Result) spread(figure func(Turn) float64) (median, low, high float64) {
	values := make([]float64, len(r.Turns))
	for i, t := range r.Turns {
		values[i] = figure(t)
	}
	slices.Sort(values)
	last := len(values) - 1
	return (values[last/2] + values[(last+1)/2]) / 2, values[0], values[last]
}

func (r Result) median(figure func(Turn) float64) float64 {
	m, _, _ := r.spread(figure)
	return m
}

func (r Result) rate() float64 { return r.median(Turn.rate) }

// write writes the tables of a report as Markdown.
func (r *Report) write(w io.Writer) {
	turns := 0
	for _, one := range r.Results {
		turns = max(turns, len(one.Turns))
	}
	var versions []string
	for name, version := range r.Versions {
		versions = append(versions, name+" "+version)
	}
	slices.Sort(versions)
	fmt.Fprintf(w, "%s, commit %s, %s, %s. %s. %s targets; medians of %d turns, with the least and the greatest.\n",
		r.Date.Format(time.DateOnly), r.Commit, r.Machine, r.Servers, strings.Join(versions, ", "), humanize.Comma(int64(r.Targets)), turns)
	var sizes []row
	for _, sc := range scenarios {
		results := r.of(sc.name)
		if sc.alone() {
			for _, one := range results {
				sizes = append(sizes, row{sc.what, one})
			}
			continue
		}
		var rows []row
		for _, one := range results {
			rows = append(rows, row{one.Engine, one})
		}
		first, unit := "payouts per second", Turn.rate
		if sc.kills {
			first, unit = "seconds from the kill to the end", func(t Turn) float64 { return t.Recovery }
		}
		writeTable(w, "**"+sc.name+"**: "+sc.what, "engine", first, unit, rows)
	}
	writeTable(w, "**Largesse alone**, one turn for each size", "size", "payouts per second", Turn.rate, sizes)
	for _, own := range r.Own {
		fmt.Fprintf(w, "\n**`largesse bench %s`**, once.\n\n| what | figure |\n|---|---|\n", own.Benchmark)
		for _, f := range own.Figures {
			fmt.Fprintf(w, "| %s | %s |\n", f.Name, f.Text)
		}
	}
}

// row is a result in a table.
type row struct {
	name string
	Result
}

func writeTable(w io.Writer, title, of, first string, unit func(Turn) float64, rows []row) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s.\n\n", title)
	fmt.Fprintf(w, "| %s | %s | CPU of the process | of PostgreSQL | of Redis | WAL | rows and indexes | peak memory | lost | doubled | unknown |\n", of, first)
	fmt.Fprintln(w, "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
	for _, r := range rows {
		median, low, high := r.spread(unit)
		whole := func(figure func(Turn) float64) string { return humanize.Comma(int64(r.median(figure) + 0.5)) }
		most := func(count func(Turn) int) string { // a fault in one turn is a fault
			n := 0
			for _, t := range r.Turns {
				n = max(n, count(t))
			}
			return humanize.Comma(int64(n))
		}
		rate := humanize.Comma(int64(median + 0.5))
		if len(r.Turns) > 1 {
			rate += " (" + humanize.Comma(int64(low+0.5)) + " to " + humanize.Comma(int64(high+0.5)) + ")"
		}
		fmt.Fprintf(w, "| %s | %s | %s µs | %s µs | %s µs | %s B | %s B | %s MB | %s | %s | %s |\n", r.name, rate,
			whole(func(t Turn) float64 { return t.ProcessCPU }), whole(func(t Turn) float64 { return t.PostgresCPU }),
			whole(func(t Turn) float64 { return t.RedisCPU }), whole(func(t Turn) float64 { return t.WAL }),
			whole(func(t Turn) float64 { return t.Stored }), whole(func(t Turn) float64 { return t.Memory }),
			most(func(t Turn) int { return t.Lost }), most(func(t Turn) int { return t.Doubled }), most(func(t Turn) int { return t.Unknown }))
	}
}

// keep writes the report and its chart to a folder, next to earlier ones, and returns the path of
// both without extension.
func (r *Report) keep(folder, name string) (string, error) {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, r.Date.Format("2006-01-02-1504-")+name)
	if err := os.WriteFile(path+".json", append(text, '\n'), 0o600); err != nil {
		return "", err
	}
	return path, os.WriteFile(path+".svg", r.chart(), 0o600)
}

// lastKept reads the newest report with a name. Without one it returns nil.
func lastKept(folder, name string) (*Report, error) {
	found, err := filepath.Glob(filepath.Join(folder, "????-??-??-????-"+name+".json"))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	text, err := os.ReadFile(slices.Max(found))
	if err != nil {
		return nil, err
	}
	r := &Report{}
	return r, json.Unmarshal(text, r)
}

// ratios returns the rates of the first engine ÷ those of each other engine, by scenario and engine.
func (r *Report) ratios() map[string]float64 {
	all := map[string]float64{}
	for _, one := range r.Results {
		for _, other := range r.of(one.Scenario) {
			if one.Engine == engines[0].name && other.Engine != one.Engine {
				all[one.Scenario+": "+one.Engine+" ÷ "+other.Engine] = one.rate() / other.rate()
			}
		}
	}
	return all
}

// writeFallen names the ratios that are more than 10 % below those of an earlier report.
func (r *Report) writeFallen(w io.Writer, earlier *Report) {
	was, fallen := earlier.ratios(), false
	for name, now := range r.ratios() {
		if now < 0.9*was[name] {
			fallen = true
			fmt.Fprintf(w, "FELL by more than 10 %%: %s was %.2f at commit %s, is %.2f\n", name, was[name], earlier.Commit, now)
		}
	}
	if !fallen {
		fmt.Fprintf(w, "no ratio fell by more than 10 %% since commit %s\n", earlier.Commit)
	}
}

const beginFigures, endFigures = "<!-- figures: make bench-peers writes them -->\n", "<!-- end of figures -->\n"

// rewritePage replaces the figures of a page.
func (r *Report) rewritePage(page, chart string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, found := strings.Cut(string(text), beginFigures)
	_, after, closed := strings.Cut(rest, endFigures)
	if !found || !closed {
		return fmt.Errorf("%s has no place for figures", page)
	}
	link, err := filepath.Rel(filepath.Dir(page), chart)
	if err != nil {
		return err
	}
	var figures strings.Builder
	fmt.Fprintf(&figures, "![Payouts per second of each engine](%s)\n\n", filepath.ToSlash(link))
	r.write(&figures)
	return os.WriteFile(page, []byte(before+beginFigures+"\n"+figures.String()+"\n"+endFigures+after), 0o600)
}
