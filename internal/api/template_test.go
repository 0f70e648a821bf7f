package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/rules"
)

func TestTemplateCreate(t *testing.T) {
	t.Parallel()
	b := setup(t)

	t.Run("ShapeOfATemplate", func(t *testing.T) {
		t.Parallel()
		a := b.json(t, "POST", "/v1/coupon-templates", `{"id":"42","name":"Spring","totalQuantity":100}`)
		a.want(t, http.StatusCreated)
		want := map[string]any{
			"id": "42", "name": "Spring", "state": "OPEN", "totalQuantity": json.Number("100"), "perUserLimit": json.Number("1"), "mode": "STREAM",
			"reissueAfterCancel": true, "whenRedisAway": "DATABASE", "path": "GATE", "createdAt": "2026-11-21T01:02:03Z",
			"counters": map[string]any{
				"totalQuantity": json.Number("100"), "stock": json.Number("100"), "count": json.Number("0"), "issuedTotal": json.Number("0"), "waiting": json.Number("0"),
			},
		}
		if diff := cmp.Diff(want, a.object(t)); diff != "" || a.header.Get("Location") != "/v1/coupon-templates/42" {
			t.Errorf("%v (-want +got):\n%s", a.header, diff)
		}
		b.json(t, "POST", "/v1/coupon-templates", `{"id":42,"name":"Again","totalQuantity":1}`).wantProblem(t, http.StatusConflict, "ALREADY_EXISTS")
	})

	t.Run("OneStateAtEveryDoor", func(t *testing.T) {
		t.Parallel()
		b.shop.template(77, 0)
		b.shop.mu.Lock()
		v := b.shop.templates[77]
		v.SoldOutAt = testTime
		b.shop.templates[77] = v
		b.shop.mu.Unlock()
		got := b.json(t, "GET", "/v1/coupon-templates/77", "").object(t)
		if got["state"] != "SOLD_OUT" || got["soldOutAt"] != "2026-11-21T01:02:03Z" || templateProgressOf(&v, time.Now()).State != "SOLD_OUT" {
			t.Errorf("%v", got)
		}
	})

	t.Run("EverythingThatCanBeSaid", func(t *testing.T) {
		t.Parallel()
		a := b.json(t, "POST", "/v1/coupon-templates", `{"name":"Full","totalQuantity":1000000000,"perUserLimit":100,"opensAt":"2030-01-02T10:00:00+09:00",
			"closesAt":"2030-01-03T01:00:00Z","validForSeconds":3153600000,"holdSeconds":2592000,"codes":{"prefix":"X-"},"mode":"KAFKA","reissueAfterCancel":false,"whenRedisAway":"WAIT","draw":{"from":"2030-01-01T00:00:00Z"}}`)
		a.want(t, http.StatusCreated)
		got := a.object(t)
		for field, want := range map[string]any{
			"perUserLimit": json.Number("100"), "opensAt": "2030-01-02T01:00:00Z", "closesAt": "2030-01-03T01:00:00Z", "validForSeconds": json.Number("3153600000"), "holdSeconds": json.Number("2592000"),
			"codes": map[string]any{"prefix": "X-", "length": json.Number("12"), "alphabet": "23456789ABCDEFGHJKMNPQRSTUVWXYZ"},
			"mode":  "KAFKA", "reissueAfterCancel": false, "whenRedisAway": "WAIT",
			"draw": map[string]any{"from": "2030-01-01T00:00:00Z", "state": "OPEN", "commitment": "19b25856e1c150ca834cffc8b59b23adbd0ec0389e58eb22b3b64768098d002b"},
		} {
			if diff := cmp.Diff(want, got[field]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", field, diff)
			}
		}
	})

	t.Run("TextsSayWhatToDo", func(t *testing.T) {
		t.Parallel()
		for body, want := range map[string]string{
			`{}`:                             "name: is missing; totalQuantity: is missing",
			``:                               "the request has no body; /openapi.json shows what to send",
			`[]`:                             "body: must be a JSON object",
			`{"name":5,"totalQuantity":"5"}`: "name: must be a string; totalQuantity: must be a whole number",
			`{"name":"","totalQuantity":1}`:  "name: must have 1 or more characters",
			`{"name":"x","totalQuantity":1,"mode":"FAST"}`:                    "mode: must be one of STREAM, KAFKA, SYNC",
			`{"name":"x","totalQuantity":1,"opensAt":"tomorrow"}`:             "opensAt: must be a time such as 2026-12-24T18:00:00Z",
			`{"name":"x","totalQuantity":1,"quantity":1}`:                     "quantity: is unknown; correct its spelling or remove it, /openapi.json lists the fields",
			`{"name":"` + strings.Repeat("x", 70_000) + `"}`:                  "the body is larger than 65536 bytes; send less at once",
			`{"name":[` + strings.Repeat("{},", 4000) + `{}]}`:                "body: has more than 4000 values; send less at once",
			`{"a":1,"b":2,"c":3,"d":4,"name":"x","totalQuantity":0,"mode":1}`: "and 1 more, see errors[]",
		} {
			a := b.json(t, "POST", "/v1/coupon-templates", body)
			if got, _ := a.object(t)["detail"].(string); got != want && !strings.HasSuffix(got, "; "+want) {
				t.Errorf("%.60s: %q, want %q", body, got, want)
			}
		}
		for query, want := range map[string]string{
			"limit=x": "limit: must be a whole number",
			"lmit=1":  "lmit: is unknown; correct its spelling or remove it, /openapi.json lists the parameters",
		} {
			if got := b.json(t, "GET", "/v1/coupon-templates?"+query, "").object(t)["detail"]; got != want {
				t.Errorf("%s: %q, want %q", query, got, want)
			}
		}
	})

	for _, tt := range []struct {
		name, body string
		status     int
		fields     []string
	}{
		{"Empty", `{}`, 422, []string{"name", "totalQuantity"}},
		{"Nothing", ``, 400, nil},
		{"NoJSON", `{`, 400, []string{"body"}},
		{"ID", `{"id":"007","name":"x","totalQuantity":1}`, 422, []string{"id"}},
		{"LongName", `{"name":"` + strings.Repeat("é", 201) + `","totalQuantity":1}`, 422, []string{"name"}},
		{"TooLargeAQuantity", `{"name":"x","totalQuantity":1000000001}`, 422, []string{"totalQuantity"}},
		{"PerUserTooMuch", `{"name":"x","totalQuantity":1,"perUserLimit":101}`, 422, []string{"perUserLimit"}},
		{"ValidForNothing", `{"name":"x","totalQuantity":1,"validForSeconds":0}`, 422, []string{"validForSeconds"}},
		{"HoldForNothing", `{"name":"x","totalQuantity":1,"holdSeconds":0}`, 422, []string{"holdSeconds"}},
		{"HoldTooLong", `{"name":"x","totalQuantity":1,"holdSeconds":2592001}`, 422, []string{"holdSeconds"}},
		{"WhenRedisAway", `{"name":"x","totalQuantity":1,"whenRedisAway":"CRY"}`, 422, []string{"whenRedisAway"}},
		{"BlankName", `{"name":" ","totalQuantity":1}`, 422, []string{"name"}},
		{"CodesTooFew", `{"name":"x","totalQuantity":1000,"codes":{"length":8,"alphabet":"0123456789"}}`, 422, []string{"codes.length"}},
		{"CodesWithASpace", `{"name":"x","totalQuantity":1000,"codes":{"prefix":"A B"}}`, 422, []string{"codes.prefix"}},
		{"HoldBeyondTheValidity", `{"name":"x","totalQuantity":1,"validForSeconds":60,"holdSeconds":61}`, 422, []string{"holdSeconds"}},
		{"Opens", `{"name":"x","totalQuantity":1,"opensAt":"tomorrow"}`, 422, []string{"opensAt"}},
		{"ClosesBeforeItOpens", `{"name":"x","totalQuantity":1,"opensAt":"2030-01-02T00:00:00Z","closesAt":"2030-01-02T00:00:00Z"}`, 422, []string{"closesAt"}},
		{"DrawOfNoTime", `{"name":"x","totalQuantity":1,"opensAt":"2030-01-02T00:00:00Z","draw":{}}`, 422, []string{"draw.from"}},
		{"DrawWithoutAnOpening", `{"name":"x","totalQuantity":1,"draw":{"from":"2030-01-02T00:00:00Z"}}`, 422, []string{"draw"}},
		{"DrawWithASeed", `{"name":"x","totalQuantity":1,"opensAt":"2030-01-02T00:00:00Z","draw":{"from":"2030-01-01T00:00:00Z","seed":"00"}}`, 422, []string{"draw.seed"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			code := map[int]string{400: "MALFORMED", 422: "INVALID"}[tt.status]
			p := b.json(t, "POST", "/v1/coupon-templates", tt.body).wantProblem(t, tt.status, code)
			for _, want := range tt.fields {
				if !strings.Contains(" "+strings.Join(fields(p), " ")+" ", " "+want+" ") {
					t.Errorf("%s is not named: %+v", want, p)
				}
			}
		})
	}
}

