package client

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestVerifyWebhook(t *testing.T) {
	t.Parallel()
	const secret, body = "a secret of sixteen", `{"id":"17"}`
	sent := time.Unix(1_780_000_000, 0)
	sign := func(stamp, secret, body string) string {
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "%s.%s", stamp, body)
		return "t=" + stamp + ",v1=" + hex.EncodeToString(mac.Sum(nil))
	}
	good := sign("1780000000", secret, body)
	for name, tc := range map[string]struct {
		secret string
		header []string
		body   string
		now    time.Time
		wrong  string // "": it is good
	}{
		"Good":         {secret, []string{good}, body, sent, ""},
		"JustInTime":   {secret, []string{good}, body, sent.Add(5 * time.Minute), ""},
		"ClockAhead":   {secret, []string{good}, body, sent.Add(-5 * time.Minute), ""},
		"TooOld":       {secret, []string{good}, body, sent.Add(5*time.Minute + time.Second), "more than 5m0s from now"},
		"TooEarly":     {secret, []string{good}, body, sent.Add(-6 * time.Minute), "more than 5m0s from now"},
		"OtherSecret":  {"another", []string{good}, body, sent, "does not match"},
		"OtherBody":    {secret, []string{good}, body + " ", sent, "does not match"},
		"OtherTime":    {secret, []string{strings.Replace(good, "1780000000", "1780000001", 1)}, body, sent, "does not match"},
		"NoSecret":     {"", []string{sign("1780000000", "", body)}, body, sent, "webhook secret is empty"},
		"NoHeader":     {secret, nil, body, sent, "has 0 headers"},
		"TwoHeaders":   {secret, []string{good, good}, body, sent, "has 2 headers"},
		"NoTime":       {secret, []string{"v1=00"}, body, sent, "must look like"},
		"NoPrefix":     {secret, []string{strings.TrimPrefix(good, "t=")}, body, sent, "must look like"},
		"TimeIsText":   {secret, []string{sign("soon", secret, body)}, body, sent, "must look like"},
		"EmptyMAC":     {secret, []string{"t=1780000000,v1="}, body, sent, "does not match"},
		"CapitalHex":   {secret, []string{"t=1780000000,v1=" + strings.ToUpper(good[len("t=1780000000,v1="):])}, body, sent, "does not match"},
		"EmptyAllOver": {secret, []string{""}, "", sent, "must look like"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			header := http.Header{}
			for _, value := range tc.header {
				header.Add("Largesse-Signature", value)
			}
			err := verifyWebhook(tc.secret, header, []byte(tc.body), tc.now)
			if (err == nil) != (tc.wrong == "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%v, want %q", err, tc.wrong)
			}
		})
	}
	if VerifyWebhook(secret, http.Header{"Largesse-Signature": {good}}, []byte(body)) == nil {
		t.Error("a webhook of another day is good now")
	}
}
