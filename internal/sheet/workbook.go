package sheet

import (
	"archive/zip"
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/reward"
)

// MediaType is the media type of .xlsx files.
const MediaType = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"

// Begins is what .xlsx files begin with.
const Begins = "PK\x03\x04"

// Codes of workbooks that are refused as a whole.
const (
	CodeBadWorkbook  = "BAD_WORKBOOK"
	CodeUnknownSheet = "UNKNOWN_SHEET"
)

// Limits of a workbook. A small file can unpack to any size.
const (
	// FileMax is the greatest size of an .xlsx file in bytes.
	FileMax = 32 << 20
	// partMax limits what a part of the file unpacks to; a million rows of a few cells
	// have 200 MB.
	partMax = 512 << 20
	// tokenMax limits one element, or one text, of a part.
	tokenMax = 1 << 20
	// textMax limits the texts that cells share, which are kept in memory.
	textMax = 32 << 20
	// columnsMax is the number of columns that a spreadsheet has.
	columnsMax = 16_384
	// sheetsMax limits the sheets of a workbook.
	sheetsMax = 1000
	// stylesMax limits the formats, the styles and the parts that a workbook names: as many
	// styles as a spreadsheet has.
	stylesMax = 65_490
	// rowTextMax limits the text of one row.
	rowTextMax = 1 << 20
)

// Workbook is an .xlsx file in memory. It is not safe for concurrent use.
type Workbook struct {
	parts  map[string]*zip.File
	sheets []tab
	texts  sharedTexts
	styles []string // the number format of each style
}

type tab struct {
	name, part string
	hidden     bool
}

func badWorkbook(format string, args ...any) error {
	return reward.NewError(reward.KindInvalid, CodeBadWorkbook, format, args...)
}

// ReadWorkbook reads a workbook. The errors are CodeBadWorkbook, and those of the reader.
func ReadWorkbook(r io.Reader) (*Workbook, error) {
	file, err := io.ReadAll(io.LimitReader(r, FileMax+1))
	switch {
	case err != nil:
		return nil, err
	case len(file) > FileMax:
		return nil, badWorkbook("the .xlsx file has more than %d MB; save the sheet as CSV (UTF-8) and send that", FileMax>>20)
	case bytes.HasPrefix(file, []byte("\xd0\xcf\x11\xe0")):
		return nil, badWorkbook("the file is an old .xls file or has a password; save it as .xlsx without a password")
	}
	archive, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		return nil, badWorkbook("the file is no .xlsx file: %v; save it as .xlsx, or as CSV (UTF-8)", err)
	}
	w := &Workbook{parts: make(map[string]*zip.File)}
	for _, f := range archive.File {
		w.parts[strings.ToLower(strings.TrimPrefix(f.Name, "/"))] = f
	}
	if err := w.readSheets(); err != nil {
		return nil, err
	}
	return w, nil
}

// Sheets returns the names of the sheets in order.
func (w *Workbook) Sheets() []string {
	names := make([]string, len(w.sheets))
	for i, s := range w.sheets {
		names[i] = s.name
	}
	return names
}

// part calls read with each token of a part of the file, and does nothing without such
// a part.
func (w *Workbook) part(name string, read func(xml.Token) error) error {
	f, ok := w.parts[strings.ToLower(name)]
	if !ok {
		return nil
	}
	text, err := f.Open()
	if err != nil {
		return badWorkbook("the part %s of the .xlsx file is broken: %v", reward.Quote(name), err)
	}
	defer text.Close()
	tokens := newTokens(text)
	for {
		token, err := tokens.next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return badWorkbook("the part %s of the .xlsx file is broken: %v", reward.Quote(name), err)
		}
		if err := read(token); err != nil {
			return err
		}
	}
}

// tokens reads the tokens of a part of the file, within its limits.
type tokens struct {
	part    io.Reader
	decoder *xml.Decoder
	read    int64 // of the part
	begun   int64 // read when the token began
}

func newTokens(part io.Reader) *tokens {
	t := &tokens{part: part}
	t.decoder = xml.NewDecoder(t)
	return t
}

func (t *tokens) next() (xml.Token, error) {
	t.begun = t.read
	return t.decoder.RawToken()
}

