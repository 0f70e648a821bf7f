package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// Format is the form of a file of targets: its media type.
type Format string

// The formats.
const (
	// FormatCSV has a header line naming targetId and any of userId, amount
	// and voucherCode, in any order.
	FormatCSV Format = "text/csv"
	// FormatNDJSON has one JSON object a line, with the same names.
	FormatNDJSON Format = "application/x-ndjson"
)

// The names of columns and fields.
const (
	columnTarget  = "targetId"
	columnUser    = "userId"
	columnAmount  = "amount"
	columnVoucher = "voucherCode"
)

// Codes of lines that are refused; everything else goes on.
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
	// LineConflict is found by saving: the target is known with another
	// amount, user or code.
	LineConflict = "CONFLICT"
)

// Codes of files that are refused whole.
const (
	CodeEmptyFile       = "EMPTY_FILE"
	CodeNoHeader        = "NO_HEADER"
	CodeUnknownColumn   = "UNKNOWN_COLUMN"
	CodeDuplicateColumn = "DUPLICATE_COLUMN"
	CodeInvalidUTF8     = "INVALID_UTF8"
	CodeUnknownFormat   = "UNKNOWN_FORMAT"
)

// TargetReader reads targets one by one from a stream of any size. It never
// holds more than two lines of the longest length, whatever the stream says.
type TargetReader struct {
	lines    *lineReader
	defaults reward.Promotion
	parse    func(l line) (cells, *lineFault, error)
	header   bool // the first line has to be a header
	csv      csvHeader
	any      bool              // a line that is not empty has been read
	rejected []store.LineError // found ahead, to be returned first
	err      error             // sticky
}

// NewTargetReader reads targets of a promotion, whose amount and voucher code
// stand in for those that a line does not name.
func NewTargetReader(r io.Reader, format Format, defaults reward.Promotion) *TargetReader {
	t := &TargetReader{lines: newLineReader(r), defaults: defaults}
	switch format {
	case FormatCSV:
		t.parse, t.header = t.parseCSV, true
	case FormatNDJSON:
		t.parse = t.parseNDJSON
	default:
		t.err = reward.NewError(reward.KindInvalid, CodeUnknownFormat,
			"format %s is neither %s nor %s", reward.Quote(string(format)), FormatCSV, FormatNDJSON)
	}
	return t
}

// Next returns the next target with its line (from 1, the header included),
// or the next line that is refused, and why. The error is io.EOF at the end of
// a whole file, a *reward.Error when the file as such is refused, and anything
// else when the stream broke: then the line that it broke in is dropped,
// because a cut line can look like a whole one.
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

func (t *TargetReader) read(l line) (cells, *lineFault, error) {
	if l.tooLong {
		return cells{}, faultf(LineTooLong, "the line has more than %d bytes", lineMax), nil
	}
	return t.parse(l)
}

func (t *TargetReader) end(err error) error {
	switch {
	case !errors.Is(err, io.EOF):
		return fmt.Errorf("read targets: %w", err)
	case !t.any:
		return reward.NewError(reward.KindInvalid, CodeEmptyFile, "the file has no line with anything in it")
	}
	return io.EOF
}

// cells are the texts of a line; an empty one is as good as none.
type cells struct {
	target, user, amount, voucher string
}

// lineFault says why a line is refused.
type lineFault struct{ code, detail string }

func faultf(code, format string, args ...any) *lineFault {
	return &lineFault{code: code, detail: fmt.Sprintf(format, args...)}
}

// row makes the payout of a line.
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

func checkUser(s string) *lineFault {
	switch {
	case startsFormula(s):
		return faultf(LineFormula, "%s %s begins like a formula of a spreadsheet", columnUser, reward.Quote(s))
	case len(s) > reward.UserIDMax:
		return faultf(LineBadUser, "%s is longer than %d bytes", columnUser, reward.UserIDMax)
	case reward.HasControl(s):
		return faultf(LineBadUser, "%s %s holds a control character", columnUser, reward.Quote(s))
	}
	return nil
}

func (t *TargetReader) amount(s string) (reward.Amount, *lineFault) {
	least := reward.AmountMin(t.defaults.Type)
	if s == "" {
		switch {
		case t.defaults.Amount < least:
			return 0, faultf(LineMissingAmount, "neither the line nor the promotion has an %s", columnAmount)
		case t.defaults.Amount > reward.AmountMax: // of a promotion that is older than the bound
			return 0, faultf(LineBadAmount, "the promotion's %s %d is above %d", columnAmount, t.defaults.Amount, reward.AmountMax)
		}
		return t.defaults.Amount, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	amount := reward.Amount(n)
	if err != nil || amount < least || amount > reward.AmountMax || strconv.FormatInt(n, 10) != s {
		return 0, faultf(LineBadAmount, "%s %s is not a whole number of minor units from %d to %d",
			columnAmount, reward.Quote(s), least, reward.AmountMax)
	}
	return amount, nil
}

func (t *TargetReader) voucher(s string) (string, *lineFault) {
	switch {
	case t.defaults.Type != reward.Voucher && s != "":
		return "", faultf(LineBadVoucher, "a %s promotion takes no %s", t.defaults.Type, columnVoucher)
	case t.defaults.Type != reward.Voucher:
		return "", nil
	case s == "" && t.defaults.VoucherCode == "":
		return "", faultf(LineBadVoucher, "neither the line nor the promotion has a %s", columnVoucher)
	case s == "":
		return t.defaults.VoucherCode, nil
	case startsFormula(s):
		return "", faultf(LineFormula, "%s %s begins like a formula of a spreadsheet", columnVoucher, reward.Quote(s))
	case len(s) > reward.VoucherCodeMax:
		return "", faultf(LineBadVoucher, "%s is longer than %d bytes", columnVoucher, reward.VoucherCodeMax)
	case reward.HasControl(s):
		return "", faultf(LineBadVoucher, "%s %s holds a control character", columnVoucher, reward.Quote(s))
	}
	return s, nil
}

// startsFormula says whether a spreadsheet would run the text instead of
// showing it.
func startsFormula(s string) bool {
	return s != "" && strings.IndexByte("=+-@\t\r", s[0]) >= 0
}

// storable says whether the databases can keep the text as it is.
func storable(text []byte) bool {
	return bytes.IndexByte(text, 0) < 0 && utf8.Valid(text)
}
