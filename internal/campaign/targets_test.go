package campaign

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
)

var (
	pointPromotion   = reward.Promotion{ID: 9, Type: reward.Point, Amount: 100}
	voucherPromotion = reward.Promotion{ID: 9, Type: reward.Voucher}
)

func TestAmountsInMajorUnits(t *testing.T) {
	t.Parallel()
	read := func(units Units, format Format, currency, in string) []string {
		t.Helper()
		r := NewTargetReader(strings.NewReader(in), File{Format: format, Units: units}, reward.Promotion{ID: 9, Type: reward.Point, Currency: currency, Amount: 100})
		var out []string
		for {
			row, _, bad, err := r.Next()
			switch {
			case errors.Is(err, io.EOF):
				return out
			case err != nil:
				return append(out, err.Error())
			case bad != nil:
				out = append(out, bad.Code+": "+bad.Detail)
			default:
				out = append(out, row.Amount.In(""))
			}
		}
	}
	const file = "targetId,amount\n1,10.50\n2,10\n3,\n4,10.505\n5,0\n6,0.00\n7,1e3\n8,10000000000000.01\n"
	for name, tt := range map[string]struct {
		got, want []string
	}{
		"EUR": {read(MajorUnits, FormatCSV, "EUR", file), []string{
			"1,050", "1,000", "100", // the promotion's amount is in minor units already
			`BAD_AMOUNT: amount "10.505" has 3 digits behind the decimal point, but EUR has 2`,
			`BAD_AMOUNT: amount "0" is not from 0.01 EUR to 10,000,000,000,000.00 EUR`, `BAD_AMOUNT: amount "0.00" is not from 0.01 EUR to 10,000,000,000,000.00 EUR`,
			`BAD_AMOUNT: amount "1e3" is not a number such as 10.50, with digits and at most one decimal point`,
			`BAD_AMOUNT: amount "10000000000000.01" is not from 0.01 EUR to 10,000,000,000,000.00 EUR`,
		}},
		"KRW":    {read(MajorUnits, FormatCSV, "KRW", "targetId,amount\n1,1050\n2,10.5\n"), []string{"1,050", `BAD_AMOUNT: amount "10.5" has digits behind the decimal point, but KRW has none`}},
		"NDJSON": {read(MajorUnits, FormatNDJSON, "BHD", `{"targetId":1,"amount":1.050}`+"\n"+`{"targetId":2,"amount":"1.05"}`+"\n"), []string{"1,050", "1,050"}},
		"Advice": {read(MinorUnits, FormatCSV, "EUR", "targetId,amount\n1,10.50\n2,10\n"), []string{
			`BAD_AMOUNT: amount "10.50" is not a whole number of minor units from 1 to 1000000000000000; if the file has amounts such as 10.50 EUR, upload it with amounts=major (--amounts major)`, "10",
		}},
		"NoCurrency": {read(MajorUnits, FormatCSV, "", file), []string{"INVALID: the upload is invalid: amounts must be minor: major units need a currency of ISO 4217, and the promotion has none"}},
		"Unknown":    {read(MajorUnits, FormatCSV, "PTS", file), []string{"INVALID: the upload is invalid: amounts must be minor: major units need a currency of ISO 4217, and the promotion has PTS"}},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// readAll reads to the end and formats each line as "line: outcome".
func readAll(r *TargetReader) ([]string, error) {
	var out []string
	for {
		row, number, bad, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return out, err
		case bad != nil:
			out = append(out, fmt.Sprintf("%d: %s", bad.Line, bad.Code))
		default:
			out = append(out, fmt.Sprintf("%d: %d %s %d %s", number, row.TargetID, row.UserID, row.Amount, row.VoucherCode))
		}
	}
}

func TestTargetReaderLines(t *testing.T) {
	t.Parallel()
	noAmount := reward.Promotion{ID: 9, Type: reward.Point}
	withCode := reward.Promotion{ID: 9, Type: reward.Voucher, VoucherCode: "V-1", Amount: 5}
	long := strings.Repeat("x", lineMax)
	tests := []struct {
		name      string
		format    Format
		promotion reward.Promotion
		in        string
		want      []string
	}{
		{"OnlyIDs", FormatCSV, pointPromotion, "targetId\n1\n2\n", []string{"2: 1 1 100 ", "3: 2 2 100 "}},
		{"AnyOrderOfColumns", FormatCSV, pointPromotion, "amount,userId,targetId\n5,u,1\n", []string{"2: 1 u 5 "}},
		{"BOMAndCRLFAndNoLastLineEnd", FormatCSV, pointPromotion, "\xef\xbb\xbftargetId,amount\r\n1,5\r\n2,6", []string{"2: 1 1 5 ", "3: 2 2 6 "}},
		{"EmptyLinesAreSkipped", FormatCSV, pointPromotion, "\n\r\ntargetId\n\n1\n\r\n\n2\n\n", []string{"5: 1 1 100 ", "8: 2 2 100 "}},
		{"EmptyCellsMeanDefaults", FormatCSV, pointPromotion, "targetId,userId,amount,voucherCode\n1,,,\n", []string{"2: 1 1 100 "}},
		{"Quotes", FormatCSV, pointPromotion, "\"targetId\",userId\n\"1\",\"a,\"\"b\"\"\"\n", []string{`2: 1 a,"b" 100 `}},
		{"GreatestID", FormatCSV, pointPromotion, "targetId,amount\n9223372036854775807,1000000000000000\n0,1\n", []string{"2: 9223372036854775807 9223372036854775807 1000000000000000 ", "3: 0 0 1 "}},
		{"HeaderOnly", FormatCSV, pointPromotion, "targetId\n", nil},
		{
			"BadIDs", FormatCSV, pointPromotion,
			"targetId,userId\n-1,\n9223372036854775808,\n=1+1,\n007,\n+5,\n 5,\nabc,\n,u\n1.0,\n1e3,\n",
			[]string{"2: BAD_ID", "3: BAD_ID", "4: BAD_ID", "5: BAD_ID", "6: BAD_ID", "7: BAD_ID", "8: BAD_ID", "9: MISSING_ID", "10: BAD_ID", "11: BAD_ID"},
		},
		{
			"BadAmounts", FormatCSV, pointPromotion,
			"targetId,amount\n1,-5\n2,9223372036854775808\n3,1.5\n4,1e3\n5,0\n6,010\n7,x\n",
			[]string{"2: BAD_AMOUNT", "3: BAD_AMOUNT", "4: BAD_AMOUNT", "5: BAD_AMOUNT", "6: BAD_AMOUNT", "7: 6 6 10 ", "8: BAD_AMOUNT"},
		},
		{"AmountsAboveTheBound", FormatCSV, pointPromotion, "targetId,amount\n1,1000000000000001\n2,9223372036854775807\n3,5\n", []string{"2: BAD_AMOUNT", "3: BAD_AMOUNT", "4: 3 3 5 "}},
		{"NDJSONAmountAboveTheBound", FormatNDJSON, voucherPromotion, `{"targetId":1,"voucherCode":"V","amount":1000000000000001}`, []string{"1: BAD_AMOUNT"}},
		{"ADefaultAboveTheBound", FormatCSV, reward.Promotion{ID: 9, Type: reward.Point, Amount: reward.AmountMax + 1}, "targetId,amount\n1,\n2,5\n", []string{"2: BAD_AMOUNT", "3: 2 2 5 "}},
		{"MissingAmount", FormatCSV, noAmount, "targetId,amount\n1,\n2,5\n", []string{"2: MISSING_AMOUNT", "3: 2 2 5 "}},
		{"VouchersMayBeWorthNothing", FormatCSV, withCode, "targetId,amount,voucherCode\n1,0,\n2,,V-2\n", []string{"2: 1 1 0 V-1", "3: 2 2 5 V-2"}},
		{"BadVouchers", FormatCSV, voucherPromotion, "targetId,voucherCode\n1,\n2,=V\n3,'=V\n4," + strings.Repeat("V", 256) + "\n", []string{"2: BAD_VOUCHER", "3: FORMULA", "4: 3 3 0 =V", "5: BAD_VOUCHER"}},
		{"AVoucherForPointsIsWrong", FormatCSV, pointPromotion, "targetId,voucherCode\n1,V-1\n", []string{"2: BAD_VOUCHER"}},
		{
			"Formulas", FormatCSV, pointPromotion, "targetId,userId\n1,=HYPERLINK()\n2,+1\n3,-1\n4,@x\n5,\"\tx\"\n6,\"\rx\"\n7,a=b\n",
			[]string{"2: 1 =HYPERLINK() 100 ", "3: 2 +1 100 ", "4: 3 -1 100 ", "5: 4 @x 100 ", "6: BAD_USER", "7: BAD_USER", "8: 7 a=b 100 "},
		},
		{"LookAlikes", FormatCSV, pointPromotion, "targetId,userId\n1,ann \n2, ann\n3,a\u200bnn\n4,Andre\u0301\n5,Andr\u00e9\n", []string{"2: BAD_USER", "3: BAD_USER", "4: BAD_USER", "5: BAD_USER", "6: 5 Andr\u00e9 100 "}},
		{
			"Spreadsheet", FormatCSV, pointPromotion, "targetId,userId\n1,########\n2,#N/A\n3,4.9171E+12\n####,u\n5,#\n6,#NAME\n7,49171E+12\n",
			[]string{"2: BAD_USER", "3: BAD_USER", "4: BAD_USER", "5: BAD_ID", "6: 5 # 100 ", "7: 6 #NAME 100 ", "8: 7 49171E+12 100 "},
		},
		{"SpreadsheetVouchers", FormatCSV, voucherPromotion, "targetId,voucherCode\n1,#REF!\n2,#REF-1\n", []string{"2: BAD_VOUCHER", "3: 2 2 0 #REF-1"}},
		{"SpreadsheetObjects", FormatNDJSON, pointPromotion, `{"targetId":1,"userId":"#N/A"}` + "\n", []string{"1: 1 #N/A 100 "}},
		{"LookAlikeObjects", FormatNDJSON, pointPromotion, `{"targetId":1,"userId":"ann "}` + "\n" + `{"targetId":2,"userId":"ann\u202e"}` + "\n", []string{"1: BAD_USER", "2: BAD_USER"}},
		{
			"QuotedByAnExport", FormatCSV, pointPromotion, "targetId,userId\n1,'+49170\n2,''=x\n3,'u\n",
			[]string{"2: 1 +49170 100 ", "3: 2 '=x 100 ", "4: 3 'u 100 "},
		},
		{"BadUsers", FormatCSV, pointPromotion, "targetId,userId\n1,a\x01\n2," + strings.Repeat("u", 256) + "\n", []string{"2: BAD_USER", "3: BAD_USER"}},
		{"WrongColumns", FormatCSV, pointPromotion, "targetId,userId\n1\n1,2,3\n4,u\n", []string{"2: WRONG_COLUMNS", "3: WRONG_COLUMNS", "4: 4 u 100 "}},
		{"InvalidUTF8", FormatCSV, pointPromotion, "targetId,userId\n1,\xff\n2,a\x00b\n3,é\n", []string{"2: INVALID_UTF8", "3: INVALID_UTF8", "4: 3 é 100 "}},
		{"TooLong", FormatCSV, pointPromotion, "targetId,userId\n1,x" + long + "\n2,u\n", []string{"2: LINE_TOO_LONG", "3: 2 u 100 "}},
		{"TooLongByOne", FormatCSV, pointPromotion, "targetId\n" + strings.Repeat("1", lineMax+1) + "\r\n" + strings.Repeat("1", lineMax) + "\r\n3\n", []string{"2: LINE_TOO_LONG", "3: BAD_ID", "4: 3 3 100 "}},
		{"TooLongAtTheEnd", FormatCSV, pointPromotion, "targetId\n" + strings.Repeat("1", 2*lineMax+4), []string{"2: LINE_TOO_LONG"}},
		{
			"ABrokenQuoteSpoilsItsLineOnly", FormatCSV, pointPromotion, "targetId,userId\n1,\"abc\n2,u2\n3,a\"b\n4,\"a\"b\n5,u5\n",
			[]string{"2: BAD_QUOTE", "3: 2 u2 100 ", "4: BAD_QUOTE", "5: BAD_QUOTE", "6: 5 u5 100 "},
		},
		{
			"ABrokenQuoteFarFromTheNextOne", FormatCSV, pointPromotion, "targetId,userId\n1,\"abc\n" + strings.Repeat("7,u\n", lineMax/4) + "8,\"u8\"\n",
			append(append([]string{"2: BAD_QUOTE"}, repeated(3, lineMax/4, "7 u 100 ")...), fmt.Sprintf("%d: 8 u8 100 ", lineMax/4+3)),
		},
		{
			// A hostile user name: its second line is no record.
			"AQuotedLineEndInjectsNothing", FormatCSV, pointPromotion, "targetId,userId\n1,\"Kim\n9,mallory\n\n\"\n2,u\n",
			[]string{"2: BAD_QUOTE", "3: BAD_QUOTE", "5: BAD_QUOTE", "6: 2 u 100 "},
		},
		{"AnOpenQuoteAtTheEnd", FormatCSV, pointPromotion, "targetId,userId\n1,\"abc", []string{"2: BAD_QUOTE"}},
		{"AnOpenQuoteBeforeALongLine", FormatCSV, pointPromotion, "targetId,userId\n1,\"abc\n2," + long + "\n3,u\n", []string{"2: BAD_QUOTE", "3: LINE_TOO_LONG", "4: 3 u 100 "}},

		{"NDJSON", FormatNDJSON, pointPromotion, "{\"targetId\":1}\n\n{\"targetId\":\"2\",\"userId\":\"u\",\"amount\":5}\r\n{\"targetId\":3,\"userId\":77,\"amount\":\"6\"}", []string{"1: 1 1 100 ", "3: 2 u 5 ", "4: 3 77 6 "}},
		{"NDJSONKeepsBigNumbers", FormatNDJSON, pointPromotion, `{"targetId":9223372036854775807,"amount":1000000000000000}`, []string{"1: 9223372036854775807 9223372036854775807 1000000000000000 "}},
		{"NDJSONNulls", FormatNDJSON, pointPromotion, "{\"targetId\":1,\"userId\":null,\"amount\":null,\"voucherCode\":null}\n{\"targetId\":null}\n{}\n", []string{"1: 1 1 100 ", "2: MISSING_ID", "3: MISSING_ID"}},
		{
			"NDJSONValues", FormatNDJSON, voucherPromotion,
			`{"targetId":1.0}` + "\n" + `{"targetId":true}` + "\n" + `{"targetId":1,"amount":[]}` + "\n" + `{"targetId":1,"userId":{}}` + "\n" + `{"targetId":1,"voucherCode":5}` + "\n" +
				`{"targetId":1,"userId":1.5}` + "\n" + `{"targetId":1,"voucherCode":"@V"}` + "\n" + `{"targetId":1,"voucherCode":"V"}`,
			[]string{"1: BAD_ID", "2: BAD_ID", "3: BAD_AMOUNT", "4: BAD_USER", "5: BAD_VOUCHER", "6: BAD_USER", "7: 1 1 0 @V", "8: 1 1 0 V"},
		},
		{
			"NDJSONText", FormatNDJSON, pointPromotion,
			`{"targetId":1,"userId":"\u0000"}` + "\n" + `{"targetId":1,"userId":"\ud800"}` + "\n{\"targetId\":1,\"userId\":\"\xff\"}\n" + `{"targetId":1,"userId":"` + "\ufffd" + `"}`,
			[]string{"1: INVALID_UTF8", "2: INVALID_UTF8", "3: INVALID_UTF8", "4: 1 \ufffd 100 "},
		},
		{
			"BadJSON", FormatNDJSON, pointPromotion,
			"[1]\n{\"targetId\":1\n{\"targetId\":1}x\n{\"targetId\":1} {\"targetId\":2}\nnull\n{\"targetId\":1,\"targetId\":2}\n{\"targetId\":1,\"x\":2}\n  \n" + `{"TargetId":1}` + "\n",
			[]string{"1: BAD_JSON", "2: BAD_JSON", "3: BAD_JSON", "4: BAD_JSON", "5: BAD_JSON", "6: BAD_JSON", "7: BAD_JSON", "8: BAD_JSON", "9: BAD_JSON"},
		},
		{"NDJSONTooLong", FormatNDJSON, pointPromotion, `{"targetId":1,"userId":"` + long + "\"}\n{\"targetId\":2}\n", []string{"1: LINE_TOO_LONG", "2: 2 2 100 "}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for name, in := range map[string]io.Reader{
				"whole": strings.NewReader(tt.in), "byte by byte": iotest.OneByteReader(strings.NewReader(tt.in)),
				"with the error": iotest.DataErrReader(strings.NewReader(tt.in)),
			} {
				got, err := readAll(NewTargetReader(in, File{Format: tt.format}, tt.promotion))
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

func repeated(from, n int, what string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%d: %s", from+i, what)
	}
	return out
}

func TestTargetReaderRefusesFiles(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		format Format
		in     string
		code   string
	}{
		{"Empty", FormatCSV, "", CodeEmptyFile},
		{"OnlyEmptyLines", FormatCSV, "\n\r\n\n", CodeEmptyFile},
		{"EmptyNDJSON", FormatNDJSON, "\n", CodeEmptyFile},
		{"NoHeader", FormatCSV, "1,100\n2,100\n", CodeNoHeader},
		{"SemicolonsInATabFile", FormatTSV, "targetId;amount\n1;5\n", CodeNoHeader},
		{"NoTarget", FormatCSV, "userId,amount\nu,5\n", CodeNoHeader},
		{"UnknownColumn", FormatCSV, "targetId,amout\n1,5\n", CodeUnknownColumn},
		{"OtherCase", FormatCSV, "targetId,Amount\n1,5\n", CodeUnknownColumn},
		{"ManyColumns", FormatCSV, "targetId" + strings.Repeat(",x", 1000) + "\n", CodeUnknownColumn},
		{"Twice", FormatCSV, "targetId,amount,amount\n1,5,6\n", CodeDuplicateColumn},
		{"TwiceManyTimes", FormatCSV, "targetId" + strings.Repeat(",amount", 1000) + "\n", CodeDuplicateColumn},
		{"UTF16", FormatCSV, "\xff\xfet\x00\x00\xdc\n\x00", CodeInvalidUTF8},
		{"Latin1", FormatCSV, "targetId,gr\xfc\xdfe\n1,5\n", CodeInvalidUTF8},
		{"AWorkbookAsText", FormatCSV, "PK\x03\x04\x14\x00", CodeNoHeader},
		{"NoWorkbook", FormatXLSX, "targetId\n1\n", sheet.CodeBadWorkbook},
		{"BrokenQuote", FormatCSV, "targetId,\"amount\n1,5\n", CodeNoHeader},
		{"LongHeader", FormatCSV, "targetId" + strings.Repeat(" ", lineMax) + "\n1\n", CodeNoHeader},
		{"UnknownFormat", "application/pdf", "targetId\n1\n", CodeUnknownFormat},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := NewTargetReader(strings.NewReader(tt.in), File{Format: tt.format}, pointPromotion)
			got, err := readAll(r)
			if len(got) != 0 || !reward.HasCode(err, tt.code) || reward.KindOf(err) != reward.KindInvalid {
				t.Fatalf("got %v and %v, want %s", got, err, tt.code)
			}
			if _, _, _, again := r.Next(); !errors.Is(again, err) {
				t.Errorf("the next call returned another error: %v", again)
			}
		})
	}
}

func TestTargetReaderDropsTheLineThatTheStreamBrokeIn(t *testing.T) {
	t.Parallel()
	broken := errors.New("cut")
	for _, in := range []string{"targetId,amount\n1,5\n2,10", "targetId,amount\n1,5\n2,\"10\n3,", "targetId,amount\n1,5\n"} {
		r := NewTargetReader(io.MultiReader(strings.NewReader(in), iotest.ErrReader(broken)), File{Format: FormatCSV}, pointPromotion)
		got, err := readAll(r)
		if !errors.Is(err, broken) {
			t.Errorf("%q: error %v", in, err)
		}
		fixture.Equal(t, []string{"2: 1 1 5 "}, got)
	}
}

// endless is a stream of one byte with a given length. It records the memory in
// use on the way.
type endless struct {
	left, read int
	heapMax    uint64
}

func (e *endless) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	if e.read>>25 != (e.read+len(p))>>25 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		e.heapMax = max(e.heapMax, m.HeapAlloc)
	}
	n := min(len(p), e.left)
	for i := 0; i < n; {
		i += copy(p[i:n], "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
	}
	e.left, e.read = e.left-n, e.read+n
	return n, nil
}

