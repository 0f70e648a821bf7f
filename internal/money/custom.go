package money

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm"
	"github.com/google/uuid"

	"github.com/largesse/largesse/internal/obs"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/service"
)

// Custom describes the API of a provider that has not the Money API: what is sent,
// and what the responses mean. The zero value stands for the Money API. The fields
// are settings below "money."; docs/provider-settings.md explains them.
//
// Bodies are expressions whose value is encoded as JSON, so no value of a payout
// can change their structure.
type Custom struct {
	Method  string // POST or PUT
	Path    string // with placeholders such as {key}
	Headers string // a "Name: value" per line, with placeholders
	Key     string // expression: the idempotency key
	Body    string // expression

	Signature         string // expression: the text to sign; "": no signature
	SignatureKeyFile  string
	SignatureEncoding string // hex or base64

	// The rules, in the order in which they are tried. A response that none of them matches leaves
	// open whether the charge was made.
	Paid, Refused, Misconfigured, Throttled string
	TransactionKey, Code, Message           string

	LookupPath                                        string // "": the provider has no lookup
	LookupFound, LookupTransactionKey, LookupNotFound string
	// WithoutLookup must be CustomRepeat if there is no lookup.
	WithoutLookup string
}

// CustomRepeat confirms that a charge without a conclusive response may be repeated
// with the same key, because the provider pays each key once.
const CustomRepeat = "repeat"

// CodeNoLookup is the code of a lookup that the provider does not have.
const CodeNoLookup = "NO_LOOKUP"

// codeNotSendable is the code of a charge that cannot be expressed as a request.
const codeNotSendable = "NOT_SENDABLE"

var errNoLookup = errors.New("the settings name no lookup (money.lookup.path)")

// CustomError is what is wrong with one setting of a Custom.
type CustomError struct {
	Setting string // e.g. money.request.body
	Detail  string // continues a sentence that begins with the setting
}

// Error returns the setting and what is wrong.
func (e CustomError) Error() string { return e.Setting + " " + e.Detail }

type chargeEnv struct {
	Key         string `expr:"key"`
	PromotionID string `expr:"promotionId"`
	TargetID    string `expr:"targetId"`
	Type        string `expr:"type"`
	UserID      string `expr:"userId"`
	Amount      int    `expr:"amount"`
	Currency    string `expr:"currency"`
	Digits      int    `expr:"currencyDigits"` // behind the decimal point; -1: unknown
	VoucherCode string `expr:"voucherCode"`
}

type keyEnv struct {
	PromotionID string `expr:"promotionId"`
	TargetID    string `expr:"targetId"`
}

type signEnv struct {
	Method    string `expr:"method"`
	Path      string `expr:"path"`
	Body      string `expr:"body"`
	Timestamp string `expr:"timestamp"`
	Key       string `expr:"key"`
}

type replyEnv struct {
	Key    string `expr:"key"` // that was sent
	Status int    `expr:"status"`
	Body   any    `expr:"body"` // nil if the body is not JSON, or has a name twice
	Text   string `expr:"text"`
}

// custom is a compiled Custom. It is safe for concurrent use.
type custom struct {
	with      Custom
	base      string // path of money.url, which is signed, too
	key, body *vm.Program
	sign      *vm.Program               // nil: no signature
	secret    *service.Reloaded[string] // nil: no signature
	headers   [][2]string

	paid, refused, misset, throttle, txKey *vm.Program // those that are not set: nil
	code                                   *vm.Program // nil: the field code of the body
	message                                *vm.Program // nil: a field of the body, see answerBody.message
	found, foundKey, notFound              *vm.Program // nil without a lookup
}

// CheckCustom returns everything that is wrong with c, or else which promotions it can
// pay.
func CheckCustom(c Custom) (reward.Payable, []CustomError) {
	p, problems := newCustom(c, obs.Log{})
	if len(problems) > 0 {
		return reward.Payable{}, problems
	}
	return p.payable(), nil
}

