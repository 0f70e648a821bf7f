package reward

import (
	"encoding/json"
	"math/big"
	"regexp"
	"strings"
	"testing"
)

var (
	digits  = regexp.MustCompile(`^[1-9][0-9]*$`)
	highest = new(big.Int).SetUint64(1<<63 - 1)
)

// isID says by other means what an id from 1 to 2^63−1 looks like.
func isID(s string) bool {
	n, ok := new(big.Int).SetString(s, 10)
	return ok && digits.MatchString(s) && n.Cmp(highest) <= 0
}

func FuzzParseIDs(f *testing.F) {
	for _, s := range []string{
		"1", "7", "10", "0", "00", "-0", "-1", "+1", "01", "007", " 1", "1 ", " ", "1\n", "1\x00", "1.0", "1e3", "0x1", "1_0", "abc", "٣", "１", "\xff",
		"9223372036854775806", "9223372036854775807", "9223372036854775808", "18446744073709551616", "99999999999999999999", "", strings.Repeat("9", 10_000), strings.Repeat("é", 100) + "\xff",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := isID(s)
		check := func(what string, n int64, text string, err error) {
			t.Helper()
			want := want || what == "target" && s == "0"
			if err != nil {
				checkComplaint(t, []byte(s), err)
			}
			switch {
			case (err == nil) != want:
				t.Fatalf("%s id %q: %v, want one: %v", what, s, err, want)
			case err == nil && text != s:
				t.Fatalf("%s id %q was read as %d, whose spelling is %q: two spellings for one", what, s, n, text)
			case err != nil && n != 0:
				t.Fatalf("%s id %q gave %d beside the error %v", what, s, n, err)
			}
		}
		promotion, err := ParsePromotionID(s)
		check("promotion", int64(promotion), promotion.String(), err)
		template, err := ParseTemplateID(s)
		check("template", int64(template), template.String(), err)
		coupon, err := ParseCouponID(s)
		check("coupon", int64(coupon), coupon.String(), err)
		target, err := ParseTargetID(s)
		check("target", int64(target), target.String(), err)
		if !want {
			return
		}
		// A number of JSON and a string are the same id.
		for _, written := range []string{s, `"` + s + `"`} {
			var p PromotionID
			var c TemplateID
			if err := json.Unmarshal([]byte(written), &p); err != nil || p != promotion {
				t.Fatalf("%s was read as promotion %d, %v", written, p, err)
			}
			if err := json.Unmarshal([]byte(written), &c); err != nil || c != template {
				t.Fatalf("%s was read as template %d, %v", written, c, err)
			}
		}
	})
}

func FuzzParseRequestID(f *testing.F) {
	f.Add("42:u7", int64(42), "u7")
	f.Add("42:a:b", int64(1), ":")
	f.Add("42", int64(-1), "")
	f.Add("042:u", int64(1<<62), "\x00")
	f.Add(":u", int64(7), "\xff")
	f.Fuzz(func(t *testing.T, s string, id int64, user string) {
		if template, whose, err := ParseRequestID(s); err == nil && (RequestID(template, whose) != s || template < 1 || CheckUserID(whose) != nil) {
			t.Fatalf("%q was read as template %s and user %q", s, template, whose)
		}
		made := RequestID(TemplateID(id), user)
		template, whose, err := ParseRequestID(made)
		if good := id > 0 && CheckUserID(user) == nil; good != (err == nil) {
			t.Fatalf("template %d and user %q make %q, which is read with the error %v", id, user, made, err)
		}
		if err == nil && (template != TemplateID(id) || whose != user) {
			t.Fatalf("template %d and user %q make %q, which is read as %s and %q", id, user, made, template, whose)
		}
	})
}
