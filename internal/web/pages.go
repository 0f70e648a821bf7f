package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"html"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
)

// pagePolicy is the Content-Security-Policy of the pages: everything comes from this
// server, nothing is inline, and nobody may frame them.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

type page struct {
	kind         string
	plain, small []byte // small is compressed with gzip
	tag          string
}

// Pages are the files of the console by the pattern that serves them.
type Pages map[string]http.Handler

// Look is what the settings of an instance change in its pages.
type Look struct {
	Languages                        []string // tags; the first one is the default
	ShopName, ShopAccent, ShopFooter string   // of the customer's page
	Logo                             []byte   // of the shop; empty: none
	LogoKind                         string   // media type
}

// plainTag is the first tag of a page as it is built.
var plainTag = []byte(`<html lang="en">`)

// apply writes the look into a page, as attributes that its script reads: the policy
// allows no inline script.
func (l Look) apply(text []byte) []byte {
	if len(l.Languages) == 0 {
		return text
	}
	tag := fmt.Sprintf(`<html lang="%s" data-languages="%s"`, l.Languages[0], strings.Join(l.Languages, ","))
	for _, a := range []struct{ name, value string }{{"shop", l.ShopName}, {"accent", l.ShopAccent}, {"footer", l.ShopFooter}, {"logo", l.LogoKind}} {
		if a.value != "" {
			tag += fmt.Sprintf(` data-%s="%s"`, a.name, html.EscapeString(a.value))
		}
	}
	return bytes.Replace(text, plainTag, []byte(tag+">"), 1)
}

// ReadPages reads the pages of the console: index.html for /, drop/index.html for
// /drop/{template}, everything in the folder assets, and the logo of the shop.
func ReadPages(files fs.FS, look Look) (Pages, error) {
	names := map[string]string{"GET /{$}": "index.html", "GET /drop/{template}": "drop/index.html"}
	assets, err := fs.ReadDir(files, "assets")
	if err != nil {
		return nil, fmt.Errorf("read the console: %w", err)
	}
	for _, f := range assets {
		name := path.Join("assets", f.Name())
		names["GET /"+name] = name
	}
	pages := make(Pages)
	for pattern, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read the console: %w", err)
		}
		pages[pattern] = newPage(mime.TypeByExtension(path.Ext(name)), look.apply(text))
	}
	if len(look.Logo) > 0 {
		pages["GET /assets/shop-logo"] = newPage(look.LogoKind, look.Logo)
	}
	return pages, nil
}

// AddPages adds the operation console, which serves the pages.
func (a *Router) AddPages(pages Pages) {
	for pattern, p := range pages {
		a.Handle("console", pattern, p.ServeHTTP)
	}
}

func newPage(kind string, text []byte) *page {
	sum := sha256.Sum256(text)
	return &page{kind: kind, plain: text, small: Gzip(text), tag: `"` + hex.EncodeToString(sum[:12])}
}

// Gzip returns a text compressed.
func Gzip(text []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(text) // writing to memory never fails
	_ = w.Close()
	return out.Bytes()
}

// AcceptsGzip reports whether one of the codings in the Accept-Encoding headers of a request
// is gzip, and not refused by q=0.
func AcceptsGzip(r *http.Request) bool {
	headers := strings.ToLower(strings.Join(r.Header.Values("Accept-Encoding"), ","))
	for coding := range strings.SplitSeq(headers, ",") {
		name, weight, _ := strings.Cut(strings.ReplaceAll(coding, " ", ""), ";")
		q, err := strconv.ParseFloat(strings.TrimPrefix(weight, "q="), 64)
		if name == "gzip" && (weight == "" || err == nil && q > 0) {
			return true
		}
	}
	return false
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", p.kind)
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-cache") // a new version may have other files
	h.Add("Vary", "Accept-Encoding")
	body, tag := p.plain, p.tag+`"`
	if AcceptsGzip(r) {
		body, tag = p.small, p.tag+`-gzip"`
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		h.Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the caller may have left
}