// payable says which promotions the description can pay: what its requests do not
// name makes no difference.
func (p *custom) payable() reward.Payable {
	named := map[string]bool{}
	eachNode(p.body, func(node ast.Node) {
		if identifier, ok := node.(*ast.IdentifierNode); ok {
			named[identifier.Value] = true
		}
	})
	for _, text := range append([]string{p.with.Path}, strings.Split(p.with.Headers, "\n")...) {
		for _, match := range place.FindAllStringSubmatch(text, -1) {
			named[match[1]] = true
		}
	}
	return reward.Payable{PointsOnly: !named["type"] && !named["voucherCode"], SameCurrency: !named["currency"]}
}

// eachNode calls f for each node of an expression.
func eachNode(program *vm.Program, f func(node ast.Node)) {
	ast.Find(program.Node(), func(node ast.Node) bool { f(node); return false })
}

// mistakes collects what is wrong with a Custom.
type mistakes []CustomError

func (m *mistakes) add(setting, detail string, args ...any) {
	*m = append(*m, CustomError{Setting: setting, Detail: fmt.Sprintf(detail, args...)})
}

// compile returns nil for an expression that is empty or wrong.
func (m *mistakes) compile(setting, text string, env any, option expr.Option, required bool) *vm.Program {
	if strings.TrimSpace(text) == "" {
		if required {
			m.add(setting, "is missing, but money.request.path needs it")
		}
		return nil
	}
	program, err := expr.Compile(text, append(customOptions, expr.Env(env), option)...)
	if err != nil {
		m.add(setting, "is not a valid expression: %v", shortError(err))
		return nil
	}
	return program
}

// newCustom compiles c. It tries the request with a hostile charge.
func newCustom(c Custom, log obs.Log) (*custom, []CustomError) {
	p := &custom{with: c}
	var wrong mistakes
	if c.Method != http.MethodPost && c.Method != http.MethodPut {
		wrong.add("money.request.method", "must be POST or PUT")
	}
	wrong.checkPlaces("money.request.path", c.Path, pathPlaces)
	p.headers = wrong.readHeaders("money.request.headers", c.Headers)
	p.key = wrong.compile("money.request.key", c.Key, keyEnv{}, expr.AsKind(reflect.String), true)
	p.body = wrong.compile("money.request.body", c.Body, chargeEnv{}, expr.AsAny(), true)
	p.paid = wrong.compile("money.response.paid", c.Paid, replyEnv{}, expr.AsBool(), true)
	p.txKey = wrong.compile("money.response.transaction-key", c.TransactionKey, replyEnv{}, expr.AsAny(), true)
	p.refused = wrong.compile("money.response.refused", c.Refused, replyEnv{}, expr.AsBool(), false)
	p.misset = wrong.compile("money.response.misconfigured", c.Misconfigured, replyEnv{}, expr.AsBool(), false)
	p.throttle = wrong.compile("money.response.throttled", c.Throttled, replyEnv{}, expr.AsBool(), false)
	p.code = wrong.compile("money.response.code", c.Code, replyEnv{}, expr.AsAny(), false)
	p.message = wrong.compile("money.response.message", c.Message, replyEnv{}, expr.AsAny(), false)
	p.compileLookup(&wrong)
	p.openSignature(&wrong, log)
	if len(wrong) == 0 {
		p.tryOut(&wrong)
	}
	return p, wrong
}

func (p *custom) compileLookup(wrong *mistakes) {
	c := p.with
	has := c.LookupPath != ""
	switch {
	case has && c.WithoutLookup != "":
		wrong.add("money.lookup.without", "has no effect, because money.lookup.path is set: keep one of them")
	case !has && c.WithoutLookup != CustomRepeat:
		wrong.add("money.lookup.without", "must be %s if money.lookup.path is empty: charges without a conclusive response are then repeated with the same key, which the provider must pay once",
			CustomRepeat)
	case has:
		wrong.checkPlaces("money.lookup.path", c.LookupPath, lookupPlaces)
	}
	compile := func(setting, text string, option expr.Option) *vm.Program {
		if !has && text != "" {
			wrong.add(setting, "has no effect without money.lookup.path")
			return nil
		}
		return wrong.compile(setting, text, replyEnv{}, option, has)
	}
	p.found = compile("money.lookup.found", c.LookupFound, expr.AsBool())
	p.foundKey = compile("money.lookup.transaction-key", c.LookupTransactionKey, expr.AsAny())
	p.notFound = compile("money.lookup.not-found", c.LookupNotFound, expr.AsBool())
}

