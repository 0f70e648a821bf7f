package money

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/internal/reward"
)

// listing is a provider that answers everything alike, and passes on
// what was asked.
func listing(t testing.TB, status int, body string) (c *Client, asked chan string) {
	t.Helper()
	asked = make(chan string, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.RequestURI
		w.Header().Set("Retry-After", "3")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(srv.Close)
	return newClient(t, Config{URL: srv.URL + "/money"}), asked
}

func TestCharges(t *testing.T) {
	t.Parallel()
	c, asked := listing(t, 200, `{"charges":[
		{"idempotencyKey":"7:0","promotionId":"7","targetId":"0","amount":10,"transactionKey":"T1","type":"POINT"},
		{"idempotencyKey":"7:9223372036854775807","amount":0,"transactionKey":12},
		{"idempotencyKey":"7:0","amount":10}
	],"nextCursor":"a b&c","total":3}`)
	got, err := c.Charges(t.Context(), 7, "")
	want := ChargesPage{NextCursor: "a b&c", Charges: []ListedCharge{
		{PromotionID: 7, TargetID: 0, Amount: 10, TransactionKey: "T1"},
		{PromotionID: 7, TargetID: 9223372036854775807, TransactionKey: "12"},
		{PromotionID: 7, TargetID: 0, Amount: 10},
	}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, page (-want +got):\n%s", err, diff)
	}
	if _, err := c.Charges(t.Context(), 7, "x?/ü"); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"GET /money/v1/charges?limit=1000&promotionId=7",
		"GET /money/v1/charges?cursor=x%3F%2F%C3%BC&limit=1000&promotionId=7",
	} {
		if got := <-asked; got != want {
			t.Errorf("asked %s, want %s", got, want)
		}
	}
}

func TestChargesThatAreNotListed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{404, 405, 501} {
		for _, body := range []string{"", `{"code":"NO"}`} {
			c, _ := listing(t, status, body)
			if page, err := c.Charges(t.Context(), 7, ""); !errors.Is(err, ErrNoCharges) || len(page.Charges) > 0 {
				t.Errorf("%d %q: %+v, %v", status, body, page, err)
			}
		}
	}
}

func TestChargesThatFail(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		body   string
		class  reward.AnswerClass
		code   string
	}{
		{401, ``, reward.AnswerMisconfigured, "HTTP_401"},
		{429, `{"code":"SLOW"}`, reward.AnswerThrottled, "SLOW"},
		{503, ``, reward.AnswerThrottled, "HTTP_503"},
		{500, ``, reward.AnswerFailed, "HTTP_500"},
		{400, `{"code":"BAD_CURSOR"}`, reward.AnswerRefused, "BAD_CURSOR"},
		{409, `{"transactionKey":"T1"}`, reward.AnswerUnknown, CodeBadPage},
		{204, ``, reward.AnswerUnknown, "HTTP_204"},
	} {
		client, _ := listing(t, c.status, c.body)
		_, err := client.Charges(t.Context(), 7, "")
		var failed *ChargesError
		if !errors.As(err, &failed) || failed.Answer.Class != c.class || failed.Answer.Code != c.code || failed.Answer.Status != c.status {
			t.Errorf("%d %s: %v", c.status, c.body, err)
			continue
		}
		if !strings.HasPrefix(err.Error(), "list the provider's charges: ") || c.class == reward.AnswerThrottled && failed.Answer.RetryAfter != 3*time.Second {
			t.Errorf("%d %s: %v, Retry-After %v", c.status, c.body, err, failed.Answer.RetryAfter)
		}
	}
	c, _ := listing(t, 200, `{"charges":[]}`)
	c.Close()
	if _, err := c.Charges(t.Context(), 7, ""); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Nothing is taken from a page with anything odd in it.
func TestChargesRefuseOddPages(t *testing.T) {
	t.Parallel()
	good := `{"idempotencyKey":"7:1","amount":10,"transactionKey":"T1"}`
	page := func(item string) string { return `{"charges":[` + good + "," + item + `]}` }
	for name, body := range map[string]string{
		"nothing":          ``,
		"no list":          `{}`,
		"null":             `{"charges":null}`,
		"no JSON":          `<html>`,
		"cut off":          `{"charges":[` + good,
		"two values":       `{"charges":[]}{}`,
		"another's":        page(`{"idempotencyKey":"8:1","amount":10}`),
		"no key":           page(`{"amount":10}`),
		"half a key":       page(`{"idempotencyKey":"7","amount":10}`),
		"odd key":          page(`{"idempotencyKey":"7:01","amount":10}`),
		"another spelling": page(`{"idempotencyKey":"7:2","Amount":10}`),
		"two amounts":      page(`{"idempotencyKey":"7:2","amount":10,"amount":20}`),
		"no amount":        page(`{"idempotencyKey":"7:2"}`),
		"amount below 0":   page(`{"idempotencyKey":"7:2","amount":-1}`),
		"broken amount":    page(`{"idempotencyKey":"7:2","amount":1.5}`),
		"amount as text":   page(`{"idempotencyKey":"7:2","amount":"10"}`),
		"the same cursor":  `{"charges":[],"nextCursor":"here"}`,
		"a long cursor":    `{"charges":[],"nextCursor":"` + strings.Repeat("x", cursorMax+1) + `"}`,
		"too many charges": `{"charges":[` + strings.Repeat(good+",", chargesMax) + good + `]}`,
		"too many bytes":   `{"charges":[]` + strings.Repeat(" ", pageMax) + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := listing(t, 200, body)
			got, err := c.Charges(t.Context(), 7, "here")
			var failed *ChargesError
			if !errors.As(err, &failed) || failed.Answer.Class != reward.AnswerUnknown || failed.Answer.Code != CodeBadPage || len(got.Charges) > 0 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	t.Run("but not full ones", func(t *testing.T) {
		t.Parallel()
		long := fmt.Sprintf(`{"idempotencyKey":"7:9223372036854775807","amount":9223372036854775807,"transactionKey":%q}`, strings.Repeat("x", textMax))
		c, _ := listing(t, 200, `{"charges":[`+strings.Repeat(long+",", chargesMax-1)+long+`]}`)
		if got, err := c.Charges(t.Context(), 7, "here"); err != nil || len(got.Charges) != chargesMax {
			t.Errorf("%d charges, %v", len(got.Charges), err)
		}
	})
}
