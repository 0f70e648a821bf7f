package web

import (
	"testing"
	"time"
)

func TestPreferredWait(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		headers []string
		want    time.Duration
	}{
		{nil, 0},
		{[]string{"wait=5"}, 5 * time.Second},
		{[]string{`Wait = "5"`}, 5 * time.Second},
		{[]string{"return=minimal", "respond-async , wait=10; x=1"}, 10 * time.Second},
		{[]string{"wait=31"}, waitMax},
		{[]string{"wait=3, wait=9"}, 3 * time.Second},
		{[]string{`x="a, wait=9\", wait=8", wait=7`}, 7 * time.Second},
		{[]string{"wait=0"}, 0},
		{[]string{"wait"}, 0},
		{[]string{"wait=-1"}, 0},
		{[]string{"wait=1.5"}, 0},
		{[]string{"wait=99999999999999999999"}, 0},
		{[]string{"waiting=5"}, 0},
		{[]string{""}, 0},
	} {
		if got := PreferredWait(tt.headers); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.headers, got, tt.want)
		}
	}
}
