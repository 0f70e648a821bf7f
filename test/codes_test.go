package test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/money/moneysim"
	"github.com/largesse/largesse/internal/reward"
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
	made, err := api.CreateTemplate(t.Context(), client.NewTemplate{Name: "codes", TotalQuantity: int64(n)})
	if err != nil {
		t.Fatal(err)
	}
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
		req, err := api.IssueCoupon(t.Context(), template, fmt.Sprint("u", i), patience)
		if err != nil || req.Coupon == nil || req.Coupon.Code != codeOf(i) {
			t.Fatalf("coupon %d: %+v, %v", i, req, err)
		}
	}
}

// TestKilledWhileImportingCodes: a process that dies during an import has imported
// nothing, and the same file again is imported whole.
func TestKilledWhileImportingCodes(t *testing.T) {
	t.Parallel()
	const codes = 20_000
	_, simURL := startSim(t, moneysim.Faults{})
	args := []string{"--data-dir", t.TempDir(), "--money-url", simURL}
	p := serve(t, args...)
	made, err := p.api.CreateTemplate(t.Context(), client.NewTemplate{Name: "codes", TotalQuantity: codes})
	if err != nil {
		t.Fatal(err)
	}
	half, end := make(chan struct{}), make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		_, err := p.api.ImportCodes(t.Context(), made.ID, &codeFile{n: codes, rest: codes / 4, pause: func() {
			close(half)
			<-end
		}}, client.ImportOptions{})
		failed <- err
	}()
	<-half
	p.kill(t)
	close(end)
	if err := <-failed; err == nil {
		t.Fatal("the import succeeded although the server died")
	}
	p = serve(t, args...)
	if stands, err := p.api.Template(t.Context(), made.ID); err != nil || stands.ImportedCodes != nil {
		t.Fatalf("after the crash: %+v, %v", stands, err)
	}
	res, err := p.api.ImportCodes(t.Context(), made.ID, &codeFile{n: codes}, client.ImportOptions{})
	if err != nil || res.Accepted != codes {
		t.Fatalf("the same file again: %+v, %v", res, err)
	}
	givesCodes(t, p.api, made.ID, 0, 3)
	p.kill(t)
	p = serve(t, args...)
	givesCodes(t, p.api, made.ID, 3, 3)
	var refused *client.Problem
	if _, err := p.api.ImportCodes(t.Context(), made.ID, &codeFile{n: 1}, client.ImportOptions{}); !errors.As(err, &refused) || refused.Code != reward.CodeBadCodes {
		t.Errorf("a code that is known: %v", err)
	}
}
