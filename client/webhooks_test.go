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

func TestVerifyWebhookOfAnEndpoint(t *testing.T) {
	t.Parallel()
	const secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", `{"test": 2432232314}`
	// The example of the specification's libraries.
	header := func(changes ...string) http.Header {
		h := http.Header{
			"Webhook-Id": {"msg_p5jXN8AQM9LWM0D4loKWxJek"}, "Webhook-Timestamp": {"1614265330"},
			"Webhook-Signature": {"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="},
		}
		for i := 0; i+1 < len(changes); i += 2 {
			h.Del(changes[i])
			if changes[i+1] != "" {
				h.Set(changes[i], changes[i+1])
			}
		}
		return h
	}
	const good = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
	sent := time.Unix(1_614_265_330, 0)
	for name, tc := range map[string]struct {
		secret string
		header http.Header
		now    time.Time
		wrong  string // "": it is good
	}{
		"Good":           {secret, header(), sent, ""},
		"WithoutPrefix":  {strings.TrimPrefix(secret, "whsec_"), header(), sent, ""},
		"SecondOfTwo":    {secret, header("Webhook-Signature", "v1,AAAA "+good), sent, ""},
		"OtherVersion":   {secret, header("Webhook-Signature", strings.Replace(good, "v1", "v2", 1)), sent, "does not match"},
		"TooOld":         {secret, header(), sent.Add(5*time.Minute + time.Second), "more than 5m0s from now"},
		"TooEarly":       {secret, header(), sent.Add(-6 * time.Minute), "more than 5m0s from now"},
		"OtherID":        {secret, header("Webhook-Id", "msg_2"), sent, "does not match"},
		"OtherTime":      {secret, header("Webhook-Timestamp", "1614265331"), sent, "does not match"},
		"TimeIsText":     {secret, header("Webhook-Timestamp", "soon"), sent, "in seconds since 1970"},
		"NoID":           {secret, header("Webhook-Id", ""), sent, "0 headers Webhook-Id"},
		"NoTime":         {secret, header("Webhook-Timestamp", ""), sent, "0 headers Webhook-Timestamp"},
		"NoSignature":    {secret, header("Webhook-Signature", ""), sent, "0 headers Largesse-Signature"},
		"OtherSecret":    {"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSx", header(), sent, "does not match"},
		"SecretOfOthers": {"no base64", header(), sent, "whsec_ and base64"},
		"EmptyKey":       {"whsec_", header(), sent, "whsec_ and base64"},
		"NoSecret":       {"", header(), sent, "webhook secret is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := verifyWebhook(tc.secret, tc.header, []byte(body), tc.now)
			if (err == nil) != (tc.wrong == "") || err != nil && !strings.Contains(err.Error(), tc.wrong) {
				t.Errorf("%v, want %q", err, tc.wrong)
			}
		})
	}
}
