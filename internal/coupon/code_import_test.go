package coupon

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
	"github.com/largesse/largesse/internal/sheet"
	"github.com/largesse/largesse/internal/store"
)

// imports gives codes to a template.
func (r *rig) imports(i *instance, id reward.TemplateID, codes ...string) View {
	r.Helper()
	v, added, err := i.Catalog.ImportCodes(r.Context(), id, "kim", strings.NewReader(strings.Join(codes, "\n")))
	if want := (CodesAdded{int64(len(codes)), codes[0], codes[len(codes)-1]}); err != nil || added != want {
		r.Fatalf("import: %+v, want %+v, %v", added, want, err)
	}
	return v
}

// TestImportedCodes checks in every mode that coupons get the codes of a file in its
// order, each once, and that requests are refused when the codes are used up.
func TestImportedCodes(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		r.startAll(2)
		a, b := r.instances[0], r.instances[1]
		id := r.create(reward.CouponTemplate{TotalQuantity: 3, Mode: mode, ReissueAfterCancel: true})
		if _, _, err := a.Catalog.ImportCodes(r.Context(), id, "kim", strings.NewReader("ONE\nTWO")); !reward.HasCode(err, reward.CodeCodesExhausted) {
			r.Fatalf("two codes for three coupons: %v", err)
		}
		if v := r.imports(a, id, "ONE", "TWO", "THREE"); v.Stock != 3 || v.CodesLeft() != 3 {
			r.Errorf("%+v", v)
		}
		r.takes(a, id, "ann", "ONE")
		r.takes(b, id, "bob", "TWO")
		r.until("the quantity cannot rise", func() bool {
			_, err := b.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, TotalQuantity: new(int64(4))})
			return reward.HasCode(err, reward.CodeCodesExhausted)
		})
		cid := r.takes(a, id, "cid", "THREE")
		fixture.Must(a.Catalog.Cancel(r.Context(), cid.ID, "ann"))(r)
		r.until("the codes are used up", func() bool {
			v, err := b.Catalog.Get(r.Context(), id)
			return err == nil && v.Live == 2 && v.Stock == 0 && v.CodesLeft() == 0 && v.CodesMissing() == 1
		})
		for _, i := range r.instances {
			r.want(i, id, "dan", reward.CodeSoldOut)
		}
		r.balanced(id)
		r.imports(b, id, "FOUR", "FIVE")
		if c := r.takeWhenFree(a, id, "dan"); c.Code != "FOUR" {
			r.Errorf("dan has %s", c.Code)
		}
		r.want(b, id, "eve", reward.CodeSoldOut) // the quantity is used up, though a code is left
		if found, err := b.Catalog.CouponsByCode(r.Context(), "THREE", 10); err != nil || len(found) != 1 || found[0].UserID != "cid" {
			r.Errorf("by its code: %+v, %v", found, err)
		}
		if found, err := b.Catalog.CouponsByCode(r.Context(), "three", 10); err != nil || len(found) != 0 {
			r.Errorf("an imported code in another case: %+v, %v", found, err)
		}
		h, err := a.Catalog.History(r.Context(), "dan")
		if err != nil || len(h.Outcomes) != 1 || h.Outcomes[0].Coupon.Code != "FOUR" {
			r.Errorf("history: %+v, %v", h, err)
		}
		r.balanced(id)
	})
}

// TestGeneratedCodesInAnyCase checks that generated codes are found as people type them,
// unless their case makes a difference.
func TestGeneratedCodesInAnyCase(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		for name, tt := range map[string]struct {
			style reward.CodeStyle
			any   bool
		}{
			"default": {reward.CodeStyle{}, true},
			"small":   {reward.CodeStyle{Prefix: "sale-", Length: 26, Alphabet: "abcdefgh"}, true},
			"both":    {reward.CodeStyle{Prefix: "x", Length: 26, Alphabet: "abcdEFGH"}, false},
		} {
			c := r.take(i, r.create(reward.CouponTemplate{TotalQuantity: 2, Codes: tt.style}), "ann")
			for _, typed := range []string{strings.ToLower(c.Code), strings.ToUpper(c.Code), c.Code} {
				want := tt.any || typed == c.Code
				if found, err := i.Catalog.CouponsByCode(r.Context(), typed, 10); err != nil || (len(found) == 1) != want {
					r.Errorf("%s: code %s as %s: %+v, %v", name, c.Code, typed, found, err)
				}
			}
		}
	})
}

