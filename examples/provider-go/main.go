// Command provider is a small provider for Largesse. It writes each charge to the
// disk before it answers, once per idempotency key.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
	"sync"
)

// charge is the body of a call, and a line of the file.
type charge struct {
	PromotionID, TargetID, UserID, VoucherCode, Currency string
	Amount                                               int64
}

func (c charge) key() string { return c.PromotionID + ":" + c.TargetID }

var (
	// With O_SYNC, a line is on the disk when Write returns.
	file, openErr = os.OpenFile("charges.jsonl", os.O_CREATE|os.O_RDWR|os.O_APPEND|os.O_SYNC, 0o600)
	mu            sync.Mutex // two calls with one key pay once
	paid          = map[string]charge{}
)

func main() {
	must(openErr)
	raw, err := io.ReadAll(file)
	must(err)
	whole := bytes.LastIndexByte(raw, '\n') + 1 // a crash can cut the last line, which was never answered
	for line := range bytes.Lines(raw[:whole]) {
		var c charge
		must(json.Unmarshal(line, &c))
		paid[c.key()] = c
	}
	must(file.Truncate(int64(whole)))
	http.HandleFunc("POST /v1/{kind}/charge", pay) // kind is points or vouchers
	http.HandleFunc("GET /v1/transactions/{key}", lookUp)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+cmp.Or(os.Getenv("PORT"), "9000"), nil))
}

func pay(w http.ResponseWriter, r *http.Request) {
	var c charge
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&c)
	mu.Lock()
	defer mu.Unlock()
	known, found := paid[c.key()]
	switch {
	case err != nil || r.Header.Get("Idempotency-Key") != c.key() || c.UserID == "" || c.Amount < 0 || c.Amount == 0 && c.VoucherCode == "":
		answer(w, http.StatusBadRequest, "code", "MALFORMED")
	case found && known != c:
		answer(w, http.StatusUnprocessableEntity, "code", "KEY_REUSED")
	case !found && c.UserID == "closed-1": // your own rules go here
		answer(w, http.StatusUnprocessableEntity, "code", "ACCOUNT_CLOSED")
	case !found:
		must(json.NewEncoder(file).Encode(c)) // an error ends the process: the next one reads what is there
		paid[c.key()] = c
		fallthrough
	default:
		answer(w, http.StatusOK, "transactionKey", "T-"+c.key())
	}
}

func lookUp(w http.ResponseWriter, r *http.Request) {
	mu.Lock() // waits for a charge that is being made
	defer mu.Unlock()
	if c, found := paid[r.PathValue("key")]; found {
		answer(w, http.StatusOK, "transactionKey", "T-"+c.key())
	} else {
		answer(w, http.StatusNotFound, "code", "NOT_FOUND")
	}
}

func answer(w http.ResponseWriter, status int, field, value string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{field: value})
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
