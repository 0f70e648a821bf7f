package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

func FuzzCursor(f *testing.F) {
	f.Add("", int64(0), "")
	f.Add(encodeCursor(cursorPromotions, 1<<62), int64(1<<62), "u7")
	f.Add(encodeUserCursor(cursorEntrants, "a:b"), int64(-1), "a:b\n")
	f.Add(encodeCursor(cursorPayouts, 7)+"=", int64(7), "\xff")
	f.Add("cHJvbW90aW9uOjAx", int64(1), "é")
	f.Fuzz(func(t *testing.T, given string, last int64, user string) {
		// Only an exact copy of a returned cursor is accepted, and for one list only.
		if n, err := decodeCursor(cursorPromotions, given); err == nil && given != "" && (n < 0 || encodeCursor(cursorPromotions, n) != given) {
			t.Fatalf("%q was read as %d, whose cursor is %q", given, n, encodeCursor(cursorPromotions, n))
		}
		if u, err := decodeUserCursor(cursorEntrants, given); err == nil && given != "" && (reward.CheckUserID(u) != nil || encodeUserCursor(cursorEntrants, u) != given) {
			t.Fatalf("%q was read as the user %q", given, u)
		}
		// What is given out is taken, and by no other list.
		made := encodeCursor(cursorPromotions, last)
		n, err := decodeCursor(cursorPromotions, made)
		if (err == nil) != (last >= 0) || err == nil && n != last {
			t.Fatalf("the cursor of %d was read as %d, %v", last, n, err)
		}
		if n, err := decodeCursor(cursorTemplates, made); err == nil {
			t.Fatalf("templates were listed from %d by a cursor of promotions", n)
		}
		made = encodeUserCursor(cursorEntrants, user)
		u, err := decodeUserCursor(cursorEntrants, made)
		if (err == nil) != (reward.CheckUserID(user) == nil) || err == nil && u != user {
			t.Fatalf("the cursor of %q was read as %q, %v", user, u, err)
		}
		if strings.ContainsAny(made, "+/=%& ") {
			t.Fatalf("the cursor %q cannot be used unescaped in a query", made)
		}
	})
}

func FuzzWireID(f *testing.F) {
	for _, seed := range []string{`1`, `"1"`, `1.0`, `1e3`, `-1`, `"01"`, `9223372036854775807`, `9223372036854775808`, `"\u0031"`, `true`, `{}`, `" 1"`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var id wireID
		if json.Unmarshal(data, &id) != nil {
			return
		}
		n, err := reward.ParsePromotionID(string(id))
		if err != nil {
			return
		}
		// No digit was lost on a way through a float, and a string is the same id.
		text := strings.TrimSpace(string(data))
		var quoted string
		if json.Unmarshal(data, &quoted) == nil {
			text = quoted
		}
		if n.String() != text {
			t.Fatalf("%q was read as %s", data, n)
		}
	})
}