// takes requests a coupon, which must have a code.
func (r *rig) takes(i *instance, id reward.TemplateID, user, code string) reward.Coupon {
	r.Helper()
	c := r.take(i, id, user)
	if c.Code != code {
		r.Errorf("%s has %s and not %s", user, c.Code, code)
	}
	return c
}

// TestAQuantityWaitsForAnotherPerson checks that no coupon beyond the limit is issued
// before somebody approves the quantity, in every mode and while users request coupons.
func TestAQuantityWaitsForAnotherPerson(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		i := r.start(func(c *FlowConfig) { c.CodesAbove = 2 })
		id := r.create(reward.CouponTemplate{TotalQuantity: 3, Mode: mode, Authors: reward.Authors("").Add("kim")})
		r.take(i, id, "ann")
		r.take(i, id, "bob")
		r.want(i, id, "cid", reward.CodeSoldOut)
		change := func(p rules.TemplateChange) error {
			p.ID = id
			_, err := i.Catalog.Change(r.Context(), p)
			return err
		}
		fixture.OK(r, change(rules.TemplateChange{TotalQuantity: new(int64(4)), By: "bob"}))
		for _, author := range []string{"kim", "bob"} {
			if err := change(rules.TemplateChange{Approvers: []string{author}}); !reward.HasCode(err, reward.CodeSamePerson) {
				r.Errorf("%s approves: %v", author, err)
			}
		}
		r.want(i, id, "cid", reward.CodeSoldOut)
		fixture.OK(r, change(rules.TemplateChange{Approvers: []string{"lee"}}))
		r.takeWhenFree(i, id, "cid")
		r.takeWhenFree(i, id, "dan")
		r.want(i, id, "eve", reward.CodeSoldOut)
		r.balanced(id)
	})
}

// TestImportedCodesWaitForAnotherPerson checks that codes which somebody imports to a
// template after its quantity was approved are given to nobody beyond the limit, before
// somebody approves it who did not import them.
func TestImportedCodesWaitForAnotherPerson(t *testing.T) {
	t.Parallel()
	eachMode(t, allModes, func(r *rig, mode reward.IssueMode) {
		i := r.start(func(c *FlowConfig) { c.CodesAbove = 1 })
		id := r.create(reward.CouponTemplate{TotalQuantity: 2, Mode: mode})
		approve := func(by string) error {
			_, err := i.Catalog.Change(r.Context(), rules.TemplateChange{ID: id, Approvers: []string{by}})
			return err
		}
		if err := approve("kim"); err != nil { // no author yet
			r.Fatal(err)
		}
		if v := r.imports(i, id, "ONE", "TWO"); v.TotalQuantity != 1 || v.AwaitingQuantity != 2 || v.Stock != 1 {
			r.Errorf("%+v", v)
		}
		r.takes(i, id, "ann", "ONE")
		r.want(i, id, "bob", reward.CodeSoldOut)
		if err := approve("kim"); !reward.HasCode(err, reward.CodeSamePerson) {
			r.Errorf("who imported the codes approves them: %v", err)
		}
		fixture.OK(r, approve("lee"))
		if c := r.takeWhenFree(i, id, "bob"); c.Code != "TWO" {
			r.Errorf("bob has %s", c.Code)
		}
		r.balanced(id)
	})
}

// workbookOf returns an .xlsx file with one sheet of the given rows.
func workbookOf(t testing.TB, rows ...[]any) string {
	t.Helper()
	var file strings.Builder
	fixture.OK(t, sheet.Write(&file, "codes", func(yield func([]any, error) bool) {
		for _, row := range rows {
			if !yield(row, nil) {
				return
			}
		}
	}))
	return file.String()
}

