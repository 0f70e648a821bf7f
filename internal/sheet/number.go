package sheet

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
)

// digitsKept is the number of digits that spreadsheets keep of a number.
const digitsKept = 15

// builtinFormat returns the number format with an ID that files need not define.
func builtinFormat(id string) string {
	switch id {
	case "", "0":
		return "General"
	case "1":
		return "0"
	case "2":
		return "0.00"
	case "3", "37", "38", "41":
		return "#,##0"
	case "4", "39", "40", "43":
		return "#,##0.00"
	case "9":
		return "0%"
	case "11":
		return "0.00E+00"
	case "49":
		return "@"
	}
	return "yyyy-mm-dd" // a date, a time, a fraction or an amount with a sign of the country
}

// showNumber returns a number as a spreadsheet shows it in a format, but with all of its
// digits, or says why it cannot.
func showNumber(value, format string) (text, problem string) {
	n, err := strconv.ParseFloat(value, 64)
	switch {
	case err != nil || math.IsNaN(n) || math.IsInf(n, 0):
		return value, "is no number, although the file says so"
	case math.Abs(n) >= 1e15:
		return value, "is a number of more than 15 digits, which a spreadsheet rounds; format the column as text, and enter the value again"
	}
	whole, part := decimals(math.Abs(n))
	sign := ""
	if n < 0 {
		sign = "-"
	}
	code, signed := sectionOf(format, n)
	if format == "" || strings.EqualFold(code, "General") || code == "@" {
		return sign + joined(whole, part), ""
	}
	p, ok := parsePattern(code)
	if !ok {
		return value, "has the format " + reward.Quote(format) + ", which is not that of a plain number; format the column as text, and enter the value again"
	}
	if len(part) > p.decimalsMax {
		return value, "shows fewer digits than its value " + joined(whole, part) + " has; round the value, or show all of its digits"
	}
	text = p.show(whole, part)
	switch {
	case text == "": // an empty cell would mean the usual amount
		return value, "is a number that its format " + reward.Quote(format) + " hides"
	case signed:
		return text, ""
	}
	return sign + text, ""
}

// decimals returns the digits before and behind the decimal point, as many as
// spreadsheets keep.
func decimals(n float64) (whole, part string) {
	// Rounding to 15 digits first makes 0.1 of the 0.10000000000000001 that files have.
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(n, 'e', digitsKept-1, 64), 64)
	whole, part, _ = strings.Cut(strconv.FormatFloat(rounded, 'f', -1, 64), ".")
	return whole, part
}

func joined(whole, part string) string {
	if part == "" {
		return whole
	}
	return whole + "." + part
}

// sectionOf returns the part of a format that is for a number. signed means that it
// shows the sign itself.
func sectionOf(format string, n float64) (code string, signed bool) {
	sections := splitSections(format)
	switch {
	case n < 0 && len(sections) > 1:
		return sections[1], true
	case n == 0 && len(sections) > 2:
		return sections[2], false
	}
	return sections[0], false
}

// splitSections splits a format at its semicolons that are no text.
func splitSections(format string) []string {
	var out []string
	begin, quoted := 0, false
	for i := 0; i < len(format); i++ {
		switch c := format[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\' && !quoted:
			i++
		case c == ';' && !quoted:
			out = append(out, format[begin:i])
			begin = i + 1
		}
	}
	return append(out, format[min(begin, len(format)):])
}

// pattern is a format of digits and literal text.
type pattern struct {
	whole       []item // before the decimal point
	part        []item // behind it
	point       bool
	grouped     bool
	decimalsMax int
}

// item is a place of a digit ('0', '#' or '?'), or literal text.
type item struct {
	digit byte
	text  string
}

// parsePattern parses a format, unless it has anything but digits, group separators, one
// decimal point and text.
func parsePattern(code string) (p pattern, ok bool) {
	add := func(it item) {
		if p.point {
			p.part = append(p.part, it)
		} else {
			p.whole = append(p.whole, it)
		}
	}
	places, afterComma := 0, false
	for i := 0; i < len(code); i++ {
		c := code[i]
		comma := false
		switch c {
		case '0', '#', '?':
			places++
			p.grouped = p.grouped || afterComma && !p.point
			if p.point {
				p.decimalsMax++
			}
			add(item{digit: c})
		case ',':
			if places == 0 || p.point {
				return p, false
			}
			comma = true
		case '.':
			if p.point || afterComma {
				return p, false
			}
			p.point = true
		case '"':
			end := strings.IndexByte(code[i+1:], '"')
			if end < 0 {
				return p, false
			}
			add(item{text: code[i+1 : i+1+end]})
			i += end + 1
		case '\\':
			if i+1 == len(code) {
				return p, false
			}
			i++
			add(item{text: code[i : i+1]})
		case '_', '*': // a space as wide as the next character, or a filling
			_, size := utf8.DecodeRuneInString(code[i+1:])
			i += size
		case '[':
			text, length, ok := bracket(code[i:])
			if !ok {
				return p, false
			}
			add(item{text: text})
			i += length - 1
		case ' ', '-', '+', '(', ')', '$':
			add(item{text: code[i : i+1]})
		default:
			if c < utf8.RuneSelf {
				return p, false
			}
			add(item{text: code[i : i+1]}) // a byte of a sign such as ₩
		}
		afterComma = comma
	}
	return p, places > 0 && !afterComma
}

// bracket reads a color, or the sign of a currency as in [$₩-412].
func bracket(code string) (text string, length int, ok bool) {
	inside, _, ok := strings.Cut(code[1:], "]")
	if !ok {
		return "", 0, false
	}
	length = len(inside) + 2
	if sign, is := strings.CutPrefix(inside, "$"); is {
		sign, _, _ = strings.Cut(sign, "-")
		return sign, length, true
	}
	for _, color := range []string{"black", "blue", "cyan", "green", "magenta", "red", "white", "yellow"} {
		if strings.EqualFold(inside, color) {
			return "", length, true
		}
	}
	return "", 0, false
}

// show writes digits into the places of the pattern.
func (p *pattern) show(whole, part string) string {
	return strings.TrimSpace(p.showWhole(strings.TrimLeft(whole, "0")) + p.showPart(part))
}

// showWhole fills the places from the last one, and the first one takes all digits that
// are left.
func (p *pattern) showWhole(digits string) string {
	first := slices.IndexFunc(p.whole, func(it item) bool { return it.digit != 0 })
	text, written := "", 0
	add := func(digit string) {
		if p.grouped && written > 0 && written%3 == 0 {
			text = "," + text
		}
		text = digit + text
		written++
	}
	take := func() {
		add(digits[len(digits)-1:])
		digits = digits[:len(digits)-1]
	}
	for i, it := range slices.Backward(p.whole) {
		switch {
		case it.digit == 0:
			text = it.text + text
			continue
		case digits != "":
			take()
		case it.digit == '0':
			add("0")
		}
		for i == first && digits != "" {
			take()
		}
	}
	return text
}

func (p *pattern) showPart(digits string) string {
	text, point := "", ""
	for _, it := range p.part {
		switch {
		case it.digit == 0:
			text += it.text
			continue
		case digits != "":
			text += digits[:1]
			digits = digits[1:]
		case it.digit == '0':
			text += "0"
		default:
			continue
		}
		point = "."
	}
	return point + text
}
