package reward

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Payable says which promotions a provider can pay. The zero value stands for all.
type Payable struct {
	// PointsOnly means that charges of vouchers would be requests for points.
	PointsOnly bool
	// SameCurrency means that charges in all currencies would be the same request.
	SameCurrency bool
	// Currencies are those that the provider pays, NoCurrency for points. Empty: any.
	Currencies []string
}

// Limits describes the promotions that the provider can pay, or is "" for all.
func (p Payable) Limits() string {
	kinds, in := "POINT and VOUCHER", "any currency"
	if p.PointsOnly {
		kinds = "POINT"
	}
	switch {
	case len(p.Currencies) > 0:
		in = strings.Join(p.Currencies, ", ")
	case p.SameCurrency:
		in = "no currency"
	case !p.PointsOnly:
		return ""
	}
	return fmt.Sprintf("promotions of type %s in %s", kinds, in)
}

// First returns the currency of a charge that tries the provider out: "" for points.
func (p Payable) First() string {
	if len(p.Currencies) == 0 || p.Currencies[0] == NoCurrency {
		return ""
	}
	return p.Currencies[0]
}

// Check returns why the provider cannot pay a promotion, or nil.
func (p Payable) Check(t PromotionType, currency string) *FieldError {
	refuse := func(field, format string, args ...any) *FieldError {
		return &FieldError{Field: field, Detail: fmt.Sprintf(format, args...)}
	}
	code := cmp.Or(currency, NoCurrency)
	switch {
	case t == Voucher && p.PointsOnly:
		return refuse("type", "must be %s: the money.request settings name neither type nor voucherCode, so the provider would pay points instead of a voucher", Point)
	case t == Voucher && currency == "": // its code says what it is worth
		return nil
	case len(p.Currencies) > 0 && !slices.Contains(p.Currencies, code) && currency == "":
		return refuse("currency", "is missing: the provider pays %s (money.currencies), and points only if %s is one of them", strings.Join(p.Currencies, ", "), NoCurrency)
	case len(p.Currencies) > 0 && !slices.Contains(p.Currencies, code):
		return refuse("currency", "must be one that the provider pays, not %s: money.currencies has %s", currency, strings.Join(p.Currencies, ", "))
	case len(p.Currencies) == 0 && p.SameCurrency && code != NoCurrency:
		return refuse("currency", "cannot be %s: money.request.body does not name currency, so the provider would pay another one, unless money.currencies says that it pays %s", currency, currency)
	}
	return nil
}
