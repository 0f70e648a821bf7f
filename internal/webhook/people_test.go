package webhook

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

func TestEveryLanguageHasAllWords(t *testing.T) {
	t.Parallel()
	english := reflect.ValueOf(languages[defaultLanguage])
	for name, w := range languages {
		for i, v := 0, reflect.ValueOf(w); i < v.NumField(); i++ {
			field, text, want := v.Type().Field(i).Name, v.Field(i).String(), english.Field(i).String()
			if text == "" || strings.Count(text, "%") != strings.Count(want, "%") {
				t.Errorf("%s: %s is %q, in English %q", name, field, text, want)
			}
		}
	}
}

// asked is the time of every event.
var asked = time.Date(2026, 12, 3, 0, 30, 0, 0, time.UTC)

var seoul = time.FixedZone("", 9*60*60)

// noteFor returns the message for data as plain text.
func noteFor(t *testing.T, event, language string, data any) note {
	t.Helper()
	body := fixture.Must(json.Marshal(message{Type: event, Timestamp: asked, Data: data}))(t)
	return fixture.Must(describe(body, language, "https://rewards.example/", seoul))(t)
}

func TestWhatPeopleRead(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 4, 1, 0, 0, 0, time.UTC)
	moment := "2026-12-04 10:00"
	spring := PromotionData{
		ID: "7", Name: "Spring", Type: "POINT", TotalCount: 3000, AmountTotal: 1_500_000, AmountSucceeded: 500_000, Currency: "KRW", StartsAt: at, CreatedBy: "marta",
		Counts: map[string]int64{"succeeded": 1000, "failed": 40}, Status: "PAUSED", PauseReason: "the canary is bad:\n 6 of the first 10 failed", ApprovedCount: 2000, ApprovedAmount: 1_000_000,
	}
	finished := spring
	finished.PauseReason, finished.FinishedAt = "", at
	drop := TemplateData{ID: "42", Name: "Drop", TotalQuantity: 10_000, AwaitingQuantity: 50_000, OpensAt: at}
	for _, c := range []struct {
		event, language string
		data            any
		want            string
	}{
		{"promotion.approval_needed", "", spring, "Approval needed: Spring\n\nAmount: 1,500,000 KRW\nPeople: 3,000\nStarts: " + moment +
			"\nCreated by: marta\nApproved so far: 1,000,000 KRW, People: 2,000\nAsked at: 2026-12-03 09:30\n\nOpen in the console: https://rewards.example/#/approvals/7\n"},
		{"promotion.paused", "en", spring, "Paused by Largesse: Spring\n\nReason: the canary is bad: 6 of the first 10 failed\nPaid: 500,000 KRW of 1,500,000 KRW\nPeople: 1,000 of 3,000\n" +
			"Failed: 40\n\nOpen in the console: https://rewards.example/#/promotions/7\n"},
		{"promotion.paused", "ko", spring, "Largesse가 일시중지했습니다: Spring\n\n사유: 먼저 지급한 대상이 너무 많이 실패했습니다.\n지급됨: 1,500,000원 중 500,000원\n인원: 3,000명 중 1,000명\n" +
			"실패: 40명\n\n콘솔에서 열기: https://rewards.example/#/promotions/7\n"},
		{"promotion.completed", "en", finished, "Finished: Spring\n\nPaid: 500,000 KRW of 1,500,000 KRW\nPeople: 1,000 of 3,000\nFailed: 40\nEnded at: " + moment +
			"\n\nOpen in the console: https://rewards.example/#/promotions/7\n"},
		{"balance.breach", "en", PromotionData{ID: "8"}, "The books do not balance: 8\n\nPeople: 0 of 0\n\nOpen in the console: https://rewards.example/#/promotions/8\n"},
		{"coupon.sold_out", "en", drop, "Sold out: Drop\n\nCoupons: 10,000\nOpened: " + moment + "\n\nOpen in the console: https://rewards.example/#/coupons/42\n"},
		{"coupon.approval_needed", "ko", drop, "승인이 필요합니다: Drop\n\n현재 쿠폰 수: 10,000\n요청한 쿠폰 수: 50,000\n시작: " + moment + "\n요청 시각: 2026-12-03 09:30\n\n콘솔에서 열기: https://rewards.example/#/coupons/42\n"},
		{"webhook.test", "ko", EndpointData{"3"}, "Largesse에서 보낸 테스트 메시지입니다.\n\n\n콘솔에서 열기: https://rewards.example/#/webhooks\n"},
	} {
		n := noteFor(t, c.event, c.language, c.data)
		if got := n.text(); got != c.want {
			t.Errorf("%s in %q:\n%s\nwant\n%s", c.event, c.language, got, c.want)
		}
	}
	body := fixture.Must(json.Marshal(message{Type: "coupon.sold_out", Data: drop}))(t)
	if n := fixture.Must(describe(body, "en", "", nil))(t); !strings.Contains(n.text(), "Opened: "+at.Local().Format("2006-01-02 15:04 (UTC-07:00)")) {
		t.Errorf("a zone that nobody chose is not named:\n%s", n.text())
	}
	for _, event := range reward.PeopleEvents {
		if n := noteFor(t, event, "en", struct{}{}); strings.Contains(n.title, "%!") || n.title == "" {
			t.Errorf("%s: %q", event, n.title)
		}
	}
}

func TestSlackMessages(t *testing.T) {
	t.Parallel()
	n := note{title: "Paused: <!channel> & co", lines: []noteLine{{"Reason", "<https://evil.example|click>"}}, link: "https://rewards.example/#/promotions/7", open: "Open"}
	want := `{"text":"*Paused: &lt;!channel&gt; &amp; co*\nReason: &lt;https://evil.example|click&gt;\n<https://rewards.example/#/promotions/7|Open>","blocks":[` +
		`{"type":"section","text":{"type":"mrkdwn","text":"*Paused: &lt;!channel&gt; &amp; co*"}},` +
		`{"type":"section","fields":[{"type":"mrkdwn","text":"*Reason*\n&lt;https://evil.example|click&gt;"}]},` +
		`{"type":"section","text":{"type":"mrkdwn","text":"<https://rewards.example/#/promotions/7|Open>"}}]}`
	var got, wanted any
	fixture.OK(t, json.Unmarshal(fixture.Must(n.slack())(t), &got))
	fixture.OK(t, json.Unmarshal([]byte(want), &wanted))
	fixture.Equal(t, fmt.Sprint(wanted), fmt.Sprint(got))
}
