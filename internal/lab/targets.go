// Package lab generates work for Largesse and checks the results: files of
// targets, Kafka records, the provider's ledger, and the books. It sees only
// what a user and the provider see.
package lab

import (
	"bufio"
	"fmt"
	"io"
)

// Workload describes the content of a file of targets.
type Workload struct {
	Good   int   // targets that must be accepted
	Bad    int   // lines that must be rejected
	Repeat int   // lines that repeat an earlier target
	Amount int64 // total of the good targets, in minor units
	// Rejects counts the bad lines by their expected code.
	Rejects map[string]int
}

// badLine is one kind of line that must be rejected.
type badLine struct {
	code string
	line string
}

// badLines holds one line per kind of mistake in real files.
var badLines = []badLine{
	{"MISSING_ID", ",someone,100"},
	{"BAD_ID", "-12,someone,100"},
	{"BAD_ID", "99999999999999999999,someone,100"},
	{"BAD_ID", "=1+1,someone,100"},
	{"BAD_AMOUNT", "%d,someone,-5"},
	{"BAD_AMOUNT", "%d,someone,12.50"},
	{"WRONG_COLUMNS", "%d,someone,100,EXTRA"},
	{"INVALID_UTF8", "%d,\xff\xfe,100"},
	{"BAD_USER", "%d,\x1b[2J,100"},
}

// firstTarget keeps the target IDs of a file apart from those of its bad lines.
const firstTarget = 1_000_000

// amountOf returns different amounts for different targets, so that sums reveal
// mix-ups.
func amountOf(i int) int64 { return 100 + int64(i%900) }

// WriteTargets writes a CSV file of n good targets. With mistakes, about one
// line in 500 is bad, and one in 1,000 repeats the previous line.
func WriteTargets(w io.Writer, n int, mistakes bool) (Workload, error) {
	out := Workload{Rejects: make(map[string]int)}
	b := bufio.NewWriterSize(w, 1<<20)
	_, _ = b.WriteString("targetId,userId,amount\n")
	for i := range n {
		id := firstTarget + i
		_, _ = fmt.Fprintf(b, "%d,user-%d,%d\n", id, id, amountOf(i))
		out.Good++
		out.Amount += amountOf(i)
		if !mistakes {
			continue
		}
		if i%500 == 250 {
			bad := badLines[out.Bad%len(badLines)]
			line := bad.line
			if line[0] == '%' {
				line = fmt.Sprintf(line, i)
			}
			_, _ = b.WriteString(line + "\n")
			out.Bad++
			out.Rejects[bad.code]++
		}
		if i%1000 == 750 {
			_, _ = fmt.Fprintf(b, "%d,user-%d,%d\n", id, id, amountOf(i))
			out.Repeat++
		}
	}
	return out, b.Flush()
}
