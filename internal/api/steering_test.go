package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
)

func TestChangeOfAPromotion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	later := time.Now().Add(time.Hour).UTC().Truncate(time.Second).Format(time.RFC3339)
	path := "/v1/promotions/" + b.create(t, `{"id":7,"name":"Spring","type":"VOUCHER","maxAmount":5,"metadata":{"team":"growth","cost centre":"42"}}`)
	fields := func(a answer, names ...string) map[string]any {
		t.Helper()
		a.want(t, http.StatusOK)
		got := map[string]any{}
		for _, name := range names {
			got[name] = a.object(t)[name]
		}
		return got
	}
	change := func(body string, headers ...string) answer {
		t.Helper()
		return b.do(t, "PATCH", path, strings.NewReader(body), append(headers, "Content-Type", "application/json")...)
	}
	want := map[string]any{
		"name": "Autumn", "ratePerSecond": json.Number("10"), "weight": json.Number("3"), "maxAmount": json.Number("500"),
		"maxRetries": json.Number("0"), "metadata": map[string]any{"team": "sales", "note": "x"}, "amount": json.Number("20"), "voucherCode": "V",
		"currency": "EUR", "startsAt": later,
		"canary": map[string]any{"targets": json.Number("9"), "maxFailureRate": json.Number("0.5"), "dispatched": json.Number("0"), "judged": false},
	}
	names := make([]string, 0, len(want))
	for name := range want {
		names = append(names, name)
	}
	changed := change(`{"name":"Autumn","ratePerSecond":10,"weight":3,"maxAmount":500,"maxRetries":0,"metadata":{"team":"sales","note":"x","cost centre":null},
		"amount":20,"voucherCode":"V","currency":"EUR","canary":{"targets":9},"startsAt":"` + later + `"}`)
	for _, a := range []answer{changed, b.json(t, "GET", path, ""), change(`{}`)} {
		fixture.Equal(t, want, fields(a, names...))
	}
	cleared := change(`{"ratePerSecond":null,"weight":null,"maxAmount":null,"metadata":null,"amount":null,"voucherCode":null,"currency":null,"canary":null,"startsAt":null}`)
	want = map[string]any{
		"ratePerSecond": nil, "weight": json.Number("1"), "maxAmount": nil, "metadata": nil, "amount": nil, "voucherCode": nil, "currency": "", "canary": nil,
		"startsAt": nil, "name": "Autumn",
	}
	fixture.Equal(t, want, fields(cleared, "ratePerSecond", "weight", "maxAmount", "metadata", "amount", "voucherCode", "currency", "canary", "startsAt", "name"))

	before := b.json(t, "GET", path, "").body
	for body, field := range map[string]string{
		`{"name":""}`:                         "name",
		`{"name":"a\nb"}`:                     "name",
		`{"name":"a\u001b[2J"}`:               "name",
		`{"name":"a\u202eb"}`:                 "name",
		`{"name":null}`:                       "",
		`{"ratePerSecond":0}`:                 "ratePerSecond",
		`{"weight":101}`:                      "weight",
		`{"maxAmount":0}`:                     "maxAmount",
		`{"maxRetries":21}`:                   "maxRetries",
		`{"currency":"eur"}`:                  "currency",
		`{"canary":{"targets":0}}`:            "canary.targets",
		`{"startsAt":"2020-01-01T00:00:00Z"}`: "startsAt",
		`{"metadata":{"":"x"}}`:               "metadata",
		`{"metadata":{"k":"\u0007"}}`:         "metadata",
		`{"metadata":{"k":7}}`:                "metadata.k",
		`{"metadata":{"k":"` + strings.Repeat("é", 201) + `"}}`: "metadata",
		`{"metadata":{` + entries(21) + `}}`:                    "metadata",
		`{"voucherCode":"=1"}`:                                  "voucherCode",
		`{"nonsense":1}`:                                        "nonsense",
	} {
		a := change(body)
		if field == "" {
			a.want(t, http.StatusOK) // null means absent where nothing can be cleared
			continue
		}
		if p := a.wantProblem(t, http.StatusUnprocessableEntity, "INVALID"); len(p.Errors) != 1 || p.Errors[0].Field != field {
			t.Errorf("%s: %+v", body, p)
		}
	}
	for _, field := range []string{"id", "type", "status", "consumersPerInstance", "webhookUrl", "createdBy", "closed", "counts", "totalCount", "createdAt"} {
		p := change(`{"name":"other","`+field+`":null}`).wantProblem(t, http.StatusUnprocessableEntity, "IMMUTABLE")
		if len(p.Errors) != 1 || p.Errors[0].Field != field {
			t.Errorf("%s: %+v", field, p)
		}
	}
	if after := b.json(t, "GET", path, "").body; after != before {
		t.Errorf("a refused change changed %s to %s", before, after)
	}
	b.json(t, "PATCH", "/v1/promotions/8", `{"name":"x"}`).wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	b.json(t, "PATCH", "/v1/promotions/x", `{"name":"x"}`).wantProblem(t, http.StatusBadRequest, "MALFORMED")

	b.json(t, "POST", path+"/start", "").want(t, http.StatusAccepted)
	for field, value := range map[string]string{"amount": "1", "voucherCode": `"V"`, "currency": "null", "canary": `{"targets":1}`, "startsAt": "null"} {
		p := change(`{"weight":2,"`+field+`":`+value+`}`).wantProblem(t, http.StatusUnprocessableEntity, "IMMUTABLE")
		if len(p.Errors) != 1 || p.Errors[0].Field != field || !strings.Contains(p.Detail, "DRAFT") {
			t.Errorf("%s: %+v", field, p)
		}
	}
	if got := fields(change(`{"weight":2}`), "weight", "status"); got["weight"] != json.Number("2") || got["status"] != "RUNNING" {
		t.Errorf("%v", got)
	}
	points := "/v1/promotions/" + b.create(t, `{"name":"x","type":"POINT"}`)
	p := b.json(t, "PATCH", points, `{"voucherCode":"V"}`).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	if len(p.Errors) != 1 || p.Errors[0].Field != "voucherCode" {
		t.Errorf("%+v", p)
	}
}

