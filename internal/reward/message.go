package reward

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// UnmarshalJSON accepts a canonical integer, bare or as a string.
func (id *PromotionID) UnmarshalJSON(b []byte) (err error) {
	*id, err = ParsePromotionID(unquoteID(b))
	return err
}

// UnmarshalJSON accepts a canonical integer, bare or as a string.
func (id *TargetID) UnmarshalJSON(b []byte) (err error) {
	*id, err = ParseTargetID(unquoteID(b))
	return err
}

// UnmarshalJSON accepts a canonical integer, bare or as a string. Null is none.
func (id *SummaryID) UnmarshalJSON(b []byte) (err error) {
	if string(b) == "null" {
		*id = 0
		return nil
	}
	*id, err = parseID[SummaryID]("promotion summary ID", unquoteID(b), 0)
	return err
}

func unquoteID(b []byte) string {
	if len(b) >= 2 && b[0] == '"' {
		return string(jsonText(b))
	}
	return string(b)
}

// PublishMessage requests one payout. It is the value of a record of a publish
// topic, and the message of a stream entry. The topic decides the type; only
// vouchers have a VoucherCode.
type PublishMessage struct {
	PromotionID PromotionID `json:"promotionId"`
	SummaryID   SummaryID   `json:"promotionSummaryId"`
	TargetID    TargetID    `json:"targetId"`
	UserID      string      `json:"userId"`
	Amount      Amount      `json:"amount"`
	VoucherCode string      `json:"voucherCode,omitempty"`
}

// RetryMessage requests the next call of a payout, no earlier than NotBefore.
// Dispatch is the row's number when the message was written: the message has no
// effect if the row has changed since.
type RetryMessage struct {
	PublishMessage
	RetryCount int32     `json:"retryCount"` // counted attempts so far
	NotBefore  time.Time `json:"notBefore"`
	LastError  string    `json:"lastError"`
	Dispatch   int32     `json:"dispatch"`
}

// StartedMessage says that a promotion has started, and how many targets it has.
type StartedMessage struct {
	PromotionID   PromotionID
	PromotionType PromotionType
	TotalCount    int64
}

// The limits of stored and sent texts.
const (
	UserIDMax      = 255
	VoucherCodeMax = 255
)

// AmountMax is the largest amount of one target, in minor units. It is so low
// that one wrong line cannot make a promotion's total overflow.
const AmountMax Amount = 1_000_000_000_000_000

// AmountMin returns the smallest amount of one target of the type.
func AmountMin(t PromotionType) Amount {
	if t == Point {
		return 1
	}
	return 0
}

// ParsePublishMessage parses the value of a publish record and validates it for
// its type. It ignores unknown fields, which other systems may use, and the voucher code
// of points. The error is an [Error] with the code that a line of a file would get, unless
// the ID of the promotion is missing.
func ParsePublishMessage(t PromotionType, value []byte) (PublishMessage, error) {
	return parseMessage(t, value, true)
}

// ParseEntry parses the message of a payout that Largesse has accepted.
func ParseEntry(t PromotionType, value []byte) (PublishMessage, error) {
	return parseMessage(t, value, false)
}

func parseMessage(t PromotionType, value []byte, fresh bool) (PublishMessage, error) {
	var m struct {
		PromotionID *PromotionID `json:"promotionId"`
		SummaryID   SummaryID    `json:"promotionSummaryId"`
		targetJSON
	}
	if err := decode(value, &m, true); err != nil {
		return PublishMessage{}, err
	}
	if m.PromotionID == nil {
		return PublishMessage{}, fmt.Errorf("promotionId is missing")
	}
	if t != Voucher {
		m.Voucher = nil
	}
	x, err := m.text()
	if err != nil {
		return PublishMessage{}, err
	}
	out, err := x.target(&Promotion{ID: *m.PromotionID, Type: t}, fresh)
	if err != nil {
		return PublishMessage{}, err
	}
	out.SummaryID = m.SummaryID
	return out, nil
}