func (p *custom) openSignature(wrong *mistakes, log obs.Log) {
	c := p.with
	signs := slices.ContainsFunc(p.headers, func(h [2]string) bool { return strings.Contains(h[1], "{signature}") })
	if (c.Signature != "") != signs || (c.Signature != "") != (c.SignatureKeyFile != "") {
		wrong.add("money.request.signature", "belongs together with money.request.signature-key-file and a header that has {signature}: set all or none")
		return
	}
	if c.SignatureEncoding != "hex" && c.SignatureEncoding != "base64" {
		wrong.add("money.request.signature-encoding", "must be hex or base64")
	}
	p.sign = wrong.compile("money.request.signature", c.Signature, signEnv{}, expr.AsKind(reflect.String), false)
	if p.sign == nil {
		return
	}
	report := log.Streak("signature key unusable, keeping the last one", "signature key usable again")
	secret, err := service.NewReloaded(tokenMaxAge, func() (string, error) { return readToken(c.SignatureKeyFile) }, func(err error) { report(err) })
	if err != nil {
		wrong.add("money.request.signature-key-file", "%s", strings.TrimPrefix(err.Error(), "money.token-file "))
		return
	}
	p.secret = secret
}

// tryOut compares keys, and makes requests of unusual charges.
func (p *custom) tryOut(wrong *mistakes) {
	if err := p.checkKeys(); err != nil {
		wrong.add("money.request.key", "%v", err)
		return
	}
	for _, t := range []reward.PromotionType{reward.Point, reward.Voucher} {
		ch := Charge{PromotionID: 1<<63 - 1, TargetID: 0, UserID: "u \"'\\\n{é", Amount: 1}
		if t == reward.Voucher {
			ch.VoucherCode, ch.Currency = "V\"}\n", "EUR"
		}
		if _, err := p.request(ch, t, time.Now()); err != nil && !errors.Is(err, errNotInPath) {
			wrong.add("money.request.body", "cannot be made for a charge of type %s: %v", t, err)
			return
		}
	}
}

// keyIDs are IDs whose keys are compared: as text, one is the beginning, the end or two
// ends of another; as numbers, they have equal sums, products, remainders and floats.
var keyIDs = []int64{
	0, 1, 2, 3, 11, 12, 21, 23, 101, 111, 112, 121, 123, 131, 141, 151, 161, 171, 181, 191, 1001, 1_000_001, 1_000_000_001,
	1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<32 + 1, 1 << 53, 1<<53 + 1, 1_000_000_000_000_000_001, 2_000_000_000_000_000_001,
	math.MaxInt64 - 1, math.MaxInt64,
}

// checkKeys computes keys of many payouts. No two may be equal: the provider would take
// the second payout for a repetition of the first, and never pay it.
func (p *custom) checkKeys() error {
	type payout struct{ promotion, target int64 }
	ids := append(p.literalIDs(), keyIDs...)
	slices.Sort(ids)
	ids = slices.Compact(ids)
	known := make(map[string]payout, len(ids)*len(ids))
	for _, promotion := range ids[1:] { // a promotion's ID is at least 1
		for _, target := range ids {
			key, err := p.keyOf(reward.PromotionID(promotion), reward.TargetID(target))
			if err != nil {
				return fmt.Errorf("fails for promotion %d and target %d: %w", promotion, target, err)
			}
			if other, found := known[key]; found {
				return fmt.Errorf("gives promotion %d and target %d, and promotion %d and target %d, the same key %q, so one of them would never be paid: "+
					`use both IDs whole, with a character between them that is no digit, as promotionId + ":" + targetId`,
					other.promotion, other.target, promotion, target, key)
			}
			known[key] = payout{promotion, target}
		}
	}
	return nil
}

