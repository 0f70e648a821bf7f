package campaign

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
	"github.com/largesse/largesse/internal/store"
)

// Format is the media type of a file of targets.
type Format string

// The formats.
const (
	// FormatCSV has a header line that names the columns, in any order, and a comma, a
	// semicolon or a tab between them.
	FormatCSV Format = "text/csv"
	// FormatTSV is FormatCSV with tabs.
	FormatTSV Format = "text/tab-separated-values"
	// FormatXLSX is a workbook, whose first row with content names the columns.
	FormatXLSX Format = sheet.MediaType
	// FormatNDJSON has one JSON object per line, with the names of our columns.
	FormatNDJSON Format = "application/x-ndjson"
)

// Formats lists the formats.
var Formats = []Format{FormatCSV, FormatTSV, FormatXLSX, FormatNDJSON}

// The names of columns and fields.
const (
	columnTarget  = "targetId"
	columnUser    = "userId"
	columnAmount  = "amount"
	columnVoucher = "voucherCode"
)

var columns = [...]string{columnTarget, columnUser, columnAmount, columnVoucher}

// Units says in which units a file of targets has its amounts.
type Units string

// The units. In minor units, 1050 of EUR are 10.50 EUR; in major ones, 10.50 are.
const (
	MinorUnits Units = "minor"
	MajorUnits Units = "major"
)

// File says how a file of targets is read.
type File struct {
	Format Format
	Units  Units
	// Columns says which column of the file is which. Nil means that they have our names.
	Columns  Columns
	Encoding sheet.Encoding // of CSV; empty: detected
	Sheet    string         // of a workbook; empty: the first one
	// Skip are lines to leave out, such as those that another file corrects.
	Skip []int64
	// Suggest takes the columns that their names suggest, if Columns is nil.
	Suggest bool
}

// Found is what a file turned out to be.
type Found struct {
	Header    []string // the names of its columns
	Columns   Columns  // which of them are read
	Delimiter string   // of CSV
	Encoding  sheet.Encoding
	Sheet     string
	Sheets    []string // of the workbook
}

// Codes of rejected lines, besides those of [reward.TargetText].
const (
	LineFormula      = "FORMULA"
	LineWrongColumns = "WRONG_COLUMNS"
	LineBadQuote     = "BAD_QUOTE"
	LineHiddenRow    = "HIDDEN_ROW"
	// LineConflict means that the target exists with other data. Only saving finds it.
	LineConflict = "CONFLICT"
)

// Codes of files that are refused as a whole.
const (
	CodeEmptyFile       = "EMPTY_FILE"
	CodeNoHeader        = "NO_HEADER"
	CodeUnknownColumn   = "UNKNOWN_COLUMN"
	CodeDuplicateColumn = "DUPLICATE_COLUMN"
	CodeInvalidUTF8     = "INVALID_UTF8"
	CodeUnknownFormat   = "UNKNOWN_FORMAT"
)

// record is a line of a file.
type record struct {
	number int64
	cells  [][]byte // of a table; valid until the next record
	// problems says why cells of a workbook cannot be read.
	problems []string
	text     reward.TargetText // of NDJSON
	fault    *reward.Error     // why the line is refused
}

// TargetReader reads targets from a stream of any size, and holds at most two lines, or
// a workbook. It is not safe for concurrent use.
type TargetReader struct {
	file      File
	defaults  reward.Promotion
	lines     *lineReader
	text      *sheet.TextReader // of CSV
	book      *workbook
	header    func() ([]string, error) // nil if there is none, or after it
	record    func() (record, error)
	found     Found
	at        [len(columns)]int // the index of each of our columns in the file, or −1
	comma     byte              // between the cells of CSV
	needsUser bool              // whether a line without a user is refused
	cells     [][]byte          // scratch space for one cell more than the columns
	any       bool              // a line with content has been read
	rejected  []store.LineError // found ahead; returned first
	shown     []ShownLine
	shownMax  int
	err       error // sticky
}

// ShownLine is a line as the reader understood it.
type ShownLine struct {
	Line   int64
	Cells  []string
	Target store.NewPayout
	Fault  *store.LineError // why it is refused
}

// NewTargetReader returns a reader of a promotion's targets. Its amount, voucher code
// and currency are the defaults of the lines.
func NewTargetReader(r io.Reader, file File, defaults reward.Promotion) *TargetReader {
	t := &TargetReader{file: file, defaults: defaults}
	switch file.Format {
	case FormatCSV, FormatTSV:
		t.text = sheet.NewTextReader(r, file.Encoding)
		t.lines = newLineReader(t.text)
		t.header, t.record = t.csvHeader, t.csvRecord
	case FormatXLSX:
		t.book = &workbook{file: r, sheet: file.Sheet}
		t.header, t.record = t.sheetHeader, t.sheetRecord
	case FormatNDJSON:
		t.lines = newLineReader(r)
		t.record = t.jsonRecord
	default:
		t.err = reward.NewError(reward.KindInvalid, CodeUnknownFormat, "format %s is none of %q", reward.Quote(string(file.Format)), Formats)
	}
	if wrong := file.check(defaults.Currency); wrong != nil {
		t.err = reward.InvalidFields("the upload", wrong)
	}
	return t
}

