package webhook

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// Limits of the URL of a receiver. Lengths are in bytes.
const (
	urlMax   = 2000
	hostMax  = 253
	labelMax = 63
	portMax  = 65535
)

// URLPattern matches the URLs that CheckURL accepts. It is short, and does not express the
// form and the lengths of names and addresses, the largest port, and that two digits follow
// a %: CheckURL refuses more. JSON Schema and Go read it alike.
const URLPattern = `https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?([/?][!"$-~]*)?`

// label is a part of a DNS name.
const label = `[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?`

var (
	wholeURL  = regexp.MustCompile(`^` + URLPattern + `$`)
	wholeName = regexp.MustCompile(`^(` + label + `\.)*` + label + `\.?$`)
	wholePort = regexp.MustCompile(`^(:[1-9][0-9]{0,4})?$`)
	printable = regexp.MustCompile(`^[!-~]*$`)
)

var (
	errNoURL = errors.New("must be an absolute URL that begins with http:// or https:// and a host, such as https://hooks.example/largesse")
	errHost  = errors.New("has a host that is neither a DNS name nor an IP address; write it as in https://hooks.example/, " +
		"https://203.0.113.7/ or https://[2001:db8::7]/")
	errPort = errors.New("has a port that is not from 1 to 65535; correct it, or omit it with its colon")
)

// CheckURL checks the URL of a receiver when it is set. A URL that is stored may be older
// than the check, and is called as it is. The errors never show the URL, which may hold a
// secret.
func CheckURL(address string) error {
	if len(address) > urlMax {
		return fmt.Errorf("must have at most %d bytes, not %d", urlMax, len(address))
	}
	if !printable.MatchString(address) {
		return errors.New("contains a space, a control character or a character outside ASCII; write it percent-encoded, and a host name in its xn-- form")
	}
	before, _, fragment := strings.Cut(address, "#")
	scheme, rest, found := strings.Cut(before, "://")
	authority, _, _ := strings.Cut(rest, "/")
	authority, _, _ = strings.Cut(authority, "?")
	if !found || scheme != "http" && scheme != "https" || authority == "" {
		return errNoURL
	}
	if strings.Contains(authority, "@") {
		return errors.New("must not contain a user or a password; deliveries are signed instead")
	}
	if fragment {
		return errors.New("must not contain a #, which is never sent")
	}
	name, number := authority, ""
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && !strings.HasSuffix(authority, "]") {
		name, number = authority[:i], authority[i:]
	}
	if !isHost(name) {
		return errHost
	}
	if n, _ := strconv.Atoi(strings.TrimPrefix(number, ":")); !wholePort.MatchString(number) || n > portMax {
		return errPort
	}
	if _, err := url.Parse(address); err != nil || !wholeURL.MatchString(address) {
		return errors.New("contains a % that two hexadecimal digits do not follow; write a % itself as %25")
	}
	return nil
}

// isHost reports whether a text is a DNS name, or an IP address without a zone.
func isHost(text string) bool {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		ip, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		return err == nil && ip.Is6() && ip.Zone() == "" && strings.HasSuffix(text, "]")
	}
	name := strings.TrimSuffix(text, ".")
	last := ""
	for last = range strings.SplitSeq(name, ".") {
		if len(last) > labelMax {
			return false
		}
	}
	if strings.Trim(last, "0123456789-") == "" { // no name ends so, and resolvers read it as an address
		ip, err := netip.ParseAddr(text)
		return err == nil && ip.Is4()
	}
	return len(name) <= hostMax && wholeName.MatchString(text)
}
