package api

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
)

// ListWords are the words and times of a list as CSV.
type ListWords struct {
	Language string `query:"language" enum:"en,ko" default:"en" doc:"Of CSV: en has the codes and times of the API, ko what people read"`
	Zone     string `query:"zone" maxLength:"100" doc:"Of the times in another language than en; absent: UTC" example:"Asia/Seoul"`
}

// exportList answers with a list as CSV, whose columns have names for programs and for people.
func (a *API) exportList(w http.ResponseWriter, r *http.Request, name string, columns, forPeople []string, export func(*web.CSV, *words) error) {
	words, err := a.wordsFor(r.URL.Query())
	out := web.NewCSV(w, name+".csv", words.columns(columns, forPeople)...)
	if err == nil {
		err = export(out, words)
	}
	a.EndCSV(out, r, err)
}

// columns returns the names of columns: those of the API in English, otherwise those for
// people, in which times name their zone.
func (w *words) columns(english, others []string) []string {
	if w.texts == nil {
		return english
	}
	return mapped(others, func(name string) string {
		if strings.HasSuffix(name, "시각") {
			return w.days(name, w.zone.String())
		}
		return name
	})
}

var koreanPayouts = []string{"번호", "고객 번호", "금액", "통화", "바우처 코드", "상태", "시도 횟수", "거래 번호", "사유", "시각"}

func (w *words) payout(p client.Payout) []string {
	attempts := strconv.FormatInt(p.AttemptCount, 10)
	if w.texts == nil {
		return []string{p.TargetID, p.UserID, strconv.FormatInt(p.Amount, 10), p.VoucherCode, p.State, attempts, p.TransactionKey, p.ErrorCode, p.ErrorMessage, p.UpdatedAt.Format(time.RFC3339Nano)}
	}
	why, _ := w.reason(p.ErrorCode, p.ErrorMessage)
	return []string{p.TargetID, p.UserID, reward.Amount(p.Amount).Decimal(p.Currency), w.unit(p.Currency, ""), p.VoucherCode, w.code("state", p.State), attempts, p.TransactionKey, why, w.moment(p.UpdatedAt)}
}

var koreanCoupons = []string{"쿠폰 번호", "순번", "고객 번호", "코드", "상태", "발급 시각", "확정 마감 시각", "사용 시각", "취소 시각", "취소 사유", "취소한 사람", "만료 시각"}

func (w *words) coupon(c *client.Coupon) []string {
	at := func(t *time.Time) string {
		switch {
		case t == nil:
			return ""
		case w.texts == nil:
			return t.Format(time.RFC3339Nano)
		}
		return w.moment(*t)
	}
	return []string{
		c.ID, strconv.FormatInt(c.Ticket, 10), c.UserID, c.Code, w.code("state", c.Status), at(&c.IssuedAt), at(c.HeldUntil), at(c.UsedAt), at(c.CancelledAt),
		w.code("end", c.Reason), c.CancelledBy, at(c.ExpiresAt),
	}
}
