package reward

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
)

// Codes of targets that are refused: of lines of a file, and, in the detail of a dead
// letter, of records of a publish topic.
const (
	LineMissingID     = "MISSING_ID"
	LineMissingUser   = "MISSING_USER"
	LineBadID         = "BAD_ID"
	LineBadUser       = "BAD_USER"
	LineMissingAmount = "MISSING_AMOUNT"
	LineBadAmount     = "BAD_AMOUNT"
	LineBadVoucher    = "BAD_VOUCHER"
	LineInvalidUTF8   = "INVALID_UTF8"
	LineTooLong       = "LINE_TOO_LONG"
	LineBadJSON       = "BAD_JSON"
)

// TargetText has the members of a target as texts. An empty one is missing.
type TargetText struct {
	TargetID, UserID, Amount, VoucherCode string
}

// ParseTargetText parses a JSON object that has the members of a target and no others. The
// error has the code of the line.
func ParseTargetText(line []byte) (TargetText, *Error) {
	var m targetJSON
	if err := decode(line, &m, false); err != nil {
		return TargetText{}, err
	}
	return m.text()
}

// targetJSON has the members of a target in JSON.
type targetJSON struct {
	Target  json.RawMessage `json:"targetId"`
	User    json.RawMessage `json:"userId"`
	Amount  json.RawMessage `json:"amount"`
	Voucher json.RawMessage `json:"voucherCode"`
}

func (m *targetJSON) text() (x TargetText, err *Error) {
	for _, member := range []struct {
		name, code string
		value      json.RawMessage
		into       *string
	}{
		{"targetId", LineBadID, m.Target, &x.TargetID},
		{"userId", LineBadUser, m.User, &x.UserID},
		{"amount", LineBadAmount, m.Amount, &x.Amount},
		{"voucherCode", LineBadVoucher, m.Voucher, &x.VoucherCode},
	} {
		if len(member.value) == 0 {
			continue
		}
		text := unquoteID(member.value)
		switch member.value[0] {
		case 'n':
			continue
		case '"':
			if strings.IndexByte(text, 0) >= 0 {
				return TargetText{}, RefuseLine(LineInvalidUTF8, "%s contains U+0000", member.name)
			}
		case '{', '[', 't', 'f':
			return TargetText{}, RefuseLine(member.code, "%s must be a string or a number", member.name)
		default:
			// A voucher code would lose its leading zeros, and a user ID has no one way to be written.
			if member.into == &x.VoucherCode || member.into == &x.UserID && strings.ContainsAny(text, ".eE-") {
				return TargetText{}, RefuseLine(member.code, "%s must be a string", member.name)
			}
		}
		*member.into = text
	}
	return x, nil
}

// RefuseLine returns the reason why a line or message with a target is refused; code is a Line code.
func RefuseLine(code, format string, args ...any) *Error {
	return NewError(KindInvalid, code, format, args...)
}

// Target returns the target as a message of a promotion, whose amount and voucher code
// stand for missing ones. The error has the code of the line.
func (x TargetText) Target(of *Promotion) (PublishMessage, *Error) { return x.target(of, true) }

// target is Target, without the rules of how texts look unless they are fresh: others
// may have come in before there were these rules.
func (x TargetText) target(of *Promotion, fresh bool) (PublishMessage, *Error) {
	refuse := func(code, format string, args ...any) (PublishMessage, *Error) {
		return PublishMessage{}, RefuseLine(code, format, args...)
	}
	if x.TargetID == "" {
		return refuse(LineMissingID, "targetId is missing")
	}
	id, err := ParseTargetID(x.TargetID)
	if err != nil {
		return refuse(LineBadID, "%v", err)
	}
	m := PublishMessage{PromotionID: of.ID, TargetID: id, UserID: cmp.Or(x.UserID, x.TargetID), Amount: of.Amount}
	check := CheckUserID
	if fresh {
		check = CheckNewUserID
	}
	if err := check(m.UserID); err != nil {
		return refuse(LineBadUser, "%v", err)
	}
	least := AmountMin(of.Type)
	if x.Amount != "" {
		n, err := strconv.ParseInt(x.Amount, 10, 64)
		if m.Amount = Amount(n); err != nil || m.Amount < least || m.Amount > AmountMax {
			return refuse(LineBadAmount, "amount %s is not a whole number of minor units from %d to %d", Quote(x.Amount), least, AmountMax)
		}
	}
	switch {
	case m.Amount < least:
		return refuse(LineMissingAmount, "amount is missing")
	case m.Amount > AmountMax: // of a promotion that is older than the limit
		return refuse(LineBadAmount, "the promotion's amount %d is above %d", m.Amount, AmountMax)
	case of.Type != Voucher && x.VoucherCode != "":
		return refuse(LineBadVoucher, "a %s promotion has no voucherCode", of.Type)
	case of.Type != Voucher:
		return m, nil
	}
	m.VoucherCode = cmp.Or(x.VoucherCode, of.VoucherCode)
	switch {
	case m.VoucherCode == "":
		return refuse(LineBadVoucher, "voucherCode is missing")
	case len(m.VoucherCode) > VoucherCodeMax:
		return refuse(LineBadVoucher, "voucherCode is longer than %d bytes", VoucherCodeMax)
	case fresh && HasControl(x.VoucherCode):
		return refuse(LineBadVoucher, "voucherCode contains a control character")
	}
	return m, nil
}