func TestTemplateGet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for id, draw := range map[reward.TemplateID]reward.Draw{
		1: {State: reward.DrawOpen, From: testTime, Seed: []byte("seed")},
		2: {State: reward.DrawClosed, From: testTime, Seed: []byte("seed")},
		3: {State: reward.DrawDone, From: testTime, Seed: []byte("seed"), List: []byte{0xab}},
	} {
		b.shop.templates[id] = coupon.View{
			CouponTemplate: reward.CouponTemplate{ID: id, TotalQuantity: 10, Live: 3, IssuedTotal: 4, Path: reward.PathDatabase, Draw: draw},
			Waiting:        2, Stock: 5, GateUnavailable: id == 3,
		}
		got := b.json(t, "GET", "/v1/coupon-templates/"+id.String(), "").object(t)
		d := got["draw"].(map[string]any)
		if seed, told := d["seed"]; told != (id > 1) || told && seed != "73656564" {
			t.Errorf("%s: the seed is %v", draw.State, seed)
		}
		if hash, told := d["listHash"]; told != (id == 3) || told && hash != "ab" {
			t.Errorf("%s: the hash of the list is %v", draw.State, hash)
		}
		if _, degraded := got["degraded"]; degraded != (id == 3) || got["path"] != "DATABASE" {
			t.Errorf("%v", got)
		}
		want := map[string]any{
			"totalQuantity": json.Number("10"), "stock": json.Number("5"), "count": json.Number("3"), "issuedTotal": json.Number("4"), "waiting": json.Number("2"),
		}
		fixture.Equal(t, want, got["counters"])
	}
	if got, pages := b.pages(t, "/v1/coupon-templates?limit=2", "id"); !cmp.Equal(got, []string{"3", "2", "1"}) || pages != 2 {
		t.Errorf("%v on %d pages", got, pages)
	}
	b.json(t, "GET", "/v1/coupon-templates/9", "").wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
	b.json(t, "GET", "/v1/coupon-templates/x", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	b.json(t, "GET", "/v1/coupon-templates?cursor=x", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	b.json(t, "GET", "/v1/coupon-templates?limit=0", "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
}

// TestTemplateSearch searches by name, ID and metadata, page by page.
func TestTemplateSearch(t *testing.T) {
	t.Parallel()
	b := setup(t, guarded)
	for id, name := range map[reward.TemplateID]string{41: "Spring ÉTÉ", 42: "100% off", 43: "Autumn", 44: "spring"} {
		metadata := reward.NewMetadata(map[string]string{"shop": "Paris" + id.String()})
		b.shop.templates[id] = coupon.View{CouponTemplate: reward.CouponTemplate{ID: id, Name: name, Metadata: metadata}}
	}
	for _, tt := range []struct {
		role, q string
		want    []string
	}{
		{"viewer", "SPRING", []string{"44", "41"}},
		{"viewer", "été", []string{"41"}},
		{"viewer", "%", []string{"42"}},
		{"viewer", "43", []string{"43"}},
		{"viewer", "shop=paris", []string{"44", "43", "42", "41"}},
		{"viewer", "shop=rome", nil},
	} {
		var got []string
		for cursor := ""; ; {
			query := url.Values{"q": {tt.q}, "limit": {"1"}}
			if cursor != "" {
				query.Set("cursor", cursor)
			}
			page := b.do(t, "GET", "/v1/coupon-templates?"+query.Encode(), nil, "Authorization", "Bearer "+tt.role).object(t)
			for _, item := range page["items"].([]any) {
				got = append(got, item.(map[string]any)["id"].(string))
			}
			if page["nextCursor"] == nil {
				break
			}
			cursor = page["nextCursor"].(string)
		}
		if !cmp.Equal(got, tt.want) {
			t.Errorf("%s searches %q: %v, want %v", tt.role, tt.q, got, tt.want)
		}
	}
}

func TestTemplateEntrants(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.template(42, 10)
	b.shop.template(43, 10) // no draw, or an open one
	b.shop.template(44, 10)
	long := strings.Repeat("ü", reward.UserIDMax/2) + "~"
	users := []string{"\t\n", "10", "9", "U7", "a b", "entrant:u7", "u/7?&+%", "u:7", "“", "\U0001F600"}
	users = append(users, long)
	slices.Sort(users)
	b.shop.entrants = map[reward.TemplateID][]string{42: users, 44: nil}
	const path = "/v1/coupon-templates/42/entrants"
	for limit := 1; limit <= len(users)+1; limit++ {
		got, pages := b.pages(t, fmt.Sprintf("%s?limit=%d", path, limit), "userId")
		if diff := cmp.Diff(users, got); diff != "" || pages != (len(users)+limit-1)/limit {
			t.Errorf("limit %d: %d pages (-want +got):\n%s", limit, pages, diff)
		}
	}
	a := b.json(t, "GET", path+"?limit=1&cursor="+encodeUserCursor(cursorEntrants, "U7"), "")
	want := map[string]any{"items": []any{map[string]any{"userId": "a b"}}, "nextCursor": encodeUserCursor(cursorEntrants, "a b")}
	fixture.Equal(t, want, a.object(t))
	if got := b.json(t, "GET", "/v1/coupon-templates/44/entrants", "").object(t); !cmp.Equal(got, map[string]any{"items": []any{}}) {
		t.Errorf("without entrants: %v", got)
	}
	for _, tt := range []struct {
		path   string
		status int
		code   string
	}{
		{"/v1/coupon-templates/9/entrants", 404, "TEMPLATE_NOT_FOUND"},
		{"/v1/coupon-templates/43/entrants", 409, "ILLEGAL_STATE"},
		{"/v1/coupon-templates/x/entrants", 400, "MALFORMED"},
		{path + "?cursor=u7", 400, "MALFORMED"},
		{path + "?cursor=" + encodeUserCursor(cursorTemplates, "7"), 400, "MALFORMED"},
		{path + "?cursor=" + encodeUserCursor(cursorEntrants, ""), 400, "MALFORMED"},
		{path + "?cursor=" + encodeUserCursor(cursorEntrants, "\x00"), 400, "MALFORMED"},
		{path + "?cursor=" + encodeUserCursor(cursorEntrants, "\xff"), 400, "MALFORMED"},
		{path + "?cursor=" + encodeUserCursor(cursorEntrants, long+"xx"), 400, "MALFORMED"},
		{path + "?cursor=" + encodeUserCursor(cursorEntrants, "u7") + "%0A", 400, "MALFORMED"},
		{path + "?limit=0", 422, "INVALID"},
		{path + "?limit=1001", 422, "INVALID"},
		{path + "?after=u7", 422, "INVALID"},
	} {
		b.json(t, "GET", tt.path, "").wantProblem(t, tt.status, tt.code)
	}
}

func TestTemplateChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.template(42, 10)
	const path = "/v1/coupon-templates/42"
	opens, none, week := time.Date(2030, 1, 2, 0, 0, 0, 0, time.UTC), time.Time{}, 7*24*time.Hour
	forEver, quantity, name, perUser, mode, away, no := time.Duration(0), int64(20), "New", 2, reward.ModeSync, reward.FallbackWait, false
	for _, tt := range []struct {
		body string
		want rules.TemplateChange
	}{
		{`{"opensAt":"2030-01-02T00:00:00Z"}`, rules.TemplateChange{OpensAt: &opens}},
		{`{"opensAt":null,"closesAt":null,"validForSeconds":null}`, rules.TemplateChange{OpensAt: &none, ClosesAt: &none, ValidFor: &forEver}},
		{`{"validForSeconds":604800}`, rules.TemplateChange{ValidFor: &week}},
		{`{"holdSeconds":604800}`, rules.TemplateChange{HoldFor: &week}},
		{`{"holdSeconds":null}`, rules.TemplateChange{HoldFor: &forEver}},
		{
			`{"name":"New","totalQuantity":20,"perUserLimit":2,"mode":"SYNC","reissueAfterCancel":false,"whenRedisAway":"WAIT"}`,
			rules.TemplateChange{Name: &name, TotalQuantity: &quantity, PerUserLimit: &perUser, Mode: &mode, ReissueAfterCancel: &no, WhenRedisAway: &away},
		},
	} {
		b.json(t, "PATCH", path, tt.body).want(t, http.StatusOK)
		tt.want.ID, tt.want.By = 42, actorAnonymous
		if diff := cmp.Diff(tt.want, b.shop.changes[len(b.shop.changes)-1]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.body, diff)
		}
	}
	changes := len(b.shop.changes)
	if got := b.json(t, "PATCH", path, `{}`).text(t, "name"); got != "New" || len(b.shop.changes) != changes {
		t.Errorf("a change of nothing: %q, %d changes", got, len(b.shop.changes))
	}
	b.shop.templates[42] = coupon.View{CouponTemplate: b.shop.templates[42].CouponTemplate, Waiting: 5}
	for _, tt := range []struct {
		path, body, code string
		status           int
		field            string
	}{
		{path, `{"totalQuantity":4}`, "CONFLICT", 409, ""},
		{path, `{"totalQuantity":0}`, "INVALID", 422, "totalQuantity"},
		{path, `{"name":"  "}`, "INVALID", 422, "name"},
		{path, `{"opensAt":"2030-01-02T00:00:00Z","closesAt":"2030-01-01T00:00:00Z"}`, "INVALID", 422, "closesAt"},
		{path, `{"opensAt":5}`, "INVALID", 422, "opensAt"},
		{path, `{"validForSeconds":0}`, "INVALID", 422, "validForSeconds"},
		{path, `{"validForSeconds":"1h"}`, "INVALID", 422, "validForSeconds"},
		{path, `{"mode":"FAST"}`, "INVALID", 422, "mode"},
		{path, `{"draw":{}}`, "INVALID", 422, "draw"},
		{path, `[]`, "INVALID", 422, "body"},
		{path, `{"name":`, "MALFORMED", 400, "body"},
		{"/v1/coupon-templates/9", `{"name":"x"}`, "TEMPLATE_NOT_FOUND", 404, ""},
		{"/v1/coupon-templates/0", `{"name":"x"}`, "MALFORMED", 400, "id"},
	} {
		p := b.json(t, "PATCH", tt.path, tt.body).wantProblem(t, tt.status, tt.code)
		if tt.field != "" && !cmp.Equal(fields(p), []string{tt.field}) {
			t.Errorf("%s: %v", tt.body, fields(p))
		}
	}
	if got := b.json(t, "POST", path+"/close", "").text(t, "closesAt"); got != "2026-11-21T01:02:03Z" {
		t.Errorf("closed at %s", got)
	}
	b.json(t, "POST", "/v1/coupon-templates/9/close", "").wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
}

