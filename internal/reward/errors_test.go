package reward

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

func TestError(t *testing.T) {
	t.Parallel()
	cause := &Error{Kind: KindConflict, Code: CodeIllegalState, Detail: "it is RUNNING", Err: io.EOF}
	wrapped := fmt.Errorf("starting: %w", cause)

	if got := wrapped.Error(); got != "starting: ILLEGAL_STATE: it is RUNNING: EOF" {
		t.Errorf("it reads %q", got)
	}
	if !errors.Is(wrapped, io.EOF) {
		t.Error("the cause is lost")
	}
	if got := KindOf(wrapped); got != KindConflict {
		t.Errorf("kind %q", got)
	}
	if got := KindOf(io.EOF); got != KindInternal {
		t.Errorf("an error without a kind has the kind %q", got)
	}
	if !HasCode(wrapped, CodeIllegalState) || HasCode(wrapped, CodeInvalid) || HasCode(io.EOF, CodeInvalid) || HasCode(nil, "") {
		t.Error("HasCode tells codes wrongly")
	}
	if got := NewError(KindInvalid, CodeInvalid, "%d is too much", 7).Error(); got != "INVALID: 7 is too much" {
		t.Errorf("it reads %q", got)
	}
}
