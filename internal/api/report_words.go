package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/largesse/largesse/internal/reward"
)

// words are what a report file says in a language.
type words struct {
	zone  *time.Location
	texts map[string]string // by the English ones; nil in English
	codes map[string]string // as the console has them, by group and code
}

// wordsFor returns the words for a file that a query asks for; after an error, those of English.
func (a *API) wordsFor(q url.Values) (*words, error) {
	language, err := eitherOf(q, "language", "en", "ko")
	if err != nil {
		return new(words), err
	}
	zone, err := (&ReportQuery{Zone: q.Get("zone")}).zone()
	w := &words{zone: zone}
	if err == nil && language == "ko" {
		w.texts, w.codes = koreanReport, a.cfg.Texts(language)
	}
	return w, err
}

// say returns a text of a report.
func (w *words) say(text string) string { return cmp.Or(w.texts[text], text) }

// code returns a code as the console shows it, or the code itself.
func (w *words) code(group, code string) string { return cmp.Or(w.codes[group+"."+code], code) }

// reason returns why a payout failed, and what explains it. Only in English is it the code,
// which programs may look for.
func (w *words) reason(code, example string) (item, detail string) {
	if w.texts == nil {
		return code, example
	}
	return cmp.Or(w.codes["answer."+code], example, code), ""
}

// days returns a section of days in a zone.
func (w *words) days(section, zone string) string {
	if w.texts != nil && zone == "Asia/Seoul" {
		zone = "한국 시간"
	}
	return w.say(section) + " (" + zone + ")"
}

// moment returns a time in the zone of the report.
func (w *words) moment(at time.Time) string {
	if w.texts != nil {
		return at.In(w.zone).Format(time.DateTime)
	}
	return at.In(w.zone).Format(time.RFC3339)
}

// rest returns what the payouts are called that no reason or day has.
func (w *words) rest(counting bool) string {
	if counting {
		return w.say("being counted")
	}
	return w.say("other")
}

// latency returns milliseconds as a report has them: in Korean, as seconds.
func (w *words) latency(millis *float64) *float64 {
	if w.texts == nil || millis == nil {
		return millis
	}
	return new(max(math.Round(*millis), 1) / 1000)
}

// unit returns what the amounts of a kind of promotion are in.
func (w *words) unit(currency, kind string) string {
	switch {
	case w.texts == nil:
		return currency
	case currency == "" && kind == string(reward.Point):
		return w.code("kind", kind)
	}
	return cmp.Or(koreanUnits[currency], currency)
}

// changes says which settings a change has set, and to what.
func (w *words) changes(set map[string]any, currency string) string {
	if changed, ok := set["currency"].(string); ok {
		currency = changed
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(set)) {
		parts = append(parts, cmp.Or(w.codes[settingTexts[name]], name)+": "+w.setting(name, set[name], currency))
	}
	return strings.Join(parts, ", ")
}

func (w *words) setting(name string, value any, currency string) string {
	switch v := value.(type) {
	case string:
		if at, err := time.Parse(time.RFC3339, v); err == nil && strings.HasSuffix(name, "At") {
			return w.moment(at)
		}
		if name == "currency" {
			return w.unit(v, "")
		}
		return cmp.Or(v, w.say("none"))
	case json.Number:
		if n, err := v.Int64(); err == nil && (name == "amount" || name == "maxAmount") {
			return w.money(reward.Amount(n), currency)
		}
		return v.String()
	case map[string]any:
		if rate, ok := v["maxFailureRate"].(json.Number); ok && name == "canary" {
			share, _ := rate.Float64() // it was checked
			return fmt.Sprintf(w.say("%v first, pause if more than %v %% fail"), v["targets"], math.Round(share*1e4)/100)
		}
		var parts []string
		for _, key := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, key+": "+w.setting("", v[key], ""))
		}
		return strings.Join(parts, ", ")
	}
	return w.say("none")
}