// literalIDs returns IDs whose keys may be equal because of the digits that the key's
// expression adds itself.
func (p *custom) literalIDs() []int64 {
	found := map[string]bool{}
	note := func(text string) {
		for _, d := range digitsText.FindAllString(text, -1) {
			found[d] = true
		}
	}
	eachNode(p.key, func(node ast.Node) {
		switch n := node.(type) {
		case *ast.StringNode:
			note(n.Value)
		case *ast.IntegerNode:
			note(strconv.Itoa(n.Value))
		case *ast.ConstantNode:
			note(fmt.Sprint(n.Value))
		}
	})
	note(digitsBetween(p.with.Key))
	var ids []int64
	add := func(text string) {
		if id, err := strconv.ParseInt(text, 10, 64); err == nil {
			ids = append(ids, id)
		}
	}
	for d := range found {
		add("1" + d + "1") // 1, d, 1d1 and 1d1, d, 1 are the same text
		for period := 1; period <= len(d); period++ {
			if strings.HasPrefix(d, d[period:]) { // if d is eee: 1, eee, e1 and 1e, eee, 1
				add("1" + d[:period])
				add(d[len(d)-period:] + "1")
			}
		}
		if n, err := strconv.ParseInt(d, 10, 64); err == nil && n < math.MaxInt64 {
			ids = append(ids, n, n+1) // as a factor or a divisor
		}
	}
	return ids
}

var digitsText = regexp.MustCompile(`[0-9]+`)

// digitsBetween returns the digits that the expression puts between the two IDs, possibly from
// several literals. It leaves out hashes, which would hide them.
func digitsBetween(key string) (digits string) {
	const promotion, target = "7203685477580314159", "7161803398874989485"
	same := func(args ...any) (any, error) { return args[0], nil }
	program, err := expr.Compile(key, append(slices.Clone(customOptions), expr.Env(keyEnv{}),
		expr.Function("uuid", same, new(func(string) string)), expr.Function("hash", same, new(func(string, int) string)))...)
	if err != nil {
		return ""
	}
	value, err := expr.Run(program, keyEnv{PromotionID: promotion, TargetID: target})
	if err != nil {
		return ""
	}
	for _, order := range []string{promotion + "([0-9]+)" + target, target + "([0-9]+)" + promotion} {
		for _, found := range regexp.MustCompile(order).FindAllStringSubmatch(fmt.Sprint(value), -1) {
			digits += found[1] + " "
		}
	}
	return digits
}

// customOptions hold what expressions may not do, and the functions they have in
// addition. The body of a charge must not depend on the time.
var customOptions = []expr.Option{
	expr.DisableBuiltin("now"),
	expr.DisableBuiltin("date"),
	expr.DisableBuiltin("timezone"),
	expr.Function("decimal", func(args ...any) (any, error) { return decimal(args[0].(int), args[1].(int)) }, new(func(int, int) string)),
	expr.Function("number", func(args ...any) (any, error) { return jsonNumber(args[0].(string)) }, new(func(string) any)),
	expr.Function("uuid", func(args ...any) (any, error) {
		return uuid.NewSHA1(keySpace, []byte(args[0].(string))).String(), nil
	}, new(func(string) string)),
	expr.Function("hash", func(args ...any) (any, error) { return hash(args[0].(string), args[1].(int)) }, new(func(string, int) string)),
}

// keySpace makes the UUIDs of keys different from those of others.
var keySpace = uuid.MustParse("6fbd4d34-5c9c-4c7c-8d35-6f2a51c7d1a9")

// decimal writes an amount in minor units with a decimal point: 1050 is 10.50.
func decimal(amount, places int) (string, error) {
	if places < 0 || places > 6 {
		return "", errors.New("decimal has 0 to 6 places")
	}
	if places == 0 {
		return strconv.Itoa(amount), nil
	}
	text := fmt.Sprintf("%0*d", places+1, amount)
	return text[:len(text)-places] + "." + text[len(text)-places:], nil
}

