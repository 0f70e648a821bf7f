package reward

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/text/currency"
)

// NoCurrency is the code of ISO 4217 for what is no money, such as points.
const NoCurrency = "XXX"

// currencyDigits lists the currencies whose minor unit is not a hundredth, by
// ISO 4217. Package currency knows which codes exist, but its digits are those of
// CLDR: the digits that people write. IQD has three by ISO 4217 and none there.
// console/src/lib/format.ts has the same list.
var currencyDigits = map[string]int{
	"BIF": 0, "CLP": 0, "DJF": 0, "GNF": 0, "ISK": 0, "JPY": 0, "KMF": 0, "KRW": 0, "PYG": 0, "RWF": 0, "UGX": 0, "UYI": 0, "VND": 0,
	"VUV": 0, "XAF": 0, "XOF": 0, "XPF": 0,
	"BHD": 3, "IQD": 3, "JOD": 3, "KWD": 3, "LYD": 3, "OMR": 3, "TND": 3,
	"CLF": 4, "UYW": 4,
	// These have no minor unit: metals, units of account, tests, and no currency.
	"XAG": 0, "XAU": 0, "XBA": 0, "XBB": 0, "XBC": 0, "XBD": 0, "XDR": 0, "XPD": 0, "XPT": 0, "XSU": 0, "XTS": 0, "XUA": 0, NoCurrency: 0,
}

// currenciesSince lists the currencies that are younger than package currency's data.
var currenciesSince = map[string]bool{"MRU": true, "SLE": true, "UYW": true, "VED": true, "VES": true, "XAD": true, "XCG": true, "ZWG": true}

// IsCurrency reports whether a text can be a currency: three capital letters.
func IsCurrency(code string) bool {
	return len(code) == 3 && strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// CurrencyDigits returns the number of digits behind the decimal point by ISO 4217, or
// false for a code that no currency has, or had.
func CurrencyDigits(code string) (digits int, ok bool) {
	if digits, ok = currencyDigits[code]; ok {
		return digits, true
	}
	if !IsCurrency(code) {
		return 0, false
	}
	_, err := currency.ParseISO(code)
	if err != nil && !currenciesSince[code] {
		return 0, false
	}
	return 2, true
}

// Limits are limits of amounts in each currency. The zero value is zero for all.
type Limits struct {
	// Default is the limit of each currency that has none of its own, in minor units.
	Default Amount
	// Own has the limits of currencies, in minor units. That of NoCurrency is for points.
	Own map[string]Amount
}

// Of returns the limit of a currency; "" is points.
func (l Limits) Of(code string) Amount {
	if own, ok := l.OwnOf(code); ok {
		return own
	}
	return l.Default
}

// None reports whether no amount is limited.
func (l Limits) None() bool { return l.Default <= 0 && len(l.Own) == 0 }

// OwnOf returns the limit that a currency has for itself; "" is points.
func (l Limits) OwnOf(code string) (limit Amount, ok bool) {
	limit, ok = l.Own[cmp.Or(code, NoCurrency)]
	return limit, ok
}

// In returns the amount as people read it, in major units: "10.50 EUR",
// "1,050 KRW". Without a currency, it is a plain number: "1,050". An amount of an
// unknown currency stays in minor units.
func (a Amount) In(code string) string {
	digits, _ := CurrencyDigits(code)
	text := a.major(digits, ",")
	if code == "" {
		return text
	}
	return text + " " + code
}

// Decimal returns the amount in major units as a plain number, for files: "1050.50".
func (a Amount) Decimal(code string) string {
	digits, _ := CurrencyDigits(code)
	return a.major(digits, "")
}

func (a Amount) major(digits int, group string) string {
	text := strconv.FormatInt(int64(a), 10)
	sign := ""
	if a < 0 {
		sign, text = "-", text[1:]
	}
	if missing := digits + 1 - len(text); missing > 0 {
		text = strings.Repeat("0", missing) + text
	}
	whole, part := text[:len(text)-digits], text[len(text)-digits:]
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + group + whole[i:]
	}
	if part != "" {
		part = "." + part
	}
	return sign + whole + part
}

// ParseMajor reads an amount in major units of a currency, such as 10.5 or 10.50
// for 1,050 minor units of EUR. It accepts digits and one decimal point.
func ParseMajor(text, code string) (Amount, error) {
	digits, ok := CurrencyDigits(code)
	switch {
	case code == "":
		return 0, errors.New("is in major units, but there is no currency")
	case !ok:
		return 0, errors.New("is in major units, but " + Quote(code) + " is no currency of ISO 4217")
	}
	whole, part, point := strings.Cut(text, ".")
	switch {
	case !isDigits(whole) || point && !isDigits(part) || len(whole) > 1 && whole[0] == '0':
		return 0, errors.New("is not a number such as " + Amount(1050).major(digits, "") + ", with digits and at most one decimal point")
	case len(part) > digits && digits == 0:
		return 0, fmt.Errorf("has digits behind the decimal point, but %s has none", code)
	case len(part) > digits:
		return 0, fmt.Errorf("has %d digits behind the decimal point, but %s has %d", len(part), code, digits)
	}
	n, err := strconv.ParseInt(whole+part+strings.Repeat("0", digits-len(part)), 10, 64)
	if err != nil {
		return 0, errors.New("is too large")
	}
	return Amount(n), nil
}

// currencySigns lists what people write before or behind an amount, and the currencies for
// which it may stand.
var currencySigns = []struct{ sign, codes string }{
	{"₩", "KRW"},
	{"￦", "KRW"},
	{"원", "KRW"},
	{"€", "EUR"},
	{"£", "GBP"},
	{"¥", "JPY CNY"},
	{"￥", "JPY CNY"},
	{"円", "JPY"},
	{"元", "CNY"},
	{"$", "USD AUD CAD HKD NZD SGD TWD"},
	{"포인트", NoCurrency},
	{"점", NoCurrency},
	{"P", NoCurrency},
}

// CutCurrency takes the sign or the code of a currency off an amount: "₩1,000", "1,000원"
// and "KRW 1,000" become "1,000". It reports a sign that does not stand for the currency
// code; "" is points.
func CutCurrency(text, code string) (amount, wrong string) {
	own := cmp.Or(code, NoCurrency)
	if _, known := CurrencyDigits(text[:min(3, len(text))]); known {
		return cutSign(text, text[:3], text[:3], own)
	}
	if _, known := CurrencyDigits(text[max(0, len(text)-3):]); known {
		return cutSign(text, text[len(text)-3:], text[len(text)-3:], own)
	}
	for _, s := range currencySigns {
		if strings.HasPrefix(text, s.sign) || strings.HasSuffix(text, s.sign) {
			return cutSign(text, s.sign, s.codes, own)
		}
	}
	return text, ""
}

func cutSign(text, sign, codes, own string) (amount, wrong string) {
	if !strings.Contains(codes, own) {
		return text, sign
	}
	rest, first := strings.CutPrefix(text, sign)
	if !first {
		rest = strings.TrimSuffix(text, sign)
	}
	if rest = strings.Trim(rest, " \u00a0"); rest == "" {
		return text, "" // a sign alone is no amount, and not the same as an empty cell
	}
	return rest, ""
}

func isDigits(text string) bool {
	return text != "" && strings.Trim(text, "0123456789") == ""
}
