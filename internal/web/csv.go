package web

import (
	"bytes"
	"encoding/csv"
	"net/http"

	"github.com/largesse/largesse/internal/reward"
)

// CSV writes a response of any size as text/csv, page by page. It sends the headers
// with the first page, so that an earlier error can still become a problem. It is
// not safe for concurrent use.
type CSV struct {
	w       http.ResponseWriter
	text    *bytes.Buffer // of a page, so that a slow client does not hold its rows
	csv     *csv.Writer
	name    string // file name
	columns []string
	begun   bool
}

// NewCSV returns a CSV with a file name and the names of its columns.
func NewCSV(w http.ResponseWriter, name string, columns ...string) *CSV {
	text := new(bytes.Buffer)
	return &CSV{w: w, text: text, csv: csv.NewWriter(text), name: name, columns: columns}
}

// Page writes rows. The first call also writes the header line, even without rows.
func (s *CSV) Page(rows [][]string) error {
	if !s.begun {
		s.begun = true
		s.w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		s.w.Header().Set("Content-Disposition", `attachment; filename="`+s.name+`"`)
		names := make([]string, len(s.columns))
		for i, name := range s.columns { // of a file that somebody sent
			names[i] = reward.GuardCell(name)
		}
		if err := s.csv.Write(names); err != nil {
			return err
		}
	}
	for _, row := range rows {
		for i := range row {
			row[i] = reward.GuardCell(row[i])
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

// EndCSV ends a CSV. It answers with a problem for err, if nothing was sent yet.
// Otherwise it closes the connection: the caller must see that rows are missing.
func (a *Router) EndCSV(s *CSV, r *http.Request, err error) {
	switch {
	case err == nil:
	case !s.begun:
		a.Fail(s.w, r, err)
	default:
		_ = a.ProblemOf(r.Context(), err) // for its log line
		panic(http.ErrAbortHandler)
	}
}
