package campaign

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
)

// ColumnError is the column of a file of refused lines that says why. Uploads ignore it.
const ColumnError = "error"

// Columns maps our columns to those of a file: to the name of each or, if the file has
// no such name, to its letter or number: B or 2 is the second.
type Columns map[string]string

var columnStart = regexp.MustCompile(`(?:^|,)\s*(targetId|userId|amount|voucherCode)=`)

// ParseColumns reads a text such as targetId=A,userId=B. A name may have commas, because
// only a comma before one of our columns and = separates. Empty text is nil.
func ParseColumns(text string) (Columns, error) {
	if text == "" {
		return nil, nil
	}
	starts := columnStart.FindAllStringSubmatchIndex(text, -1)
	if len(starts) == 0 || starts[0][0] != 0 {
		return nil, fmt.Errorf("must be as in targetId=A,userId=B, with columns of %q before each =", columns)
	}
	c := make(Columns)
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		ours, theirs := text[at[2]:at[3]], strings.TrimSpace(text[at[1]:end])
		switch _, twice := c[ours]; {
		case twice:
			return nil, fmt.Errorf("must have %s once", ours)
		case theirs == "":
			return nil, fmt.Errorf("must name the column of the file behind %s=", ours)
		}
		c[ours] = theirs
	}
	if c[columnTarget] == "" && c[columnUser] == "" {
		return nil, fmt.Errorf("must have %s or %s", columnTarget, columnUser)
	}
	return c, nil
}

// String returns the text that ParseColumns reads.
func (c Columns) String() string {
	var parts []string
	for _, ours := range columns {
		if theirs := c[ours]; theirs != "" {
			parts = append(parts, ours+"="+theirs)
		}
	}
	return strings.Join(parts, ",")
}

// usualNames lists how columns are called in files, the most telling name first. They are
// compared without case, spaces, marks, and what is in brackets.
var usualNames = map[string][]string{
	columnTarget: {
		"targetid", "target", "고객번호", "회원번호", "대상번호", "대상자번호", "고객id", "회원id", "유저번호", "사용자번호",
		"customerid", "customernumber", "customerno", "memberid", "membernumber", "memberno", "usernumber", "userno",
	},
	columnUser: {
		"userid", "아이디", "회원아이디", "고객아이디", "사용자아이디", "사용자id", "유저id", "유저아이디", "로그인id", "로그인아이디", "id", "user", "login", "loginid", "username",
	},
	columnAmount: {
		"amount", "지급금액", "지급액", "지급포인트", "적립금", "적립금액", "적립포인트", "포인트", "금액", "리워드", "보상금액", "points", "point", "reward", "sum", "value",
	},
	columnVoucher: {
		"vouchercode", "voucher", "쿠폰코드", "쿠폰번호", "쿠폰", "상품권번호", "상품권코드", "바우처", "바우처코드", "couponcode", "coupon", "code",
	},
}

var notInNames = regexp.MustCompile(`\([^)]*\)|\[[^\]]*\]|[\s_.:*#-]+`)

// suggest returns the columns that their names suggest.
func suggest(names []string) Columns {
	plain := make([]string, len(names))
	for i, name := range names {
		plain[i] = notInNames.ReplaceAllString(strings.ToLower(name), "")
	}
	c := make(Columns)
	for ours, usual := range usualNames {
		for _, name := range usual {
			if i := slices.Index(plain, name); i >= 0 {
				c[ours] = address(names, i)
				break
			}
		}
	}
	return c
}

// address returns what names a column for sure: its name, or its letters if it has none
// of its own, or one that would not be read back.
func address(names []string, at int) string {
	name := names[at]
	if name == "" || slices.Index(names, name) != at || slices.Contains(names[at+1:], name) || columnStart.MatchString(","+name) || columnStart.MatchString(name) {
		return sheet.ColumnLetters(at)
	}
	return name
}

// understood counts the names of a header that are wanted, or known.
func (t *TargetReader) understood(names []string) (n int) {
	if t.file.Columns == nil {
		own := 0
		for _, ours := range columns {
			if slices.Contains(names, ours) {
				own++
			}
		}
		return max(own, len(suggest(names)))
	}
	for _, theirs := range t.file.Columns {
		if slices.Contains(names, theirs) {
			n++
		}
	}
	return n
}

