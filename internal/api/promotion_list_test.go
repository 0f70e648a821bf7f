package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindPromotions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, p := range []struct{ who, body string }{
		{"kim", `{"id":1,"name":"b","type":"POINT","metadata":{"team":"Growth"}}`},
		{"lee", `{"id":2,"name":"a 100%","type":"POINT","startsAt":"2100-01-02T00:00:00Z"}`},
		{"kim", `{"id":3,"name":"b","type":"POINT"}`},
		{"kim", `{"id":4,"name":"B: x","type":"POINT","startsAt":"2100-01-01T00:00:00Z","metadata":{"x":"a_b"}}`},
		{"lee", `{"id":5,"name":"b","type":"POINT"}`},
	} {
		b.as(t, p.who, "POST", "/v1/promotions", p.body).want(t, http.StatusCreated)
	}
	third := b.json(t, "GET", "/v1/promotions/3", "").text(t, "createdAt")
	for query, want := range map[string][]string{
		"":                                 {"5", "4", "3", "2", "1"},
		"sort=id":                          {"1", "2", "3", "4", "5"},
		"sort=name":                        {"4", "2", "1", "3", "5"},
		"sort=-name":                       {"5", "3", "1", "2", "4"},
		"sort=createdAt":                   {"1", "2", "3", "4", "5"},
		"sort=startsAt":                    {"4", "2"},
		"createdBy=kim":                    {"4", "3", "1"},
		"createdBy=kim&sort=name":          {"4", "1", "3"},
		"createdBy=KIM":                    nil,
		"q=GROWTH":                         {"1"},
		"q=team%3Dgrowth":                  {"1"},
		"q=%25":                            {"2"},
		"q=_":                              {"4"},
		"q=b":                              {"5", "4", "3", "1"},
		"q=b&createdBy=lee":                {"5"},
		"createdAfter=" + third:            {"5", "4", "3"},
		"createdBefore=" + third:           {"2", "1"},
		"status=RUNNING&q=b":               nil,
		"q=b&status=DRAFT&sort=-createdAt": {"5", "4", "3", "1"},
	} {
		for _, limit := range []string{"limit=1&", "limit=2&", ""} {
			got, _ := b.pages(t, "/v1/promotions?"+limit+query, "id")
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s%s (-want +got):\n%s", limit, query, diff)
			}
		}
	}
	cursor := b.json(t, "GET", "/v1/promotions?limit=1&sort=name", "").text(t, "nextCursor")
	for _, query := range []string{
		"cursor=" + cursor, "sort=-name&cursor=" + cursor, "sort=createdAt&cursor=" + cursor, "sort=id&cursor=" + cursor, "sort=name&cursor=eA",
		"sort=name&cursor=" + encodeUserCursor(cursorPromotions+"name", "1:nul\x00"), "createdAfter=tomorrow",
	} {
		b.json(t, "GET", "/v1/promotions?"+query, "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	}
	for _, query := range []string{"sort=amount", "q=" + url.QueryEscape("nul\x00"), "q=" + strings.Repeat("x", 201)} {
		b.json(t, "GET", "/v1/promotions?"+query, "").wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
	}
}
