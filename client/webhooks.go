package client

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
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

// VerifyWebhook returns nil if a webhook was signed with secret and sent within the
// last five minutes. For a webhook endpoint, the secret is the one that begins with
// whsec_; for a promotion's webhookUrl, it is the setting webhook.secret of the server.
// Pass the body as received, before parsing it. A delivery may arrive more than once:
// ignore those whose Webhook-Id or Largesse-Delivery header you have seen.
func VerifyWebhook(secret string, header http.Header, body []byte) error {
	return verifyWebhook(secret, header, body, time.Now())
}

func verifyWebhook(secret string, header http.Header, body []byte, now time.Time) error {
	if secret == "" {
		return errors.New("the webhook secret is empty")
	}
	verify := verifySigned
	if len(header.Values(headerStandardSignature)) > 0 {
		verify = verifyStandard
	}
	sent, err := verify(secret, header, body)
	if err != nil {
		return err
	}
	if now.Sub(sent).Abs() > webhookAgeMax {
		return fmt.Errorf("the webhook was signed at %s, more than %s from now", sent.UTC().Format(time.RFC3339), webhookAgeMax)
	}
	return nil
}

const (
	headerSignature         = "Largesse-Signature"
	headerStandardSignature = "Webhook-Signature"
	endpointSecretPrefix    = "whsec_"
)

var errWebhookSignature = errors.New("the signature of the webhook does not match its body and the secret")

// verifyStandard verifies a webhook of an endpoint, by the Standard Webhooks
// specification. It returns the time of the signature.
func verifyStandard(secret string, header http.Header, body []byte) (time.Time, error) {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, endpointSecretPrefix))
	if err != nil || len(key) == 0 {
		return time.Time{}, errors.New("the secret of a webhook endpoint is whsec_ and base64")
	}
	id, noID := oneHeader(header, "Webhook-Id")
	stamp, noStamp := oneHeader(header, "Webhook-Timestamp")
	given, noSignature := oneHeader(header, headerStandardSignature)
	if err := cmp.Or(noID, noStamp, noSignature); err != nil {
		return time.Time{}, err
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return time.Time{}, errors.New("the header Webhook-Timestamp must be in seconds since 1970")
	}
	want := hmac.New(sha256.New, key)
	fmt.Fprintf(want, "%s.%s.%s", id, stamp, body)
	sum := []byte("v1," + base64.StdEncoding.EncodeToString(want.Sum(nil)))
	for signature := range strings.FieldsSeq(given) {
		if hmac.Equal(sum, []byte(signature)) {
			return time.Unix(seconds, 0), nil
		}
	}
	return time.Time{}, errWebhookSignature
}

// verifySigned verifies a webhook of a promotion. It returns the time of the
// signature.
func verifySigned(secret string, header http.Header, body []byte) (time.Time, error) {
	given, err := oneHeader(header, headerSignature)
	if err != nil {
		return time.Time{}, err
	}
	stamp, mac, ok := strings.Cut(strings.TrimPrefix(given, "t="), ",v1=")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if !ok || err != nil || !strings.HasPrefix(given, "t=") {
		return time.Time{}, fmt.Errorf("the header %s must look like t=<seconds>,v1=<hex>", headerSignature)
	}
	want := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(want, "%s.%s", stamp, body)
	if !hmac.Equal([]byte(hex.EncodeToString(want.Sum(nil))), []byte(mac)) {
		return time.Time{}, errWebhookSignature
	}
	return time.Unix(seconds, 0), nil
}

func oneHeader(header http.Header, name string) (string, error) {
	given := header.Values(name)
	if len(given) != 1 {
		return "", fmt.Errorf("the webhook has %d headers %s, but needs one", len(given), name)
	}
	return given[0], nil
}
