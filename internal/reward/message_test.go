package reward

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParsePublishMessage(t *testing.T) {
	t.Parallel()

	t.Run("ReadsWhatOtherSystemsWrite", func(t *testing.T) {
		t.Parallel()
		tests := []struct {
			kind PromotionType
			in   string
			want PublishMessage
		}{
			{
				Point, `{"promotionId":1,"promotionSummaryId":1,"targetId":7,"userId":"u7","amount":1000}`,
				PublishMessage{PromotionID: 1, SummaryID: 1, TargetID: 7, UserID: "u7", Amount: 1000},
			},
			{ // ids as strings, a target 0, no user, a field of others
				Point, `{"promotionId":"1","targetId":"0","amount":5,"color":"red"}`,
				PublishMessage{PromotionID: 1, TargetID: 0, UserID: "0", Amount: 5},
			},
			{
				Voucher, `{"promotionId":1,"promotionSummaryId":null,"targetId":7,"userId":"u7","voucherCode":"V-1"}`,
				PublishMessage{PromotionID: 1, TargetID: 7, UserID: "u7", VoucherCode: "V-1"},
			},
			{ // points have no voucher
				Point, `{"promotionId":1,"targetId":7,"userId":12,"amount":1000000000000000,"voucherCode":["V"]}`,
				PublishMessage{PromotionID: 1, TargetID: 7, UserID: "12", Amount: AmountMax},
			},
			{
				Voucher, `{"promotionId":1,"targetId":7,"amount":"+05","voucherCode":"=V"}`,
				PublishMessage{PromotionID: 1, TargetID: 7, UserID: "7", Amount: 5, VoucherCode: "=V"},
			},
		}
		for _, test := range tests {
			got, err := ParsePublishMessage(test.kind, []byte(test.in))
			if err != nil {
				t.Errorf("%s: %v", test.in, err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s differs (-want +got):\n%s", test.in, diff)
			}
		}
	})

	t.Run("RefusesWhatCannotBePaid", func(t *testing.T) {
		t.Parallel()
		const long = 256
		tests := []struct {
			kind     PromotionType
			in, says string
		}{
			{Point, ``, "empty"},
			{Point, " \n", "empty"},
			{Point, `{`, "JSON"},
			{Point, `[]`, "not a JSON object"},
			{Point, `{"promotionId":1,"targetId":7,"amount":1,"userId":5.0}`, "userId must be a string"},
			{Point, `{"promotionId":1,"targetId":7,"amount":"5 000"}`, "whole number"},
			{Voucher, `{"promotionId":1,"targetId":7,"voucherCode":5}`, "voucherCode must be a string"},
			{Voucher, `{"promotionId":1,"targetId":7,"voucherCode":"V\r"}`, "control character"},
			{Point, `{"promotionId":1,"targetId":7,"amount":true}`, "BAD_AMOUNT"},
			{Point, `{"promotionId":1,"targetId":7,"amount":1000000000000001}`, "from 1 to 1000000000000000"},
			{Voucher, `{"promotionId":1,"targetId":7,"amount":1000000000000001,"voucherCode":"V"}`, "from 0 to 1000000000000000"},
			{Point, "\"\xff\"", "UTF-8"},
			{Point, `{"userId":"` + strings.Repeat("x", MessageMax) + `"}`, "more than"},
			{Point, `{"targetId":7,"amount":1}`, "promotionId is missing"},
			{Point, `{"promotionId":1,"amount":1}`, "targetId is missing"},
			{Point, `{"promotionId":1,"targetId":7}`, "amount is missing"},
			{Point, `{"promotionId":0,"targetId":7,"amount":1}`, "from 1 to 9223372036854775807"},
			{Point, `{"promotionId":1,"targetId":-7,"amount":1}`, "target ID"},
			{Point, `{"promotionId":1,"targetId":7.5,"amount":1}`, "target ID"},
			{Point, `{"promotionId":1,"targetId":7,"amount":0}`, "from 1 to"},
			{Point, `{"promotionId":1,"targetId":7,"amount":1.5}`, "whole number"},
			{Point, `{"promotionId":1,"targetId":7,"amount":1e3}`, "whole number"},
			{Point, `{"promotionId":1,"targetId":7,"amount":9223372036854775808}`, "whole number"},
			{Point, `{"promotionId":1,"targetId":7,"amount":1,"userId":"a\u0000b"}`, "U+0000"},
			{Point, `{"promotionId":1,"targetId":7,"amount":1,"userId":"` + strings.Repeat("u", long) + `"}`, "userId is longer"},
			{Voucher, `{"promotionId":1,"targetId":7}`, "voucherCode is missing"},
			{Voucher, `{"promotionId":1,"targetId":7,"voucherCode":"` + strings.Repeat("v", long) + `"}`, "voucherCode is longer"},
		}
		for _, test := range tests {
			got, err := ParsePublishMessage(test.kind, []byte(test.in))
			if err == nil || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "Go ") {
				t.Errorf("%.80q: error %v, want one that says %q", test.in, err, test.says)
			}
			if got != (PublishMessage{}) {
				t.Errorf("%.80q left %+v beside its error", test.in, got)
			}
		}
	})
}

func TestParseStartedMessage(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"POINT", "point"} {
		got, err := ParseStartedMessage([]byte(`{"promotionId":1,"promotionType":"` + kind + `","totalCount":100000}`))
		if want := (StartedMessage{1, Point, 100_000}); err != nil || got != want {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
	}
}

func TestParseRetryMessage(t *testing.T) {
	t.Parallel()
	want := RetryMessage{
		PublishMessage: PublishMessage{PromotionID: 1, SummaryID: 2, TargetID: 3, UserID: "u", Amount: 4},
		RetryCount:     2, NotBefore: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC), LastError: "HTTP_500", Dispatch: 3,
	}
	written, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseRetryMessage(written)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("it differs from what was written (-want +got):\n%s", diff)
	}
}
