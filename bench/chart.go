package main

import (
	"bytes"
	"fmt"

	"github.com/dustin/go-humanize"
)

// chart draws the rates of the scenarios without a kill as an SVG: a bar for each median, and a
// line from the least to the greatest.
func (r *Report) chart() []byte {
	const left, width, right, bar, gap = 110, 460, 150, 18, 6
	var b bytes.Buffer
	y := 16
	for _, sc := range scenarios {
		results := r.of(sc.name)
		if sc.kills || sc.alone() || len(results) == 0 {
			continue
		}
		top := 0.0
		for _, one := range results {
			_, _, high := one.spread(Turn.rate)
			top = max(top, high)
		}
		fmt.Fprintf(&b, "<text x=\"0\" y=\"%d\" font-weight=\"bold\">%s: %s, payouts per second</text>\n", y, sc.name, sc.what)
		y += 10
		for _, one := range results {
			median, low, high := one.spread(Turn.rate)
			x := func(rate float64) float64 { return left + width*rate/top }
			color, middle := "#9aa5b1", float64(y)+bar/2.0
			if one.Engine == engines[0].name {
				color = "#2f6fde"
			}
			fmt.Fprintf(&b, "<text x=\"%d\" y=\"%.0f\" text-anchor=\"end\">%s</text>\n", left-8, middle+4, one.Engine)
			fmt.Fprintf(&b, "<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>\n", left, y, x(median)-left, bar, color)
			fmt.Fprintf(&b, "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#1f2933\"/>\n", x(low), middle, x(high))
			fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.0f\">%s</text>\n", x(high)+8, middle+4, humanize.Comma(int64(median+0.5)))
			y += bar + gap
		}
		y += 26
	}
	whole := left + width + right
	return fmt.Appendf(nil, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" font-family=\"sans-serif\" font-size=\"13\">\n"+
		"<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n%s</svg>\n", whole, y-16, whole, b.Bytes())
}
