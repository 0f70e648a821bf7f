package campaign

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/largesse/largesse/internal/reward"
)

// lineMax is the maximum length of a line in bytes, without its line end.
const lineMax = reward.MessageMax

// line is one line without its end. Its text is valid until the next call of the
// reader.
type line struct {
	number  int64 // from 1
	text    []byte
	tooLong bool // longer than lineMax; the text is dropped
}

// lineReader splits a stream into lines, without the text of those too long.
type lineReader struct {
	r      *bufio.Reader
	number int64  // of the latest line read from r
	held   []line // pushed back; returned first
	err    error  // sticky
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, lineMax+2)}
}

// push puts lines back. They must own their texts.
func (lr *lineReader) push(ls []line) {
	lr.held = append(ls, lr.held...)
}

// next returns the next line. It drops an incomplete last one.
func (lr *lineReader) next() (line, error) {
	if len(lr.held) > 0 {
		l := lr.held[0]
		lr.held = lr.held[1:]
		return l, nil
	}
	if lr.err != nil {
		return line{}, lr.err
	}
	text, err := lr.r.ReadSlice('\n')
	l := line{}
	for errors.Is(err, bufio.ErrBufferFull) {
		l.tooLong = true
		text, err = lr.r.ReadSlice('\n')
	}
	if err != nil {
		lr.err = err
		if err != io.EOF || len(text) == 0 && !l.tooLong {
			return line{}, err
		}
	}
	lr.number++
	l.number = lr.number
	if !l.tooLong {
		text = bytes.TrimSuffix(text, []byte("\n"))
		text = bytes.TrimSuffix(text, []byte("\r"))
		if l.number == 1 {
			text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
		}
		l.text, l.tooLong = text, len(text) > lineMax
	}
	return l, nil
}
