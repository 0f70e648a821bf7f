package api

import (
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
	"github.com/largesse/largesse/internal/web"
)

// described reads the description as anybody would.
func (b *bundle) described(t *testing.T) tree {
	t.Helper()
	var doc tree
	fixture.OK(t, json.Unmarshal([]byte(b.json(t, "GET", "/openapi.json", "").body), &doc))
	return doc
}

// operationsIn returns the operations of the description by method and path.
func operationsIn(doc tree) map[string]tree {
	out := map[string]tree{}
	for path, item := range doc["paths"].(tree) {
		for method, op := range item.(tree) {
			out[strings.ToUpper(method)+" "+path] = op.(tree)
		}
	}
	return out
}

func TestDescription(t *testing.T) {
	t.Parallel()
	b := setup(t)
	doc := b.described(t)

	t.Run("SaysSomethingOfEverything", func(t *testing.T) {
		t.Parallel()
		known := map[string]bool{}
		for _, tag := range tags {
			known[tag.Name] = true
		}
		for pattern, op := range describedOperations(b.api) {
			if op.Summary == "" || len(op.Tags) != 1 || !known[op.Tags[0]] {
				t.Errorf("%s has the summary %q and the tags %v, of which one is in tags", pattern, op.Summary, op.Tags)
			}
			for status, answer := range op.Responses {
				if answer.Description == "" || status >= "400" && len(b.api.codesOf(op)[atoi(t, status)]) == 0 {
					t.Errorf("%s does not document %s", pattern, status)
				}
			}
			for _, p := range op.Parameters {
				if p.In == "path" && p.Example == nil && !slices.Contains([]string{"uploadId", "couponId"}, p.Name) && strings.HasPrefix(op.Path, "/v1/promotions/") {
					t.Errorf("%s has no example of %s", pattern, p.Name)
				}
				if p.Name == "cursor" && cursorExamples[op.OperationID] == "" {
					t.Errorf("%s has no example of a cursor: add it to cursorExamples", pattern)
				}
			}
		}
	})

	t.Run("RefersToWhatIsThere", func(t *testing.T) {
		t.Parallel()
		used := map[string]bool{}
		walkTree(doc, func(at tree) {
			ref, ok := at["$ref"].(string)
			if !ok {
				return
			}
			used[ref] = true
			if below(doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...) == nil {
				t.Errorf("nothing is at %s", ref)
			}
		})
		for kind, named := range doc["components"].(tree) {
			for name := range named.(tree) {
				if kind != "securitySchemes" && !used["#/components/"+kind+"/"+name] {
					t.Errorf("nothing refers to %s %s", kind, name)
				}
			}
		}
	})

	t.Run("PagesOfOtherOriginsMaySendItsHeaders", func(t *testing.T) {
		t.Parallel()
		allowed := strings.Split(web.CrossOriginHeaders, ", ")
		named := 0
		for pattern, op := range describedOperations(b.api) {
			for _, p := range op.Parameters {
				if p.In != "header" {
					continue
				}
				if named++; !slices.Contains(allowed, p.Name) {
					t.Errorf("%s: %s", pattern, p.Name)
				}
			}
		}
		if named == 0 {
			t.Error("no operation names a header")
		}
	})

	t.Run("IsCompressedForWhoAsks", func(t *testing.T) {
		t.Parallel()
		whole := b.do(t, "GET", "/openapi.json", nil, "Accept-Encoding", "identity, gzip;q=0")
		short := b.do(t, "GET", "/openapi.json", nil, "Accept-Encoding", "br, gzip;q=0.5")
		for _, a := range []answer{whole, short} {
			if a.header.Get("Vary") != "Accept-Encoding" || a.header.Get("Content-Type") != "application/openapi+json" {
				t.Errorf("headers %v", a.header)
			}
		}
		r := fixture.Must(gzip.NewReader(strings.NewReader(short.body)))(t)
		if text, err := io.ReadAll(r); err != nil || string(text) != whole.body || short.header.Get("Content-Encoding") != "gzip" || whole.header.Get("Content-Encoding") != "" {
			t.Errorf("compressed it is another description: %v", err)
		}
	})

	// Each event that an endpoint can ask for, and the test, is described with the data
	// that is sent.
	t.Run("DescribesWhatWebhooksReceive", func(t *testing.T) {
		t.Parallel()
		described := slices.Sorted(maps.Keys(doc["webhooks"].(tree)))
		if want := slices.Sorted(slices.Values(append([]string{"webhook.test"}, reward.WebhookEvents...))); !slices.Equal(described, want) {
			t.Errorf("described are %q, want %q: see webhookMessages", described, want)
		}
		for event, item := range doc["webhooks"].(tree) {
			shared, _ := item.(tree)["$ref"].(string)
			whole := below(doc, strings.Split(strings.TrimPrefix(shared, "#/"), "/")...)
			ref, _ := below(whole, "post", "requestBody", "content", "application/json", "schema")["$ref"].(string)
			message := below(doc, "components", "schemas", strings.TrimPrefix(ref, schemaPrefix), "properties")
			if types, _ := message["type"].(tree)["enum"].([]any); !slices.Contains(types, any(event)) {
				t.Errorf("%s has a message with the types %v", event, types)
			}
			data, _ := message["data"].(tree)["$ref"].(string)
			subject, _, _ := strings.Cut(event, ".")
			wants := map[string]string{
				"promotion": "PromotionData", "balance": "PromotionData", "payout": "PayoutData", "coupon": "CouponData", "webhook": "EndpointData",
				"coupon.sold_out": "TemplateData", "coupon.approval_needed": "TemplateData",
			}
			want := cmp.Or(wants[event], wants[subject])
			if strings.TrimPrefix(data, schemaPrefix) != want {
				t.Errorf("the data of %s are %s, want %s", event, data, want)
			}
		}
		ids := below(doc, "components", "schemas", "PayoutData", "properties")
		for _, id := range []string{"promotionId", "targetId"} {
			if ids[id].(tree)["type"] != "string" {
				t.Errorf("%s is %v", id, ids[id])
			}
		}
	})

	t.Run("KeepsTheCodesOfErrors", func(t *testing.T) {
		t.Parallel()
		codes, _ := below(doc, "components", "schemas", "Problem", "properties", "code")["enum"].([]any)
		if len(codes) != len(errorCodes) {
			t.Errorf("Problem.code has %d values, want %d", len(codes), len(errorCodes))
		}
		for pattern, op := range operationsIn(doc) {
			id, _ := op["operationId"].(string)
			text, _ := op["description"].(string)
			_, text, _ = strings.Cut(text, "Errors: ")
			named := strings.Split(strings.TrimSuffix(text, "."), ", ")
			method, path, _ := strings.Cut(pattern, " ")
			for _, code := range b.api.declared[id].errors {
				// The introduction has some codes of what a path names.
				inIntroduction := strings.Contains(path, "{") &&
					(strings.HasSuffix(code, "_NOT_FOUND") || code == reward.CodeIllegalState && (method == "POST" || method == "DELETE"))
				if slices.Contains(named, code) == inIntroduction {
					t.Errorf("%s names its errors %q, which is wrong for %s", pattern, named, code)
				}
			}
		}
	})

	t.Run("MarksNumbersThatJavaScriptWouldRound", func(t *testing.T) {
		t.Parallel()
		for name, schema := range below(doc, "components", "schemas") {
			for field, property := range below(schema.(tree), "properties") {
				property := property.(tree)
				kind, text := fmt.Sprint(property["type"]), fmt.Sprint(property["description"])
				highest, bounded := property["maximum"].(float64)
				big := strings.Contains(kind, "integer") && strings.Contains(strings.ToLower(field), "amount") && (!bounded || highest > 1<<53)
				if marked := strings.HasSuffix(text, "ay exceed 2^53"); big && !marked || marked && property["format"] != "int64" {
					t.Errorf("%s.%s: make it a string, give it a maximum, or say that it may exceed 2^53: %v", name, field, property)
				}
			}
		}
	})

	t.Run("TakesNullForNothingInBodies", func(t *testing.T) {
		t.Parallel()
		schemas := doc["components"].(tree)["schemas"].(tree)
		properties := schemas["CreatePromotion"].(tree)["properties"].(tree)
		for field, want := range map[string]bool{"name": false, "amount": true, "canary": true, "id": true, "currency": true} {
			text := fixture.Must(json.Marshal(properties[field]))(t)
			if got := strings.Contains(string(text), `"null"`); got != want {
				t.Errorf("null for %s is described: %v, want %v: %s", field, got, want, text)
			}
		}
		if text, _ := json.Marshal(schemas["Promotion"]); strings.Contains(string(text), `"null"`) {
			t.Errorf("an answer has null: %s", text)
		}
		b.create(t, `{"id":null,"name":"x","type":"POINT","amount":null,"canary":null,"currency":null,"startsAt":null}`)
	})

	t.Run("HasBodiesThatAreTaken", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for pattern, op := range describedOperations(b.api) {
			if op.RequestBody == nil || op.RequestBody.Content["application/json"] == nil {
				continue
			}
			text, err := json.Marshal(op.RequestBody.Content["application/json"].Example)
			if err != nil || string(text) == "null" {
				t.Errorf("%s has no example of a body, %v: add it to the operation", pattern, err)
				continue
			}
			method, path, _ := strings.Cut(pattern, " ")
			path = strings.NewReplacer("{id}", "1", "{targetId}", "1", "{templateId}", "1").Replace(path)
			if a := b.json(t, method, path, string(text)); a.status == 400 || a.status == 422 || a.status >= 500 {
				t.Errorf("%s with %s: %d %s", pattern, text, a.status, a.body)
			}
		}
	})

	t.Run("HasCursorsOfItsLists", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		fixture.Must(b.store.WebhookEndpointCreate(t.Context(), store.WebhookEndpoint{ID: 42, URL: "https://hooks.example/", Events: []string{"payout.failed"}, CreatedAt: testTime}))(t)
		b.create(t, `{"id":12345,"name":"x","type":"POINT"}`)
		b.json(t, "POST", "/v1/coupon-templates", `{"id":42,"name":"x","totalQuantity":5}`).want(t, 201)
		b.shop.mu.Lock()
		b.shop.entrants = map[reward.TemplateID][]string{42: {"u7"}}
		b.shop.mu.Unlock()
		operations := describedOperations(b.api)
		for id, cursor := range cursorExamples {
			for pattern, op := range operations {
				if op.OperationID == id {
					_, path, _ := strings.Cut(pattern, " ")
					path = strings.NewReplacer("/v1/promotions/{id}", "/v1/promotions/12345", "{id}", "42", "{userId}", "u7").Replace(path)
					b.json(t, "GET", path+"?cursor="+cursor, "").want(t, 200)
				}
			}
		}
	})
}

