package web

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

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
		strings.Repeat("[", 65) + strings.Repeat("]", 65), `{"a":"\ud83d"}`, `{} {}`, `{"a":1}}`, `nul`, `1e999`, `"\u0000"`, "", "\xff",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var v any
		err := unmarshalStrict(data, &v)
		if err != nil {
			var lax any
			if laxErr := json.Unmarshal(data, &lax); laxErr != nil || reward.CheckJSONText(data) != nil || values(data) > valuesMax {
				return // no proxy would accept it either
			}
			if written, read := names(t, data, lax); written == read && !strings.Contains(err.Error(), "levels") {
				t.Fatalf("%q is JSON with no name twice, and refused: %v", data, err)
			}
			return
		}
		if written, read := names(t, data, v); written != read {
			t.Fatalf("%q has %d names and was read as %v", data, written, v)
		}
		text := fixture.Must(json.Marshal(v))(t)
		var again any
		if err := unmarshalStrict(text, &again); err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("%q is written as %q and read as %v, %v", data, text, again, err)
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
		// The wait of the first header counts, whatever the second one contains.
		want := min(time.Duration(seconds)*time.Second, waitMax)
		if got := PreferredWait([]string{"wait=" + strconv.Itoa(int(seconds)), header}); got != want {
			t.Fatalf("a wait of %d s before %q is %s, want %s", seconds, header, got, want)
		}
	})
}
