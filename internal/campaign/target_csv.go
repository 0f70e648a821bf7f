package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// csvHeader holds the columns in order.
type csvHeader struct {
	columns []string
	cells   [][]byte // scratch space for one cell more than the columns
}

func parseHeader(l line) (csvHeader, error) {
	const hint = "the first line must name the columns, separated by commas: targetId and any of userId, amount, voucherCode"
	refuse := func(code, format string, args ...any) (csvHeader, error) {
		return csvHeader{}, reward.NewError(reward.KindInvalid, code, format, args...)
	}
	switch {
	case l.tooLong:
		return refuse(CodeNoHeader, "the first line has more than %d bytes; %s", lineMax, hint)
	case !storable(l.text):
		return refuse(CodeInvalidUTF8, "the header is not UTF-8 text; save the file as UTF-8")
	}
	// A header with eight or more columns must have an unknown or a repeated
	// one among the first eight, so the others need no look.
	found, _, quotes := splitCSV(l.text, false, make([][]byte, 0, 8))
	if quotes != quotesClosed {
		return refuse(CodeNoHeader, "the header has a broken quote; %s", hint)
	}
	names := make([]string, len(found))
	for i, cell := range found {
		names[i] = string(cell)
	}
	isColumn := func(name string) bool { return slices.Contains(columns, name) }
	if !slices.ContainsFunc(names, isColumn) {
		return refuse(CodeNoHeader, "%s", hint)
	}
	for _, name := range names {
		if !isColumn(name) {
			return refuse(CodeUnknownColumn, "column %s is unknown; %s", reward.Quote(name), hint)
		}
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return refuse(CodeDuplicateColumn, "column %s appears twice", name)
		}
	}
	if !slices.Contains(names, columnTarget) {
		return refuse(CodeNoHeader, "column %s is missing; %s", columnTarget, hint)
	}
	return csvHeader{columns: names, cells: make([][]byte, 0, len(names)+1)}, nil
}

func (t *TargetReader) parseCSV(l line) (reward.TargetText, *reward.Error, error) {
	found, n, quotes := splitCSV(l.text, false, t.csv.cells[:0])
	switch quotes {
	case quotesBroken:
		return reward.TargetText{}, reward.RefuseLine(LineBadQuote, "a quote is neither around a whole cell nor doubled"), nil
	case quotesOpen:
		fault, err := t.spanning(l)
		return reward.TargetText{}, fault, err
	}
	switch {
	case !storable(l.text):
		return reward.TargetText{}, reward.RefuseLine(reward.LineInvalidUTF8, "the line is not UTF-8 text without U+0000"), nil
	case n != len(t.csv.columns):
		return reward.TargetText{}, reward.RefuseLine(LineWrongColumns, "the line has %d cells, the header %d", n, len(t.csv.columns)), nil
	}
	var x reward.TargetText
	for i, name := range t.csv.columns {
		text := string(found[i])
		switch name {
		case columnTarget:
			x.TargetID = text
		case columnUser:
			x.UserID = reward.UnguardCell(text)
		case columnAmount:
			x.Amount = text
		case columnVoucher:
			if reward.StartsFormula(text) {
				return reward.TargetText{}, reward.RefuseLine(LineFormula, "%s begins like a spreadsheet formula; if it is none, write an apostrophe before it", columnVoucher), nil
			}
			x.VoucherCode = reward.UnguardCell(text)
		}
	}
	for _, cell := range []struct{ code, column, text string }{{reward.LineBadUser, columnUser, x.UserID}, {reward.LineBadVoucher, columnVoucher, x.VoucherCode}} {
		if wrong := reward.CheckCell(cell.text); wrong != "" {
			return reward.TargetText{}, reward.RefuseLine(cell.code, "%s %s %s, so the text itself is lost; export the file again, with the column as text", cell.column, reward.Quote(cell.text), wrong), nil
		}
	}
	return x, nil, nil
}

// spanning handles a line whose quoted cell is open at its end. If a later line closes
// the quote within the maximum length of a line, all of these lines are one record and
// refused: no cell may contain a line end, and an attacker may control the text in it.
// Otherwise only the first line is refused.
func (t *TargetReader) spanning(first line) (*reward.Error, error) {
	var under []line
	size := len(first.text)
	closed := false
	for !closed {
		l, err := t.lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		l.text = bytes.Clone(l.text)
		under = append(under, l)
		size += len(l.text) + 1
		if l.tooLong || size > lineMax {
			break
		}
		_, _, quotes := splitCSV(l.text, true, nil)
		if quotes == quotesBroken {
			break
		}
		closed = quotes == quotesClosed
	}
	if !closed {
		t.lines.push(under)
		return reward.RefuseLine(LineBadQuote, "a quote is not closed"), nil
	}
	for _, l := range under {
		if len(l.text) > 0 {
			t.rejected = append(t.rejected, store.LineError{
				Line: l.number, Code: LineBadQuote,
				Detail: fmt.Sprintf("the line belongs to a quoted cell that was opened on line %d", first.number),
			})
		}
	}
	return reward.RefuseLine(LineBadQuote, "a quoted cell continues past the end of the line"), nil
}

// quotes is the state of the quotes at the end of a line.
type quotes int8

const (
	quotesClosed quotes = iota
	quotesOpen          // inside a quoted cell
	quotesBroken        // violates RFC 4180
)

// splitCSV splits a line into cells and counts them. It returns as many as into has
// capacity for. inside means that the line begins inside a quoted cell. Cells are
// slices of the text, except those with doubled quotes.
func splitCSV(text []byte, inside bool, into [][]byte) ([][]byte, int, quotes) {
	n := 0
	for {
		var cell []byte
		if inside || len(text) > 0 && text[0] == '"' {
			if !inside {
				text = text[1:]
			}
			inside = false
			end, doubled := closingQuote(text)
			if end < 0 {
				return into, n, quotesOpen
			}
			cell = text[:end]
			if doubled {
				cell = bytes.ReplaceAll(cell, []byte(`""`), []byte(`"`))
			}
			text = text[end+1:]
			if len(text) > 0 && text[0] != ',' {
				return into, n, quotesBroken
			}
		} else {
			end := bytes.IndexByte(text, ',')
			if end < 0 {
				end = len(text)
			}
			cell = text[:end]
			if bytes.IndexByte(cell, '"') >= 0 {
				return into, n, quotesBroken
			}
			text = text[end:]
		}
		n++
		if len(into) < cap(into) {
			into = append(into, cell)
		}
		if len(text) == 0 {
			return into, n, quotesClosed
		}
		text = text[1:] // the comma
	}
}

// closingQuote returns the index of the quote that ends a cell, or −1.
func closingQuote(text []byte) (end int, doubled bool) {
	for i := 0; i < len(text); i++ {
		if text[i] != '"' {
			continue
		}
		if i+1 < len(text) && text[i+1] == '"' {
			doubled = true
			i++
			continue
		}
		return i, doubled
	}
	return -1, doubled
}
