package client

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// webhookAgeMax limits the age of a webhook, and how far the sender's clock may
// be ahead.
const webhookAgeMax = 5 * time.Minute

// VerifyWebhook returns nil if a webhook was signed with secret (the setting
// webhook.secret of the server) and sent within the last five minutes. Pass the
// body as received, before parsing it. A delivery may arrive more than once:
// ignore those whose Largesse-Delivery header you have seen.
func VerifyWebhook(secret string, header http.Header, body []byte) error {
	return verifyWebhook(secret, header, body, time.Now())
}

func verifyWebhook(secret string, header http.Header, body []byte, now time.Time) error {
	const name = "Largesse-Signature"
	given := header.Values(name)
	if len(given) != 1 {
		return fmt.Errorf("the webhook has %d headers %s, but needs one", len(given), name)
	}
	if secret == "" {
		return errors.New("the webhook secret is empty")
	}
	stamp, mac, ok := strings.Cut(strings.TrimPrefix(given[0], "t="), ",v1=")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if !ok || err != nil || !strings.HasPrefix(given[0], "t=") {
		return fmt.Errorf("the header %s must look like t=<seconds>,v1=<hex>", name)
	}
	want := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(want, "%s.%s", stamp, body)
	if !hmac.Equal([]byte(hex.EncodeToString(want.Sum(nil))), []byte(mac)) {
		return errors.New("the signature of the webhook does not match its body and the secret")
	}
	if now.Sub(time.Unix(seconds, 0)).Abs() > webhookAgeMax {
		return fmt.Errorf("the webhook was signed at %s, more than %s from now", time.Unix(seconds, 0).UTC().Format(time.RFC3339), webhookAgeMax)
	}
	return nil
}
