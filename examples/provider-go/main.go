// Command provider is a small provider for Largesse. It records each charge in a
// file before it answers, once per idempotency key.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// charge is a line of the file, and an item of the list.
type charge struct {
	Key         string `json:"idempotencyKey"`
	PromotionID string `json:"promotionId"`
	TargetID    string `json:"targetId"`
	UserID      string `json:"userId"`
	Amount      int64  `json:"amount"`
	VoucherCode string `json:"voucherCode,omitempty"`
	Transaction string `json:"transactionKey"`
}

type provider struct {
	token string
	file  *os.File
	mu    sync.Mutex // from the check of a key to its line on the disk: two calls with one key pay once
	list  []charge
	byKey map[string]charge
}

func main() {
	listen, path := flag.String("listen", "127.0.0.1:9000", "host:port"), flag.String("file", "charges.jsonl", "file of the charges")
	flag.Parse()
	p, err := open(*path)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/points/charge", p.charge)
	mux.HandleFunc("POST /v1/vouchers/charge", p.charge)
	mux.HandleFunc("GET /v1/transactions/{key}", p.lookup)
	mux.HandleFunc("GET /v1/charges", p.charges)
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("http://%s\n", l.Addr())
	log.Fatal(http.Serve(l, p.authorized(mux)))
}

// open reads the charges. A crash can leave half a line at the end, which was
// never answered: it is cut off.
func open(path string) (*provider, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	whole := bytes.LastIndexByte(raw, '\n') + 1
	p := &provider{token: os.Getenv("PROVIDER_TOKEN"), file: file, byKey: map[string]charge{}}
	for line := range bytes.Lines(raw[:whole]) {
		var c charge
		if err := json.Unmarshal(line, &c); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		p.list, p.byKey[c.Key] = append(p.list, c), c
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return p, errors.Join(file.Truncate(int64(whole)), dir.Sync()) // a new file's name is on the disk, too
}

func (p *provider) charge(w http.ResponseWriter, r *http.Request) {
	var c charge
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&c); err != nil {
		refuse(w, http.StatusBadRequest, "MALFORMED")
		return
	}
	c.Key, c.Transaction = r.Header.Get("Idempotency-Key"), ""
	least, voucher := int64(1), r.URL.Path == "/v1/vouchers/charge"
	if voucher {
		least = 0
	}
	if c.Key == "" || c.Key != c.PromotionID+":"+c.TargetID || c.UserID == "" || c.Amount < least || voucher != (c.VoucherCode != "") {
		refuse(w, http.StatusUnprocessableEntity, "INVALID")
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known, found := p.byKey[c.Key]
	c.Transaction = known.Transaction
	switch {
	case found && known != c:
		refuse(w, http.StatusUnprocessableEntity, "KEY_REUSED")
		return
	case !found && strings.HasPrefix(c.UserID, "closed-"): // your own rules go here
		refuse(w, http.StatusUnprocessableEntity, "ACCOUNT_CLOSED")
		return
	case !found:
		c.Transaction = "T-" + strconv.Itoa(len(p.list)+1)
		line, err := json.Marshal(c)
		if err == nil {
			_, err = p.file.Write(append(line, '\n'))
		}
		if err == nil {
			err = p.file.Sync()
		}
		if err != nil {
			log.Fatal(err) // what is on the disk is not known: read it again at the next start
		}
		p.list, p.byKey[c.Key] = append(p.list, c), c
	}
	answer(w, http.StatusOK, map[string]string{"transactionKey": c.Transaction})
}

func (p *provider) lookup(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock() // waits for a charge that is being made
	c, found := p.byKey[r.PathValue("key")]
	p.mu.Unlock()
	if !found {
		refuse(w, http.StatusNotFound, "NOT_FOUND")
		return
	}
	answer(w, http.StatusOK, map[string]string{"transactionKey": c.Transaction})
}

// charges lists a page. The cursor is the number of charges before it.
func (p *provider) charges(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.FormValue("cursor"))
	limit, _ := strconv.Atoi(r.FormValue("limit"))
	p.mu.Lock()
	list := p.list // lines are added behind it, and never change
	p.mu.Unlock()
	page := struct {
		Charges []charge `json:"charges"`
		Next    string   `json:"nextCursor,omitempty"`
	}{Charges: []charge{}}
	for i := max(from, 0); i < len(list); i++ {
		if len(page.Charges) == min(max(limit, 1), 1000) {
			page.Next = strconv.Itoa(i)
			break
		}
		if list[i].PromotionID == r.FormValue("promotionId") {
			page.Charges = append(page.Charges, list[i])
		}
	}
	answer(w, http.StatusOK, page)
}

func (p *provider) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p.token != "" && r.Header.Get("Authorization") != "Bearer "+p.token {
			refuse(w, http.StatusUnauthorized, "UNAUTHORIZED")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func refuse(w http.ResponseWriter, status int, code string) {
	answer(w, status, map[string]string{"code": code})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
