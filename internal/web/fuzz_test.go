package web

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

// names counts the names in valid JSON.
func names(data []byte) int { return outsideStrings(data, ":") }

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
			if names(data) == names(fixture.Must(json.Marshal(lax))(t)) && !strings.Contains(err.Error(), "levels") {
				t.Fatalf("%q is JSON with no name twice, and refused: %v", data, err)
			}
			return
		}
		text := fixture.Must(json.Marshal(v))(t)
		if names(data) != names(text) {
			t.Fatalf("%q has %d names and was read as %v", data, names(data), v)
		}
		var again any
		if err := unmarshalStrict(text, &again); err != nil || !reflect.DeepEqual(v, again) {
			t.Fatalf("%q is written as %q and read as %v, %v", data, text, again, err)
		}
	})
}

// verdict is what a door says of a target: a code, or a message.
type verdict struct {
	code string
	m    reward.PublishMessage
}

// FuzzDoors gives the same target to the doors by which one comes in. What one refuses, all
// refuse with the same code, which is MALFORMED in HTTP if it is BAD_JSON or INVALID_UTF8
// elsewhere; what they take is the same target.
func FuzzDoors(f *testing.F) {
	for _, seed := range []string{
		`"targetId":7,"userId":"u7","amount":1050`, `"targetId":"7","amount":"5"`, `"targetId":7,"amount":5,"Amount":90000`, `"targetId":7,"amount":5,"amount":9`,
		`"targetId":"\u0037","userId":null,"amount":5`, `"targetId":7,"userId":"\ud83d","amount":5`, `"targetId":7,"userId":"a\u0000","amount":5`,
		`"targetId":7,"userId":" ann","amount":5`, `"targetId":7,"userId":"e\u0301","amount":5`, `"targetId":7,"userId":"a\u200bb","amount":5`,
		`"targetId":07,"amount":5`, `"targetId":7,"amount":1e3`, `"targetId":7,"amount":5}{`, `"targetId":7,"amount":[5]`, "\xff", "",
		`"targetId":7,"userId":"'+49","amount":"+05","voucherCode":"=V"`, `"targetId":7,"amount":"5 000","voucherCode":"V"`, `"targetId":7,"amount":5.0,"voucherCode":"V\t"`,
		`"targetId":7,"userId":12,"amount":"","voucherCode":"V"`, `"targetId":7,"userId":1.5,"amount":5,"voucherCode":5`, `"targetId":"+7","amount":5,"voucherCode":"#N/A"`,
		`"targetId":7,"userId":"'=\"a,b\"\n","amount":5,"voucherCode":{"a":1,"a":2}`, `"targetId":7,"amount":1000000000000001,"more":{"a":1}`, `"targetId":7,"amount":"-0","voucherCode":""`,
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	f.Fuzz(func(t *testing.T, members []byte, voucher bool) {
		if members = bytes.Trim(members, " \t"); bytes.ContainsAny(members, "\r\n") || len(members) > 1<<10 {
			return // more than one line, or one that may be too long
		}
		promotion, names := reward.Promotion{ID: 1, Type: reward.Point}, []string{"targetId", "userId", "amount"}
		if voucher {
			promotion.Type, names = reward.Voucher, append(names, "voucherCode")
		}
		file := func(format campaign.Format, text []byte) verdict {
			row, _, bad, err := campaign.NewTargetReader(bytes.NewReader(text), campaign.File{Format: format}, promotion).Next()
			if fixture.OK(t, err); bad != nil {
				return verdict{code: bad.Code}
			}
			return verdict{m: reward.PublishMessage{PromotionID: row.PromotionID, TargetID: row.TargetID, UserID: row.UserID, Amount: row.Amount, VoucherCode: row.VoucherCode}}
		}
		var kafka verdict
		var err error
		if kafka.m, err = reward.ParsePublishMessage(promotion.Type, fmt.Appendf(nil, `{"promotionId":1%s%s}`, ","[:min(len(members), 1)], members)); err != nil {
			kafka.code, _, _ = strings.Cut(err.Error(), ":")
		}
		object := fmt.Appendf(nil, "{%s}", members)
		ndjson := file(campaign.FormatNDJSON, object)
		var v map[string]json.RawMessage
		http := unmarshalStrict(object, &v)
		if http != nil && ndjson.code == "" {
			t.Fatalf("%s is a target in NDJSON, and no body of HTTP: %v", object, http)
		}
		others := false
		for name := range v {
			if slices.Contains(names, name) {
				continue
			}
			if delete(v, name); name != "voucherCode" && ndjson.code == "" {
				t.Fatalf("%s has %q, which a file takes", object, name)
			}
			if others = true; strings.HasPrefix(name, "promotion") {
				return // a file belongs to a promotion, and names none
			}
		}
		if others { // Kafka ignores them, and the voucher code of points: docs/kafka.md
			if http != nil {
				return // such as one that is given twice
			}
			object = fixture.Must(json.Marshal(v))(t)
			ndjson = file(campaign.FormatNDJSON, object)
		}
		if ndjson != kafka {
			t.Fatalf("%s is %+v in NDJSON and %+v in Kafka: %v", object, ndjson, kafka, err)
		}
		malformed := ndjson.code == reward.LineBadJSON || ndjson.code == reward.LineInvalidUTF8
		nested := bytes.ContainsAny(members, "{[")        // HTTP looks into values that no target has
		zero := bytes.Contains(members, []byte(`\u0000`)) // HTTP refuses it with the field, as INVALID
		if malformed && http == nil && !zero || !malformed && http != nil && !nested {
			t.Fatalf("%s is %+v in files, and in HTTP %v", object, ndjson, http)
		}
		if http != nil {
			return // it has no texts that cells could have
		}
		cells := make([]string, 4)
		for i, name := range []string{"targetId", "userId", "amount", "voucherCode"} {
			switch value := v[name]; {
			case value == nil || json.Unmarshal(value, &cells[i]) == nil: // null leaves it empty
			case bytes.ContainsAny(value[:1], "{[tf"), i == 3, i == 1 && bytes.ContainsAny(value, ".eE-"):
				return // cells have no types
			default:
				cells[i] = string(value)
			}
			if strings.Contains(cells[i], "\n") || i%2 == 1 && reward.CheckCell(cells[i]) != "" {
				return // CSV alone has neither: docs/promotions.md
			}
			if i%2 == 1 {
				cells[i] = reward.GuardCell(cells[i]) // as exports do: docs/errors.md
			}
		}
		var text bytes.Buffer
		w := csv.NewWriter(&text)
		fixture.OK(t, w.WriteAll([][]string{{"targetId", "userId", "amount", "voucherCode"}, cells}))
		if csv := file(campaign.FormatCSV, text.Bytes()); csv != ndjson {
			t.Fatalf("%s is %+v, and %q in CSV is %+v", object, ndjson, text.Bytes(), csv)
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
