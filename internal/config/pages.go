package config

import (
	"encoding/hex"
	"fmt"
	"math"
	"mime"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Languages are the languages of the pages, by their tags.
var Languages = []string{"en", "ko"}

const (
	shopNameMax   = 100 // characters
	shopFooterMax = 500
	logoMax       = 200_000 // bytes
	contrastMin   = 4.5     // of a text, by WCAG 2
)

var (
	colorText = regexp.MustCompile(`^#[0-9a-fA-F]{6}$`)
	logoKinds = []string{".png", ".jpg", ".jpeg", ".webp", ".svg"}
)

func (v *validation) pages(c Config) {
	for i, language := range c.Console.Languages {
		if !slices.Contains(Languages, language) {
			v.wrong("console.languages", fmt.Sprintf("has %q; the languages are %s", language, strings.Join(Languages, ", ")))
		} else if slices.Contains(c.Console.Languages[:i], language) {
			v.wrong("console.languages", fmt.Sprintf("names %q twice; keep one", language))
		}
	}
	if len(c.Console.Languages) == 0 {
		v.wrong("console.languages", "must name at least one of "+strings.Join(Languages, ", "))
	}
	if utf8.RuneCountInString(c.Shop.Name) > shopNameMax {
		v.wrong("shop.name", fmt.Sprintf("must have at most %d characters", shopNameMax))
	}
	if utf8.RuneCountInString(c.Shop.Footer) > shopFooterMax {
		v.wrong("shop.footer", fmt.Sprintf("must have at most %d characters", shopFooterMax))
	}
	switch contrast := contrastToWhite(c.Shop.AccentColor); {
	case c.Shop.AccentColor == "":
	case contrast == 0:
		v.wrong("shop.accent-color", "must be # and six hexadecimal digits, like #1d55c7")
	case contrast < contrastMin:
		v.wrong("shop.accent-color", fmt.Sprintf("has a contrast of %.1f to the white text on it, and needs %.1f: choose a darker color", contrast, contrastMin))
	}
	if slices.Contains(c.Roles, RoleAPI) { // instances with other roles may lack the right to read it
		_, _, err := c.Shop.Logo()
		v.usable("shop.logo-file", err)
	}
}

// Logo reads the logo and returns its media type; without a file, both are empty.
func (c Shop) Logo() (kind string, image []byte, err error) {
	if c.LogoFile == "" {
		return "", nil, nil
	}
	extension := strings.ToLower(filepath.Ext(c.LogoFile))
	if !slices.Contains(logoKinds, extension) {
		return "", nil, fmt.Errorf("%s is no image: its name must end with one of %s", c.LogoFile, strings.Join(logoKinds, ", "))
	}
	image, err = os.ReadFile(c.LogoFile)
	if err == nil && len(image) > logoMax {
		err = fmt.Errorf("%s has %d bytes, and may have %d: every customer loads it", c.LogoFile, len(image), logoMax)
	}
	return mime.TypeByExtension(extension), image, err
}

// contrastToWhite returns the contrast of a color like #1d55c7 to white by WCAG 2, from 1
// to 21; for another text, 0.
func contrastToWhite(color string) float64 {
	if !colorText.MatchString(color) {
		return 0
	}
	channels, _ := hex.DecodeString(color[1:])
	luminance := 0.0
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		c := float64(channels[i]) / 255
		if c <= 0.04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+0.055)/1.055, 2.4)
		}
		luminance += weight * c
	}
	return 1.05 / (luminance + 0.05)
}