// Read passes the part on to the decoder.
func (t *tokens) Read(p []byte) (int, error) {
	switch {
	case t.read > partMax:
		return 0, fmt.Errorf("it unpacks to more than %d MB", partMax>>20)
	case t.read-t.begun > tokenMax:
		return 0, fmt.Errorf("a text has more than %d kB", tokenMax>>10)
	}
	n, err := t.part.Read(p)
	t.read += int64(n)
	return n, err
}

// attribute returns an attribute of an element, whatever its name space.
func attribute(e *xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}

const workbookPart = "xl/workbook.xml"

func (w *Workbook) readSheets() error {
	targets := make(map[string]string) // by ID of the relation
	err := w.part("xl/_rels/workbook.xml.rels", func(token xml.Token) error {
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "Relationship" {
			target := attribute(&e, "Target")
			if !strings.HasPrefix(target, "/") {
				target = path.Join("xl", target)
			}
			if len(targets) == stylesMax {
				return tooMany("parts")
			}
			targets[attribute(&e, "Id")] = strings.TrimPrefix(target, "/")
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = w.part(workbookPart, func(token xml.Token) error {
		e, ok := token.(xml.StartElement)
		if !ok || e.Name.Local != "sheet" {
			return nil
		}
		if len(w.sheets) == sheetsMax {
			return badWorkbook("the workbook has more than %d sheets", sheetsMax)
		}
		id := ""
		for _, a := range e.Attr {
			if a.Name.Local == "id" && a.Name.Space != "" {
				id = a.Value
			}
		}
		w.sheets = append(w.sheets, tab{name: attribute(&e, "name"), part: targets[id], hidden: strings.Contains(strings.ToLower(attribute(&e, "state")), "hidden")})
		return nil
	})
	if err == nil && len(w.sheets) == 0 {
		err = badWorkbook("the .xlsx file has no sheets; save it as .xlsx, or as CSV (UTF-8)")
	}
	return err
}

// Rows returns the rows of the sheet with a name, or with "" of the first sheet that is
// not hidden. The errors are CodeUnknownSheet and CodeBadWorkbook.
func (w *Workbook) Rows(name string) (*Rows, error) {
	at := slices.IndexFunc(w.sheets, func(s tab) bool {
		return name == "" && !s.hidden || name != "" && s.name == name
	})
	switch {
	case at < 0 && name == "":
		at = 0
	case at < 0:
		return nil, reward.NewError(reward.KindInvalid, CodeUnknownSheet, "the workbook has no sheet %s; it has %q", reward.Quote(name), w.Sheets())
	}
	f, ok := w.parts[strings.ToLower(w.sheets[at].part)]
	if !ok {
		return nil, badWorkbook("sheet %s has no cells in the file, or is a chart; name another sheet", reward.Quote(w.sheets[at].name))
	}
	if err := w.readTexts(); err != nil {
		return nil, err
	}
	if err := w.readStyles(); err != nil {
		return nil, err
	}
	text, err := f.Open()
	if err != nil {
		return nil, badWorkbook("sheet %s is broken: %v", reward.Quote(w.sheets[at].name), err)
	}
	return &Rows{Sheet: w.sheets[at].name, book: w, tokens: newTokens(text)}, nil
}

// sharedTexts holds the texts that cells share one after the other, because there may
// be a million of them.
type sharedTexts struct {
	all  []byte
	ends []uint32
}

func (t *sharedTexts) get(i int) (string, bool) {
	if i < 0 || i >= len(t.ends) {
		return "", false
	}
	begin := uint32(0)
	if i > 0 {
		begin = t.ends[i-1]
	}
	return string(t.all[begin:t.ends[i]]), true
}

func (w *Workbook) readTexts() error {
	w.texts = sharedTexts{}
	var text textOf
	return w.part("xl/sharedStrings.xml", func(token xml.Token) error {
		if e, ok := token.(xml.EndElement); ok && e.Name.Local == "si" {
			w.texts.all = append(w.texts.all, text.take()...)
			w.texts.ends = append(w.texts.ends, uint32(len(w.texts.all))) //nolint:gosec // at most textMax
		}
		text.add(token)
		if len(w.texts.all)+len(text.text)+4*len(w.texts.ends) > textMax {
			return badWorkbook("the texts of the workbook have more than %d MB; save the sheet as CSV (UTF-8) and send that", textMax>>20)
		}
		return nil
	})
}

// textOf collects the text of the elements t, without the reading aids of Japanese.
type textOf struct {
	text   []byte
	inside bool
	aid    int
}

func (x *textOf) add(token xml.Token) {
	switch e := token.(type) {
	case xml.StartElement:
		switch e.Name.Local {
		case "t":
			x.inside = true
		case "rPh":
			x.aid++
		}
	case xml.EndElement:
		switch e.Name.Local {
		case "t":
			x.inside = false
		case "rPh":
			x.aid--
		}
	case xml.CharData:
		if x.inside && x.aid == 0 {
			x.text = append(x.text, e...)
		}
	}
}

func (x *textOf) take() string {
	text := unescape(string(x.text))
	x.text = x.text[:0]
	return text
}

// unescape decodes the characters that spreadsheets write as _x000D_.
func unescape(text string) string {
	if !strings.Contains(text, "_x") {
		return text
	}
	var out strings.Builder
	for {
		begin := strings.Index(text, "_x")
		if begin < 0 {
			return out.String() + text
		}
		out.WriteString(text[:begin])
		text = text[begin:]
		if len(text) >= len("_x000D_") && text[6] == '_' {
			if c, err := strconv.ParseUint(text[2:6], 16, 16); err == nil {
				out.WriteRune(rune(c))
				text = text[len("_x000D_"):]
				continue
			}
		}
		out.WriteString("_x")
		text = text[len("_x"):]
	}
}

func tooMany(what string) error {
	return badWorkbook("the workbook has more than %d %s; save the sheet as CSV (UTF-8) and send that", stylesMax, what)
}

func (w *Workbook) readStyles() error {
	formats := make(map[string]string) // by ID
	inCells := false
	w.styles = nil
	return w.part("xl/styles.xml", func(token xml.Token) error {
		switch e := token.(type) {
		case xml.StartElement:
			switch e.Name.Local {
			case "numFmt":
				if len(formats) == stylesMax {
					return tooMany("formats")
				}
				formats[attribute(&e, "numFmtId")] = attribute(&e, "formatCode")
			case "cellXfs":
				inCells = true
			case "xf":
				if !inCells {
					break
				}
				id := attribute(&e, "numFmtId")
				format, ok := formats[id]
				if !ok {
					format = builtinFormat(id)
				}
				if len(w.styles) == stylesMax {
					return tooMany("styles")
				}
				w.styles = append(w.styles, format)
			}
		case xml.EndElement:
			inCells = inCells && e.Name.Local != "cellXfs"
		}
		return nil
	})
}

// Cell is a cell as a spreadsheet shows it.
type Cell struct {
	Text string
	// Problem says why the cell cannot be read, if it cannot. Its text is what the file
	// has.
	Problem string
}

// Row is a row of a sheet.
type Row struct {
	Number int64 // from 1
	Hidden bool  // by a filter, or by hand
	Cells  []Cell
}

// Rows reads the rows of a sheet.
type Rows struct {
	Sheet  string
	book   *Workbook
	tokens *tokens
	number int64
	ended  bool
}

// Next returns the next row that is in the file, or io.EOF. Its cells are valid until
// the next call.
func (r *Rows) Next() (Row, error) {
	for !r.ended {
		token, err := r.token()
		if err != nil {
			return Row{}, err
		}
		switch e := token.(type) {
		case xml.StartElement:
			if e.Name.Local != "row" {
				continue
			}
			r.number++
			if n, err := strconv.ParseInt(attribute(&e, "r"), 10, 64); err == nil {
				if n < r.number {
					return Row{}, badWorkbook("row %d of sheet %s comes after row %d; save the workbook again in a spreadsheet", n, reward.Quote(r.Sheet), r.number-1)
				}
				r.number = n
			}
			row := Row{Number: r.number, Hidden: isTrue(attribute(&e, "hidden"))}
			return row, r.cells(&row)
		case xml.EndElement:
			r.ended = e.Name.Local == "sheetData"
		}
	}
	return Row{}, io.EOF
}

func isTrue(text string) bool { return text == "1" || text == "true" }

func (r *Rows) token() (xml.Token, error) {
	token, err := r.tokens.next()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, badWorkbook("sheet %s is broken behind row %d: %v", reward.Quote(r.Sheet), r.number, err)
	}
	return token, nil
}

// cells reads the cells of a row up to its end.
func (r *Rows) cells(row *Row) error {
	size := 0
	for {
		token, err := r.token()
		if err != nil {
			return err
		}
		switch e := token.(type) {
		case xml.StartElement:
			if e.Name.Local != "c" {
				continue
			}
			column := len(row.Cells)
			if ref := attribute(&e, "r"); ref != "" {
				column = columnOf(ref)
			}
			if column < len(row.Cells) || column >= columnsMax {
				return badWorkbook("row %d of sheet %s has a cell %s in a wrong place; save the workbook again in a spreadsheet",
					row.Number, reward.Quote(r.Sheet), reward.Quote(attribute(&e, "r")))
			}
			for len(row.Cells) < column {
				row.Cells = append(row.Cells, Cell{})
			}
			cell, err := r.cell(&e)
			if err != nil {
				return err
			}
			if size += len(cell.Text); size > rowTextMax {
				return badWorkbook("row %d of sheet %s has more than %d kB of text", row.Number, reward.Quote(r.Sheet), rowTextMax>>10)
			}
			row.Cells = append(row.Cells, cell)
		case xml.EndElement:
			if e.Name.Local == "row" {
				return nil
			}
		}
	}
}

// cell reads a cell up to its end.
func (r *Rows) cell(begin *xml.StartElement) (Cell, error) {
	var inline textOf
	var value []byte
	inValue, formula := false, false
	for {
		token, err := r.token()
		if err != nil {
			return Cell{}, err
		}
		inline.add(token)
		switch e := token.(type) {
		case xml.StartElement:
			inValue = e.Name.Local == "v"
			formula = formula || e.Name.Local == "f"
		case xml.CharData:
			if inValue {
				value = append(value, e...)
			}
		case xml.EndElement:
			inValue = false
			if e.Name.Local == "c" {
				return r.shown(begin, string(value), inline.take(), formula), nil
			}
		}
		if len(value)+len(inline.text) > rowTextMax {
			return Cell{}, badWorkbook("a cell of sheet %s has more than %d kB of text", reward.Quote(r.Sheet), rowTextMax>>10)
		}
	}
}

// shown returns a cell by its type.
func (r *Rows) shown(begin *xml.StartElement, value, inline string, formula bool) Cell {
	switch attribute(begin, "t") {
	case "s":
		at, err := strconv.Atoi(strings.TrimSpace(value))
		text, ok := r.book.texts.get(at)
		if err != nil || !ok {
			return Cell{Text: value, Problem: "names a text that the file does not have"}
		}
		return Cell{Text: text}
	case "inlineStr":
		return Cell{Text: inline}
	case "str":
		return Cell{Text: unescape(value)}
	case "b":
		return Cell{Text: strings.ToUpper(strconv.FormatBool(isTrue(value)))}
	case "e":
		return Cell{Text: value, Problem: "is an error of a spreadsheet"}
	case "d":
		return Cell{Text: value, Problem: "is a date; format the column as text, and enter the value again"}
	}
	switch value = strings.TrimSpace(value); {
	case value == "" && formula:
		return Cell{Problem: "has a formula whose result is not in the file; open the file in a spreadsheet and save it again, or paste the values"}
	case value == "":
		return Cell{}
	}
	format := "General"
	if style, err := strconv.Atoi(attribute(begin, "s")); err == nil && style >= 0 && style < len(r.book.styles) {
		format = r.book.styles[style]
	}
	text, problem := showNumber(value, format)
	return Cell{Text: text, Problem: problem}
}

// columnOf returns the index of a cell's column by a reference such as B7.
func columnOf(ref string) int {
	letters := strings.TrimRight(ref, "0123456789")
	at, ok := ColumnIndex(letters)
	if !ok {
		return columnsMax
	}
	return at
}

// ColumnIndex returns the index of a column by its letters: A is 0, AA is 26.
func ColumnIndex(letters string) (int, bool) {
	n := 0
	if letters == "" || len(letters) > 3 {
		return 0, false
	}
	for _, c := range strings.ToUpper(letters) {
		if c < 'A' || c > 'Z' {
			return 0, false
		}
		n = n*26 + int(c-'A') + 1
	}
	return n - 1, n <= columnsMax
}

// ColumnLetters returns the letters of a column: ColumnIndex in reverse.
func ColumnLetters(at int) string {
	letters := ""
	for at++; at > 0; at = (at - 1) / 26 {
		letters = string(rune('A'+(at-1)%26)) + letters
	}
	return letters
}
