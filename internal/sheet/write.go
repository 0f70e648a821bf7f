package sheet

import (
	"archive/zip"
	"bufio"
	"encoding/xml"
	"fmt"
	"io"
	"iter"
	"math"
	"strconv"
)

// rowsMax is the number of rows that a spreadsheet has.
const rowsMax = 1 << 20

// staticParts are the parts of a workbook with one sheet, besides the sheet and its name.
var staticParts = []struct{ name, text string }{
	{"[Content_Types].xml", `<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" ContentType="application/xml"/><Override PartName="/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/><Override PartName="/xl/worksheets/sheet1.xml" ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/></Types>`},
	{"_rels/.rels", `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="xl/workbook.xml"/></Relationships>`},
	{"xl/_rels/workbook.xml.rels", `<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/worksheet" Target="worksheets/sheet1.xml"/></Relationships>`},
}

// Write writes an .xlsx file with one sheet, row by row. A cell is a string, an int64 or
// a float64; nil leaves it empty. A string is never a formula. A number that a
// spreadsheet would round is written as text. The name has at most 31 characters and
// none of []:*?/\. The error is that of the rows, or of w.
func Write(w io.Writer, name string, rows iter.Seq2[[]any, error]) error {
	archive := zip.NewWriter(w)
	for _, part := range staticParts {
		if err := writePart(archive, part.name, func(out *bufio.Writer) error {
			_, err := out.WriteString(xml.Header + part.text)
			return err
		}); err != nil {
			return err
		}
	}
	err := writePart(archive, workbookPart, func(out *bufio.Writer) error {
		_, _ = out.WriteString(xml.Header + `<workbook xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"><sheets><sheet name="`)
		_ = xml.EscapeText(out, []byte(name))
		_, err := out.WriteString(`" sheetId="1" r:id="rId1"/></sheets></workbook>`)
		return err
	})
	if err == nil {
		err = writePart(archive, "xl/worksheets/sheet1.xml", func(out *bufio.Writer) error { return writeRows(out, rows) })
	}
	if err != nil {
		return err
	}
	return archive.Close()
}

func writePart(archive *zip.Writer, name string, write func(*bufio.Writer) error) error {
	part, err := archive.Create(name)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(part)
	if err := write(out); err != nil {
		return err
	}
	return out.Flush()
}

func writeRows(out *bufio.Writer, rows iter.Seq2[[]any, error]) error {
	_, _ = out.WriteString(xml.Header + `<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><cols><col min="1" max="64" width="24" customWidth="1"/></cols><sheetData>`)
	number := 0
	for row, err := range rows {
		if number++; err == nil && number > rowsMax {
			err = fmt.Errorf("a sheet has at most %d rows; use CSV for more", rowsMax)
		}
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(out, `<row r="%d">`, number)
		for column, value := range row {
			writeCell(out, ColumnLetters(column)+strconv.Itoa(number), value)
		}
		if _, err := out.WriteString(`</row>`); err != nil {
			return err
		}
	}
	_, err := out.WriteString(`</sheetData></worksheet>`)
	return err
}

// writeCell leaves errors to the next write: a bufio.Writer keeps the first.
func writeCell(out *bufio.Writer, ref string, value any) {
	var text string
	switch v := value.(type) {
	case nil:
		return
	case int64:
		text = strconv.FormatInt(v, 10)
		if math.Abs(float64(v)) < 1e15 {
			_, _ = fmt.Fprintf(out, `<c r="%s"><v>%s</v></c>`, ref, text)
			return
		}
	case float64:
		_, _ = fmt.Fprintf(out, `<c r="%s"><v>%s</v></c>`, ref, strconv.FormatFloat(v, 'f', -1, 64))
		return
	default:
		text = fmt.Sprint(v)
	}
	_, _ = fmt.Fprintf(out, `<c r="%s" t="inlineStr"><is><t xml:space="preserve">`, ref)
	_ = xml.EscapeText(out, []byte(text))
	_, _ = out.WriteString(`</t></is></c>`)
}
