package reward

import (
	"math"
	"testing"
)

func TestAmountInACurrency(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		amount   Amount
		currency string
		want     string
	}{
		{1050, "EUR", "10.50 EUR"},
		{1050, "KRW", "1,050 KRW"},
		{1050, "BHD", "1.050 BHD"},
		{1050, "CLF", "0.1050 CLF"},
		{1050, NoCurrency, "1,050 XXX"},
		{1050, "", "1,050"},
		{1050, "PTS", "1,050 PTS"}, // nobody knows its digits
		{5, "EUR", "0.05 EUR"},
		{0, "EUR", "0.00 EUR"},
		{100_000_000, "EUR", "1,000,000.00 EUR"},
		{-5, "EUR", "-0.05 EUR"},
		{-123_456_789, "JPY", "-123,456,789 JPY"},
		{math.MaxInt64, "EUR", "92,233,720,368,547,758.07 EUR"},
		{math.MinInt64, "KWD", "-9,223,372,036,854,775.808 KWD"},
		// ISO 4217 gives these digits that people do not write, so other tables leave them out.
		{1050, "HUF", "10.50 HUF"},
		{1050, "IDR", "10.50 IDR"},
		{1050, "IQD", "1.050 IQD"},
		// Introduced after the data of package currency.
		{1050, "VES", "10.50 VES"},
	} {
		if got := tt.amount.In(tt.currency); got != tt.want {
			t.Errorf("%d of %q are %q, not %q", tt.amount, tt.currency, got, tt.want)
		}
	}
}

func TestParseMajor(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text, currency string
		want           Amount
		err            string
	}{
		{"10.50", "EUR", 1050, ""},
		{"10.5", "EUR", 1050, ""},
		{"10", "EUR", 1000, ""},
		{"0.05", "EUR", 5, ""},
		{"0", "EUR", 0, ""},
		{"1050", "KRW", 1050, ""},
		{"1.050", "BHD", 1050, ""},
		{"7", NoCurrency, 7, ""},
		{"92233720368547758.07", "EUR", math.MaxInt64, ""},
		{"92233720368547758.08", "EUR", 0, "is too large"},
		{"10.505", "EUR", 0, "has 3 digits behind the decimal point, but EUR has 2"},
		{"10.500", "EUR", 0, "has 3 digits behind the decimal point, but EUR has 2"},
		{"10.0", "KRW", 0, "has digits behind the decimal point, but KRW has none"},
		{"10,50", "EUR", 0, "is not a number such as 10.50, with digits and at most one decimal point"},
		{"1,050.00", "EUR", 0, "is not a number such as 10.50, with digits and at most one decimal point"},
		{"1.5", "PTS", 0, `is in major units, but "PTS" is no currency of ISO 4217`},
		{"1.5", "", 0, "is in major units, but there is no currency"},
	} {
		got, err := ParseMajor(tt.text, tt.currency)
		if said := errorText(err); got != tt.want || said != tt.err {
			t.Errorf("%s of %q is %d, %q, not %d, %q", tt.text, tt.currency, got, said, tt.want, tt.err)
		}
	}
	for _, text := range []string{"", ".", "10.", ".5", "-1", "+1", "1e3", "007", "00.5", " 1", "1 ", "0x1", "1_0", "١", "10.5.0", "NaN"} {
		if got, err := ParseMajor(text, "EUR"); err == nil {
			t.Errorf("%q is read as %d", text, got)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// FuzzMajorUnits checks that an amount that is written in major units and read again
// is the same.
func FuzzMajorUnits(f *testing.F) {
	f.Add(int64(1050), "EUR")
	f.Add(int64(7), "BHD")
	f.Add(int64(math.MaxInt64), "KRW")
	f.Fuzz(func(t *testing.T, n int64, code string) {
		digits, ok := CurrencyDigits(code)
		if !ok || n < 0 {
			t.Skip()
		}
		if got, err := ParseMajor(Amount(n).major(digits, ""), code); err != nil || got != Amount(n) {
			t.Errorf("%d of %s is read as %d, %v", n, code, got, err)
		}
	})
}
