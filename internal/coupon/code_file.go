package coupon

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// codeLineMax is the greatest length of a line of a file of codes, in bytes.
const codeLineMax = 4096

// codeHeader matches the header of a file of codes.
var codeHeader = regexp.MustCompile(`(?i)^((coupon|voucher|promo|discount|gift)[ _-]?)?codes?$`)

// codeFile reads a CSV file with one code per line, and an optional header. It
// holds one batch of codes.
type codeFile struct {
	lines  *bufio.Scanner
	number int64 // of the latest line, from 1
	begun  bool  // a line with content was read
}

func newCodeFile(r io.Reader) *codeFile {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, codeLineMax), codeLineMax)
	return &codeFile{lines: lines}
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
	var b codeBatch
	seen := make(map[string]bool, store.CodesMax)
	for len(b.codes) < store.CodesMax && f.lines.Scan() {
		f.number++
		code, err := f.code(f.lines.Bytes())
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
	if err := f.lines.Err(); errors.Is(err, bufio.ErrTooLong) {
		return codeBatch{}, badCode(f.number+1, "it has more than %d bytes; the file must have one code per line", codeLineMax)
	} else if err != nil {
		return codeBatch{}, err
	}
	return b, nil
}

// code returns the code of a line, or "" for a line without one.
func (f *codeFile) code(line []byte) (string, error) {
	if f.number == 1 {
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if bytes.IndexByte(line, 0) >= 0 || !utf8.Valid(line) {
		return "", badCode(f.number, "it is not UTF-8 text; save the file as CSV in UTF-8")
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