// check returns what does not fit the format, or the currency.
func (f *File) check(currency string) (wrong []reward.FieldError) {
	refuse := func(field, format string, args ...any) {
		wrong = append(wrong, reward.FieldError{Field: field, Detail: fmt.Sprintf(format, args...)})
	}
	if _, ok := reward.CurrencyDigits(currency); f.Units == MajorUnits && !ok {
		refuse("amounts", "must be minor: major units need a currency of ISO 4217, and the promotion has %s", cmp.Or(currency, "none"))
	}
	if f.Columns != nil && f.Format == FormatNDJSON {
		refuse("columns", "must be absent: objects of NDJSON have the names targetId, userId, amount and voucherCode")
	}
	if f.Encoding != "" && f.Format != FormatCSV && f.Format != FormatTSV {
		refuse("encoding", "must be absent: only CSV can have one")
	}
	if len(f.Skip) > uploadErrorsShown {
		refuse("skip", "must name at most %d lines", uploadErrorsShown)
	}
	if f.Sheet != "" && f.Format != FormatXLSX {
		refuse("sheet", "must be absent: only an .xlsx file has sheets")
	}
	return wrong
}

// Next returns the next target with its line number (from 1, including the
// header), or the next rejected line with the reason. The error is io.EOF at the
// end of a complete file, a *reward.Error if the file is refused as a whole,
// and any other error if the stream ended early. In the last case Next drops
// the last line, because a truncated line can look complete.
func (t *TargetReader) Next() (store.NewPayout, int64, *store.LineError, error) {
	for t.err == nil {
		if len(t.rejected) > 0 {
			bad := t.rejected[0]
			t.rejected = t.rejected[1:]
			if slices.Contains(t.file.Skip, bad.Line) {
				continue
			}
			t.show(ShownLine{Line: bad.Line, Cells: bad.Cells, Fault: &bad})
			return store.NewPayout{}, bad.Line, &bad, nil
		}
		if t.header != nil {
			names, err := t.header()
			if t.header = nil; err == nil {
				err = t.match(names)
			}
			t.err = t.end(err)
			continue
		}
		rec, err := t.record()
		if err != nil {
			t.err = t.end(err)
			break
		}
		if slices.Contains(t.file.Skip, rec.number) {
			continue
		}
		row, fault := t.row(&rec)
		if fault != nil {
			bad := store.LineError{Line: rec.number, Code: fault.Code, Detail: fault.Detail, Cells: t.toCorrect(&rec, fault)}
			t.show(ShownLine{Line: rec.number, Cells: bad.Cells, Fault: &bad})
			return store.NewPayout{}, rec.number, &bad, nil
		}
		if len(t.shown) < t.shownMax {
			t.show(ShownLine{Line: rec.number, Cells: rec.texts(), Target: row})
		}
		return row, rec.number, nil, nil
	}
	return store.NewPayout{}, 0, nil, t.err
}

func (t *TargetReader) show(l ShownLine) {
	if len(t.shown) < t.shownMax {
		t.shown = append(t.shown, l)
	}
}

// cellsShownMax limits the cells of a line that are shown and stored, in bytes of JSON.
const cellsShownMax = 4 << 10

// texts returns the cells as texts, or none if they are too long.
func (r *record) texts() []string { return shortCells(r.cells) }

// lostCell stands in a refused line for a cell that a file of text would turn into something
// else. It is refused in every column, so that nothing is paid before somebody corrects it.
const lostCell = "#VALUE!"

// toCorrect returns the cells of a refused line as a file of text can have them. Without
// cells, the line cannot be accepted by mistake.
func (t *TargetReader) toCorrect(rec *record, fault *reward.Error) []string {
	if fault.Code == LineHiddenRow || fault.Code == LineFormula {
		return nil
	}
	cells := rec.texts()
	for i := range cells {
		broken := rec.problems != nil && rec.problems[i] != ""
		// Files to correct have commas between cells, where a comma is no decimal point.
		ambiguous := i == t.at[2] && t.comma == ';' && strings.Contains(cells[i], ",")
		if broken || ambiguous {
			cells[i] = lostCell
		}
	}
	return cells
}

// shownHeader returns the names of the columns, or none if they are too long.
func (t *TargetReader) shownHeader() []string { return shortCells(t.found.Header) }

func shortCells[T ~string | ~[]byte](cells []T) []string {
	if len(cells) == 0 {
		return nil
	}
	size := 0
	out := make([]string, len(cells))
	for i, cell := range cells {
		if size += cellSize(len(cell)); size > cellsShownMax {
			return nil
		}
		out[i] = reward.SanitizeText(string(cell))
	}
	return out
}

