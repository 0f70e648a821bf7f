package webhook

import "time"

// words are the texts of messages to people in one language. Those with %s have the name of
// a promotion or coupon template.
type words struct {
	approvalNeeded, paused, finished, breach, soldOut, test string

	// Labels.
	amount, people, starts, createdBy, asked, approved, reason, paid, failed, finishedAt, coupons, inForce, wanted, opened, open string

	partOf string // %[1]s of %[2]s
	each   string // a number of people

	won  string         // behind amounts of KRW
	zone *time.Location // of times

	// causes are sentences for the causes of reward.PauseCause, of which the reason of a pause
	// is one in English.
	causes map[string]string
}

// defaultLanguage is that of endpoints without one.
const defaultLanguage = "en"

// languages has the words by the language of an endpoint.
var languages = map[string]words{
	"en": {
		approvalNeeded: "Approval needed: %s", paused: "Paused by Largesse: %s", finished: "Finished: %s", breach: "The books do not balance: %s",
		soldOut: "Sold out: %s", test: "This is a test message from Largesse.",
		amount: "Amount", people: "People", starts: "Starts", createdBy: "Created by", asked: "Asked at", approved: "Approved so far", reason: "Reason", paid: "Paid",
		failed: "Failed", finishedAt: "Ended at", coupons: "Coupons", inForce: "Coupons now", wanted: "Coupons wanted", opened: "Opened",
		open: "Open in the console", partOf: "%[1]s of %[2]s", won: " KRW", each: "%s",
	},
	"ko": {
		approvalNeeded: "승인이 필요합니다: %s", paused: "Largesse가 일시중지했습니다: %s", finished: "완료되었습니다: %s", breach: "장부가 맞지 않습니다: %s",
		soldOut: "모두 소진되었습니다: %s", test: "Largesse에서 보낸 테스트 메시지입니다.",
		amount: "금액", people: "인원", starts: "시작", createdBy: "만든 사람", asked: "요청 시각", approved: "지금까지 승인됨", reason: "사유", paid: "지급됨",
		failed: "실패", finishedAt: "종료 시각", coupons: "쿠폰 수", inForce: "현재 쿠폰 수", wanted: "요청한 쿠폰 수", opened: "시작",
		open: "콘솔에서 열기", partOf: "%[2]s 중 %[1]s", won: "원", each: "%s명",
		causes: map[string]string{
			"budget": "다음 지급이 예산을 넘습니다.", "failures": "최근 지급이 너무 많이 실패했습니다.", "approval": "다른 담당자의 승인이 필요합니다.",
			"ended": "종료 시각이 되었습니다.", "canary": "먼저 지급한 대상이 너무 많이 실패했습니다.", "outcomes": "지급 결과를 저장할 수 없습니다.",
			"books": "지급 시스템의 지급 내역과 맞지 않습니다.", "provider": "지급 시스템의 설정을 확인해야 합니다.",
		},
	},
}
