// Package sheet reads and writes tables as people have them: text in the encodings of
// spreadsheets, and workbooks. It knows nothing of what is in the cells.
package sheet

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/encoding/korean"
	"golang.org/x/text/encoding/unicode"
)

// Encoding is the encoding of a text. The empty one is detected.
type Encoding string

// The encodings.
const (
	UTF8    Encoding = "utf-8"
	UTF16LE Encoding = "utf-16le"
	UTF16BE Encoding = "utf-16be"
	// CP949 is the Korean code page of Windows. EUC-KR is a part of it.
	CP949 Encoding = "cp949"
)

// Encodings lists the encodings.
var Encodings = []Encoding{UTF8, UTF16LE, UTF16BE, CP949}

// ParseEncoding returns the encoding with a name in any case. Nothing and auto mean
// that it is detected.
func ParseEncoding(name string) (Encoding, error) {
	switch e := Encoding(strings.ToLower(name)); {
	case slices.Contains(Encodings, e):
		return e, nil
	case e == "" || e == "auto":
		return "", nil
	case e == "euc-kr":
		return CP949, nil
	}
	return "", fmt.Errorf("must be one of %q, or auto", Encodings)
}

// windowSize is the number of bytes, from the first one that is not ASCII, by which an
// encoding is detected.
const windowSize = 4096

// TextReader reads text as UTF-8. If the encoding is not given, the first byte that is
// not ASCII decides, together with those after it: until then all encodings but UTF-16
// are the same. A byte order mark stays. Invalid text stays as it is in UTF-8; in other
// encodings, U+FFFD stands for it.
type TextReader struct {
	Encoding Encoding // empty until it is known; then UTF8 holds for ASCII
	raw      *bufio.Reader
	text     io.Reader // once the encoding is known
	begun    bool
}

// NewTextReader returns a reader of a text in an encoding, or with "" in one that it
// detects.
func NewTextReader(r io.Reader, as Encoding) *TextReader {
	t := &TextReader{raw: bufio.NewReaderSize(r, 2*windowSize)}
	if as != "" {
		t.decode(as)
	}
	return t
}

// Decoded reports whether U+FFFD in the text stands for bytes that are not valid in its
// encoding.
func (t *TextReader) Decoded() bool { return t.Encoding != "" && t.Encoding != UTF8 }

func (t *TextReader) decode(as Encoding) {
	t.Encoding = as
	switch as {
	case UTF16LE:
		t.text = unicode.UTF16(unicode.LittleEndian, unicode.IgnoreBOM).NewDecoder().Reader(t.raw)
	case UTF16BE:
		t.text = unicode.UTF16(unicode.BigEndian, unicode.IgnoreBOM).NewDecoder().Reader(t.raw)
	case CP949:
		t.text = korean.EUCKR.NewDecoder().Reader(t.raw)
	default:
		t.text = t.raw
	}
}

func (t *TextReader) Read(p []byte) (int, error) {
	if t.text != nil {
		return t.text.Read(p)
	}
	// UTF-16 shows in the first two bytes. All other text is passed on up to its first
	// byte that is not ASCII.
	if _, err := t.raw.Peek(1); err != nil {
		return 0, err
	}
	least := 0
	if !t.begun {
		t.begun, least = true, 2
		_, _ = t.raw.Peek(least) // an error is returned again by Read
	}
	ready, _ := t.raw.Peek(t.raw.Buffered())
	plain := ready[:min(len(ready), len(p))]
	if i := bytes.IndexFunc(plain, func(c rune) bool { return c == 0 || c >= utf8.RuneSelf }); i >= 0 {
		plain = plain[:i]
	}
	if len(plain) < min(least, len(ready)) || len(plain) == 0 {
		window, err := t.raw.Peek(windowSize)
		t.decode(detect(window, least > 0, err == nil))
		return t.text.Read(p)
	}
	n := copy(p, plain)
	_, _ = t.raw.Discard(n)
	return n, nil
}

// detect returns the encoding of a text by a part of it. first means that the part is
// the beginning of the text, cut that more follows.
func detect(window []byte, first, cut bool) Encoding {
	if first {
		switch {
		case bytes.HasPrefix(window, []byte("\xff\xfe")):
			return UTF16LE
		case bytes.HasPrefix(window, []byte("\xfe\xff")):
			return UTF16BE
		}
		if e := zeros(window); e != "" {
			return e
		}
	}
	if !validUTF8(window, cut) && isKorean(window, cut) {
		return CP949
	}
	return UTF8
}

// zeros returns the encoding of UTF-16 text without a byte order mark, or "": every
// ASCII character in it has a zero byte, always on the same side.
func zeros(window []byte) Encoding {
	var count [2]int
	for i, c := range window {
		if c == 0 {
			count[i%2]++
		}
	}
	const often = 8 // one of so many bytes
	switch {
	case count[0] == 0 && count[1]*often > len(window):
		return UTF16LE
	case count[1] == 0 && count[0]*often > len(window):
		return UTF16BE
	}
	return ""
}

func validUTF8(window []byte, cut bool) bool {
	for i := 0; cut && i < utf8.UTFMax && len(window) > 0 && !utf8.Valid(window); i++ {
		window = window[:len(window)-1]
	}
	return utf8.Valid(window)
}

// isKorean reports whether a text is valid CP949, and most of what is not ASCII is the
// Hangul of KS X 1001. Text in Latin-1 can be valid by chance, but means other letters.
func isKorean(window []byte, cut bool) bool {
	hangul, others := 0, 0
	for i := 0; i < len(window); i++ {
		lead := window[i]
		switch {
		case lead < utf8.RuneSelf:
			continue
		case i+1 == len(window):
			if !cut {
				return false
			}
			continue
		}
		i++
		if lead >= 0xb0 && lead <= 0xc8 && window[i] >= 0xa1 {
			hangul++
		} else {
			others++
		}
		if lead == 0x80 || lead == 0xff || window[i] < 0x41 || window[i] == 0xff {
			return false
		}
	}
	if hangul <= others {
		return false
	}
	text, err := korean.EUCKR.NewDecoder().Bytes(window[:len(window):len(window)])
	if cut {
		text = bytes.TrimSuffix(text, []byte("\ufffd"))
	}
	return err == nil && !bytes.ContainsRune(text, utf8.RuneError)
}
