package webhook

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The headers of the Standard Webhooks specification.
const (
	headerID        = "Webhook-Id"
	headerTimestamp = "Webhook-Timestamp"
	headerSignature = "Webhook-Signature"
)

const (
	secretPrefix = "whsec_"
	secretBytes  = 32
)

// NewSecret returns a random secret of an endpoint.
func NewSecret() string {
	key := make([]byte, secretBytes)
	_, _ = rand.Read(key) // it never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(key)
}

// Sign sets the headers of a message by the Standard Webhooks specification. It signs
// with each secret, so that a receiver with any of them accepts the message. The time is
// that of the attempt, so that receivers can refuse messages that somebody repeats.
func Sign(header http.Header, id string, at time.Time, body []byte, secrets ...string) {
	stamp := strconv.FormatInt(at.Unix(), 10)
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, secretPrefix))
		if err != nil {
			key = nil // NewSecret made it
		}
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + stamp + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	header.Set(headerID, id)
	header.Set(headerTimestamp, stamp)
	header.Set(headerSignature, strings.Join(signatures, " "))
}
