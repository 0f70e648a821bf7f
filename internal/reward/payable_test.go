package reward

import (
	"strings"
	"testing"
)

func TestPayable(t *testing.T) {
	t.Parallel()
	points, euros := Payable{PointsOnly: true, SameCurrency: true}, Payable{Currencies: []string{"EUR", "KRW"}}
	for _, tt := range []struct {
		provider Payable
		kind     PromotionType
		currency string
		want     string // field and a part of the detail; "": it is paid
	}{
		{Payable{}, Point, "JPY", ""},
		{Payable{}, Voucher, "", ""},
		{points, Point, "", ""},
		{points, Point, NoCurrency, ""},
		{points, Voucher, "", "type must be POINT"},
		{points, Point, "JPY", "currency cannot be JPY"},
		{euros, Point, "KRW", ""},
		{euros, Voucher, "", ""},
		{euros, Point, "JPY", "currency must be one that the provider pays, not JPY: money.currencies has EUR, KRW"},
		{euros, Voucher, "JPY", "currency must be one that the provider pays, not JPY"},
		{euros, Point, "", "currency is missing: the provider pays EUR, KRW"},
		{Payable{Currencies: []string{NoCurrency}}, Point, "", ""},
		{Payable{Currencies: []string{"EUR"}, SameCurrency: true}, Point, "EUR", ""},
		{Payable{Currencies: []string{"EUR"}, SameCurrency: true}, Point, "USD", "currency must be one that the provider pays, not USD"},
	} {
		got := ""
		if wrong := tt.provider.Check(tt.kind, tt.currency); wrong != nil {
			got = wrong.Field + " " + wrong.Detail
		}
		if !strings.HasPrefix(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%+v, %s in %q: %q, not %q", tt.provider, tt.kind, tt.currency, got, tt.want)
		}
	}
}

func TestPayableLimits(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]Payable{
		"": {},
		"promotions of type POINT in no currency":          {PointsOnly: true, SameCurrency: true},
		"promotions of type POINT in any currency":         {PointsOnly: true},
		"promotions of type POINT and VOUCHER in EUR, KRW": {Currencies: []string{"EUR", "KRW"}},
	} {
		if got := p.Limits(); got != want {
			t.Errorf("%+v: %q, not %q", p, got, want)
		}
	}
	if got := (Payable{Currencies: []string{NoCurrency, "EUR"}}).First(); got != "" {
		t.Error(got)
	}
	if got := (Payable{Currencies: []string{"EUR"}}).First(); got != "EUR" {
		t.Error(got)
	}
}