// jsonNumber turns a decimal into a number with the same digits.
func jsonNumber(text string) (any, error) {
	if !decimalText.MatchString(text) {
		return nil, fmt.Errorf("%q is not a number", text)
	}
	return json.Number(text), nil
}

var decimalText = regexp.MustCompile(`^(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// hash returns the first characters of the SHA-256 of a text, in hex.
func hash(text string, length int) (string, error) {
	if length < 24 || length > 64 {
		return "", errors.New("hash has 24 to 64 characters: fewer could be the same for two charges")
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:length], nil
}

var (
	place        = regexp.MustCompile(`\{([A-Za-z]*)\}`)
	pathPlaces   = []string{"key", "promotionId", "targetId", "type", "userId", "voucherCode"}
	lookupPlaces = []string{"key", "promotionId", "targetId"}
	headerPlaces = []string{"key", "promotionId", "targetId", "type", "timestamp", "signature"}
	// literalPath matches what a path may have outside of its placeholders.
	literalPath = regexp.MustCompile(`^/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*(\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?$`)
	// keyText is what an idempotency key may be: nothing that a URL would change.
	keyText = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._~:@=,-]{0,199}$`)
)

func (m *mistakes) checkPlaces(setting, path string, known []string) {
	if !literalPath.MatchString(place.ReplaceAllString(path, "x")) {
		m.add(setting, "must begin with / and be a path as in a URL, with placeholders such as {key}")
	}
	for _, name := range unknownPlaces(path, known) {
		m.add(setting, "has the unknown placeholder {%s}; it may have {%s}", name, strings.Join(known, "}, {"))
	}
}

func unknownPlaces(text string, known []string) []string {
	var unknown []string
	for _, match := range place.FindAllStringSubmatch(text, -1) {
		if !slices.Contains(known, match[1]) {
			unknown = append(unknown, match[1])
		}
	}
	return unknown
}

func (m *mistakes) readHeaders(setting, text string) [][2]string {
	var headers [][2]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = http.CanonicalHeaderKey(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !ok || !headerName.MatchString(name) || value == "" || strings.ContainsFunc(value, unicode.IsControl):
			m.add(setting, "must have a \"Name: value\" per line")
		case slices.Contains(ourHeaders, name) && name != "Idempotency-Key":
			m.add(setting, "must not have %s, which each call sets itself", name)
		case slices.ContainsFunc(headers, func(h [2]string) bool { return h[0] == name }):
			m.add(setting, "has %s twice", name)
		}
		for _, unknown := range unknownPlaces(value, headerPlaces) {
			m.add(setting, "has the unknown placeholder {%s}; it may have {%s}. Other values belong into the body", unknown, strings.Join(headerPlaces, "}, {"))
		}
		headers = append(headers, [2]string{name, value})
	}
	return headers
}

// errNotInPath means that a value of a charge must not be in a path.
var errNotInPath = errors.New("contains characters that must not be in the path of a URL")

// replace replaces the placeholders of a text.
func replace(text string, value func(name string) string) string {
	return place.ReplaceAllStringFunc(text, func(match string) string { return value(match[1 : len(match)-1]) })
}