// CheckText returns an error for text that not every database stores unchanged.
func CheckText(s string) error {
	if !utf8.ValidString(s) {
		return fmt.Errorf("is not valid UTF-8")
	}
	if strings.IndexByte(s, 0) >= 0 {
		return fmt.Errorf("contains U+0000")
	}
	return nil
}

// IsBlank reports whether s has no character that can be seen. U+FEFF is a space in the
// patterns of JSON Schema, though not in Unicode.
func IsBlank(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsSpace(c) && c != '\uFEFF' })
}

// HasControl reports whether s contains a control character.
func HasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

// SanitizeText returns external text (error messages, details, reasons) in a form
// that every database stores: invalid UTF-8 becomes U+FFFD, and U+0000 is
// removed. Use CheckText for text that decides about money.
func SanitizeText(s string) string {
	if CheckText(s) == nil {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "")
}

// ParseStartedMessage parses the value of a started record.
func ParseStartedMessage(value []byte) (StartedMessage, error) {
	var m struct {
		PromotionID   *PromotionID `json:"promotionId"`
		PromotionType string       `json:"promotionType"`
		TotalCount    *int64       `json:"totalCount"`
	}
	if err := decode(value, &m, true); err != nil {
		return StartedMessage{}, err
	}
	if m.PromotionID == nil {
		return StartedMessage{}, fmt.Errorf("promotionId is missing")
	}
	t, err := ParsePromotionType(m.PromotionType)
	if err != nil {
		return StartedMessage{}, err
	}
	if m.TotalCount == nil || *m.TotalCount < 0 {
		return StartedMessage{}, fmt.Errorf("totalCount is missing or negative")
	}
	return StartedMessage{PromotionID: *m.PromotionID, PromotionType: t, TotalCount: *m.TotalCount}, nil
}

// ParseRetryMessage parses the value of a retry record.
func ParseRetryMessage(value []byte) (RetryMessage, error) {
	var m struct {
		RetryMessage
		TargetID *TargetID `json:"targetId"`
	}
	if err := decode(value, &m, true); err != nil {
		return RetryMessage{}, err
	}
	if m.PromotionID == 0 || m.TargetID == nil || m.Dispatch <= 0 || m.NotBefore.IsZero() {
		return RetryMessage{}, fmt.Errorf("promotionId, targetId, dispatch or notBefore is missing")
	}
	out := m.RetryMessage
	out.TargetID = *m.TargetID
	return out, nil
}

// AppendJSON appends the message as JSON. The hot path needs no reflection.
func (m *PublishMessage) AppendJSON(b []byte) []byte {
	b = append(b, `{"promotionId":`...)
	b = strconv.AppendInt(b, int64(m.PromotionID), 10)
	b = append(b, `,"promotionSummaryId":`...)
	b = strconv.AppendInt(b, int64(m.SummaryID), 10)
	b = append(b, `,"targetId":`...)
	b = strconv.AppendInt(b, int64(m.TargetID), 10)
	b = append(b, `,"userId":`...)
	b = appendString(b, m.UserID)
	b = append(b, `,"amount":`...)
	b = strconv.AppendInt(b, int64(m.Amount), 10)
	if m.VoucherCode != "" {
		b = append(b, `,"voucherCode":`...)
		b = appendString(b, m.VoucherCode)
	}
	return append(b, '}')
}

func appendString(b []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			quoted, err := json.Marshal(s)
			if err != nil { // a string always encodes
				panic(err)
			}
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// Message returns the publish message of a payout, as in its stream entry.
func (p *Payout) Message() PublishMessage {
	return PublishMessage{
		PromotionID: p.PromotionID, SummaryID: p.SummaryID, TargetID: p.TargetID,
		UserID: p.UserID, Amount: p.Amount, VoucherCode: p.VoucherCode,
	}
}
