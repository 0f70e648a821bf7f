package coupon

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/sheet"
	"github.com/largesse/largesse/internal/store"
)

// discardTimeout limits the call that ends an import that failed.
const discardTimeout = 5 * time.Second

// CodesAdded describes an import of codes.
type CodesAdded struct {
	Count       int64
	First, Last string // codes, in the order of the file
}

// ImportCodes gives the codes of a CSV or .xlsx file to a template, and returns it with what
// was added. It reads the file in batches of any number, and publishes them with one
// change at the end. by becomes an author of the template just before that, and cannot
// approve the codes. A quantity that was approved waits again, by rules.LimitImport.
//
// After any error nothing has changed, except for the author if an outage ended the
// import. The errors are those of rules.CheckImport, CodeBadCodes for the first bad line,
// sheet.CodeBadWorkbook, and those of the reader.
func (c *Catalog) ImportCodes(ctx context.Context, id reward.TemplateID, by string, file io.Reader) (View, CodesAdded, error) {
	t, err := c.rows.TemplateGet(ctx, id)
	if err != nil {
		return View{}, CodesAdded{}, err
	}
	// Refuse a template that takes no codes before the file is read.
	if err := rules.CheckImport(&t, reward.TemplateQuantityMax-t.CodesImported+t.CodesReturned, c.limit); err != nil {
		return View{}, CodesAdded{}, err
	}
	importID := c.ids.Next()
	if err := c.rows.CodesBegin(ctx, id, importID, time.Now()); err != nil {
		return View{}, CodesAdded{}, err
	}
	change, added, err := c.importCodes(ctx, id, importID, by, newCodeFile(file))
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
		defer cancel()
		_ = c.rows.CodesDiscard(ctx, importID) // otherwise a sweep ends it
		return View{}, CodesAdded{}, err
	}
	c.afterChange(ctx, &change)
	return c.views(ctx, []reward.CouponTemplate{change.Template})[0], added, nil
}

func (c *Catalog) importCodes(ctx context.Context, id reward.TemplateID, importID int64, by string, file *codeFile) (store.CouponChange, CodesAdded, error) {
	var added CodesAdded
	for {
		b, err := file.next()
		if err != nil {
			return store.CouponChange{}, CodesAdded{}, err
		}
		if len(b.codes) == 0 {
			break
		}
		taken, err := c.rows.CodesStage(ctx, store.CodesStageParams{TemplateID: id, ImportID: importID, Staged: added.Count, Codes: b.codes, Now: time.Now()})
		switch at := taken.At; {
		case err != nil:
			return store.CouponChange{}, CodesAdded{}, err
		case at >= 0 && taken.Template:
			return store.CouponChange{}, CodesAdded{}, knownCode(b.lines[at], b.codes[at])
		case at >= 0:
			return store.CouponChange{}, CodesAdded{}, repeatedCode(b.lines[at], b.codes[at])
		}
		if added.Count == 0 {
			added.First = b.codes[0]
		}
		added.Count += int64(len(b.codes))
		added.Last = b.codes[len(b.codes)-1]
	}
	if added.Count == 0 {
		return store.CouponChange{}, CodesAdded{}, reward.NewError(reward.KindInvalid, reward.CodeBadCodes, "the file has no codes; send one code per line")
	}
	t, err := c.rows.TemplateGet(ctx, id)
	if err == nil {
		err = rules.CheckImport(&t, added.Count, c.limit) // who is refused is no author
	}
	if err == nil && t.Authors.Add(by) != t.Authors {
		_, err = c.Change(ctx, rules.TemplateChange{ID: id, By: by})
	}
	if err != nil {
		return store.CouponChange{}, CodesAdded{}, err
	}
	change, err := c.rows.CodesPublish(ctx, id, importID, added.Count, c.limit)
	return change, added, err
}

// codeLineMax is the greatest length of a line of a file of codes, in bytes.
const codeLineMax = 4096

var codeHeader = regexp.MustCompile(`(?i)^(((coupon|voucher|promo|discount|gift)[ _-]?)?codes?|(쿠폰|할인|바우처|상품권)? ?(코드|번호))$`)

// justNumber is the header of codes, or among other columns that of serial numbers.
const justNumber = "번호"

// codeFile reads a CSV file with one code per line, and an optional header, in any
// encoding of package sheet, or the first sheet of an .xlsx file. It holds one batch of
// codes.
type codeFile struct {
	file   *bufio.Reader
	text   *sheet.TextReader // of CSV
	lines  *bufio.Scanner    // of CSV
	rows   *sheet.Rows       // of .xlsx
	column int               // of the codes in rows
	named  bool              // whether column has a header, so that other columns do not matter
	number int64             // of the latest line, from 1
	begun  bool              // a line with content was read
}

func newCodeFile(r io.Reader) *codeFile {
	return &codeFile{file: bufio.NewReader(r)}
}