func TestTargetReaderSkipsAHugeLineWithoutHoldingIt(t *testing.T) {
	t.Parallel()
	const size = 256 << 20
	line := &endless{left: size}
	r := NewTargetReader(io.MultiReader(strings.NewReader("targetId\n"), line, strings.NewReader("\n7\n")), File{Format: FormatCSV}, pointPromotion)
	got := fixture.Must(readAll(r))(t)
	fixture.Equal(t, []string{"2: LINE_TOO_LONG", "3: 7 7 100 "}, got)
	if line.heapMax == 0 || line.heapMax > size/2 {
		t.Errorf("%d bytes were in use while the line went by", line.heapMax)
	}
}

// checkAccounted reads data and checks that every line that is not empty comes
// out once and in order, except the header.
func checkAccounted(t *testing.T, data []byte, format Format, p reward.Promotion) {
	t.Helper()
	r := NewTargetReader(bytes.NewReader(data), File{Format: format}, p)
	want := map[int64]bool{}
	header := format == FormatCSV
	for i, text := range bytes.Split(bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")), []byte("\n")) {
		if len(bytes.TrimSuffix(text, []byte("\r"))) == 0 {
			// A carriage return without a line feed is content.
			continue
		}
		if header {
			header = false
			continue
		}
		want[int64(i+1)] = true
	}
	for {
		row, number, bad, err := r.Next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				if _, ok := errors.AsType[*reward.Error](err); !ok {
					t.Fatalf("error without a code: %v", err)
				}
				return
			}
			break
		}
		if !want[number] {
			t.Fatalf("line %d is empty or repeated", number)
		}
		delete(want, number)
		if bad != nil {
			if bad.Line != number || bad.Code == "" || bad.Detail == "" {
				t.Fatalf("line %d: %+v", number, bad)
			}
			continue
		}
		if row.Amount < reward.AmountMin(p.Type) || row.Amount > reward.AmountMax || (row.VoucherCode == "") == (p.Type == reward.Voucher) || reward.CheckNewUserID(row.UserID) != nil || row.TargetID < 0 {
			t.Fatalf("line %d gave %+v", number, row)
		}
	}
	for number := range want {
		t.Fatalf("line %d is lost", number)
	}
}

