package reward

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaDir has the schemas that docs/kafka.md describes.
var schemaDir = filepath.Join("..", "..", "docs", "schemas")

// messageSchemas are the schemas of the records, with their parsers.
var messageSchemas = map[string]func(value []byte) error{
	"publish-point":   func(v []byte) error { _, err := ParsePublishMessage(Point, v); return err },
	"publish-voucher": func(v []byte) error { _, err := ParsePublishMessage(Voucher, v); return err },
	"started":         func(v []byte) error { _, err := ParseStartedMessage(v); return err },
	"retry":           func(v []byte) error { _, err := ParseRetryMessage(v); return err },
	"coupon-issue":    func(v []byte) error { _, err := ParseCouponIssueEvent(v); return err },
}

func compileSchema(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	schema, err := c.Compile(filepath.Join(schemaDir, name+".schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// description is what a schema says about its fields.
type description struct {
	Properties map[string]struct {
		Description string `json:"description"`
	} `json:"properties"`
	Examples []json.RawMessage `json:"examples"`
}

func describe(t *testing.T, name string) (d description) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(schemaDir, name+".schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// validate reads the value as exactly as the schema demands: large numbers keep all
// their digits.
func validate(t *testing.T, schema *jsonschema.Schema, value []byte) error {
	t.Helper()
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(value))
	if err != nil {
		t.Fatalf("%s: %v", value, err)
	}
	return schema.Validate(parsed)
}

// TestSchemasAgreeWithTheParsers: every example is valid; and of thousands of changed
// examples, the schema and the parser accept the same ones.
func TestSchemasAgreeWithTheParsers(t *testing.T) {
	t.Parallel()
	values := []json.RawMessage{
		[]byte(`-1`), []byte(`0`), []byte(`1`), []byte(`5`), []byte(`2147483647`), []byte(`2147483648`), []byte(`1000000000000000`), []byte(`1000000000000001`),
		[]byte(`9223372036854775807`), []byte(`9223372036854775808`), []byte(`1.5`), []byte(`true`), []byte(`null`), []byte(`[]`), []byte(`{}`),
		[]byte(`""`), []byte(`"0"`), []byte(`"1"`), []byte(`"07"`), []byte(`"+7"`), []byte(`"-1"`), []byte(`"1.5"`), []byte(`"1e3"`), []byte(`" 1"`), []byte(`"x"`),
		[]byte(`"1000000000000000"`), []byte(`"1000000000000001"`), []byte(`"100000000000000000000"`), []byte(`"a\u0000b"`), []byte(`"é\n\"\ud83d\ude00"`),
		[]byte(`"POINT"`), []byte(`"vOUCHER"`), []byte(`"COUPON"`), []byte(`"2026-11-21T10:00:00Z"`), []byte(`"2026-11-21"`), []byte(`"soon"`),
		[]byte(`"` + strings.Repeat("x", 255) + `"`), []byte(`"` + strings.Repeat("x", 256) + `"`),
	}
	for name, parse := range messageSchemas {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			schema := compileSchema(t, name)
			described := describe(t, name)
			if len(described.Examples) == 0 {
				t.Fatal("the schema has no examples")
			}
			fields := slices.Sorted(maps.Keys(described.Properties))
			for _, field := range fields {
				if described.Properties[field].Description == "" {
					t.Errorf("%s has no description", field)
				}
			}
			agree := func(value []byte) (accepted bool) {
				bySchema, byParser := validate(t, schema, value), parse(value)
				if (bySchema == nil) != (byParser == nil) {
					t.Fatalf("%s: the schema says %v, the parser %v", value, bySchema, byParser)
				}
				return byParser == nil
			}
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			dice := rand.New(rand.NewPCG(seed, 0))
			accepted, refused := 0, 0
			for _, example := range described.Examples {
				if !agree(example) {
					t.Errorf("the example %s is refused", example)
				}
				for range 1000 {
					var message map[string]json.RawMessage
					if err := json.Unmarshal(example, &message); err != nil {
						t.Fatal(err)
					}
					for range 1 + dice.IntN(3) {
						switch field := fields[dice.IntN(len(fields))]; dice.IntN(4) {
						case 0:
							delete(message, field)
						case 1:
							message["more"] = values[dice.IntN(len(values))]
						default:
							message[field] = values[dice.IntN(len(values))]
						}
					}
					value, err := json.Marshal(message)
					if err != nil {
						t.Fatal(err)
					}
					if agree(value) {
						accepted++
					} else {
						refused++
					}
				}
			}
			for _, value := range values {
				agree(value) // as the whole value
			}
			if accepted < 100 || refused < 100 {
				t.Errorf("%d changed examples were accepted and %d refused, which compares little", accepted, refused)
			}
		})
	}
}

// TestSchemasFitWhatLargesseWrites: other systems read these records, too.
func TestSchemasFitWhatLargesseWrites(t *testing.T) {
	t.Parallel()
	point := PublishMessage{PromotionID: 1, SummaryID: 2, TargetID: 0, UserID: "é\"\\", Amount: AmountMax}
	voucher := PublishMessage{PromotionID: 1, TargetID: 9223372036854775807, UserID: "u", VoucherCode: "V-1"}
	retry, err := json.Marshal(RetryMessage{PublishMessage: voucher, RetryCount: 5, NotBefore: time.Now().UTC(), LastError: "HTTP_500", Dispatch: 6})
	if err != nil {
		t.Fatal(err)
	}
	event := CouponIssueEvent{TemplateID: 42, UserID: "u7", Ticket: 981, Generation: 1, RequestID: "42:u7"}
	for name, value := range map[string][]byte{
		"publish-point": point.AppendJSON(nil), "publish-voucher": voucher.AppendJSON(nil), "retry": retry, "coupon-issue": event.JSON(),
	} {
		if err := validate(t, compileSchema(t, name), value); err != nil {
			t.Errorf("%s: %s: %v", name, value, err)
		}
	}
}

// jsonOfPage is a JSON example of a page, after the line that names its schema.
var jsonOfPage = regexp.MustCompile("(?s)\\]\\(schemas/([a-z-]+)\\.schema\\.json\\).*?```json\n(.*?)```")

// TestExamplesOfTheKafkaPage: the examples of docs/kafka.md fit the schema that is
// linked above each of them, and its tables name every field.
func TestExamplesOfTheKafkaPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "kafka.md"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range jsonOfPage.FindAllSubmatch(page, -1) {
		name := string(m[1])
		parse := messageSchemas[name]
		if parse == nil {
			t.Fatalf("docs/kafka.md links the schema %s, which no parser belongs to", name)
		}
		seen[name] = true
		for line := range bytes.Lines(m[2]) {
			if err := validate(t, compileSchema(t, name), line); err != nil {
				t.Errorf("%s: %s: %v", name, line, err)
			}
			if err := parse(line); err != nil {
				t.Errorf("%s: %s: %v", name, line, err)
			}
		}
		for field := range describe(t, name).Properties {
			if !bytes.Contains(page, fmt.Appendf(nil, "| `%s`", field)) {
				t.Errorf("no table of docs/kafka.md has a row for %s", field)
			}
		}
	}
	if len(seen) != len(messageSchemas) {
		t.Errorf("docs/kafka.md has examples of %v, want one of each schema", slices.Sorted(maps.Keys(seen)))
	}
}
