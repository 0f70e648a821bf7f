package webhook

import (
	"net/url"
	"regexp"
	"strings"
)

const masked = "xxxxx"

// plainSegment matches the segments of a path that are words or versions.
var plainSegment = regexp.MustCompile(`^([a-z][a-z_-]{0,14}|v[0-9]{1,3})?$`)

// MaskURL returns the URL of a receiver without what may be a secret: user and password,
// the query, and segments of the path that are no short words. Many receivers know their
// callers only by such a segment.
func MaskURL(address string) string {
	if address == "" {
		return ""
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" {
		return masked
	}
	segments := strings.Split(u.EscapedPath(), "/")
	for i, s := range segments {
		if !plainSegment.MatchString(s) {
			segments[i] = masked
		}
	}
	var b strings.Builder
	b.WriteString(u.Scheme + "://")
	if u.User != nil {
		b.WriteString(masked + "@")
	}
	b.WriteString(u.Host + strings.Join(segments, "/"))
	if u.RawQuery != "" || u.ForceQuery {
		b.WriteString("?" + masked)
	}
	if u.Fragment != "" {
		b.WriteString("#" + masked)
	}
	return b.String()
}