func noHeader(format string, args ...any) error {
	return reward.NewError(reward.KindInvalid, CodeNoHeader,
		"%s; the first line must name the columns: targetId and any of userId, amount, voucherCode; name others with columns=targetId=A,userId=B (--columns)",
		fmt.Sprintf(format, args...))
}

// match finds our columns in a header.
func (t *TargetReader) match(names []string) error {
	t.found.Header = names
	for i := range t.at {
		t.at[i] = -1
	}
	if t.file.Columns != nil {
		return t.matchGiven(names)
	}
	if err := t.matchOwn(names); err == nil || !t.file.Suggest {
		return err
	}
	for i, ours := range columns {
		t.at[i] = -1
		if theirs := suggest(names)[ours]; theirs != "" {
			t.at[i], _ = columnAt(names, theirs)
		}
	}
	t.noteColumns()
	return nil
}

// noteColumns records which columns were found. Only in files with our names does a line
// without a user pay the number of its target.
func (t *TargetReader) noteColumns() {
	t.needsUser = t.at[1] >= 0 && (t.at[0] < 0 || t.found.Header[t.at[0]] != columnTarget || t.found.Header[t.at[1]] != columnUser)
	t.found.Columns = make(Columns)
	for i, ours := range columns {
		if t.at[i] >= 0 {
			t.found.Columns[ours] = address(t.found.Header, t.at[i])
		}
	}
}

// matchGiven finds the columns that were named; all others are ignored.
func (t *TargetReader) matchGiven(names []string) error {
	for i, ours := range columns {
		theirs := t.file.Columns[ours]
		if theirs == "" {
			continue
		}
		at, err := columnAt(names, theirs)
		if err != nil {
			return err
		}
		t.at[i] = at
	}
	person := t.at[0]
	if person < 0 {
		person = t.at[1]
	}
	if first := names[person]; first != "" && strings.Trim(first, "0123456789") == "" {
		return noHeader("the first line has %s where the name of a column should be", reward.Quote(first))
	}
	t.noteColumns()
	return nil
}

// columnAt returns the index of a column by its name, letters or number.
func columnAt(names []string, name string) (int, error) {
	at := slices.Index(names, name)
	switch {
	case at < 0:
	case slices.Contains(names[at+1:], name):
		return 0, reward.NewError(reward.KindInvalid, CodeDuplicateColumn, "column %s appears twice; name it by its letter: %s or another one",
			reward.Quote(name), sheet.ColumnLetters(at))
	default:
		return at, nil
	}
	if at, ok := sheet.ColumnIndex(name); ok && at < len(names) {
		return at, nil
	}
	if n, err := strconv.Atoi(name); err == nil && n >= 1 && n <= len(names) {
		return n - 1, nil
	}
	return 0, reward.NewError(reward.KindInvalid, CodeUnknownColumn, "the file has no column %s; it has %s", reward.Quote(name), quotedNames(names))
}

const namesShownMax = 30

func quotedNames(names []string) string {
	shown := make([]string, 0, namesShownMax+1)
	for _, name := range names[:min(len(names), namesShownMax)] {
		shown = append(shown, reward.Quote(name))
	}
	if len(names) > namesShownMax {
		shown = append(shown, "…")
	}
	return strings.Join(shown, ", ")
}

// matchOwn finds columns with our names, and refuses others: one of them may be a
// column of ours that is misspelled.
func (t *TargetReader) matchOwn(names []string) error {
	advice := ""
	if c := suggest(names); c[columnTarget] != "" || c[columnUser] != "" {
		advice = fmt.Sprintf("; the names suggest columns=%s (--columns)", c)
	}
	isOurs := func(name string) bool { return slices.Contains(columns[:], name) }
	if !slices.ContainsFunc(names, isOurs) {
		return noHeader("the file has the columns %s%s", quotedNames(names), advice)
	}
	for at, name := range names {
		switch i := slices.Index(columns[:], name); {
		case name == ColumnError:
		case i < 0:
			return reward.NewError(reward.KindInvalid, CodeUnknownColumn,
				"column %s is unknown: it must be one of %q; to ignore other columns, say which ones count: columns=targetId=A,userId=B (--columns)%s",
				reward.Quote(name), columns, advice)
		case t.at[i] >= 0:
			return reward.NewError(reward.KindInvalid, CodeDuplicateColumn, "column %s appears twice", name)
		default:
			t.at[i] = at
		}
	}
	if t.at[0] < 0 {
		return noHeader("column %s is missing%s", columnTarget, advice)
	}
	t.noteColumns()
	return nil
}

