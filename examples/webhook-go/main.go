// Command webhook receives webhooks of Largesse: it verifies each signature by the
// Standard Webhooks specification, and handles each message once.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// tolerance limits the age of a message, so that nobody can replay an old one.
const tolerance = 5 * time.Minute

// receiver verifies messages with any of its keys: while a secret is replaced, the old
// and the new one.
type receiver struct {
	keys [][]byte
	mu   sync.Mutex
	seen map[string]bool // message IDs; store them with your work, so that a restart forgets none
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	id, stamp := r.Header.Get("webhook-id"), r.Header.Get("webhook-timestamp")
	seconds, parseErr := strconv.ParseInt(stamp, 10, 64)
	switch {
	case err != nil:
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	case id == "" || !rc.signed(id+"."+stamp+"."+string(body), r.Header.Get("webhook-signature")):
		http.Error(w, "the signature is wrong", http.StatusUnauthorized)
		return
	case parseErr != nil || time.Since(time.Unix(seconds, 0)).Abs() > tolerance:
		http.Error(w, "the message is too old", http.StatusUnauthorized)
		return
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if !rc.seen[id] { // otherwise it is a repeated attempt: answer 2xx, and do nothing
		rc.seen[id] = true
		fmt.Printf("%s\n", body) // your work, within 10 s
	}
	w.WriteHeader(http.StatusNoContent)
}

// signed reports whether one of the signatures in the header is of one of the keys.
func (rc *receiver) signed(message, header string) bool {
	for _, key := range rc.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(message))
		want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
		for _, given := range strings.Fields(header) {
			if hmac.Equal([]byte(want), []byte(given)) {
				return true
			}
		}
	}
	return false
}

func main() {
	listen := flag.String("listen", "127.0.0.1:9100", "address to listen on")
	flag.Parse()
	rc := &receiver{seen: map[string]bool{}}
	for _, secret := range strings.Fields(os.Getenv("WEBHOOK_SECRETS")) {
		key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
		if err != nil || len(key) == 0 {
			log.Fatal("WEBHOOK_SECRETS must have one or two secrets, whsec_…, with a space between")
		}
		rc.keys = append(rc.keys, key)
	}
	if len(rc.keys) == 0 {
		log.Fatal("set WEBHOOK_SECRETS to the secret of the endpoint")
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on http://" + l.Addr().String())
	server := &http.Server{Handler: rc, ReadTimeout: 10 * time.Second}
	log.Fatal(server.Serve(l))
}
