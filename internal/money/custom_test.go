package money

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
)

// goodCustom is an API with orders.
func goodCustom() Custom {
	return Custom{
		Method: "POST", Path: "/v2/{type}/orders", Headers: "Idempotency-Key: {key}\nX-Target: {targetId}",
		Key: `promotionId + ":" + targetId`, SignatureEncoding: "hex",
		Body: `{"externalId": key, "to": {"name": userId, "code": voucherCode}, "value": number(decimal(amount, 2)), "kind": type}`,
		Paid: `status == 201 && body.state == "DONE"`, TransactionKey: `body.id`,
		Refused: `status == 422 && body.error.kind == "recipient"`, Throttled: `status == 429`, Misconfigured: `status in [401, 403]`,
		Code: `body.error.name`, LookupPath: "/v2/orders?externalId={key}", LookupFound: `status == 200 && len(body.orders) == 1`,
		LookupTransactionKey: `body.orders[0].id`, LookupNotFound: `status == 200 && len(body.orders) == 0`,
	}
}

func compiled(t *testing.T, c Custom) *custom {
	t.Helper()
	p, problems := newCustom(c, obs.Log{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return p
}

// TestCustomBodies: whatever a payout holds, the body has the structure of the
// expression, and the values arrive unchanged.
func TestCustomBodies(t *testing.T) {
	t.Parallel()
	c := goodCustom()
	c.Path = "/v2/accounts/{userId}/orders?ref={userId}"
	p := compiled(t, c)
	rapid.Check(t, func(rt *rapid.T) {
		user, code := rapid.String().Draw(rt, "user"), rapid.StringMatching(`["\\{}\n,:a-z]*`).Draw(rt, "code")
		amount := rapid.Int64Range(0, int64(reward.AmountMax)).Draw(rt, "amount")
		q, err := p.request(Charge{PromotionID: 12, TargetID: 7, UserID: user, Amount: reward.Amount(amount), VoucherCode: code}, reward.Voucher, time.Now())
		if err != nil {
			if strings.ContainsAny(user, `/\`) || user == "" || user == "." || user == ".." || strings.ContainsFunc(user, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
				return
			}
			rt.Fatal(err)
		}
		req := fixture.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, "http://h"+q.path, nil))(rt)
		if req.URL.Path != "/v2/accounts/"+user+"/orders" || req.URL.Query().Get("ref") != user || len(req.URL.Query()) != 1 || req.URL.Fragment != "" {
			rt.Fatalf("%q became %q", user, q.path)
		}
		var body struct {
			ExternalID string                      `json:"externalId"`
			To         struct{ Name, Code string } `json:"to"`
			Value      json.Number                 `json:"value"`
			Kind       string                      `json:"kind"`
		}
		d := json.NewDecoder(strings.NewReader(string(q.body)))
		d.DisallowUnknownFields()
		if err := d.Decode(&body); err != nil || d.More() {
			rt.Fatalf("%s: %v", q.body, err)
		}
		want, _ := decimal(int(amount), 2)
		if body.To.Name != user || body.To.Code != code || body.ExternalID != "12:7" || body.Value.String() != want || body.Kind != "VOUCHER" {
			rt.Fatalf("%s", q.body)
		}
	})
}

func TestCustomFunctions(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`decimal(amount, 2)`:                          `"0.05"`,
		`[currency, decimal(amount, currencyDigits)]`: `["BHD","0.005"]`,
		`number(decimal(amount, 3))`:                  `0.005`,
		`decimal(amount, 0)`:                          `"5"`,
		`hash(key, 30)`:                               `"678a7cf2d37e2dd70cd53f8a53e82b"`,
		`uuid(key)`:                                   `"db4959ad-9d3f-5ac1-b281-727c70f7c3fa"`,
		`[userId, type]`:                              `["<u&>","POINT"]`,
		`type == "POINT" ? 1 : 2`:                     `1`,
	} {
		c := goodCustom()
		c.Body = body
		q := fixture.Must(compiled(t, c).request(Charge{PromotionID: 12, TargetID: 7, UserID: "<u&>", Amount: 5, Currency: "BHD"}, reward.Point, time.Now()))(t)
		if got := string(q.body); got != want {
			t.Errorf("%s is %s, want %s", body, got, want)
		}
	}
}

func TestCustomRules(t *testing.T) {
	t.Parallel()
	p := compiled(t, goodCustom())
	for name, tc := range map[string]struct {
		status int
		body   string
		want   reward.AnswerClass
		key    string
		code   string
	}{
		"paid":             {201, `{"state": "DONE", "id": "o-1"}`, reward.AnswerPaid, "o-1", ""},
		"a number as key":  {201, `{"state": "DONE", "id": 9007199254740993}`, reward.AnswerPaid, "9007199254740993", ""},
		"a larger number":  {201, `{"state": "DONE", "id": 123456789012345678901234567890}`, reward.AnswerPaid, "123456789012345678901234567890", ""},
		"two keys":         {201, `{"state": "DONE", "id": "o-1", "id": "o-2"}`, reward.AnswerUnknown, "", "HTTP_201"},
		"paid without key": {201, `{"state": "DONE"}`, reward.AnswerUnknown, "", CodeNoKey},
		"pending":          {201, `{"state": "PENDING", "id": "o-1"}`, reward.AnswerUnknown, "", "HTTP_201"},
		"other status":     {200, `{"state": "DONE", "id": "o-1"}`, reward.AnswerUnknown, "", "HTTP_200"},
		"refused":          {422, `{"error": {"kind": "recipient", "name": "CLOSED"}}`, reward.AnswerRefused, "", "CLOSED"},
		"other 422":        {422, `{"error": {"kind": "other"}, "code": "X"}`, reward.AnswerUnknown, "", "X"},
		"HTML":             {422, `<html>`, reward.AnswerUnknown, "", "HTTP_422"},
		"two values":       {422, `{"error": {"kind": "recipient"}} {}`, reward.AnswerUnknown, "", "HTTP_422"},
		"odd types":        {422, `{"error": 17}`, reward.AnswerUnknown, "", "HTTP_422"},
		"throttled":        {429, ``, reward.AnswerThrottled, "", "HTTP_429"},
		"wrong key":        {401, `{}`, reward.AnswerMisconfigured, "", "HTTP_401"},
		"failed":           {500, ``, reward.AnswerUnknown, "", "HTTP_500"},
		"unavailable":      {503, ``, reward.AnswerUnknown, "", "HTTP_503"},
	} {
		a := p.classify(reply{status: tc.status, body: []byte(tc.body)}, "k", time.Now())
		if a.Class != tc.want || a.TransactionKey != tc.key || a.Code != tc.code {
			t.Errorf("%s: %+v", name, a)
		}
		if a.WithoutKey() != (name == "paid without key") {
			t.Errorf("%s: WithoutKey is %t", name, a.WithoutKey())
		}
	}
	for name, tc := range map[string]struct {
		status   int
		body     string
		found    string
		notFound bool
		class    reward.AnswerClass
	}{
		"found":       {200, `{"orders": [{"id": "o-1"}]}`, "o-1", false, reward.AnswerPaid},
		"without key": {200, `{"orders": [{}]}`, "", false, reward.AnswerUnknown},
		"not found":   {200, `{"orders": []}`, "", true, reward.AnswerRefused},
		"two":         {200, `{"orders": [{}, {}]}`, "", false, reward.AnswerUnknown},
		"no list":     {200, `{}`, "", false, reward.AnswerUnknown},
		"404":         {404, `{"orders": []}`, "", false, reward.AnswerUnknown},
		"a charge":    {201, `{"state": "DONE", "id": "o-1"}`, "", false, reward.AnswerUnknown},
		"a refusal":   {422, `{"error": {"kind": "recipient"}}`, "", false, reward.AnswerUnknown},
		"wrong key":   {401, ``, "", false, reward.AnswerMisconfigured},
		"throttled":   {429, ``, "", false, reward.AnswerThrottled},
	} {
		r := p.classifyLookup(reply{status: tc.status, body: []byte(tc.body)}, "k", time.Now())
		if r.Found != (tc.found != "") || r.TransactionKey != tc.found || r.NotFound != tc.notFound || r.Answer.Class != tc.class || r.Answer.WithoutKey() {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

func TestCustomMessage(t *testing.T) {
	t.Parallel()
	c := goodCustom()
	c.Message = `body.error.text`
	p := compiled(t, c)
	for body, want := range map[string]string{
		`{"error": {"kind": "recipient", "text": "closed\u0007since\nMay"}}`:                "closed since May",
		`{"error": {"text": "` + strings.Repeat("x", 2*textMax) + `"}, "message": "other"}`: strings.Repeat("x", textMax),
		`{"error": {"text": 17}}`:                  "17",
		`{"error": {}, "message": "from a proxy"}`: "from a proxy",
		`<html>`: "<html>",
	} {
		r := reply{status: 422, body: []byte(body)}
		if got := p.classify(r, "k", time.Now()).Message; got != want {
			t.Errorf("%s: the message is %q, want %q", body, got, want)
		}
		if got := p.classifyLookup(r, "k", time.Now()).Answer.Message; got != want {
			t.Errorf("%s: the message of a lookup is %q, want %q", body, got, want)
		}
	}
}

// TestCustomMistakes: each mistake is found before anything is sent, and named.
func TestCustomMistakes(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change  func(c *Custom)
		setting string
		detail  string
	}{
		"method":              {func(c *Custom) { c.Method = "GET" }, "money.request.method", "POST or PUT"},
		"path":                {func(c *Custom) { c.Path = "v2/x" }, "money.request.path", "begin with /"},
		"path with space":     {func(c *Custom) { c.Path = "/v2/x y" }, "money.request.path", "as in a URL"},
		"fragment":            {func(c *Custom) { c.Path = "/v2/x#y" }, "money.request.path", "as in a URL"},
		"placeholder":         {func(c *Custom) { c.Path = "/v2/{user}" }, "money.request.path", "unknown placeholder {user}"},
		"user in a lookup":    {func(c *Custom) { c.LookupPath = "/v2/{userId}" }, "money.lookup.path", "unknown placeholder {userId}"},
		"user in a header":    {func(c *Custom) { c.Headers = "X-User: {userId}" }, "money.request.headers", "belong into the body"},
		"header":              {func(c *Custom) { c.Headers = "X-User" }, "money.request.headers", "Name: value"},
		"our header":          {func(c *Custom) { c.Headers = "Host: x" }, "money.request.headers", "must not have Host"},
		"header twice":        {func(c *Custom) { c.Headers = "X-A: 1\nx-a: 2" }, "money.request.headers", "X-A twice"},
		"body":                {func(c *Custom) { c.Body = `{"a": }` }, "money.request.body", "not a valid expression"},
		"no body":             {func(c *Custom) { c.Body = "" }, "money.request.body", "is missing"},
		"unknown name":        {func(c *Custom) { c.Body = `{"a": user}` }, "money.request.body", "unknown name user"},
		"time":                {func(c *Custom) { c.Body = `{"a": now()}` }, "money.request.body", "unknown name now"},
		"fails for some":      {func(c *Custom) { c.Body = `{"a": split(voucherCode, "}")[1]}` }, "money.request.body", "charge of type POINT"},
		"no JSON":             {func(c *Custom) { c.Body = `{"a": 1 / 0}` }, "money.request.body", "cannot be made"},
		"key":                 {func(c *Custom) { c.Key = `promotionId + "/" + targetId` }, "money.request.key", "letters, digits"},
		"key of a user":       {func(c *Custom) { c.Key = `userId` }, "money.request.key", "unknown name userId"},
		"key that is none":    {func(c *Custom) { c.Key = `17` }, "money.request.key", "not a valid expression"},
		"short hash":          {func(c *Custom) { c.Key = `hash(targetId, 8)` }, "money.request.key", "24 to 64"},
		"joined":              {func(c *Custom) { c.Key = `promotionId + targetId` }, "money.request.key", `1 and target 11, and promotion 11 and target 1, the same key "111"`},
		"joined with a digit": {func(c *Custom) { c.Key = `"k" + promotionId + "0" + targetId` }, "money.request.key", `1 and target 101, and promotion 101 and target 1, the same key`},
		"joined with zeros":   {func(c *Custom) { c.Key = `promotionId + "000" + targetId` }, "money.request.key", `the same key "100010001"`},
		"joined with 42":      {func(c *Custom) { c.Key = `hash(targetId + "-42" [1:] + promotionId, 24)` }, "money.request.key", "the same key"},
		"joined with parts":   {func(c *Custom) { c.Key = `let by = "0"; uuid(promotionId + by + "0" + repeat(by, 2) + targetId)` }, "money.request.key", "the same key"},
		"joined at length":    {func(c *Custom) { c.Key = `promotionId + "42424242424242424242" + targetId` }, "money.request.key", "the same key"},
		"joined in base64":    {func(c *Custom) { c.Key = `replace(toBase64(promotionId + "007" + targetId), "=", "")` }, "money.request.key", "the same key"},
		"a scale":             {func(c *Custom) { c.Key = `string(int(promotionId) % 1000003 * 5000 + int(targetId) % 1000003)` }, "money.request.key", "the same key"},
		"one ID":              {func(c *Custom) { c.Key = `"k-" + targetId` }, "money.request.key", "promotion 1 and target 0, and promotion 2 and target 0, the same key"},
		"a sum":               {func(c *Custom) { c.Key = `string(int(promotionId) % 1000003 + int(targetId) % 1000003)` }, "money.request.key", "the same key"},
		"a product":           {func(c *Custom) { c.Key = `string(int(promotionId) % 1000003 * (int(targetId) % 1000003))` }, "money.request.key", "the same key"},
		"floats":              {func(c *Custom) { c.Key = `string(int(float(promotionId))) + ":" + string(int(float(targetId)))` }, "money.request.key", "the same key"},
		"the first digits":    {func(c *Custom) { c.Key = `promotionId[:9] + ":" + targetId[:9]` }, "money.request.key", "the same key"},
		"the last digits":     {func(c *Custom) { c.Key = `promotionId[-9:] + ":" + targetId[-9:]` }, "money.request.key", "the same key"},
		"a remainder":         {func(c *Custom) { c.Key = `promotionId + ":" + string(int(targetId) % 1000000)` }, "money.request.key", "the same key"},
		"rule":                {func(c *Custom) { c.Paid = `status` }, "money.response.paid", "not a valid expression"},
		"no rule":             {func(c *Custom) { c.Paid = "" }, "money.response.paid", "is missing"},
		"no transaction":      {func(c *Custom) { c.TransactionKey = "" }, "money.response.transaction-key", "is missing"},
		"message":             {func(c *Custom) { c.Message = `body.` }, "money.response.message", "not a valid expression"},
		"refused":             {func(c *Custom) { c.Refused = `status = 4` }, "money.response.refused", "not a valid expression"},
		"lookup rule":         {func(c *Custom) { c.LookupNotFound = "" }, "money.lookup.not-found", "is missing"},
		"rule without lookup": {func(c *Custom) { c.LookupPath, c.WithoutLookup = "", CustomRepeat }, "money.lookup.found", "has no effect"},
		"no lookup": {func(c *Custom) {
			c.LookupPath, c.LookupFound, c.LookupTransactionKey, c.LookupNotFound = "", "", "", ""
		}, "money.lookup.without", "must be repeat"},
		"both":             {func(c *Custom) { c.WithoutLookup = CustomRepeat }, "money.lookup.without", "keep one"},
		"signature":        {func(c *Custom) { c.Signature = "body" }, "money.request.signature", "set all or none"},
		"header unsigned":  {func(c *Custom) { c.Headers = "X-S: {signature}" }, "money.request.signature", "set all or none"},
		"no signature key": {func(c *Custom) { c.Headers, c.Signature, c.SignatureKeyFile = "X-S: {signature}", "body", "/none" }, "money.request.signature-key-file", "cannot be read"},
	} {
		c := goodCustom()
		tc.change(&c)
		_, problems := CheckCustom(c)
		if len(problems) == 0 || problems[0].Setting != tc.setting || !strings.Contains(problems[0].Detail, tc.detail) || strings.Contains(problems[0].Detail, "\n") {
			t.Errorf("%s: %+v", name, problems)
		}
	}
}

// TestCustomKeys: keys that tell all payouts apart are accepted, also those whose
// literals have digits.
func TestCustomKeys(t *testing.T) {
	t.Parallel()
	for _, key := range []string{
		`promotionId + "-000-" + targetId`,
		`"v1:" + promotionId + ":" + targetId + "42"`,
		`promotionId + repeat("0", 19 - len(targetId)) + targetId`,
		`promotionId + "00000000000000000000" + targetId`,
		`hash("2026" + promotionId + "x7" + targetId, 32)`,
	} {
		c := goodCustom()
		c.Key = key
		if _, problems := CheckCustom(c); len(problems) > 0 {
			t.Errorf("%s: %v", key, problems)
		}
	}
}

// TestCustomPayable: what a request does not name makes no difference, so the
// promotions that need the difference are refused, and no charge of them is sent.
func TestCustomPayable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		path, headers, body string
		want                reward.Payable
	}{
		"all in the body":      {"/v2", "", `{"t": type, "c": {"code": lower(currency)}}`, reward.Payable{}},
		"neither":              {"/v2", "", `{"a": amount, "note": "type, currency"}`, reward.Payable{PointsOnly: true, SameCurrency: true}},
		"the code":             {"/v2?code={voucherCode}", "", `{"a": amount}`, reward.Payable{SameCurrency: true}},
		"the type in a path":   {"/v2/{type}", "", `{"a": amount}`, reward.Payable{SameCurrency: true}},
		"the type in headers":  {"/v2", "X-Kind: {type}", `{"a": currency}`, reward.Payable{}},
		"a field of that name": {"/v2", "", `{"type": 1, "currency": "EUR", "a": amount}`, reward.Payable{PointsOnly: true, SameCurrency: true}},
	} {
		c := goodCustom()
		c.Path, c.Headers, c.Body = tc.path, tc.headers, tc.body
		got, problems := CheckCustom(c)
		if len(problems) > 0 || !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, %v", name, got, problems)
		}
	}
	c := goodCustom()
	c.Path, c.Body = "/v2", `{"a": amount}`
	client := fixture.Must(New(Config{URL: "http://127.0.0.1:1", Custom: c}))(t)
	defer client.Close()
	a := client.ChargeVoucher(t.Context(), Charge{PromotionID: 12, TargetID: 7, UserID: "u", VoucherCode: "V"}, nil)
	if a.Class != reward.AnswerMisconfigured || a.Code != codeNotSendable || !strings.Contains(a.Message, "the type of the promotion must be POINT") {
		t.Errorf("%+v", a)
	}
}

// TestCustomCalls sends a charge and a lookup, both signed.
func TestCustomCalls(t *testing.T) {
	t.Parallel()
	var seen []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mac := hmac.New(sha256.New, []byte("secret"))
		_, _ = io.WriteString(mac, r.Method+"\n"+r.URL.RequestURI()+"\n"+r.Header.Get("X-Time")+"\n"+string(body))
		if r.Header.Get("X-Sign") != "v1="+base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		seen = append(seen, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("X-Api")+" "+string(body))
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"state": "DONE", "id": 5}`)
			return
		}
		_, _ = io.WriteString(w, `{"orders": [{"id": 5}]}`)
	}))
	defer server.Close()
	c := goodCustom()
	c.Method, c.Path, c.Body = "PUT", "/v2/orders/{key}", `{"to": userId}`
	c.Headers = "X-Time: {timestamp}\nX-Sign: v1={signature}"
	c.Signature = `method + "\n" + path + "\n" + timestamp + "\n" + body`
	c.SignatureKeyFile, c.SignatureEncoding = filepath.Join(t.TempDir(), "key"), "base64"
	fixture.OK(t, os.WriteFile(c.SignatureKeyFile, []byte("secret\n"), 0o600))
	client := fixture.Must(New(Config{URL: server.URL + "/api", Credentials: Credentials{Header: "X-Api: k"}, Custom: c}))(t)
	defer client.Close()
	checked := 0
	a := client.ChargePoint(t.Context(), Charge{PromotionID: 12, TargetID: 7, UserID: "<é>", Amount: 5}, func() error { checked++; return nil })
	found := client.Lookup(t.Context(), 12, 7)
	want := `PUT /api/v2/orders/12:7 k {"to":"<é>"},GET /api/v2/orders?externalId=12%3A7 k `
	if a.Class != reward.AnswerPaid || a.TransactionKey != "5" || !found.Found || checked != 1 || strings.Join(seen, ",") != want {
		t.Errorf("%+v, %+v, %d checks, %q", a, found, checked, seen)
	}
}