// cursorExamples are example cursors by operation; every list that has pages is in it.
var cursorExamples = map[string]string{
	"list-promotions":         encodeCursor(cursorPromotions, 12345),
	"list-payouts":            encodeCursor(cursorPayouts, 7),
	"list-dead-letters":       encodeCursor(cursorDeadLetters, 12345),
	"list-templates":          encodeCursor(cursorTemplates, 42),
	"list-template-coupons":   encodePlace("ticket", reward.Coupon{Ticket: 7}),
	"list-template-entrants":  encodeUserCursor(cursorEntrants, "u7"),
	"list-user-coupons":       encodeCursor(cursorUserCoupons, 12345),
	"list-api-keys":           encodeCursor(cursorAPIKeys, 12345),
	"list-audit":              encodeCursor(cursorAudit, 12345),
	"list-webhook-deliveries": encodeCursor(cursorDeliveries, 12345),
	"list-reconciliations":    encodeCursor(cursorReconciliations, 12345),
	"list-uploads":            encodeCursor(cursorUploads, 12345),
	"list-unknown-payouts": encodeUnknownCursor(store.UnknownPlace{
		Since: time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC), PayoutID: store.PayoutID{PromotionID: 12345, TargetID: 7},
	}),
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	return fixture.Must(strconv.Atoi(s))(t)
}

