package web

import (
	"bytes"
	"encoding/csv"
	"net/http"
	"strings"
)

// CSV writes an answer of any size as text/csv, page by page. The head
// goes out with the first page, so that an error before it is still a problem.
type CSV struct {
	w       http.ResponseWriter
	text    *bytes.Buffer // of a page: its rows need not wait for a slow reader
	csv     *csv.Writer
	name    string // of the file
	columns []string
	begun   bool
}

// NewCSV begins a file of this name with these columns.
func NewCSV(w http.ResponseWriter, name string, columns ...string) *CSV {
	text := new(bytes.Buffer)
	return &CSV{w: w, text: text, csv: csv.NewWriter(text), name: name, columns: columns}
}

// Page writes rows; none at all still makes the header line.
func (s *CSV) Page(rows [][]string) error {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		s.w.Header().Set("Content-Disposition", `attachment; filename="`+s.name+`"`)
		if err := s.csv.Write(s.columns); err != nil {
			return err
		}
	}
	for _, row := range rows {
		for i := range row {
			row[i] = safeCell(row[i])
		}
		if err := s.csv.Write(row); err != nil {
			return err
		}
	}
	s.csv.Flush()
	if err := s.csv.Error(); err != nil {
		return err
	}
	_, err := s.text.WriteTo(s.w)
	return err
}

// EndCSV finishes a stream. Once something has gone out, an error can only be
// told by cutting the connection.
func (a *Router) EndCSV(s *CSV, r *http.Request, err error) {
	switch {
	case err == nil:
	case !s.begun:
		a.Fail(s.w, r, err)
	default:
		_ = a.ProblemOf(r.Context(), err) // only its line in the log is wanted
		panic(http.ErrAbortHandler)
	}
}

// safeCell keeps a spreadsheet from running text as a formula.
func safeCell(s string) string {
	if s != "" && strings.IndexByte("=+-@\t\r", s[0]) >= 0 {
		return "'" + s
	}
	return s
}