// TestFilesOfCodes checks what files of codes may look like, and that a bad one
// changes nothing.
func TestFilesOfCodes(t *testing.T) {
	t.Parallel()
	each(t, func(r *rig) {
		i := r.start()
		many := func(n int, tail ...string) string {
			var b strings.Builder
			for k := range n {
				fmt.Fprintf(&b, "M%06d\n", k)
			}
			return b.String() + strings.Join(tail, "\n")
		}
		for name, file := range map[string]struct {
			body  string
			first string
			n     int64
		}{
			"plain":            {"A1\nB2\n", "A1", 2},
			"header":           {"Code\nA1\nB2", "A1", 2},
			"header codes":     {"Codes\nA1\nB2", "A1", 2},
			"header coupon":    {"\"Coupon code\"\nA1\nB2", "A1", 2},
			"spaces in quotes": {"\" A1 \"\nB2", "A1", 2},
			"windows":          {"\ufeffcode\r\nA1\r\nB2\r\n\r\n", "A1", 2},
			"blanks":           {"\n  A1 \n\n\tB2\n\n", "A1", 2},
			"utf 16":           {"\xff\xfec\x00o\x00d\x00e\x00\n\x00A\x001\x00\n\x00B\x00", "A1", 2},
			"cp949":            {"\xc4\xed\xc6\xf9\xb9\xf8\xc8\xa3\r\nA1\r\nB2\r\n", "A1", 2},
			"signs":            {"A-1_b.c:d/e#f+g=h@i*j\nB2", "A-1_b.c:d/e#f+g=h@i*j", 2},
			"the word":         {"B2\ncode\n", "B2", 2},
			"longest":          {strings.Repeat("x", reward.CodeMax) + "\nb", strings.Repeat("x", reward.CodeMax), 2},
			"workbook":         {workbookOf(r, []any{"A1"}, []any{"B2"}), "A1", 2},
			"workbook, column": {workbookOf(r, []any{"이름", "쿠폰 번호"}, []any{"ann", "A1"}, []any{nil, nil}, []any{"bob", int64(42)}), "A1", 2},
			"workbook, No.":    {workbookOf(r, []any{"번호", "쿠폰번호"}, []any{int64(1), "A1"}, []any{int64(2), "B2"}), "A1", 2},
			"workbook, 번호":     {workbookOf(r, []any{"번호"}, []any{"A1"}, []any{"B2"}), "A1", 2},
			"batches":          {many(2*store.CodesMax + 1), "M000000", 2*store.CodesMax + 1},
		} {
			id := r.create(reward.CouponTemplate{TotalQuantity: 2})
			v, added, err := i.Catalog.ImportCodes(r.Context(), id, "kim", strings.NewReader(file.body))
			if err != nil || added.Count != file.n || added.First != file.first || v.CodesImported != file.n {
				r.Errorf("%s: %+v, %+v, %v", name, added, v, err)
				continue
			}
			if c := r.take(i, id, "ann"); c.Code != file.first {
				r.Errorf("%s: the first code is %s", name, c.Code)
			}
		}

		id := r.create(reward.CouponTemplate{TotalQuantity: 2})
		broken := errors.New("the caller left")
		for name, file := range map[string]struct{ body, code, detail string }{
			"empty":           {"", reward.CodeBadCodes, "the file has no codes; send one code per line"},
			"header only":     {"code\n", reward.CodeBadCodes, "the file has no codes"},
			"repeat":          {"A\nB\n\nA\n", reward.CodeBadCodes, "line 4: code \"A\" appears twice in the file; remove one of them; nothing was imported"},
			"distant repeat":  {many(store.CodesMax+10, "X", "M000001"), reward.CodeBadCodes, fmt.Sprintf("line %d: code \"M000001\" appears twice", store.CodesMax+12)},
			"too long":        {"A\n" + strings.Repeat("x", reward.CodeMax+1), reward.CodeBadCodes, "line 2: code "},
			"endless line":    {"A\nB\n" + strings.Repeat("x", 1<<20), reward.CodeBadCodes, "line 3: it has more than 4096 bytes"},
			"columns":         {"A,1\nB,2\n", reward.CodeBadCodes, "line 1: code \"A,1\" has more than one column"},
			"semicolons":      {"A\nB;2\n", reward.CodeBadCodes, "line 2: code \"B;2\" has more than one column"},
			"space":           {"A\nB C\n", reward.CodeBadCodes, "line 2: code \"B C\" has a character"},
			"letters":         {"A\nKÖLN\n", reward.CodeBadCodes, "line 2: code \"KÖLN\" has a character"},
			"open quote":      {"A\n\"B\"\"\n", reward.CodeBadCodes, "line 2: code"},
			"control":         {"A\nB\x1b[0m\n", reward.CodeBadCodes, "line 2: code"},
			"rounded":         {"A\n2.19E+26\n", reward.CodeBadCodes, "line 2: code \"2.19E+26\" is a number that a spreadsheet has rounded, so the code itself is lost"},
			"too narrow":      {"A\n########\n", reward.CodeBadCodes, "line 2: code \"########\" is what a spreadsheet shows in a column that is too narrow, so the code itself is lost"},
			"an error":        {"A\n\"#N/A\"\n", reward.CodeBadCodes, "line 2: code \"#N/A\" is an error of a spreadsheet, so the code itself is lost"},
			"rounded, comma":  {"A\n2,19E+26\n", reward.CodeBadCodes, "line 2: code \"2,19E+26\" is a number that a spreadsheet has rounded"},
			"formula":         {"A\n=B\n", reward.CodeBadCodes, "line 2: code \"=B\" begins like a spreadsheet formula"},
			"latin 1":         {"A\nK\xd6LN\n", reward.CodeBadCodes, "line 2: it is not text in UTF-8"},
			"utf 16, cut":     {"\xff\xfeA\x00\n\x00\x00\xdc\n\x00", reward.CodeBadCodes, "line 2: it is not text in UTF-8"},
			"a byte of zero":  {"A\nB\x00\n", reward.CodeBadCodes, "line 2: it is not text in UTF-8"},
			"two columns":     {workbookOf(r, []any{"A", "1"}), reward.CodeBadCodes, "line 1: codes must be in one column; name it code in the first row"},
			"serial numbers":  {workbookOf(r, []any{"번호", "쿠폰"}, []any{int64(1), "A"}), reward.CodeBadCodes, "line 1: codes must be in one column"},
			"another column":  {workbookOf(r, []any{"A"}, []any{nil, "B"}), reward.CodeBadCodes, "line 2: codes must be in one column"},
			"rounded number":  {workbookOf(r, []any{"code"}, []any{1.5e20}), reward.CodeBadCodes, "line 2: code "},
			"no workbook":     {"PK\x03\x04", sheet.CodeBadWorkbook, "the file is no .xlsx file"},
			"too few":         {"A\n", reward.CodeCodesExhausted, "the file has 1 codes and template"},
			"ends too early":  {many(store.CodesMax + 5), "", broken.Error()},
			"ends at its end": {"A\nB\n", "", broken.Error()},
		} {
			body := io.Reader(strings.NewReader(file.body))
			if file.code == "" {
				body = io.MultiReader(body, iotest.ErrReader(broken))
			}
			before, _ := r.rows.TemplateGet(r.Context(), id)
			_, _, err := i.Catalog.ImportCodes(r.Context(), id, "kim", body)
			if err == nil || file.code != "" && !reward.HasCode(err, file.code) || !strings.Contains(err.Error(), file.detail) {
				r.Errorf("%s: %v", name, err)
			}
			if after, _ := r.rows.TemplateGet(r.Context(), id); after.Version != before.Version || after.CodesImported != 0 {
				r.Errorf("%s changed the template: %+v", name, after)
			}
		}
		r.imports(i, id, "A", "B")
		for body, want := range map[string]string{
			"C\nA\n": "line 2: code \"A\" was imported to the template before",
			"B":      "line 1: code \"B\" was imported to the template before",
		} {
			if _, _, err := i.Catalog.ImportCodes(r.Context(), id, "kim", strings.NewReader(body)); !reward.HasCode(err, reward.CodeBadCodes) || !strings.Contains(err.Error(), want) {
				r.Errorf("%q: %v", body, err)
			}
		}
		r.imports(i, id, "C")

		styled := r.create(reward.CouponTemplate{TotalQuantity: 2, Codes: reward.CodeStyle{Length: 12, Alphabet: "0123456789"}})
		if _, _, err := i.Catalog.ImportCodes(r.Context(), styled, "kim", iotest.ErrReader(broken)); !reward.HasCode(err, reward.CodeIllegalState) {
			r.Errorf("codes for a template that generates them: %v", err)
		}
		if _, _, err := i.Catalog.ImportCodes(r.Context(), 9, "kim", iotest.ErrReader(broken)); !reward.HasCode(err, reward.CodeTemplateNotFound) {
			r.Errorf("codes for no template: %v", err)
		}
	})
}