// fill replaces the placeholders of a path. A value in front of the query must not
// be able to name another path.
func fill(path string, values map[string]string) (string, error) {
	var failed error
	before, query, hasQuery := strings.Cut(path, "?")
	before = replace(before, func(name string) string {
		value := values[name]
		if value == "" || value == "." || value == ".." || strings.ContainsAny(value, `/\`) || strings.ContainsFunc(value, unicode.IsControl) {
			failed = fmt.Errorf("{%s} %w", name, errNotInPath)
		}
		return url.PathEscape(value)
	})
	if !hasQuery {
		return before, failed
	}
	return before + "?" + replace(query, func(name string) string { return url.QueryEscape(values[name]) }), failed
}

func (p *custom) keyOf(promotion reward.PromotionID, target reward.TargetID) (string, error) {
	value, err := expr.Run(p.key, keyEnv{PromotionID: promotion.String(), TargetID: target.String()})
	if err != nil {
		return "", shortError(err)
	}
	key, _ := value.(string)
	if !keyText.MatchString(key) {
		return "", errors.New("must give 1 to 200 letters, digits and ._~:@=,- that begin with a letter or digit")
	}
	return key, nil
}

// valuesOf returns what placeholders stand for in every request of a payout.
func (p *custom) valuesOf(promotion reward.PromotionID, target reward.TargetID) (map[string]string, error) {
	key, err := p.keyOf(promotion, target)
	return map[string]string{"key": key, "promotionId": promotion.String(), "targetId": target.String()}, err
}

func (p *custom) request(ch Charge, t reward.PromotionType, now time.Time) (request, error) {
	values, err := p.valuesOf(ch.PromotionID, ch.TargetID)
	if err != nil {
		return request{}, err
	}
	values["type"], values["userId"], values["voucherCode"] = string(t), ch.UserID, ch.VoucherCode
	q := request{method: p.with.Method, customKey: values["key"]}
	if q.path, err = fill(p.with.Path, values); err != nil {
		return request{}, err
	}
	env := chargeEnv{
		Key: values["key"], PromotionID: values["promotionId"], TargetID: values["targetId"], Type: string(t),
		UserID: ch.UserID, Amount: int(ch.Amount), Currency: ch.Currency, VoucherCode: ch.VoucherCode,
	}
	if known := false; ch.Currency != "" {
		if env.Digits, known = reward.CurrencyDigits(ch.Currency); !known {
			env.Digits = -1 // decimal refuses it
		}
	}
	body, err := expr.Run(p.body, env)
	if err != nil {
		return request{}, shortError(err)
	}
	if q.body, err = encode(body); err != nil {
		return request{}, err
	}
	q.headers, err = p.sendHeaders(q, values, now)
	return q, err
}

// encode encodes a value as JSON. It does not escape <, > and &, because a body is
// no HTML, and signatures are of what is sent.
func encode(value any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

func (p *custom) lookupRequest(promotion reward.PromotionID, target reward.TargetID, now time.Time) (request, error) {
	values, err := p.valuesOf(promotion, target)
	if err != nil {
		return request{}, err
	}
	q := request{method: http.MethodGet, customKey: values["key"]}
	if q.path, err = fill(p.with.LookupPath, values); err != nil {
		return request{}, err
	}
	q.headers, err = p.sendHeaders(q, values, now)
	return q, err
}

// sendHeaders returns the headers of a request. headerPlaces leaves out the values that
// a payout could choose.
func (p *custom) sendHeaders(q request, values map[string]string, now time.Time) (http.Header, error) {
	values["timestamp"] = strconv.FormatInt(now.Unix(), 10)
	if p.sign != nil {
		text, err := expr.Run(p.sign, signEnv{Method: q.method, Path: p.base + q.path, Body: string(q.body), Timestamp: values["timestamp"], Key: q.customKey})
		if err != nil {
			return nil, shortError(err)
		}
		mac := hmac.New(sha256.New, []byte(p.secret.Get()))
		_, _ = io.WriteString(mac, text.(string)) // a hash never fails
		if values["signature"] = hex.EncodeToString(mac.Sum(nil)); p.with.SignatureEncoding == "base64" {
			values["signature"] = base64.StdEncoding.EncodeToString(mac.Sum(nil))
		}
	}
	headers := http.Header{}
	for _, h := range p.headers {
		headers.Set(h[0], replace(h[1], func(name string) string { return values[name] }))
	}
	return headers, nil
}

func shortError(err error) error {
	first, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(first)
}

func (r reply) env(key string) replyEnv {
	env := replyEnv{Key: key, Status: r.status, Text: string(r.body)}
	d := json.NewDecoder(bytes.NewReader(r.body))
	d.UseNumber() // a number may be a transaction key, with all its digits
	var body any
	if _, err := reward.CheckJSON(r.body); err == nil && d.Decode(&body) == nil && !d.More() {
		env.Body = plain(body)
	}
	return env
}

// plain replaces the numbers in a JSON value: by integers where possible, by their
// digits if they are integers that are too large, which no amount is but a
// transaction key may be, and by floats otherwise.
func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		n, err := strconv.Atoi(v.String())
		switch {
		case err == nil:
			return n
		case errors.Is(err, strconv.ErrRange):
			return v.String()
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	case []any:
		for i := range v {
			v[i] = plain(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = plain(v[name])
		}
	}
	return value
}

// matches reports whether a rule matches. A rule that cannot be evaluated, for
// example because the body has no such field, does not.
func matches(rule *vm.Program, env replyEnv) bool {
	if rule == nil {
		return false
	}
	value, err := expr.Run(rule, env)
	yes, _ := value.(bool)
	return err == nil && yes
}

func textOf(program *vm.Program, env replyEnv, limit int) string {
	if program == nil {
		return ""
	}
	value, err := expr.Run(program, env)
	if err != nil {
		return ""
	}
	switch v := value.(type) {
	case string:
		return clean(v, limit)
	case int:
		return strconv.Itoa(v)
	}
	return ""
}

func (p *custom) classify(r reply, key string, now time.Time) Answer {
	env, b := r.env(key), readBody(r.body)
	a := Answer{
		Class: reward.AnswerUnknown, Status: r.status, RetryAfter: parseRetryAfter(r.retryAfter, now), Message: textOf(p.message, env, textMax),
		Code: cmp.Or(textOf(p.code, env, codeMax), string(b.Code), fmt.Sprintf("HTTP_%d", r.status)),
	}
	if a.Message == "" || r.cut {
		a.Message = r.message(b)
	}
	switch {
	case matches(p.paid, env):
		if key := textOf(p.txKey, env, textMax); key != "" {
			return Answer{Class: reward.AnswerPaid, Status: r.status, TransactionKey: key, RetryAfter: a.RetryAfter}
		}
		a.Code, a.Err = CodeNoKey, errors.New("money.response.paid matches, but money.response.transaction-key gives no text")
		return a
	case matches(p.refused, env):
		a.Class = reward.AnswerRefused
	case matches(p.misset, env):
		a.Class = reward.AnswerMisconfigured
	case matches(p.throttle, env):
		a.Class = reward.AnswerThrottled
	default:
		a.Open, a.Err = true, fmt.Errorf("status %d matches no rule of money.response", r.status)
	}
	return a
}

func (p *custom) classifyLookup(r reply, key string, now time.Time) LookupResult {
	env := r.env(key)
	a := p.classify(r, key, now)
	found, notFound := matches(p.found, env), matches(p.notFound, env)
	tx := textOf(p.foundKey, env, textMax)
	switch {
	case found && !notFound && tx != "":
		return LookupResult{Found: true, TransactionKey: tx, Answer: Answer{
			Class: reward.AnswerPaid, Status: r.status, TransactionKey: tx, RetryAfter: a.RetryAfter,
		}}
	case notFound && !found:
		a.Class, a.Err, a.TransactionKey = reward.AnswerRefused, nil, ""
		return LookupResult{NotFound: true, Answer: a}
	case a.Class == reward.AnswerThrottled, a.Class == reward.AnswerMisconfigured:
		return LookupResult{Answer: a}
	}
	// The rules for charges prove nothing about a lookup.
	return LookupResult{Answer: Answer{
		Class: reward.AnswerUnknown, Status: r.status, Code: a.Code, Message: a.Message, RetryAfter: a.RetryAfter,
		Open: true, Err: fmt.Errorf("status %d matches no rule of money.lookup, or both", r.status),
	}}
}

// unsendable is the answer of a charge for which there is no request. Nothing was
// sent. A value that must not be in a path is refused, because it never can be
// sent; anything else is a mistake of the settings.
func unsendable(err error) Answer {
	a := Answer{Class: reward.AnswerMisconfigured, Code: codeNotSendable, Message: clean(err.Error(), textMax)}
	if errors.Is(err, errNotInPath) {
		a.Class = reward.AnswerRefused
	}
	return a
}