// target returns the texts of our columns in a record of a table.
func (t *TargetReader) target(rec *record) (x reward.TargetText, fault *reward.Error) {
	for i, to := range [len(columns)]struct {
		text *string
		code string
	}{{&x.TargetID, reward.LineBadID}, {&x.UserID, reward.LineBadUser}, {&x.Amount, reward.LineBadAmount}, {&x.VoucherCode, reward.LineBadVoucher}} {
		at := t.at[i]
		if at < 0 {
			continue
		}
		text := string(rec.cells[at])
		if rec.problems != nil && rec.problems[at] != "" {
			return x, reward.RefuseLine(to.code, "%s %s in cell %s%d %s", columns[i], reward.Quote(text), sheet.ColumnLetters(at), rec.number, rec.problems[at])
		}
		*to.text = text
	}
	if reward.StartsFormula(x.VoucherCode) {
		return x, reward.RefuseLine(LineFormula, "%s begins like a spreadsheet formula; if it is none, write an apostrophe before it", columnVoucher)
	}
	x.UserID, x.VoucherCode = reward.UnguardCell(x.UserID), reward.UnguardCell(x.VoucherCode)
	for _, cell := range []struct{ code, column, text string }{{reward.LineBadUser, columnUser, x.UserID}, {reward.LineBadVoucher, columnVoucher, x.VoucherCode}} {
		if wrong := reward.CheckCell(cell.text); wrong != "" {
			return x, reward.RefuseLine(cell.code, "%s %s %s, so the text itself is lost; export the file again, with the column as text", cell.column, reward.Quote(cell.text), wrong)
		}
	}
	if x.UserID == "" && t.needsUser {
		return x, reward.RefuseLine(reward.LineMissingUser, "%s is empty, and nobody else may be paid instead", reward.Quote(t.found.Header[t.at[1]]))
	}
	if t.at[0] < 0 && t.at[1] >= 0 {
		x.TargetID = targetOf(x.UserID)
	}
	x.Amount = strings.Trim(x.Amount, " \u00a0") // of a column that is formatted as a currency
	// A sign means major units.
	if digits, _ := reward.CurrencyDigits(t.defaults.Currency); digits == 0 || t.file.Units == MajorUnits {
		amount, wrong := reward.CutCurrency(x.Amount, t.defaults.Currency)
		if wrong != "" {
			return x, reward.RefuseLine(reward.LineBadAmount, "%s %s has the sign %s, but the promotion is in %s", columnAmount, reward.Quote(x.Amount), wrong, cmp.Or(t.defaults.Currency, "points"))
		}
		x.Amount = amount
	}
	if strings.Contains(x.Amount, ",") && t.comma != ';' && groupedAmount.MatchString(x.Amount) {
		x.Amount = strings.ReplaceAll(x.Amount, ",", "")
	}
	return x, nil
}

// targetOf returns the target ID of a user in a file without target IDs, which is always
// the same: the user ID if it can be one, otherwise a number from 2^62 that is derived from
// it. Two users with one number are a conflict, as any target with two users is: the second
// one is reported and not paid. Among a million users that happens once in nine million files.
func targetOf(user string) string {
	if _, err := reward.ParseTargetID(user); err == nil {
		return user
	}
	sum := sha256.Sum256([]byte(user))
	return strconv.FormatUint(1<<62|binary.BigEndian.Uint64(sum[:])>>2, 10)
}

// groupedAmount matches digits with a comma between each three, as spreadsheets show
// them. Where semicolons are between cells, a comma may be the decimal point.
var groupedAmount = regexp.MustCompile(`^[1-9][0-9]{0,2}(,[0-9]{3})+(\.[0-9]+)?$`)

// adviceOnCommas says how to write an amount that was refused.
func (t *TargetReader) adviceOnCommas(text string) string {
	switch {
	case !strings.Contains(text, ","):
		return ""
	case t.comma == ';':
		return "; in a file with semicolons a comma may be a decimal point: write 1000 for a thousand, and 10.50 with a point"
	}
	return "; commas may only be between groups of three digits, as in 1,000, and the decimal point must be a point"
}