func FuzzTargetReaderCSV(f *testing.F) {
	for _, seed := range []string{
		"targetId\n1\n", "targetId,userId,amount\n1,\"a\n2,b\",5\n3,u,6\n", "\xef\xbb\xbftargetId,voucherCode\r\n1,V\r\n\r\n=1,\"\"\"\"\n",
		"targetId,userId\n1,\"x\n2,\"y\n3,\"z\"q\n", "", "\n\n", "targetId\n\xff\n\x00\n-1\n",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, voucher bool) {
		p := pointPromotion
		if voucher {
			p = voucherPromotion
		}
		checkAccounted(t, data, FormatCSV, p)
		// Give the fuzzer a valid header.
		checkAccounted(t, append([]byte("targetId,userId\n"), data...), FormatCSV, p)
	})
}

func FuzzTargetReaderNDJSON(f *testing.F) {
	for _, seed := range []string{
		"{\"targetId\":1}\n", "{\"targetId\":\"1\",\"userId\":\"\\ud800\",\"amount\":1e3}\n\n[]", "{\"targetId\":1,\"targetId\":2}\n{\"x\":{}}\n", "", "\r\n",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, data []byte, voucher bool) {
		p := pointPromotion
		if voucher {
			p = voucherPromotion
		}
		checkAccounted(t, data, FormatNDJSON, p)
	})
}

func TestTargetReaderAccountsForRandomLines(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"1", "\"", ",", "\n", "\r\n", "a", "\"\"", "\n2,u\n", strings.Repeat("z", 40_000), "é", "\xff", "{", "}"}
	for range 2000 {
		var b bytes.Buffer
		b.WriteString("targetId,userId\n")
		for range rng.IntN(30) {
			b.WriteString(pieces[rng.IntN(len(pieces))])
		}
		checkAccounted(t, b.Bytes(), FormatCSV, pointPromotion)
		checkAccounted(t, b.Bytes(), FormatNDJSON, pointPromotion)
	}
}
