package reward

import (
	"regexp"
	"slices"
	"strings"
)

// formulaStarts are the characters with which a spreadsheet begins a formula.
const formulaStarts = "=+-@\t\r"

// StartsFormula reports whether a spreadsheet would run the text as a formula.
func StartsFormula(s string) bool { return s != "" && strings.IndexByte(formulaStarts, s[0]) >= 0 }

// guarded reports whether GuardCell changes a text: it would be run as a formula, or it
// looks like the result of GuardCell.
func guarded(s string) bool { return StartsFormula(strings.TrimLeft(s, "'")) }

// GuardCell returns a text for a CSV file that a spreadsheet does not run as a formula.
// UnguardCell reverses it.
func GuardCell(s string) string {
	if guarded(s) {
		return "'" + s
	}
	return s
}

// UnguardCell returns the text that GuardCell was given for a cell of a CSV file.
func UnguardCell(s string) string {
	if bare, quoted := strings.CutPrefix(s, "'"); quoted && guarded(bare) {
		return bare
	}
	return s
}

var (
	// roundedNumber matches a number of many digits as spreadsheets show it.
	roundedNumber = regexp.MustCompile(`^[0-9]([.,][0-9]+)?[Ee]\+[0-9]+$`)
	cellErrors    = []string{"#N/A", "#REF!", "#VALUE!", "#NAME?", "#DIV/0!", "#NULL!", "#NUM!"}
)

// CheckCell says what a spreadsheet has made of the text that was in a cell of a CSV file
// before, or returns "". The text itself is lost.
func CheckCell(s string) string {
	switch {
	case len(s) > 1 && strings.Trim(s, "#") == "":
		return "is what a spreadsheet shows in a column that is too narrow"
	case slices.Contains(cellErrors, s):
		return "is an error of a spreadsheet"
	case strings.Contains(s, "+") && roundedNumber.MatchString(s):
		return "is a number that a spreadsheet has rounded"
	}
	return ""
}
