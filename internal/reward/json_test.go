package reward

import "testing"

func TestCheckJSONText(t *testing.T) {
	t.Parallel()
	for text, ok := range map[string]bool{
		`{"userId":"u7"}`:                      true,
		`{"userId":"\u00e9\n\\"}`:              true,
		`{"userId":"\ud83d\ude00 and \u0041"}`: true,
		`{"userId":"\\ud800"}`:                 true, // a backslash and letters
		`{"userId":"\ud800"}`:                  false,
		`{"userId":"\udc00"}`:                  false,
		`{"userId":"\ud800\ud800"}`:            false,
		`{"userId":"\ud800x"}`:                 false,
		`{"userId":"\ud83d\ude00\ud83d"}`:      false,
		"{\"userId\":\"\xff\"}":                false,
		`\`:                                    true, // no JSON, which the reader says
		`\u12`:                                 true,
	} {
		if err := CheckJSONText([]byte(text)); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, user := range []string{"\xff", `\ud800`} {
		if _, err := ParseCouponIssueEvent([]byte(`{"templateId":1,"userId":"` + user + `"}`)); err == nil {
			t.Errorf("a record of user %q was read", user)
		}
	}
}