// open begins to read the file.
func (f *codeFile) open() error {
	if begin, _ := f.file.Peek(len(sheet.Begins)); string(begin) != sheet.Begins {
		f.text = sheet.NewTextReader(f.file, "")
		f.lines = bufio.NewScanner(f.text)
		f.lines.Buffer(make([]byte, codeLineMax), codeLineMax)
		return nil
	}
	book, err := sheet.ReadWorkbook(f.file)
	if err == nil {
		f.rows, err = book.Rows("")
	}
	return err
}

// codeBatch holds codes that differ from each other, with the numbers of their
// lines.
type codeBatch struct {
	codes []string
	lines []int64
}

// next reads at most store.CodesMax codes. No codes means the end of the file. The
// error of a bad line is CodeBadCodes.
func (f *codeFile) next() (codeBatch, error) {
	if f.lines == nil && f.rows == nil {
		if err := f.open(); err != nil {
			return codeBatch{}, err
		}
	}
	var b codeBatch
	seen := make(map[string]bool, store.CodesMax)
	for len(b.codes) < store.CodesMax {
		line, err := f.line()
		if errors.Is(err, io.EOF) {
			break
		}
		var code string
		if err == nil {
			code, err = f.code(line)
		}
		switch {
		case err != nil:
			return codeBatch{}, err
		case code == "":
			continue
		case seen[code]:
			return codeBatch{}, repeatedCode(f.number, code)
		}
		seen[code] = true
		b.codes = append(b.codes, code)
		b.lines = append(b.lines, f.number)
	}
	return b, nil
}

// line returns the next line, or what the next row has in the column of the codes. At the
// end it returns io.EOF.
func (f *codeFile) line() ([]byte, error) {
	if f.rows != nil {
		return f.cell()
	}
	if f.lines.Scan() {
		f.number++
		return f.lines.Bytes(), nil
	}
	err := f.lines.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		return nil, badCode(f.number+1, "it has more than %d bytes; the file must have one code per line", codeLineMax)
	}
	return nil, cmp.Or(err, io.EOF)
}

func (f *codeFile) cell() ([]byte, error) {
	row, err := f.rows.Next()
	if err != nil {
		return nil, err
	}
	f.number = row.Number
	var filled, headers []int
	for at, cell := range row.Cells {
		if text := strings.TrimSpace(cell.Text); text != "" || cell.Problem != "" {
			filled = append(filled, at)
			if codeHeader.MatchString(text) && text != justNumber {
				headers = append(headers, at)
			}
		}
	}
	if !f.begun && len(headers) == 1 {
		f.column, f.named = headers[0], true
	} else if !f.begun && len(filled) > 0 {
		f.column = filled[0]
	}
	switch {
	case len(filled) == 0:
		return nil, nil
	case row.Hidden:
		return nil, badCode(f.number, "the row is hidden, by a filter or by hand; show it, or delete it")
	case !f.named && (len(filled) > 1 || filled[0] != f.column):
		return nil, badCode(f.number, "codes must be in one column; name it code in the first row, or delete the other columns")
	case f.column >= len(row.Cells):
		return nil, nil
	}
	cell := row.Cells[f.column]
	if cell.Problem != "" {
		return nil, badCode(f.number, "code %s %s", reward.Quote(cell.Text), cell.Problem)
	}
	return []byte(cell.Text), nil
}

// code returns the code of a line, or "" for a line without one.
func (f *codeFile) code(line []byte) (string, error) {
	if f.number == 1 {
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if bytes.IndexByte(line, 0) >= 0 || !utf8.Valid(line) || f.text != nil && f.text.Decoded() && bytes.ContainsRune(line, utf8.RuneError) {
		return "", badCode(f.number, "it is not text in UTF-8, UTF-16 or CP949; save the file as CSV in UTF-8")
	}
	code := strings.TrimSpace(string(line))
	if bare, quoted := strings.CutPrefix(code, `"`); quoted && len(bare) > 0 {
		code = strings.TrimSpace(strings.TrimSuffix(bare, `"`))
	}
	header := !f.begun && codeHeader.MatchString(code)
	f.begun = f.begun || code != ""
	if code == "" || header {
		return "", nil
	}
	if wrong := reward.CheckCell(code); wrong != "" {
		return "", badCode(f.number, "code %s %s, so the code itself is lost; export the codes again, with the column as text", reward.Quote(code), wrong)
	}
	if wrong := reward.CheckCode(code); wrong != "" {
		return "", badCode(f.number, "code %s %s", reward.Quote(code), wrong)
	}
	return code, nil
}

// badCode returns the error of a line. The file is refused as a whole.
func badCode(line int64, format string, args ...any) error {
	e := reward.NewError(reward.KindInvalid, reward.CodeBadCodes, format, args...)
	e.Detail = fmt.Sprintf("line %d: %s; nothing was imported", line, e.Detail)
	return e
}

func repeatedCode(line int64, code string) error {
	return badCode(line, "code %s appears twice in the file; remove one of them", reward.Quote(code))
}

func knownCode(line int64, code string) error {
	return badCode(line, "code %s was imported to the template before; remove it, or see importedCodes of the template if you sent this file already",
		reward.Quote(code))
}
