package api

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

func FuzzCursor(f *testing.F) {
	f.Add("", int64(0), "")
	f.Add(encodeCursor(cursorPromotions, 1<<62), int64(1<<62), "u7")
	f.Add(encodeUserCursor(cursorEntrants, "a:b"), int64(-1), "a:b\n")
	f.Add(encodeCursor(cursorPayouts, 7)+"=", int64(7), "\xff")
	f.Add("cHJvbW90aW9uOjAx", int64(1), "é")
	f.Fuzz(func(t *testing.T, given string, last int64, user string) {
		// What is taken is what was given out, to the letter, and for one list only.
		if n, err := decodeCursor(cursorPromotions, given); err == nil && (n < 0 || encodeCursor(cursorPromotions, n) != given) {
			t.Fatalf("%q was read as %d, whose cursor is %q", given, n, encodeCursor(cursorPromotions, n))
		}
		if u, err := decodeUserCursor(cursorEntrants, given); err == nil && (reward.CheckUserID(u) != nil || encodeUserCursor(cursorEntrants, u) != given) {
			t.Fatalf("%q was read as the user %q", given, u)
		}
		// What is given out is taken, and by no other list.
		made := encodeCursor(cursorPromotions, last)
		n, err := decodeCursor(cursorPromotions, made)
		if (err == nil) != (last >= 0) || err == nil && n != last {
			t.Fatalf("the cursor of %d was read as %d, %v", last, n, err)
		}
		if n, err := decodeCursor(cursorTemplates, made); err == nil {
			t.Fatalf("templates were listed from %d by a cursor of promotions", n)
		}
		made = encodeUserCursor(cursorEntrants, user)
		u, err := decodeUserCursor(cursorEntrants, made)
		if (err == nil) != (reward.CheckUserID(user) == nil) || err == nil && u != user {
			t.Fatalf("the cursor of %q was read as %q, %v", user, u, err)
		}
		if strings.ContainsAny(made, "+/=%& ") {
			t.Fatalf("the cursor %q cannot stand in a query as it is", made)
		}
	})
}

// names counts the names in the text of JSON, and those of the value that is
// read of it.
func names(t *testing.T, data []byte, v any) (written, read int) {
	t.Helper()
	var count func(v any) int
	count = func(v any) int {
		n := 0
		switch v := v.(type) {
		case map[string]any:
			n = len(v)
			for _, one := range v {
				n += count(one)
			}
		case []any:
			for _, one := range v {
				n += count(one)
			}
		}
		return n
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	type frame struct{ object, name bool }
	stack := []frame{{}}
	for {
		token, err := dec.Token()
		if err != nil {
			return written, count(v)
		}
		top := &stack[len(stack)-1]
		switch {
		case token == json.Delim('}') || token == json.Delim(']'):
			stack = stack[:len(stack)-1]
			continue
		case top.object && top.name:
			written++
			top.name = false
			continue
		}
		top.name = top.object
		if token == json.Delim('{') || token == json.Delim('[') {
			stack = append(stack, frame{token == json.Delim('{'), token == json.Delim('{')})
		}
	}
}

func FuzzUnmarshalStrict(f *testing.F) {
	for _, seed := range []string{
		`{"name":"x","type":"POINT","amount":1}`, `{"a":1,"a":2}`, `{"a":{"b":[{"c":1,"c":2}]}}`, `{"a":1,"\u0061":2}`, `[{"a":1},{"a":1}]`,
		`{"a":"\ud83d"}`, `{} {}`, `{"a":1}}`, `nul`, `1e999`, `"\u0000"`, "", "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v any
		err := unmarshalStrict(data, &v)
		if err != nil {
			var lax any
			if laxErr := json.Unmarshal(data, &lax); laxErr != nil || reward.CheckJSONText(data) != nil {
				return // nobody could take it
			}
			if written, read := names(t, data, lax); written == read {
				t.Fatalf("%q is JSON with no name twice, and refused: %v", data, err)
			}
			return
		}
		if written, read := names(t, data, v); written != read {
			t.Fatalf("%q has %d names and was read as %v", data, written, v)
		}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var again any
		if err := unmarshalStrict(text, &again); err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("%q is written as %q and read as %v, %v", data, text, again, err)
		}
	})
}

func FuzzWireID(f *testing.F) {
	for _, seed := range []string{`1`, `"1"`, `1.0`, `1e3`, `-1`, `"01"`, `9223372036854775807`, `9223372036854775808`, `"\u0031"`, `true`, `{}`, `" 1"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var id wireID
		if json.Unmarshal(data, &id) != nil {
			return
		}
		n, err := reward.ParsePromotionID(string(id))
		if err != nil {
			return
		}
		// No digit was lost on a way through a float, and a string is the same id.
		text := strings.TrimSpace(string(data))
		var quoted string
		if json.Unmarshal(data, &quoted) == nil {
			text = quoted
		}
		if n.String() != text {
			t.Fatalf("%q was read as %s", data, n)
		}
	})
}

func FuzzPreferredWait(f *testing.F) {
	for _, seed := range []string{"wait=5", `respond-async, wait="10"; x=y`, "wait=-1", "WAIT=99999999999999999999", `x="a,wait=3", wait=4`, `a="\",wait=1"`, "wait", ";;,,=", `"`} {
		f.Add(seed, uint16(5))
	}
	f.Fuzz(func(t *testing.T, header string, seconds uint16) {
		got := PreferredWait([]string{header})
		if got < 0 || got > waitMax || got%time.Second != 0 {
			t.Fatalf("%q waits for %s", header, got)
		}
		if parts := splitUnquoted(header, ','); strings.Join(parts, ",") != header {
			t.Fatalf("%q was split into %q", header, parts)
		}
		// A wait of the first header counts, whatever the second says.
		want := min(time.Duration(seconds)*time.Second, waitMax)
		if got := PreferredWait([]string{"wait=" + strconv.Itoa(int(seconds)), header}); got != want {
			t.Fatalf("a wait of %d s before %q is %s, want %s", seconds, header, got, want)
		}
	})
}
