package web

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/campaign"
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

// FuzzDoors gives the same members to the doors by which targets and requests arrive:
// what a body of HTTP may not contain, neither a line of NDJSON nor a record of Kafka
// may, and these two read the same target.
func FuzzDoors(f *testing.F) {
	for _, seed := range []string{
		`"targetId":7,"userId":"u7","amount":1050`, `"targetId":"7","amount":"5"`, `"targetId":7,"amount":5,"Amount":90000`, `"targetId":7,"amount":5,"amount":9`,
		`"targetId":"\u0037","userId":null,"amount":5`, `"targetId":7,"userId":"\ud83d","amount":5`, `"targetId":7,"userId":"a\u0000","amount":5`,
		`"targetId":7,"userId":" ann","amount":5`, `"targetId":7,"userId":"e\u0301","amount":5`, `"targetId":7,"userId":"a\u200bb","amount":5`,
		`"targetId":07,"amount":5`, `"targetId":7,"amount":1e3`, `"targetId":7,"amount":5}{`, `"targetId":7,"amount":[5]`, "\xff", "",
	} {
		f.Add([]byte(seed))
	}
	promotion := reward.Promotion{ID: 1, Type: reward.Point}
	f.Fuzz(func(t *testing.T, members []byte) {
		if bytes.ContainsAny(members, "\r\n") || len(members) > 1<<10 {
			return // more than one line, or one that may be too long
		}
		object := fmt.Appendf(nil, "{%s}", members)
		row, _, bad, err := campaign.NewTargetReader(bytes.NewReader(append(object, '\n')), campaign.FormatNDJSON, campaign.MinorUnits, promotion).Next()
		if err != nil {
			t.Fatalf("%s: %v", object, err)
		}
		var v map[string]json.RawMessage
		httpErr := unmarshalStrict(object, &v)
		m, kafkaErr := reward.ParsePublishMessage(reward.Point, fmt.Appendf(nil, `{"promotionId":1,%s}`, members))
		user := v["userId"]
		delete(v, "targetId")
		delete(v, "userId")
		delete(v, "amount")
		switch {
		case bad == nil && httpErr != nil:
			t.Fatalf("%s is a target in NDJSON, and no body of HTTP: %v", object, httpErr)
		case bad == nil && kafkaErr != nil && (user == nil || bytes.ContainsAny(user[:1], `"n`)): // NDJSON takes a number, too
			t.Fatalf("%s is a target in NDJSON, and no record of Kafka: %v", object, kafkaErr)
		case bad == nil && kafkaErr == nil && (m.TargetID != row.TargetID || m.UserID != row.UserID || m.Amount != row.Amount):
			t.Fatalf("%s is %+v in NDJSON and %+v in Kafka", object, row, m)
		case bad != nil && bad.Code != campaign.LineBadAmount && kafkaErr == nil && httpErr == nil && len(v) == 0: // Kafka takes 05 and other fields
			t.Fatalf("%s is a record of Kafka, and no target in NDJSON: %s %s", object, bad.Code, bad.Detail)
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