// TestBodiesOfOperationsWithoutFields checks that a field that an operation would ignore
// is an error, as at operations that have fields.
func TestBodiesOfOperationsWithoutFields(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.json(t, "POST", "/v1/coupon-templates", `{"id":42,"name":"Spring","totalQuantity":1}`).want(t, http.StatusCreated)
	for _, body := range []string{"", "{}", " {\n}\n"} {
		b.json(t, "POST", "/v1/coupon-templates/42/close", body).want(t, http.StatusOK)
	}
	for _, call := range []string{"POST /v1/coupon-templates/42/close", "POST /v1/promotions/1/start", "POST /v1/coupons/1/use", "DELETE /v1/issue-requests/42:u7"} {
		method, path, _ := strings.Cut(call, " ")
		p := b.json(t, method, path, `{"closesAt":"2030-01-01T00:00:00Z","at":1}`).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		if diff := cmp.Diff([]string{"at", "closesAt"}, fields(p)); diff != "" {
			t.Errorf("%s: %s", call, diff)
		}
		for _, body := range []string{"{", "[]", "x", `"` + strings.Repeat("x", 70_000) + `"`} {
			b.json(t, method, path, body).wantProblem(t, http.StatusBadRequest, "MALFORMED")
		}
	}
}

func TestReleasePlaces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.template(42, 10)
	v := b.shop.templates[42]
	v.Granted, v.Used = 9, 2
	b.shop.templates[42] = v
	a := b.json(t, "POST", "/v1/coupon-templates/42/release-places", "")
	a.want(t, http.StatusOK)
	fixture.Equal(t, map[string]any{"released": json.Number("7")}, a.object(t))
	b.json(t, "POST", "/v1/coupon-templates/9/release-places", "").wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
	b.json(t, "POST", "/v1/coupon-templates/x/release-places", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
}

// TestArchivedTemplateSaysWhen checks that archivedAt is shown for archived templates only.
func TestArchivedTemplateSaysWhen(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC)
	for archivedAt, want := range map[time.Time]bool{{}: false, at: true} {
		text, err := json.Marshal(templateOf(coupon.View{CouponTemplate: reward.CouponTemplate{ID: 42, ArchivedAt: archivedAt}}))
		if err != nil || strings.Contains(string(text), `"archivedAt":"2026-11-21T01:02:03Z"`) != want {
			t.Errorf("archived at %v: %s, %v", archivedAt, text, err)
		}
	}
}
