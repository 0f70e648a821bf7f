package campaign

import (
	"io"
	"slices"
	"strings"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
)

// workbook is an .xlsx file. It is read with its header.
type workbook struct {
	file  io.Reader
	sheet string // "" is the first one
	rows  *sheet.Rows
}

// filled returns the next row that is not empty.
func (b *workbook) filled() (sheet.Row, error) {
	for {
		row, err := b.rows.Next()
		if err != nil || slices.ContainsFunc(row.Cells, isFilled) {
			return row, err
		}
	}
}

func isFilled(c sheet.Cell) bool { return c.Text != "" || c.Problem != "" }

func (t *TargetReader) sheetHeader() ([]string, error) {
	book, err := sheet.ReadWorkbook(t.book.file)
	if err != nil {
		return nil, err
	}
	t.found.Sheets = book.Sheets()
	if t.book.rows, err = book.Rows(t.book.sheet); err != nil {
		return nil, err
	}
	t.found.Sheet = t.book.rows.Sheet
	row, err := t.book.filled()
	if err != nil {
		return nil, err
	}
	t.any = true
	names := make([]string, len(row.Cells))
	for i, cell := range row.Cells {
		names[i] = strings.TrimSpace(reward.SanitizeText(cell.Text))
	}
	for len(names) > 0 && names[len(names)-1] == "" {
		names = names[:len(names)-1]
	}
	return names, nil
}

func (t *TargetReader) sheetRecord() (record, error) {
	row, err := t.book.filled()
	if err != nil {
		return record{}, err
	}
	rec := record{number: row.Number, cells: make([][]byte, max(len(row.Cells), len(t.found.Header)))}
	for i, cell := range row.Cells {
		rec.cells[i] = []byte(reward.SanitizeText(cell.Text))
		if cell.Problem != "" && rec.problems == nil {
			rec.problems = make([]string, len(rec.cells))
		}
		if cell.Problem != "" {
			rec.problems[i] = cell.Problem
		}
	}
	switch {
	case row.Hidden:
		rec.fault = reward.RefuseLine(LineHiddenRow, "row %d is hidden, by a filter or by hand; show it, or delete it", row.Number)
	case t.file.Columns == nil && slices.ContainsFunc(row.Cells[min(len(row.Cells), len(t.found.Header)):], isFilled):
		rec.fault = reward.RefuseLine(LineWrongColumns, "the row has %d cells, the header %d", len(row.Cells), len(t.found.Header))
	}
	return rec, nil
}
