package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/mattn/go-runewidth"
	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func tableText(t *testing.T, setup func(*table), rows ...[]string) string {
	t.Helper()
	var out bytes.Buffer
	tab := &table{out: &out}
	setup(tab)
	tab.begun = len(tab.header) == 0
	for _, row := range rows {
		fixture.OK(t, tab.add(row...))
	}
	fixture.OK(t, tab.flush())
	return out.String()
}

func TestTable(t *testing.T) {
	t.Parallel()
	header := []string{"ID", "NAME", "SUCCEEDED", "DETAIL"}
	rows := [][]string{
		{"382648879655878656", "Spring 가나다", "1,234", "all of it went well, as far as anybody knows"},
		{"7", "x", "5", ""},
	}
	for _, tt := range []struct {
		name  string
		setup func(*table)
		want  string
	}{
		{
			"IsAsWideAsItTakesOffATerminal", func(*table) {},
			"ID                  NAME           SUCCEEDED  DETAIL\n" +
				"382648879655878656  Spring 가나다  1,234      all of it went well, as far as anybody knows\n" +
				"7                   x              5\n",
		},
		{
			"CutsLongCellsFirst", func(tab *table) { tab.width = 60 },
			"ID                  NAME           SUCCEEDED  DETAIL\n" +
				"382648879655878656  Spring 가나다  1,234      all of it wen…\n" +
				"7                   x              5\n",
		},
		{
			"ThenHeadings", func(tab *table) { tab.width = 46 },
			"ID                  NAME      SUCCE…  DETAIL\n" +
				"382648879655878656  Spring …  1,234   all of …\n" +
				"7                   x         5\n",
		},
		{
			"ThenWhateverThereIs", func(tab *table) { tab.width = 30 },
			"ID               NA…  SU…  DE…\n" +
				"38264887965587…  Sp…  1,…  al…\n" +
				"7                x    5\n",
		},
		{
			"WrapsItsLastColumn", func(tab *table) { tab.width, tab.wrap = 72, true },
			"ID                  NAME           SUCCEEDED  DETAIL\n" +
				"382648879655878656  Spring 가나다  1,234      all of it went well, as\n" +
				"                                              far as anybody knows\n" +
				"7                   x              5\n",
		},
		{"HasNoHeaderWithoutRows", func(tab *table) { tab.width = 20 }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			given := rows
			if tt.want == "" {
				given = nil
			}
			got := tableText(t, func(tab *table) {
				tab.header, tab.cuts = header, []string{"NAME", "DETAIL"}
				tt.setup(tab)
			}, given...)
			fixture.Equal(t, tt.want, got)
		})
	}

	t.Run("BreaksWordsThatAreTooLong", func(t *testing.T) {
		t.Parallel()
		fixture.Equal(t, []string{"go to", "/a/long/p", "ath/가나", "now"}, wrapped("go to /a/long/path/가나 now", 9))
	})

	t.Run("KeepsItsColumnsInALongList", func(t *testing.T) {
		t.Parallel()
		var rows [][]string
		for i := range 3 * flushEvery {
			rows = append(rows, []string{fmt.Sprint(1_000_000 - i*1000), "x"})
		}
		got := tableText(t, func(tab *table) { tab.header = []string{"NUMBER", "X"} }, rows...)
		for line := range strings.Lines(got) {
			if strings.LastIndexAny(line, "xX") != len("1000000  ") {
				t.Fatalf("%q is out of line", line)
			}
		}
	})

	t.Run("FitsAnyWidth", func(t *testing.T) {
		t.Parallel()
		rapid.Check(t, func(rt *rapid.T) {
			columns := rapid.IntRange(1, 8).Draw(rt, "columns")
			width := rapid.IntRange(3*columns, 120).Draw(rt, "width")
			cell := rapid.StringMatching(`[a-z가 ]{0,40}`)
			draw := func(what string) []string { return rapid.SliceOfN(cell, columns, columns).Draw(rt, what) }
			header := draw("header")
			tab := &table{out: io.Discard, width: width, header: header, cuts: header[:columns/2]}
			var out bytes.Buffer
			tab.out = &out
			for range rapid.IntRange(1, 5).Draw(rt, "rows") {
				fixture.OK(rt, tab.add(draw("row")...))
			}
			fixture.OK(rt, tab.flush())
			for line := range strings.Lines(out.String()) {
				if got := runewidth.StringWidth(strings.TrimSuffix(line, "\n")); got > width {
					rt.Fatalf("%d cells of %d: %q", got, width, line)
				}
			}
		})
	})
}
