package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
	"github.com/largesse/largesse/internal/store"
)

// delimiters lists what may be between the cells of CSV.
var delimiters = []byte{',', ';', '\t'}

// csvHeader reads the names of the columns, and finds out what is between them.
func (t *TargetReader) csvHeader() ([]string, error) {
	l, err := t.content()
	switch {
	case err != nil:
		return nil, err
	case l.tooLong:
		return nil, noHeader("the first line has more than %d bytes", lineMax)
	case bytes.HasPrefix(l.text, []byte("PK\x03\x04")):
		return nil, noHeader("the file is no text, but looks like an .xlsx file; send it with the type %s", FormatXLSX)
	case !t.valid(l.text):
		return nil, reward.NewError(reward.KindInvalid, CodeInvalidUTF8, "the header is not %s; save the file as UTF-8, or name its encoding: %q",
			t.textName(), sheet.Encodings)
	}
	candidates := delimiters
	if t.file.Format == FormatTSV {
		candidates = []byte{'\t'}
	}
	var names []string
	score := -1
	for _, comma := range candidates {
		cells, _, quotes := splitCSV(l.text, comma, false, make([][]byte, 0, bytes.Count(l.text, []byte{comma})+1))
		if quotes != quotesClosed {
			continue
		}
		found := make([]string, len(cells))
		for i, cell := range cells {
			found[i] = strings.TrimSpace(reward.UnguardCell(string(cell)))
		}
		// A name that is understood counts more than any number of cells.
		if s := len(found) + lineMax*t.understood(found); s > score {
			t.comma, names, score = comma, found, s
		}
	}
	if score < 0 {
		return nil, noHeader("the header has a broken quote")
	}
	t.found.Delimiter = string(t.comma)
	t.cells = make([][]byte, 0, len(names)+1)
	return names, nil
}

// valid reports whether a line is text that the databases can store.
func (t *TargetReader) valid(text []byte) bool {
	return storable(text) && (!t.text.Decoded() || !bytes.Contains(text, []byte("\ufffd")))
}

// textName says what the lines of the file must be.
func (t *TargetReader) textName() string {
	if t.text.Decoded() {
		return string(t.text.Encoding) + " text"
	}
	return "UTF-8 text without U+0000"
}

func (t *TargetReader) csvRecord() (record, error) {
	l, err := t.content()
	if err != nil {
		return record{}, err
	}
	rec := record{number: l.number}
	if l.tooLong {
		rec.fault = tooLong()
		return rec, nil
	}
	found, n, quotes := splitCSV(l.text, t.comma, false, t.cells[:0])
	rec.cells = found
	switch {
	case quotes == quotesBroken:
		rec.cells = [][]byte{l.text}
		rec.fault = reward.RefuseLine(LineBadQuote, "a quote is neither around a whole cell nor doubled")
	case quotes == quotesOpen:
		rec.cells = [][]byte{bytes.Clone(l.text)}
		rec.fault, err = t.spanning(l)
	case !t.valid(l.text):
		rec.fault = reward.RefuseLine(reward.LineInvalidUTF8, "the line is not %s", t.textName())
	case n != len(t.found.Header):
		rec.fault = reward.RefuseLine(LineWrongColumns, "the line has %d cells, the header %d", n, len(t.found.Header))
	}
	return rec, err
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
		_, _, quotes := splitCSV(l.text, t.comma, true, nil)
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
func splitCSV(text []byte, comma byte, inside bool, into [][]byte) ([][]byte, int, quotes) {
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
			if len(text) > 0 && text[0] != comma {
				return into, n, quotesBroken
			}
		} else {
			end := bytes.IndexByte(text, comma)
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
		text = text[1:] // the delimiter
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