// money returns an amount in a sentence.
func (w *words) money(amount reward.Amount, currency string) string {
	if unit := w.unit(currency, ""); unit != currency {
		return strings.TrimSuffix(amount.In(currency), " "+currency) + unit
	}
	return amount.In(currency)
}

func (w *words) duration(d time.Duration) string {
	if w.texts == nil {
		return d.String()
	}
	return strings.NewReplacer("h", "시간 ", "m", "분 ", "s", "초").Replace(d.Truncate(time.Second).String())
}

// settingTexts are the texts of the console for the settings of a promotion.
var settingTexts = map[string]string{
	"name": "field.name", "ratePerSecond": "field.rate", "weight": "field.weight", "maxAmount": "field.budget", "maxRetries": "field.retries", "amount": "field.amount",
	"voucherCode": "field.voucher", "currency": "field.currency", "canary": "fact.canary", "startsAt": "field.starts", "endsAt": "campaign.ends", "notes": "campaign.notes",
	"metadata": "field.metadata",
}

// koreanUnits are currencies as people say them.
var koreanUnits = map[string]string{"KRW": "원", "USD": "달러", "EUR": "유로", "JPY": "엔"}

// koreanReport has every text that promotionLines and templateLines say.
var koreanReport = map[string]string{
	"section": "구분", "item": "항목", "count": "건수", "amount": "금액", "currency": "통화", "detail": "내용", "Report": "보고서",

	"promotion": "프로모션", "template": "쿠폰 행사", "id": "번호", "name": "이름", "type": "유형", "status": "상태",
	"times": "시각", "report": "보고서 작성", "created": "생성", "started": "시작", "finished": "완료", "paused": "일시중지", "ends": "종료 예정", "run": "걸린 시간(일시중지 포함)",
	"opens": "시작", "closes": "종료", "sold out after": "소진까지 걸린 시간",
	"totals": "합계", "targets": "대상", "paid": "지급됨", "refused or failed": "실패", "unknown": "확인 중", "cancelled": "취소됨", "remaining": "남은 지급", "budget": "예산",
	"errors": "실패 사유", "paid by day": "날짜별 지급", "being counted": "집계 중", "other": "기타",
	"speed": "속도", "payouts per second": "평균, 초당 지급(일시중지 포함)", "payouts per second, best %d s": "초당 지급, 가장 빠른 %d초",
	"provider, median in ms": "한 건 지급에 걸린 시간, 절반이 이보다 빠름(초)", "provider, 95 % below, in ms": "한 건 지급에 걸린 시간, 100건 중 95건이 이보다 빠름(초)",
	"approval": "승인", "notes": "메모", "actions": "작업 이력", "none": "없음", "%v first, pause if more than %v %% fail": "%v명에게 먼저 지급하고, %v%% 넘게 실패하면 일시중지",

	"quantity": "수량", "quantity that waits for approval": "승인을 기다리는 수량", "issued": "발급됨", "not cancelled": "취소되지 않음", "left": "남은 수량", "waiting": "대기 중",
	"coupons": "쿠폰", "not used": "사용 전", "used": "사용됨", "expired": "만료됨", "held, not confirmed yet": "확정 대기", "cancelled, because nobody confirmed them": "확정하지 않아 취소됨", "cancelled by": "취소한 사람",
	"requests": "신청", "answered": "처리한 신청", "refused": "거절된 신청", "most people in line": "가장 길었던 대기 줄(명)",
	"refused requests": "거절 사유별 신청", "reason not recorded": "사유 미기록",
	"admitted requests without a coupon": "접수했지만 발급되지 않은 신청", "refusals": "신청을 거절한 기간", "now": "지금", "%s to %s": "%s ~ %s",
	"issued in the first minutes": "처음 10분의 발급", "in %d s, of %d requests, %d refused": "%d초 동안 신청 %d건, 거절 %d건",
	"most coupons in %d s": "%d초 동안 가장 많은 발급", "issued by day": "날짜별 발급", "requests by day": "날짜별 신청", "refused by day": "날짜별 거절",
}
