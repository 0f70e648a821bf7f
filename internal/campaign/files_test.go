package campaign

import (
	"bytes"
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/text/encoding/korean"
	"golang.org/x/text/encoding/unicode"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
	"github.com/largesse/largesse/internal/store"
)

// workbookOf returns an .xlsx file with one sheet of the given rows.
func workbookOf(t testing.TB, rows ...[]any) string {
	t.Helper()
	var file bytes.Buffer
	fixture.OK(t, sheet.Write(&file, "대상", iter.Seq2[[]any, error](func(yield func([]any, error) bool) {
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	})))
	return file.String()
}

func mapping(t testing.TB, text string) Columns {
	t.Helper()
	return fixture.Must(ParseColumns(text))(t)
}

func TestFilesAsPeopleHaveThem(t *testing.T) {
	t.Parallel()
	const korean3 = "고객번호,이름,적립금\r\n1001,홍길동,\"1,000\"\r\n1002,김 철수,500\r\n"
	cp949 := fixture.Must(korean.EUCKR.NewEncoder().String(korean3))(t)
	utf16 := fixture.Must(unicode.UTF16(unicode.LittleEndian, unicode.UseBOM).NewEncoder().String(strings.NewReplacer(`"1,000"`, `"1,000"`, ",", "\t").Replace(korean3)))(t)
	euros := reward.Promotion{ID: 9, Type: reward.Point, Currency: "EUR", Amount: 100}
	won := reward.Promotion{ID: 9, Type: reward.Point, Currency: "KRW", Amount: 100}
	ours := mapping(t, "targetId=고객번호,amount=적립금")
	paid := []string{"2: 1001 1001 1000 ", "3: 1002 1002 500 "}
	for _, tt := range []struct {
		name string
		of   reward.Promotion
		file File
		in   string
		want []string
	}{
		{"CP949", pointPromotion, File{Format: FormatCSV, Columns: ours}, cp949, paid},
		{"CP949, given", pointPromotion, File{Format: FormatCSV, Columns: ours, Encoding: sheet.CP949}, cp949, paid},
		{
			"ALineThatIsNotCP949", pointPromotion,
			File{Format: FormatCSV, Columns: mapping(t, "targetId=고객번호"), Encoding: sheet.CP949},
			cp949 + "1003,\xff,5\n",
			[]string{"2: 1001 1001 100 ", "3: 1002 1002 100 ", "4: INVALID_UTF8"},
		},
		{"UTF16", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=A")}, "\xff\xfe1\x00\n\x00", []string{"NO_HEADER"}},
		{"UTF16WithTabs", pointPromotion, File{Format: FormatCSV, Columns: ours}, utf16, paid},
		{"Suggested", pointPromotion, File{Format: FormatCSV, Suggest: true}, korean3, paid},
		{"Semicolons", pointPromotion, File{Format: FormatCSV}, "targetId;userId;amount\n1;\"a;b\";5\n2;c;1,000\n", []string{"2: 1 a;b 5 ", "3: BAD_AMOUNT"}},
		{"Tabs", pointPromotion, File{Format: FormatTSV}, "targetId\tamount\n1\t1,000\n", []string{"2: 1 1 1000 "}},
		{"TabsDetected", pointPromotion, File{Format: FormatCSV}, "targetId\tamount\n1\t5\n", []string{"2: 1 1 5 "}},
		{"ACommaInANameOfATabFile", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=ID,amount=Amount, EUR")}, "ID\tAmount, EUR\n1\t5\n", []string{"2: 1 1 5 "}},
		{"ByLetterAndNumber", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=B,amount=3")}, "x,,x\n7,1,5\n", []string{"2: 1 1 5 "}},
		{"ANameBeforeALetter", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=B")}, "B,A\n1,2\n", []string{"2: 1 1 100 "}},
		{"OnePersonForBoth", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=No,userId=No")}, "No\n1\n", []string{"2: 1 1 100 "}},
		{
			"PeopleOnly", pointPromotion,
			File{Format: FormatCSV, Columns: mapping(t, "userId=고객코드")},
			"고객코드,이름\n7,kim\nC-0041,lee\n007,park\nC-0041,lee\n,choi\n",
			[]string{"2: 7 7 100 ", "3: 5624309090842720501 C-0041 100 ", "4: 6388306860979438403 007 100 ", "5: 5624309090842720501 C-0041 100 ", "6: MISSING_USER"},
		},
		{"NobodyElseIsPaid", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=회원번호,userId=아이디")}, "회원번호,아이디\n7,kim\n8,\n", []string{"2: 7 kim 100 ", "3: MISSING_USER"}},
		{"NobodyElseIsPaid, suggested", pointPromotion, File{Format: FormatCSV, Suggest: true}, "회원번호,아이디\n8,\n", []string{"2: MISSING_USER"}},
		{"OurNameByALetter", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=A,userId=B")}, "targetId,userId\n8,\n", []string{"2: 8 8 100 "}},
		{"OurNameOfUsersAlone", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=A,userId=B")}, "No,userId\n8,\n", []string{"2: MISSING_USER"}},
		{"PeopleOnly, suggested", pointPromotion, File{Format: FormatCSV, Suggest: true}, "아이디,이름\n7,kim\n", []string{"2: 7 7 100 "}},
		{"NoSuchColumn", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=Z")}, "a,b\n1,2\n", []string{"UNKNOWN_COLUMN"}},
		{"TwoOfThem", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=a")}, "a,a\n1,2\n", []string{"DUPLICATE_COLUMN"}},
		{"TheFirstPersonIsNoHeader", pointPromotion, File{Format: FormatCSV, Columns: mapping(t, "targetId=A")}, "1,2\n3,4\n", []string{"NO_HEADER"}},
		{
			"Groups", euros,
			File{Format: FormatCSV, Units: MajorUnits},
			"targetId,amount\n1,\"1,000\"\n2,\" 12,345.50 \"\n3,\"10,50\"\n4,\"1,0000\"\n5,\"0,500\"\n6,\"1,000.5.0\"\n",
			[]string{"2: 1 1 100000 ", "3: 2 2 1234550 ", "4: BAD_AMOUNT", "5: BAD_AMOUNT", "6: BAD_AMOUNT", "7: BAD_AMOUNT"},
		},
		{
			"SignsOfTheCurrency", euros,
			File{Format: FormatCSV, Units: MajorUnits},
			"targetId,amount\n1,€10\n2,\"1,000.50 €\"\n3,EUR 5\n4,5 EUR\n5,$5\n6,USD 5\n7,€\n8,€€5\n9,-€5\n",
			[]string{"2: 1 1 1000 ", "3: 2 2 100050 ", "4: 3 3 500 ", "5: 4 4 500 ", "6: BAD_AMOUNT", "7: BAD_AMOUNT", "8: BAD_AMOUNT", "9: BAD_AMOUNT", "10: BAD_AMOUNT"},
		},
		{"SignsMeanMajorUnits", euros, File{Format: FormatCSV}, "targetId,amount\n1,€10\n2,10 EUR\n", []string{"2: BAD_AMOUNT", "3: BAD_AMOUNT"}},
		{"SignsOfPoints", pointPromotion, File{Format: FormatCSV}, "targetId,amount\n1,\"1,000P\"\n2,500 포인트\n3,5점\n4,₩5\n5,P\n", []string{"2: 1 1 1000 ", "3: 2 2 500 ", "4: 3 3 5 ", "5: BAD_AMOUNT", "6: BAD_AMOUNT"}},
		{"SignsOfWon", won, File{Format: FormatCSV}, "targetId,amount\n1,\"₩1,000\"\n2,\"1,000원\"\n3,￦5\n4,5 USD\n", []string{"2: 1 1 1000 ", "3: 2 2 1000 ", "4: 3 3 5 ", "5: BAD_AMOUNT"}},
		{"RefusedLinesThatWereCorrected", pointPromotion, File{Format: FormatCSV}, "targetId,amount,error\n1,5,BAD_AMOUNT: no\n", []string{"2: 1 1 5 "}},
		{
			"Workbook", euros,
			File{Format: FormatXLSX, Units: MajorUnits},
			workbookOf(t, nil, []any{"targetId", "userId", "amount"}, []any{int64(1), "=kim", 10.5}, nil, []any{"2", nil, "1,000.00"}, []any{2.5}, []any{"3", nil, nil, "more"}, []any{1e15}),
			[]string{"3: 1 =kim 1050 ", "5: 2 2 100000 ", "6: BAD_ID", "7: WRONG_COLUMNS", "8: BAD_ID"},
		},
		{"ASheetByName", pointPromotion, File{Format: FormatXLSX, Sheet: "대상", Columns: ours}, workbookOf(t, []any{"고객번호", "이름", "적립금"}, []any{"7", "x", "5", "more"}), []string{"2: 7 7 5 "}},
		{"NoSuchSheet", pointPromotion, File{Format: FormatXLSX, Sheet: "없음"}, workbookOf(t), []string{"UNKNOWN_SHEET"}},
		{"AnEmptySheet", pointPromotion, File{Format: FormatXLSX}, workbookOf(t, nil, []any{""}), []string{"EMPTY_FILE"}},
		{"NoColumnsInNDJSON", pointPromotion, File{Format: FormatNDJSON, Columns: ours}, `{"targetId":1}`, []string{"INVALID"}},
		{"NoEncodingOfAWorkbook", pointPromotion, File{Format: FormatXLSX, Encoding: sheet.UTF8}, "", []string{"INVALID"}},
		{"NoSheetOfCSV", pointPromotion, File{Format: FormatCSV, Sheet: "x"}, "", []string{"INVALID"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := readAll(NewTargetReader(strings.NewReader(tt.in), tt.file, tt.of))
			if err != nil {
				e, _, _ := strings.Cut(err.Error(), ":")
				got = append(got, e)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s\n%v", diff, err)
			}
		})
	}
}

// TestAmountsWithCommasGetAdvice checks that the detail of a refused amount says what to do.
func TestAmountsWithCommasGetAdvice(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"targetId;amount\n1;10,50\n":     "a comma may be a decimal point",
		"targetId,amount\n1,\"10,50\"\n": "commas may only be between groups of three digits",
		"targetId,amount\n1,10.50\n":     "amounts=major",
	} {
		_, _, bad, err := NewTargetReader(strings.NewReader(in), File{Format: FormatCSV}, pointPromotion).Next()
		if err != nil || bad == nil || !strings.Contains(bad.Detail, want) {
			t.Errorf("%q: %+v, %v", in, bad, err)
		}
	}
}

func TestWrongNamesGetASuggestion(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"고객번호,이름,적립금(원)":                "columns=targetId=고객번호,amount=적립금(원)",
		"회원 아이디,포인트":                    "columns=userId=회원 아이디,amount=포인트",
		"Customer No.;E-Mail;Amount":    "columns=targetId=Customer No.,amount=Amount",
		"targetId,Betrag":               "columns=targetId=targetId",
		"쿠폰코드\t회원번호":                    "columns=targetId=회원번호,voucherCode=쿠폰코드",
		"회원번호,금액,금액":                    "columns=targetId=회원번호,amount=B",
		"회원번호,\"amount=1,userId=2\",금액": "columns=targetId=회원번호,amount=금액",
	} {
		_, _, _, err := NewTargetReader(strings.NewReader(header+"\n"), File{Format: FormatCSV}, pointPromotion).Next()
		if err == nil || !strings.HasSuffix(strings.TrimSuffix(err.Error(), " (--columns)"), want) && !strings.Contains(err.Error(), want+" (--columns)") {
			t.Errorf("%q: %v, want %s", header, err, want)
		}
	}
}

func TestColumns(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"targetId=A,userId=B":                 "targetId=A,userId=B",
		"amount= Amount, EUR , targetId=고객번호": "targetId=고객번호,amount=Amount, EUR",
		"targetId=a=b":                        "targetId=a=b",
		"":                                    "",
		"targetId":                            "!must be as in",
		"x=1":                                 "!must be as in",
		"x=1,targetId=2":                      "!must be as in",
		"TargetId=1":                          "!must be as in",
		"userId=1":                            "userId=1",
		"amount=1":                            "!must have targetId or userId",
		"targetId=,userId=1":                  "!must name the column",
		"targetId=1,targetId=2":               "!must have targetId once",
		"targetId=1,userId=2,amount=3,voucherCode=" + "쿠폰, 코드": "targetId=1,userId=2,amount=3,voucherCode=쿠폰, 코드",
	} {
		c, err := ParseColumns(text)
		if wrong, refused := strings.CutPrefix(want, "!"); refused && (err == nil || !strings.Contains(err.Error(), wrong)) || !refused && (err != nil || c.String() != want) {
			t.Errorf("%q is %v, %v", text, c, err)
		}
	}
}

// TestExportIsReadBack checks that IDs of users that our CSV export guards are read as they are.
func TestExportIsReadBack(t *testing.T) {
	t.Parallel()
	for i, user := range []string{"+49170", "'+49170", "=1", "-", "@x", "u7", "'u"} {
		for _, comma := range []string{",", ";", "\t"} {
			in := fmt.Sprintf("targetId%suserId\n%d%s%s\n", comma, i, comma, reward.GuardCell(user))
			row, _, bad, err := NewTargetReader(strings.NewReader(in), File{Format: FormatCSV}, pointPromotion).Next()
			if err != nil || bad != nil || row.UserID != user {
				t.Errorf("%q is read as %q, %v, %v", in, row.UserID, bad, err)
			}
		}
	}
}

func TestAlreadyPaid(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		targets reward.TargetID
		want    PaidOf
	}{
		{"ByOthers", 1200, PaidOf{Targets: 1200, Complete: true, Promotions: []PaidBefore{{PromotionID: 8, Name: "November bonus", People: 2}}}},
		{"OfNobody", 0, PaidOf{Complete: true}},
		{"Of10000", 10_000, PaidOf{Targets: 10_000, Complete: true, Promotions: []PaidBefore{{PromotionID: 8, Name: "November bonus", People: 2}}}},
		{"OfTheFirst10000", 10_001, PaidOf{Targets: 10_000, Promotions: []PaidBefore{{PromotionID: 8, Name: "November bonus", People: 2}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rows := newFakeUploadRows(reward.Promotion{ID: 7, Type: reward.Point})
			rows.other = reward.Promotion{ID: 8, Name: "November bonus"}
			rows.view.Counts.Payouts[reward.Ready] = int64(tc.targets)
			for id := range tc.targets {
				rows.rows[id] = store.NewPayout{TargetID: id, UserID: fmt.Sprintf("u%d", id/2)} // everybody twice
			}
			rows.paid = map[string][]reward.PromotionID{"u0": {8, 9}, "u300": {7, 8}, "u5000": {8}}
			got := fixture.Must(rows.uploads().AlreadyPaid(t.Context(), 7))(t)
			fixture.Equal(t, tc.want, got)
		})
	}
}

func TestCheckOfAFile(t *testing.T) {
	t.Parallel()
	var file strings.Builder
	file.WriteString("고객번호;이름;적립금\n")
	for i := range 30 {
		fmt.Fprintf(&file, "%d;u%d;100\n", i, i)
	}
	file.WriteString("3;again;100\n4;again;500\nx;\"=cmd\";100\n40;u40;-5\n")
	rows := newFakeUploadRows(reward.Promotion{ID: 7, Name: "November bonus", Type: reward.Point})
	rows.paid = map[string][]reward.PromotionID{"3": {7}, "5": {7, 8}, "99": {7}}
	got := fixture.Must(rows.uploads().Check(t.Context(), CheckCommand{
		Body: strings.NewReader(file.String()), File: File{Format: FormatCSV}, Promotion: reward.Promotion{Type: reward.Point, Currency: "KRW"},
	}))(t)
	fixture.Equal(t, Found{
		Header: []string{"고객번호", "이름", "적립금"}, Columns: Columns{columnTarget: "고객번호", columnAmount: "적립금"}, Delimiter: ";", Encoding: sheet.UTF8,
	}, got.Found)
	want := UploadResult{Accepted: 30, Duplicates: 1, Conflicts: 1, Rejected: 2, Amount: 3000, Currency: "KRW"}
	want.Errors = got.Errors
	fixture.Equal(t, want, got.UploadResult)
	fixture.Equal(t, []PaidBefore{{PromotionID: 7, Name: "November bonus", People: 2}}, got.AlreadyPaid) // nobody knows promotion 8 any more
	if len(rows.opened)+rows.saves != 0 {
		t.Error("the check has saved something")
	}
	var lines []string
	for _, l := range got.Lines {
		text := fmt.Sprint(l.Line, l.Cells)
		if l.Fault != nil {
			text += " " + l.Fault.Code
		}
		lines = append(lines, text)
	}
	fixture.Equal(t, "2 [0 u0 100]", lines[0])
	fixture.Equal(t, []string{"21 [19 u19 100]", "33 [] CONFLICT", "34 [x =cmd 100] BAD_ID", "35 [40 u40 -5] BAD_AMOUNT"}, lines[linesShownMax-1:])
}

func TestCheckShowsAConflictAmongTheFirstLines(t *testing.T) {
	t.Parallel()
	got := fixture.Must(newFakeUploadRows(pointPromotion).uploads().Check(t.Context(), CheckCommand{
		Body: strings.NewReader("targetId,name\n1,a\n\"1,b\n"), File: File{Format: FormatCSV}, Promotion: pointPromotion,
	}))(t)
	fixture.Equal(t, []ShownLine{
		{Line: 2, Cells: []string{"1", "a"}, Target: store.NewPayout{PromotionID: 9, TargetID: 1, UserID: "1", Amount: 100}},
		{Line: 3, Cells: []string{"\"1,b"}, Fault: &store.LineError{Line: 3, Code: LineBadQuote, Detail: "a quote is not closed", Cells: []string{"\"1,b"}}},
	}, got.Lines)
	for in, code := range map[string]string{"": CodeEmptyFile, "\"a\n": CodeNoHeader} {
		_, err := newFakeUploadRows(pointPromotion).uploads().Check(t.Context(), CheckCommand{Body: strings.NewReader(in), File: File{Format: FormatCSV}})
		if !reward.HasCode(err, code) {
			t.Errorf("%q: %v", in, err)
		}
	}
	got = fixture.Must(newFakeUploadRows(pointPromotion).uploads().Check(t.Context(), CheckCommand{
		Body: strings.NewReader("name,sum\nkim,5\n"), File: File{Format: FormatCSV}, Promotion: pointPromotion,
	}))(t)
	if got.Rejected != 1 || got.Lines[0].Fault.Code != reward.LineMissingID || got.Found.Columns[columnTarget] != "" {
		t.Errorf("a file whose names suggest no target: %+v", got)
	}
}

// TestRefusedCellsStayRefused checks that a line is not accepted because its cells are in
// a file of text now.
func TestRefusedCellsStayRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file File
		in   string
		want []string
	}{
		"a rounded number": {File{Format: FormatXLSX}, workbookOf(t, []any{"targetId", "userId"}, []any{1e15, "u"}), []string{lostCell, "u"}},
		"a comma":          {File{Format: FormatCSV}, "targetId;amount\nx;1,250\n", []string{"x", lostCell}},
		"a formula":        {File{Format: FormatCSV}, "targetId,voucherCode\n1,=A1\n", nil},
		"many empty cells": {File{Format: FormatCSV, Columns: mapping(t, "targetId=A")}, "id" + strings.Repeat(",", 2000) + "\nx" + strings.Repeat(",", 2000) + "\n", nil},
	} {
		_, _, bad, err := NewTargetReader(strings.NewReader(tt.in), tt.file, pointPromotion).Next()
		if err != nil || bad == nil {
			t.Errorf("%s: %+v, %v", name, bad, err)
			continue
		}
		if diff := cmp.Diff(tt.want, bad.Cells); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	if reward.CheckCell(lostCell) == "" {
		t.Error("a user ID may be", lostCell)
	}
}
