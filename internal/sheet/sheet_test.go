package sheet

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/encoding/korean"
	"golang.org/x/text/encoding/unicode"

	"github.com/largesse/largesse/internal/reward"
)

func TestTextIsReadInItsEncoding(t *testing.T) {
	t.Parallel()
	const text = "고객번호,이름\r\n1001,홍길동\r\n"
	encode := func(s string, order unicode.Endianness, bom unicode.BOMPolicy) string {
		out, err := unicode.UTF16(order, bom).NewEncoder().String(s)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	hangul, err := korean.EUCKR.NewEncoder().String(text)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("1001,500\n", 3000)
	for _, tt := range []struct {
		name, in string
		as, is   Encoding
		want     string
	}{
		{"ASCII", "targetId\n1\n", "", "", "targetId\n1\n"},
		{"Empty", "", "", "", ""},
		{"OneByte", "1", "", "", "1"},
		{"UTF-8", text, "", UTF8, text},
		{"UTF-8 with a mark", "\ufeff" + text, "", UTF8, "\ufeff" + text},
		{"UTF-16LE", encode(text, unicode.LittleEndian, unicode.UseBOM), "", UTF16LE, "\ufeff" + text},
		{"UTF-16BE", encode(text, unicode.BigEndian, unicode.UseBOM), "", UTF16BE, "\ufeff" + text},
		{"UTF-16LE without a mark", encode(text, unicode.LittleEndian, unicode.IgnoreBOM), "", UTF16LE, text},
		{"UTF-16BE without a mark", encode("targetId\n"+text, unicode.BigEndian, unicode.IgnoreBOM), "", UTF16BE, "targetId\n" + text},
		{"CP949", hangul, "", CP949, text},
		{"CP949, late", long + hangul, "", CP949, long + text},
		{"CP949 of rare syllables", "\x8cc\xbe\xc8\xb3\xe7", "", CP949, "똠안녕"},
		{"Latin-1 stays invalid", "M\xfcller\n\xc4rger\n", "", UTF8, "M\xfcller\n\xc4rger\n"},
		{"Broken UTF-8 stays invalid", "targetId,userId\n1,\xff\n2,a\x00b\n", "", UTF8, "targetId,userId\n1,\xff\n2,a\x00b\n"},
		{"Given", hangul, CP949, CP949, text},
		{"Given, invalid", "\xff,1\n", CP949, CP949, "\ufffd,1\n"},
		{"Given against the detection", hangul, UTF8, UTF8, hangul},
	} {
		for how, r := range map[string]io.Reader{"whole": strings.NewReader(tt.in), "byte by byte": iotest.OneByteReader(strings.NewReader(tt.in))} {
			text := NewTextReader(r, tt.as)
			got, err := io.ReadAll(text)
			if err != nil || string(got) != tt.want || text.Encoding != tt.is {
				t.Errorf("%s, %s: %.60q in %q, %v", tt.name, how, got, text.Encoding, err)
			}
		}
	}
}

func TestTextKeepsTheErrorOfItsReader(t *testing.T) {
	t.Parallel()
	broken := errors.New("cut")
	for _, in := range []string{"", "1", "1001,5", "고객", "\xff\xfe1\x00"} {
		if _, err := io.ReadAll(NewTextReader(io.MultiReader(strings.NewReader(in), iotest.ErrReader(broken)), "")); !errors.Is(err, broken) {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// FuzzText checks that text in UTF-8 comes through as it is, and that no other is lost
// without a trace.
func FuzzText(f *testing.F) {
	for _, seed := range []string{"targetId\n1\n", "고객번호\n", "\xff\xfe\x00", "\xb0\xed\xb0\xb4\n", "a\x00b\x00"} {
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		r := NewTextReader(bytes.NewReader(data), "")
		got, err := io.ReadAll(struct{ io.Reader }{r})
		if err != nil {
			t.Fatal(err)
		}
		if !r.Decoded() && !bytes.Equal(got, data) {
			t.Errorf("%q became %q", data, got)
		}
		if len(data) > 0 && len(got) == 0 {
			t.Errorf("%q became nothing in %s", data, r.Encoding)
		}
	})
}

func TestNumbersAsASpreadsheetShowsThem(t *testing.T) {
	t.Parallel()
	const (
		accounting = `_-* #,##0_-;\-* #,##0_-;_-* "-"_-;_-@_-`
		rounds     = "!is a number of more than 15 digits"
	)
	for _, tt := range []struct{ value, format, want string }{
		{"1001", "General", "1001"},
		{"123456789012345", "General", "123456789012345"},
		{"8.80102E+12", "General", "8801020000000"},
		{"1234567890123456", "General", rounds},
		{"2.19E+26", "General", rounds},
		{"-1234567890123456", "0", rounds},
		{"10.1", "", "10.1"},
		{"10.100000000000001", "General", "10.1"},
		{"-5", "General", "-5"},
		{"7", "@", "7"},
		{"1000", "#,##0", "1,000"},
		{"1234567", "#,##0", "1,234,567"},
		{"1050.5", "#,##0.00", "1,050.50"},
		{"0.5", "#,##0.00", "0.50"},
		{"0.5", "#.##", ".5"},
		{"10.555", "0.00", "!shows fewer digits than its value 10.555 has"},
		{"10.5", "0", "!shows fewer digits than its value 10.5 has"},
		{"7", "000000", "000007"},
		{"1234567", "000000", "1234567"},
		{"1012345678", "000-0000-0000", "010-1234-5678"},
		{"0", "#,##0", "0"},
		{"0", "#", "!is a number that its format"},
		{"5", ";;;", "!has the format"},
		{"1050", accounting, "1,050"},
		{"-1050", accounting, "-1,050"},
		{"0", accounting, "!has the format"},
		{"1050", `[$₩-412]#,##0`, "₩1,050"},
		{"1050", `#,##0"원"`, "1,050원"},
		{"1050", "₩#,##0", "₩1,050"},
		{"-1050", "#,##0;[Red](#,##0)", "(1,050)"},
		{"-3", "0;-0;0", "-3"},
		{"45231", "yyyy-mm-dd", "!has the format"},
		{"0.5", "0%", "!has the format"},
		{"5", "0.00E+00", "!has the format"},
		{"5000", "#,##0,", "!has the format"},
		{"5", `0"x`, "!has the format"},
		{"5", "[>100]0", "!has the format"},
		{"abc", "0", "!is no number"},
		{"NaN", "0", "!is no number"},
	} {
		text, problem := showNumber(tt.value, tt.format)
		if want, wrong := strings.CutPrefix(tt.want, "!"); wrong && !strings.HasPrefix(problem, want) || !wrong && (text != tt.want || problem != "") {
			t.Errorf("%s in %s is %q, %q, not %q", tt.value, tt.format, text, problem, tt.want)
		}
	}
}

// book returns an .xlsx file with the given parts.
func book(t testing.TB, parts map[string]string) []byte {
	t.Helper()
	var file bytes.Buffer
	archive := zip.NewWriter(&file)
	for name, text := range parts {
		part, err := archive.Create(name)
		if err == nil {
			_, err = part.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

// excel returns the parts of a workbook as Excel writes them: a hidden sheet, a sheet
// 대상 with the given rows, and a chart.
func excel(rows string) map[string]string {
	return map[string]string{
		"xl/workbook.xml": `<?xml version="1.0" encoding="UTF-8"?><workbook xmlns="m" xmlns:r="r"><sheets><sheet name="설정" sheetId="1" state="hidden" r:id="rId1"/>` +
			`<sheet name="대상" sheetId="2" r:id="rId2"/><sheet name="Chart" sheetId="3" r:id="rId3"/></sheets></workbook>`,
		"xl/_rels/workbook.xml.rels": `<Relationships><Relationship Id="rId2" Target="worksheets/sheet2.xml"/><Relationship Id="rId1" Target="/xl/worksheets/sheet1.xml"/></Relationships>`,
		"xl/sharedStrings.xml": `<sst><si><t>고객번호</t></si><si><r><t>적</t></r><r><rPr><b/></rPr><t xml:space="preserve">립금 </t></r><rPh sb="0" eb="1"><t>reading</t></rPh></si>` +
			`<si><t>a_x000D_b_x00</t></si></sst>`,
		"xl/styles.xml": `<styleSheet><numFmts><numFmt numFmtId="164" formatCode="000000"/></numFmts><cellStyleXfs><xf numFmtId="9"/></cellStyleXfs>` +
			`<cellXfs><xf numFmtId="0"/><xf numFmtId="3"/><xf numFmtId="164"/><xf numFmtId="14"/></cellXfs></styleSheet>`,
		"xl/worksheets/sheet1.xml": `<worksheet><sheetData><row><c><v>1</v></c></row></sheetData></worksheet>`,
		"xl/worksheets/sheet2.xml": `<worksheet><cols><col/></cols><sheetData>` + rows + `</sheetData><mergeCells/></worksheet>`,
	}
}

// rowsOf returns the rows of a sheet, each as its number and the cells.
func rowsOf(file []byte, name string) (out []string, err error) {
	w, err := ReadWorkbook(bytes.NewReader(file))
	if err != nil {
		return nil, err
	}
	rows, err := w.Rows(name)
	for err == nil {
		var row Row
		if row, err = rows.Next(); err != nil {
			break
		}
		line := fmt.Sprint(row.Number)
		if row.Hidden {
			line += " hidden"
		}
		for _, c := range row.Cells {
			if line += "|" + c.Text; c.Problem != "" {
				line += "!"
			}
		}
		out = append(out, line)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return out, err
}

func TestWorkbookIsReadAsShown(t *testing.T) {
	t.Parallel()
	file := book(t, excel(`<row r="1"><c r="A1" t="s"><v>0</v></c><c r="B1" t="s"><v>1</v></c></row>`+
		`<row r="3" hidden="1"><c r="A3" s="2"><v>7</v></c><c r="C3" s="1"><v>1000</v></c></row>`+
		`<row><c><v>8</v></c><c t="inlineStr"><is><t>in&amp;line</t></is></c><c t="b"><v>1</v></c><c t="e"><v>#N/A</v></c><c t="str"><f>A1</f><v>text</v></c></row>`+
		`<row r="6"><c r="A6" s="3"><v>45231</v></c><c r="B6"><f>A1*2</f></c><c r="C6"/><c r="D6" t="s"><v>2</v></c><c r="E6" t="s"><v>9</v></c><c r="AB6"><f>1+1</f><v>2</v></c></row><row r="9"/>`))
	got, err := rowsOf(file, "")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"1|고객번호|적립금 ", "3 hidden|000007||1,000", "4|8|in&line|TRUE|#N/A!|text",
		"6|45231!|!||a\rb_x00|9!" + strings.Repeat("|", 22) + "|2", "9",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, err := rowsOf(file, "설정"); err != nil || len(got) != 1 {
		t.Errorf("the named sheet is %q, %v", got, err)
	}
}

func TestBrokenWorkbooks(t *testing.T) {
	t.Parallel()
	whole := book(t, excel(""))
	bomb := excel("")
	bomb["xl/worksheets/sheet2.xml"] = `<worksheet><sheetData><row><c><v>` + strings.Repeat("1", 8<<20)
	texts := excel("")
	texts["xl/sharedStrings.xml"] = "<sst>" + strings.Repeat("<si><t>"+strings.Repeat("x", 1<<16)+"</t></si>", 600)
	for name, tt := range map[string]struct {
		file        []byte
		sheet, want string
	}{
		"Empty":        {nil, "", "no .xlsx file"},
		"Text":         {[]byte("targetId\n1\n"), "", "no .xlsx file"},
		"Old":          {[]byte("\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"), "", "has a password"},
		"Cut":          {whole[:len(whole)/2], "", "no .xlsx file"},
		"AnotherZip":   {book(t, map[string]string{"a.txt": "x"}), "", "has no sheets"},
		"UnknownSheet": {whole, "없음", `it has ["설정" "대상" "Chart"]`},
		"Chart":        {whole, "Chart", "is a chart"},
		"NoEnd":        {book(t, excel(`<row r="1">`)), "", "is broken behind row 1"},
		"Backwards":    {book(t, excel(`<row r="2"/><row r="1"/>`)), "", "row 1 of sheet"},
		"SameCell":     {book(t, excel(`<row r="1"><c r="B1"/><c r="A1"/></row>`)), "", "a wrong place"},
		"FarCell":      {book(t, excel(`<row r="1"><c r="ZZZ1"/></row>`)), "", "a wrong place"},
		"HugeText":     {book(t, bomb), "", "has more than 1024 kB"},
		"ManyTexts":    {book(t, texts), "", "have more than 32 MB"},
		"TooLarge":     {make([]byte, FileMax+1), "", "has more than 32 MB"},
	} {
		_, err := rowsOf(tt.file, tt.sheet)
		if err == nil || !strings.Contains(err.Error(), tt.want) || reward.KindOf(err) != reward.KindInvalid {
			t.Errorf("%s: %v, not %s", name, err, tt.want)
		}
	}
}

// FuzzWorkbook checks that no sheet ends the program or is read without an end.
func FuzzWorkbook(f *testing.F) {
	f.Add(`<row r="1"><c r="A1" t="s"><v>0</v></c></row>`)
	f.Add(`<row><c s="1"><f>A1</f></c><c t="inlineStr"><is><t>x`)
	f.Fuzz(func(t *testing.T, rows string) {
		if _, err := rowsOf(book(t, excel(rows)), ""); err != nil && reward.KindOf(err) != reward.KindInvalid {
			t.Errorf("%q: %v", rows, err)
		}
	})
}

func TestWrittenWorkbookIsReadBack(t *testing.T) {
	t.Parallel()
	rows := func(of ...[]any) iter.Seq2[[]any, error] {
		return func(yield func([]any, error) bool) {
			for _, row := range of {
				if !yield(row, nil) {
					return
				}
			}
		}
	}
	var file bytes.Buffer
	if err := Write(&file, "보고 <1>", rows([]any{"이름", "=1+1", " a & b\n"}, []any{int64(-7), nil, 10.5}, []any{int64(1234567890123456)})); err != nil {
		t.Fatal(err)
	}
	got, err := rowsOf(file.Bytes(), "보고 <1>")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"1|이름|=1+1| a & b\n", "2|-7||10.5", "3|1234567890123456"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	broken := errors.New("cut")
	if err := Write(io.Discard, "x", func(yield func([]any, error) bool) { yield(nil, broken) }); !errors.Is(err, broken) {
		t.Errorf("the error of the rows became %v", err)
	}
}

func TestColumnLetters(t *testing.T) {
	t.Parallel()
	for letters, at := range map[string]int{"A": 0, "Z": 25, "AA": 26, "AZ": 51, "BA": 52, "ZZ": 701, "AAA": 702, "XFD": columnsMax - 1} {
		if got, ok := ColumnIndex(letters); !ok || got != at || ColumnLetters(at) != letters {
			t.Errorf("%s is %d, %t, and %d is %s", letters, got, ok, at, ColumnLetters(at))
		}
	}
	for _, letters := range []string{"", "XFE", "AAAA", "1", "가"} {
		if at, ok := ColumnIndex(letters); ok {
			t.Errorf("%q is %d", letters, at)
		}
	}
}
