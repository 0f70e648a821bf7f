package campaign

import (
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
	// FormatCSV has a header line with targetId and any of userId, amount and
	// voucherCode, in any order.
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

// Units says in which units a file of targets has its amounts.
type Units string

// The units. In minor units, 1050 of EUR are 10.50 EUR; in major ones, 10.50 are.
const (
	MinorUnits Units = "minor"
	MajorUnits Units = "major"
)

// Codes of rejected lines. The other lines of the file are read.
const (
	LineMissingID     = "MISSING_ID"
	LineBadID         = "BAD_ID"
	LineBadUser       = "BAD_USER"
	LineMissingAmount = "MISSING_AMOUNT"
	LineBadAmount     = "BAD_AMOUNT"
	LineBadVoucher    = "BAD_VOUCHER"
	LineFormula       = "FORMULA"
	LineWrongColumns  = "WRONG_COLUMNS"
	LineBadQuote      = "BAD_QUOTE"
	LineInvalidUTF8   = "INVALID_UTF8"
	LineTooLong       = "LINE_TOO_LONG"
	LineBadJSON       = "BAD_JSON"
	// LineConflict means that the target exists with another amount, user or
	// voucher code. Only saving finds it.
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

// TargetReader reads targets one by one from a stream of any size. It never
// holds more than two lines of the maximum length. It is not safe for
// concurrent use.
type TargetReader struct {
	lines    *lineReader
	defaults reward.Promotion
	units    Units
	parse    func(l line) (cells, *lineFault, error)
	header   bool // the next line must be a header
	csv      csvHeader
	any      bool              // a line with content has been read
	rejected []store.LineError // found ahead; returned first
	err      error             // sticky
}

// NewTargetReader returns a reader of a promotion's targets. The promotion's
// amount and voucher code are the defaults of the lines, and amounts in major units
// are of its currency.
func NewTargetReader(r io.Reader, format Format, units Units, defaults reward.Promotion) *TargetReader {
	t := &TargetReader{lines: newLineReader(r), units: units, defaults: defaults}
	switch format {
	case FormatCSV:
		t.parse, t.header = t.parseCSV, true
	case FormatNDJSON:
		t.parse = t.parseNDJSON
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
		c, fault, err := t.read(l)
		if err != nil {
			t.err = t.end(err)
			break
		}
		var row store.NewPayout
		if fault == nil {
			row, fault = t.row(c)
		}
		if fault != nil {
			return store.NewPayout{}, l.number, &store.LineError{Line: l.number, Code: fault.code, Detail: fault.detail}, nil
		}
		return row, l.number, nil, nil
	}
	return store.NewPayout{}, 0, nil, t.err
}

// read parses a line.
func (t *TargetReader) read(l line) (cells, *lineFault, error) {
	if l.tooLong {
		return cells{}, faultf(LineTooLong, "the line has more than %d bytes", lineMax), nil
	}
	return t.parse(l)
}

// end returns the error that ends the reader.
func (t *TargetReader) end(err error) error {
	switch {
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read targets: %w", err)
	case !t.any:
		return reward.NewError(reward.KindInvalid, CodeEmptyFile, "the file has no content")
	}
	return io.EOF
}

// cells holds the texts of a line. An empty text counts as missing.
type cells struct {
	target, user, amount, voucher string
}

// lineFault is the reason why a line is refused.
type lineFault struct{ code, detail string }

// faultf returns a lineFault with a formatted detail.
func faultf(code, format string, args ...any) *lineFault {
	return &lineFault{code: code, detail: fmt.Sprintf(format, args...)}
}

// row returns the payout of a line.
func (t *TargetReader) row(c cells) (store.NewPayout, *lineFault) {
	if c.target == "" {
		return store.NewPayout{}, faultf(LineMissingID, "%s is missing", columnTarget)
	}
	id, err := reward.ParseTargetID(c.target)
	if err != nil {
		return store.NewPayout{}, faultf(LineBadID, "%v", err)
	}
	row := store.NewPayout{PromotionID: t.defaults.ID, TargetID: id, UserID: c.user}
	if row.UserID == "" {
		row.UserID = c.target
	} else if fault := checkUser(c.user); fault != nil {
		return store.NewPayout{}, fault
	}
	var fault *lineFault
	if row.Amount, fault = t.amount(c.amount); fault != nil {
		return store.NewPayout{}, fault
	}
	if row.VoucherCode, fault = t.voucher(c.voucher); fault != nil {
		return store.NewPayout{}, fault
	}
	return row, nil
}

// checkUser checks a user id. It may begin like a spreadsheet formula, as phone
// numbers do with a plus; exports quote such cells.
func checkUser(s string) *lineFault {
	switch {
	case len(s) > reward.UserIDMax:
		return faultf(LineBadUser, "%s is longer than %d bytes", columnUser, reward.UserIDMax)
	}
	if err := reward.CheckSeen(s); err != nil {
		return faultf(LineBadUser, "%s %s %v", columnUser, reward.Quote(s), err)
	}
	return nil
}

// amount returns the amount of a line, or the promotion's.
func (t *TargetReader) amount(s string) (reward.Amount, *lineFault) {
	least := reward.AmountMin(t.defaults.Type)
	if s == "" {
		switch {
		case t.defaults.Amount < least:
			return 0, faultf(LineMissingAmount, "neither the line nor the promotion has an %s", columnAmount)
		case t.defaults.Amount > reward.AmountMax: // of a promotion that is older than the limit
			return 0, faultf(LineBadAmount, "the promotion's %s %d is above %d", columnAmount, t.defaults.Amount, reward.AmountMax)
		}
		return t.defaults.Amount, nil
	}
	if t.units == MajorUnits {
		amount, err := reward.ParseMajor(s, t.defaults.Currency)
		switch {
		case err != nil:
			return 0, faultf(LineBadAmount, "%s %s %v", columnAmount, reward.Quote(s), err)
		case amount < least || amount > reward.AmountMax:
			return 0, faultf(LineBadAmount, "%s %s is not from %s to %s", columnAmount, reward.Quote(s), least.In(t.defaults.Currency), reward.AmountMax.In(t.defaults.Currency))
		}
		return amount, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	amount := reward.Amount(n)
	if err != nil || amount < least || amount > reward.AmountMax || strconv.FormatInt(n, 10) != s {
		advice := ""
		if strings.Contains(s, ".") {
			advice = "; if the file has amounts such as 10.50 EUR, upload it with amounts=major (--amounts major)"
		}
		return 0, faultf(LineBadAmount, "%s %s is not a whole number of minor units from %d to %d%s",
			columnAmount, reward.Quote(s), least, reward.AmountMax, advice)
	}
	return amount, nil
}

// voucher returns the voucher code of a line, or the promotion's.
func (t *TargetReader) voucher(s string) (string, *lineFault) {
	switch {
	case t.defaults.Type != reward.Voucher && s != "":
		return "", faultf(LineBadVoucher, "a %s promotion has no %s", t.defaults.Type, columnVoucher)
	case t.defaults.Type != reward.Voucher:
		return "", nil
	case s == "" && t.defaults.VoucherCode == "":
		return "", faultf(LineBadVoucher, "neither the line nor the promotion has a %s", columnVoucher)
	case s == "":
		return t.defaults.VoucherCode, nil
	case reward.StartsFormula(s):
		return "", faultf(LineFormula, "%s %s begins like a spreadsheet formula", columnVoucher, reward.Quote(s))
	case len(s) > reward.VoucherCodeMax:
		return "", faultf(LineBadVoucher, "%s is longer than %d bytes", columnVoucher, reward.VoucherCodeMax)
	case reward.HasControl(s):
		return "", faultf(LineBadVoucher, "%s %s contains a control character", columnVoucher, reward.Quote(s))
	}
	return s, nil
}

// storable reports whether the databases can store the text unchanged.
func storable(text []byte) bool {
	return bytes.IndexByte(text, 0) < 0 && utf8.Valid(text)
}
