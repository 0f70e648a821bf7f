package reward

import "testing"

// TestCells checks that a cell of an export is read back as the text that was exported.
func TestCells(t *testing.T) {
	t.Parallel()
	for text, cell := range map[string]string{
		"": "", "u7": "u7", "'": "'", "'u7": "'u7", "=1": "'=1", "+49170": "'+49170", "-": "'-", "@x": "'@x", "\t1": "'\t1",
		"'+49170": "''+49170", "''=1": "'''=1",
	} {
		if got := GuardCell(text); got != cell {
			t.Errorf("%q becomes %q, not %q", text, got, cell)
		}
		if got := UnguardCell(cell); got != text {
			t.Errorf("%q is read back as %q, not %q", cell, got, text)
		}
	}
	if got := UnguardCell("+49170"); got != "+49170" {
		t.Errorf("a cell of another file is read as %q", got)
	}
}
