//go:build ci || nightly

package test

import (
	"fmt"
	"io"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/lab/fixture"
)

// codeFile is a file of n different codes that exists nowhere as a whole. Once all
// but the last rest lines are read, it calls pause.
type codeFile struct {
	n, rest int
	pause   func()
	written int
	line    []byte // what is left of the latest line
}

func codeOf(number int) string { return fmt.Sprintf("CODE-%07d", number) }

func (f *codeFile) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(f.line) == 0 {
			if f.written == f.n {
				break
			}
			if f.pause != nil && f.written == f.n-f.rest {
				if n > 0 {
					break
				}
				f.pause()
			}
			f.written++
			f.line = []byte(codeOf(f.written) + "\r\n")
		}
		k := copy(p[n:], f.line)
		f.line = f.line[k:]
		n += k
	}
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// importsCodes gives n codes to a new template and returns it.
func importsCodes(t *testing.T, api *client.Client, n int) string {
	t.Helper()
	made := fixture.Must(api.CreateTemplate(t.Context(), client.NewTemplate{Name: "codes", TotalQuantity: int64(n)}))(t)
	res, err := api.ImportCodes(t.Context(), made.ID, &codeFile{n: n}, client.ImportOptions{})
	if want := int64(n); err != nil || res.Accepted != want || res.ImportedCodes != (client.ImportedCodes{Imported: want, Left: want}) {
		t.Fatalf("import of %d codes: %+v, %v", n, res, err)
	}
	return made.ID
}

// givesCodes checks that coupons get the codes in their order, after those that were
// given.
func givesCodes(t *testing.T, api *client.Client, template string, given, n int) {
	t.Helper()
	for i := given + 1; i <= given+n; i++ {
		req, err := api.IssueCoupon(t.Context(), template, fmt.Sprint("u", i), fixture.Patience)
		if err != nil || req.Coupon == nil || req.Coupon.Code != codeOf(i) {
			t.Fatalf("coupon %d: %+v, %v", i, req, err)
		}
	}
}
