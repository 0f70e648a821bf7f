package webhook

import (
	"cmp"
	"encoding/json"
	"fmt"
	"html"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

// valueMax limits a value in a message to people, in characters.
const valueMax = 500

// note is a message to people.
type note struct {
	title      string
	lines      []noteLine
	link, open string // a URL and its text; empty if there is none
}

type noteLine struct{ label, value string }

// add adds a line, unless the value is empty.
func (n *note) add(label, value string) {
	value = strings.Join(strings.Fields(value), " ")
	if utf8.RuneCountInString(value) > valueMax {
		value = string([]rune(value)[:valueMax]) + "…"
	}
	if value != "" {
		n.lines = append(n.lines, noteLine{label, value})
	}
}

// describe returns the message to people for a body, as compose returns it, in a language.
// console is the URL of the console; empty means that there is no link.
func describe(body []byte, language, console string, zone *time.Location) (note, error) {
	w, ok := languages[language]
	if !ok {
		w = languages[defaultLanguage]
	}
	w.zone = zone
	var m struct {
		Type      string          `json:"type"`
		Timestamp time.Time       `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return note{}, fmt.Errorf("read the body of a message: %w", err)
	}
	var n note
	var page string
	var err error
	switch m.Type {
	case "coupon.sold_out", "coupon.approval_needed":
		var t TemplateData
		err = json.Unmarshal(m.Data, &t)
		n, page = w.template(m.Type, &t), "coupons/"+t.ID
	case store.WebhookTest:
		n, page = note{title: w.test}, "webhooks"
	default:
		var p PromotionData
		err = json.Unmarshal(m.Data, &p)
		n, page = w.promotion(m.Type, &p), "promotions/"+p.ID
		if m.Type == "promotion.approval_needed" {
			page = "approvals/" + p.ID
		}
	}
	if strings.HasSuffix(m.Type, ".approval_needed") {
		n.add(w.asked, w.moment(m.Timestamp)) // otherwise a second question looks like the first one
	}
	if err != nil {
		return note{}, fmt.Errorf("read the data of a message: %w", err)
	}
	if console != "" {
		n.link, n.open = strings.TrimSuffix(console, "/")+"/#/"+page, w.open
	}
	return n, nil
}

func (w *words) promotion(event string, p *PromotionData) note {
	title := map[string]string{
		"promotion.approval_needed": w.approvalNeeded, "promotion.paused": w.paused, "promotion.completed": w.finished, "balance.breach": w.breach,
	}[event]
	n := note{title: fmt.Sprintf(title, cmp.Or(p.Name, p.ID))}
	worth, paid := reward.Amount(p.AmountTotal), reward.Amount(p.AmountSucceeded)
	if event == "promotion.approval_needed" {
		n.add(w.amount, w.money(worth, p))
		n.add(w.people, w.persons(p.TotalCount))
		n.add(w.starts, w.moment(p.StartsAt))
		n.add(w.createdBy, p.CreatedBy)
		if p.ApprovedCount > 0 {
			n.add(w.approved, strings.TrimPrefix(w.money(reward.Amount(p.ApprovedAmount), p)+", ", ", ")+w.people+": "+w.persons(p.ApprovedCount))
		}
		return n
	}
	n.add(w.reason, cmp.Or(w.causes[reward.PauseCause(&reward.Promotion{Status: reward.PromotionStatus(p.Status), PausedBy: p.PausedBy, PauseReason: p.PauseReason})], p.PauseReason))
	if worth > 0 {
		n.add(w.paid, fmt.Sprintf(w.partOf, w.amountOf(paid, p.Currency), w.amountOf(worth, p.Currency)))
	}
	n.add(w.people, fmt.Sprintf(w.partOf, w.persons(p.Counts[reward.Succeeded.JSONName()]), w.persons(p.TotalCount)))
	if failed := p.Counts[reward.Failed.JSONName()]; failed > 0 {
		n.add(w.failed, w.persons(failed))
	}
	n.add(w.finishedAt, w.moment(p.FinishedAt))
	return n
}

// money returns an amount, or "" for vouchers that are worth none.
func (w *words) money(a reward.Amount, p *PromotionData) string {
	if a == 0 && p.Type == string(reward.Voucher) {
		return ""
	}
	return w.amountOf(a, p.Currency)
}

// amountOf returns an amount as the console shows it.
func (w *words) amountOf(a reward.Amount, currency string) string {
	if currency == "KRW" {
		return number(int64(a)) + w.won
	}
	return a.In(currency)
}

func (w *words) template(event string, t *TemplateData) note {
	if event == "coupon.approval_needed" {
		n := note{title: fmt.Sprintf(w.approvalNeeded, cmp.Or(t.Name, t.ID))}
		n.add(w.inForce, number(t.TotalQuantity))
		n.add(w.wanted, number(t.AwaitingQuantity))
		n.add(w.starts, w.moment(t.OpensAt))
		return n
	}
	n := note{title: fmt.Sprintf(w.soldOut, cmp.Or(t.Name, t.ID))}
	n.add(w.coupons, number(t.TotalQuantity))
	n.add(w.opened, w.moment(t.OpensAt))
	return n
}

func (w *words) persons(n int64) string { return fmt.Sprintf(w.each, number(n)) }

func number(n int64) string { return reward.Amount(n).In("") }

// moment returns a time in the zone of the messages, or "" for none. A zone that nobody
// chose is named.
func (w *words) moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	if w.zone != nil {
		return t.In(w.zone).Format("2006-01-02 15:04")
	}
	return t.Local().Format("2006-01-02 15:04 (UTC-07:00)")
}

// text returns the message as plain text.
func (n *note) text() string {
	var b strings.Builder
	b.WriteString(n.title + "\n")
	for _, l := range n.lines {
		b.WriteString("\n" + l.label + ": " + l.value)
	}
	if n.link != "" {
		b.WriteString("\n\n" + n.open + ": " + n.link)
	}
	return b.String() + "\n"
}

func (n *note) html() string {
	var b strings.Builder
	b.WriteString(`<!doctype html><html><body style="font-family:sans-serif"><h2>` + html.EscapeString(n.title) + `</h2><table>`)
	for _, l := range n.lines {
		b.WriteString(`<tr><td style="padding-right:1em">` + html.EscapeString(l.label) + `</td><td>` + html.EscapeString(l.value) + `</td></tr>`)
	}
	b.WriteString(`</table>`)
	if n.link != "" {
		b.WriteString(`<p><a href="` + html.EscapeString(n.link) + `">` + html.EscapeString(n.open) + `</a></p>`)
	}
	return b.String() + `</body></html>`
}

// slackText escapes the characters with a meaning in the texts of Slack, so that no name is
// a link or calls somebody.
var slackText = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

type (
	slackMessage struct {
		Text   string       `json:"text"` // all of it, for receivers that know no blocks
		Blocks []slackBlock `json:"blocks"`
	}
	slackBlock struct {
		Type   string      `json:"type"`
		Text   *slackPart  `json:"text,omitempty"`
		Fields []slackPart `json:"fields,omitempty"`
	}
	slackPart struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
)

// slack returns the message as an incoming webhook of Slack takes it.
func (n *note) slack() ([]byte, error) {
	part := func(text string) slackPart { return slackPart{"mrkdwn", text} }
	title := "*" + slackText.Replace(n.title) + "*"
	m := slackMessage{Text: title, Blocks: []slackBlock{{Type: "section", Text: new(part(title))}}}
	fields := slackBlock{Type: "section"}
	for _, l := range n.lines {
		label, value := slackText.Replace(l.label), slackText.Replace(l.value)
		m.Text += "\n" + label + ": " + value
		fields.Fields = append(fields.Fields, part("*"+label+"*\n"+value))
	}
	if len(fields.Fields) > 0 {
		m.Blocks = append(m.Blocks, fields)
	}
	if n.link != "" {
		link := "<" + slackText.Replace(n.link) + "|" + slackText.Replace(n.open) + ">"
		m.Text += "\n" + link
		m.Blocks = append(m.Blocks, slackBlock{Type: "section", Text: new(part(link))})
	}
	return json.Marshal(m)
}