// cellSize returns what a cell of a length takes in JSON at least.
func cellSize(length int) int { return length + len(`"",`) }

// Found returns what the file turned out to be, as far as it was read.
func (t *TargetReader) Found() Found {
	found := t.found
	if t.text != nil {
		found.Encoding = cmp.Or(t.text.Encoding, sheet.UTF8)
	}
	return found
}

// content returns the next line that is not empty.
func (t *TargetReader) content() (line, error) {
	for {
		l, err := t.lines.next()
		if err != nil || len(l.text) > 0 || l.tooLong {
			t.any = t.any || err == nil
			return l, err
		}
	}
}

func tooLong() *reward.Error {
	return reward.RefuseLine(reward.LineTooLong, "the line has more than %d bytes", lineMax)
}

func (t *TargetReader) jsonRecord() (record, error) {
	l, err := t.content()
	rec := record{number: l.number}
	switch {
	case err != nil:
	case l.tooLong:
		rec.fault = tooLong()
	default:
		rec.text, rec.fault = reward.ParseTargetText(l.text)
	}
	return rec, err
}

func (t *TargetReader) end(err error) error {
	switch _, known := errors.AsType[*reward.Error](err); {
	case err == nil || known:
		return err
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read targets: %w", err)
	case !t.any:
		return reward.NewError(reward.KindInvalid, CodeEmptyFile, "the file has no content")
	}
	return io.EOF
}

func (t *TargetReader) row(rec *record) (store.NewPayout, *reward.Error) {
	x, fault := rec.text, rec.fault
	if fault == nil && t.file.Format != FormatNDJSON {
		x, fault = t.target(rec)
	}
	if fault != nil {
		return store.NewPayout{}, fault
	}
	if text := x.Amount; t.file.Units == MajorUnits && text != "" {
		amount, err := reward.ParseMajor(text, t.defaults.Currency)
		least := reward.AmountMin(t.defaults.Type)
		switch {
		case err != nil:
			return store.NewPayout{}, reward.RefuseLine(reward.LineBadAmount, "%s %s %v%s", columnAmount, reward.Quote(text), err, t.adviceOnCommas(text))
		case amount < least || amount > reward.AmountMax:
			return store.NewPayout{}, reward.RefuseLine(reward.LineBadAmount, "%s %s is not from %s to %s",
				columnAmount, reward.Quote(text), least.In(t.defaults.Currency), reward.AmountMax.In(t.defaults.Currency))
		}
		x.Amount = strconv.FormatInt(int64(amount), 10)
	}
	m, fault := x.Target(&t.defaults)
	if fault != nil {
		if fault.Code == reward.LineBadAmount && strings.Contains(x.Amount, ".") {
			fault.Detail += "; if the file has amounts such as 10.50 EUR, upload it with amounts=major (--amounts major)"
		} else if fault.Code == reward.LineBadAmount {
			fault.Detail += t.adviceOnCommas(x.Amount)
		}
		return store.NewPayout{}, fault
	}
	return store.NewPayout{PromotionID: m.PromotionID, TargetID: m.TargetID, UserID: m.UserID, Amount: m.Amount, VoucherCode: m.VoucherCode}, nil
}

// storable reports whether the databases can store the text unchanged.
func storable(text []byte) bool {
	return bytes.IndexByte(text, 0) < 0 && utf8.Valid(text)
}

// lineMax is the maximum length of a line in bytes, without its line end.
const lineMax = reward.MessageMax

// line is one line without its end. Its text is valid until the next call of the
// reader.
type line struct {
	number  int64 // from 1
	text    []byte
	tooLong bool // longer than lineMax; the text is dropped
}

// lineReader splits a stream into lines, without the text of those too long.
type lineReader struct {
	r      *bufio.Reader
	number int64  // of the latest line read from r
	held   []line // pushed back; returned first
	err    error  // sticky
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, lineMax+2)}
}

// push puts lines back. They must own their texts.
func (lr *lineReader) push(ls []line) {
	lr.held = append(ls, lr.held...)
}

// next returns the next line. It drops an incomplete last one.
func (lr *lineReader) next() (line, error) {
	if len(lr.held) > 0 {
		l := lr.held[0]
		lr.held = lr.held[1:]
		return l, nil
	}
	if lr.err != nil {
		return line{}, lr.err
	}
	text, err := lr.r.ReadSlice('\n')
	l := line{}
	for errors.Is(err, bufio.ErrBufferFull) {
		l.tooLong = true
		text, err = lr.r.ReadSlice('\n')
	}
	if err != nil {
		lr.err = err
		if err != io.EOF || len(text) == 0 && !l.tooLong {
			return line{}, err
		}
	}
	lr.number++
	l.number = lr.number
	if !l.tooLong {
		text = bytes.TrimSuffix(text, []byte("\n"))
		text = bytes.TrimSuffix(text, []byte("\r"))
		if l.number == 1 {
			text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
		}
		l.text, l.tooLong = text, len(text) > lineMax
	}
	return l, nil
}