// entries returns n entries of a JSON object.
func entries(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(`"%d":"x"`, i)
	}
	return strings.Join(all, ",")
}

// TestAPromotionMadeAgainHasAnotherTag checks that no tag of a deleted promotion names
// one that was created later under its ID.
func TestAPromotionMadeAgainHasAnotherTag(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const body = `{"id":7,"name":"Spring","type":"POINT","amount":10}`
	path := "/v1/promotions/" + b.create(t, body)
	tags := []string{b.json(t, "GET", path, "").header.Get("ETag")}
	tags = append(tags, b.json(t, "PATCH", path, `{}`).header.Get("ETag"))
	b.json(t, "DELETE", path, "").want(t, http.StatusNoContent)
	made := b.json(t, "POST", "/v1/promotions", body)
	made.want(t, http.StatusCreated)
	with := func(method, path, body, tag string) answer {
		t.Helper()
		return b.do(t, method, path, strings.NewReader(body), "Content-Type", "application/json", "If-Match", tag)
	}
	for _, tag := range tags {
		with("PATCH", path, `{"name":"Autumn"}`, tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
		with("PATCH", path, `{}`, tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
	}
	with("PATCH", path, `{"name":"Autumn"}`, tags[0]+", "+made.header.Get("ETag")).want(t, http.StatusOK)
}

func TestChangesExpectAVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	path := "/v1/promotions/" + b.create(t, `{"name":"Spring","type":"POINT","amount":10}`)
	change := func(name, tag string) answer {
		t.Helper()
		return b.do(t, "PATCH", path, strings.NewReader(`{"name":"`+name+`"}`), "Content-Type", "application/json", "If-Match", tag)
	}
	first := b.json(t, "GET", path, "").header.Get("ETag")
	// Progress is no change of the settings, but another response.
	b.upload(t, path+"/targets", "targetId\n1\n").want(t, http.StatusOK)
	second := b.json(t, "GET", path, "").header.Get("ETag")
	if first == second || first == "" {
		t.Errorf("%s is followed by %s", first, second)
	}
	b.do(t, "GET", path, nil, "If-None-Match", second).want(t, http.StatusNotModified)
	changed := change("one", first)
	changed.want(t, http.StatusOK)
	for _, tag := range []string{first, second, "W/" + second, `"v1", "other"`, `"x"`, `""`, `"v99"`} {
		change("two", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
	}
	b.do(t, "PATCH", path, strings.NewReader(`{}`), "Content-Type", "application/json", "If-Match", first).
		wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
	for _, tag := range []string{"v1", `"v1`, `"v1" "v2"`, ","} {
		change("two", tag).wantProblem(t, http.StatusBadRequest, "MALFORMED")
	}
	if got := b.json(t, "GET", path, "").text(t, "name"); got != "one" {
		t.Errorf("the name is %s", got)
	}
	change("two", first+", "+changed.header.Get("ETag")).want(t, http.StatusOK)
	change("three", "*").want(t, http.StatusOK)
	b.json(t, "POST", path+"/start", "").want(t, http.StatusAccepted)
	change("four", b.json(t, "GET", path, "").header.Get("ETag")).want(t, http.StatusOK)
}

func TestChangesOfTemplatesAndEndpointsExpectATag(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for collection, tt := range map[string]struct{ body, field, other string }{
		"/v1/coupon-templates":  {`{"name":"x","totalQuantity":9,"metadata":{"b":"1","a":"2"}}`, "name", ""},
		"/v1/webhook-endpoints": {`{"url":"https://hooks.example/x","events":["promotion.completed","balance.breach"]}`, "description", "/rotate-secret"},
	} {
		made := b.json(t, "POST", collection, tt.body)
		made.want(t, http.StatusCreated)
		path := collection + "/" + made.text(t, "id")
		change := func(value, tag string) answer {
			t.Helper()
			return b.do(t, "PATCH", path, strings.NewReader(`{"`+tt.field+`":"`+value+`"}`), "Content-Type", "application/json", "If-Match", tag)
		}
		first := b.json(t, "GET", path, "").header.Get("ETag")
		if tag := made.header.Get("ETag"); tag == "" || !strings.HasPrefix(first, strings.TrimSuffix(tag, `"`)) {
			t.Errorf("%s: created with %s, read as %s", collection, tag, first)
		}
		if tt.other != "" { // no change of what a change can change
			b.json(t, "POST", path+tt.other, "").want(t, http.StatusOK)
		}
		changed := change("one", first)
		changed.want(t, http.StatusOK)
		for _, tag := range []string{first, `"x"`, `""`, `"v1.5"`} {
			change("two", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
			b.do(t, "PATCH", path, strings.NewReader(`{}`), "Content-Type", "application/json", "If-Match", tag).
				wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
		}
		change("two", "x").wantProblem(t, http.StatusBadRequest, "MALFORMED")
		if got := b.json(t, "GET", path, "").text(t, tt.field); got != "one" {
			t.Errorf("%s: %s is %s", collection, tt.field, got)
		}
		change("two", first+", "+changed.header.Get("ETag")).want(t, http.StatusOK)
		change("three", "*").want(t, http.StatusOK)
	}
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, path := range []string{"/v1/promotions", "/v1/coupon-templates"} {
		rest := `"name":"x","type":"POINT"`
		if path == "/v1/coupon-templates" {
			rest = `"name":"x","totalQuantity":1`
		}
		long := strings.Repeat("é", 200)
		a := b.json(t, "POST", path, `{`+rest+`,"metadata":{"`+long+`":"`+long+`","empty":"",`+entries(18)+`}}`)
		a.want(t, http.StatusCreated)
		m, _ := a.object(t)["metadata"].(map[string]any)
		if empty, there := m["empty"]; len(m) != 20 || m[long] != long || empty != "" || !there {
			t.Errorf("%s: %v", path, m)
		}
		one := path + "/" + a.text(t, "id")
		b.json(t, "PATCH", one, `{"metadata":{"more":"x"}}`).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		b.json(t, "PATCH", one, `{"metadata":{"more":"x","empty":null}}`).want(t, http.StatusOK)
		m, _ = b.json(t, "GET", one, "").object(t)["metadata"].(map[string]any)
		if len(m) != 20 || m["more"] != "x" {
			t.Errorf("%s: %v", path, m)
		}
		b.json(t, "PATCH", one, `{"metadata":null}`).want(t, http.StatusOK)
		if m := b.json(t, "GET", one, "").object(t)["metadata"]; m != nil {
			t.Errorf("%s: %v", path, m)
		}
		for _, bad := range []string{`{` + entries(21) + `}`, `{"` + long + `e":""}`, `{"a":"` + long + `e"}`, `{"a":"\n"}`, `{"\u2066":"a"}`, `{"a":null}`, `{"a":{}}`, `[]`, `"x"`} {
			a := b.json(t, "POST", path, `{`+rest+`,"metadata":`+bad+`}`)
			if a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "metadata") {
				t.Errorf("%s %s: %d %s", path, bad, a.status, a.body)
			}
		}
		for _, bad := range []string{`a\nb`, `\u001b[31m`, `a\u202eb`, `\u2028`, `\u0085`, `\u200f`} {
			a := b.json(t, "POST", path, `{`+strings.Replace(rest, `"x"`, `"`+bad+`"`, 1)+`}`)
			if p := a.wantProblem(t, http.StatusUnprocessableEntity, "INVALID"); len(p.Errors) != 1 || p.Errors[0].Field != "name" {
				t.Errorf("%s %s: %+v", path, bad, p)
			}
		}
	}
}
