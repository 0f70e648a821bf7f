package webhook

import "testing"

func TestMaskURL(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"":                      "",
		"https://hooks.example": "https://hooks.example",
		"https://hooks.example:8443/v1/rewards/webhook_in/":    "https://hooks.example:8443/v1/rewards/webhook_in/",
		"https://user:password@hooks.example/in":               "https://xxxxx@hooks.example/in",
		"https://token@hooks.example/in":                       "https://xxxxx@hooks.example/in",
		"https://hooks.example/in?token=a&b=c#frag":            "https://hooks.example/in?xxxxx#xxxxx",
		"https://hooks.example/services/T024BE7LD/B0/aBcDeFgH": "https://hooks.example/services/xxxxx/xxxxx/xxxxx",
		"https://hooks.example/averylonglowercasetoken":        "https://hooks.example/xxxxx",
		"https://hooks.example/%73ecret":                       "https://hooks.example/xxxxx",
		"https://hooks.example/a/9f8e7d6c":                     "https://hooks.example/a/xxxxx",
		"http://[::1]:80/in":                                   "http://[::1]:80/in",
		"http://\x7f/secret":                                   "xxxxx",
		"mailto:secret":                                        "xxxxx",
	} {
		if got := MaskURL(address); got != want {
			t.Errorf("%q becomes %q, want %q", address, got, want)
		}
	}
}