func TestIDPattern(t *testing.T) {
	t.Parallel()
	for _, n := range []int64{0, 1, 9, 10, 99, 1 << 62, math.MaxInt64 - 8, math.MaxInt64 - 7, math.MaxInt64 - 1, math.MaxInt64} {
		checkIDPattern(t, strconv.FormatInt(n, 10))
	}
	for _, s := range []string{"", "-1", "+1", "01", "1.0", "1e3", " 1", "1\n", "9223372036854775808", "9223372036854775810", "9223372036854776000", "9300000000000000000", "10000000000000000000"} {
		checkIDPattern(t, s)
	}
}

var idPatterns = []*regexp.Regexp{regexp.MustCompile("^" + targetIDPattern + "$"), regexp.MustCompile("^" + idPattern + "$")}

// checkIDPattern checks that the description takes the ids that we take, and of others
// only those above the maximum, which the texts have.
func checkIDPattern(t *testing.T, s string) {
	t.Helper()
	for i, parse := range []func(string) error{
		func(s string) error { _, err := reward.ParseTargetID(s); return err },
		func(s string) error { _, err := reward.ParsePromotionID(s); return err },
	} {
		tooHigh := false
		if n, err := strconv.ParseUint(s, 10, 64); err == nil {
			tooHigh = n > math.MaxInt64 && n < 1e19
		}
		if err := parse(s); idPatterns[i].MatchString(s) != (err == nil || tooHigh) {
			t.Errorf("%q: %v, and %s does not say so", s, err, idPatterns[i])
		}
	}
}

func FuzzIDPattern(f *testing.F) {
	f.Add("1")
	f.Add("9223372036854775807")
	f.Add("9223372036854775808")
	f.Add("00")
	f.Fuzz(checkIDPattern)
}
