package campaign

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Format is the media type of a file of targets.
type Format string

// The formats.
const (
	// FormatCSV has a header line with targetId and any other columns, in any order.
	FormatCSV Format = "text/csv"
	// FormatNDJSON has one JSON object per line, with the same names.
	FormatNDJSON Format = "application/x-ndjson"
)

// The names of columns and fields.
const (
	columnTarget  = "targetId"
	columnUser    = "userId"
	columnAmount  = "amount"
	columnVoucher = "voucherCode"
)

var columns = []string{columnTarget, columnUser, columnAmount, columnVoucher}

// Units says in which units a file of targets has its amounts.
type Units string

// The units. In minor units, 1050 of EUR are 10.50 EUR; in major ones, 10.50 are.
const (
	MinorUnits Units = "minor"
	MajorUnits Units = "major"
)

// Codes of rejected lines, besides those of [reward.TargetText].
const (
	LineFormula      = "FORMULA"
	LineWrongColumns = "WRONG_COLUMNS"
	LineBadQuote     = "BAD_QUOTE"
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

// TargetReader reads targets from a stream of any size, and holds at most two lines. It
// is not safe for concurrent use.
type TargetReader struct {
	lines    *lineReader
	defaults reward.Promotion
	units    Units
	parse    func(l line) (reward.TargetText, *reward.Error, error)
	header   bool // the next line must be a header
	csv      csvHeader
	any      bool              // a line with content has been read
	rejected []store.LineError // found ahead; returned first
	err      error             // sticky
}

// NewTargetReader returns a reader of a promotion's targets. Its amount, voucher code
// and currency are the defaults of the lines.
func NewTargetReader(r io.Reader, format Format, units Units, defaults reward.Promotion) *TargetReader {
	t := &TargetReader{lines: newLineReader(r), units: units, defaults: defaults}
	switch format {
	case FormatCSV:
		t.parse, t.header = t.parseCSV, true
	case FormatNDJSON:
		t.parse = func(l line) (reward.TargetText, *reward.Error, error) {
			x, fault := reward.ParseTargetText(l.text)
			return x, fault, nil
		}
	default:
		t.err = reward.NewError(reward.KindInvalid, CodeUnknownFormat,
			"format %s is neither %s nor %s", reward.Quote(string(format)), FormatCSV, FormatNDJSON)
	}
	if _, ok := reward.CurrencyDigits(defaults.Currency); units == MajorUnits && !ok {
		t.err = reward.InvalidFields("the upload", []reward.FieldError{{Field: "amounts", Detail: fmt.Sprintf(
			"must be minor: major units need a currency of ISO 4217, and the promotion has %s", cmp.Or(defaults.Currency, "none"))}})
	}
	return t
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
			return store.NewPayout{}, bad.Line, &bad, nil
		}
		l, err := t.lines.next()
		if err != nil {
			t.err = t.end(err)
			break
		}
		if len(l.text) == 0 && !l.tooLong {
			continue
		}
		t.any = true
		if t.header {
			t.header = false
			t.csv, t.err = parseHeader(l)
			continue
		}
		x, fault, err := t.read(l)
		if err != nil {
			t.err = t.end(err)
			break
		}
		var row store.NewPayout
		if fault == nil {
			row, fault = t.row(x)
		}
		if fault != nil {
			return store.NewPayout{}, l.number, &store.LineError{Line: l.number, Code: fault.Code, Detail: fault.Detail}, nil //nolint:nilerr // the line is refused, not the file
		}
		return row, l.number, nil, nil
	}
	return store.NewPayout{}, 0, nil, t.err
}

func (t *TargetReader) read(l line) (reward.TargetText, *reward.Error, error) {
	if l.tooLong {
		return reward.TargetText{}, reward.RefuseLine(reward.LineTooLong, "the line has more than %d bytes", lineMax), nil
	}
	return t.parse(l)
}

func (t *TargetReader) end(err error) error {
	switch {
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read targets: %w", err)
	case !t.any:
		return reward.NewError(reward.KindInvalid, CodeEmptyFile, "the file has no content")
	}
	return io.EOF
}

func (t *TargetReader) row(x reward.TargetText) (store.NewPayout, *reward.Error) {
	text := x.Amount
	if t.units == MajorUnits && text != "" {
		amount, err := reward.ParseMajor(text, t.defaults.Currency)
		least := reward.AmountMin(t.defaults.Type)
		switch {
		case err != nil:
			return store.NewPayout{}, reward.RefuseLine(reward.LineBadAmount, "%s %s %v", columnAmount, reward.Quote(text), err)
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
