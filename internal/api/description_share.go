package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/largesse/largesse/internal/web"
)

// sharedProblem is the name of the response that every error has.
const sharedProblem = "Problem"

// everywhere are the headers of many operations that the introduction of
// /openapi.json describes once.
var everywhere = []string{ActorHeader, web.IfNoneMatchHeader, "ETag"}

// share makes /openapi.json small: what several operations repeat becomes a component,
// and all errors of all operations are one component.
func share(doc tree) {
	components := doc["components"].(tree)
	components["responses"] = tree{sharedProblem: problemResponse()}
	var operations []tree
	paths := doc["paths"].(tree)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		item := paths[path].(tree)
		for _, method := range slices.Sorted(maps.Keys(item)) {
			operations = append(operations, item[method].(tree))
		}
	}
	var parameters, responses, headers []part
	for _, op := range operations {
		if op["security"] == nil {
			op["security"] = []any{} // public, unlike the others
		} else {
			delete(op, "security")
		}
		list, _ := op["parameters"].([]any)
		list = slices.DeleteFunc(list, func(p any) bool {
			name, _ := p.(tree)["name"].(string)
			return slices.Contains(everywhere, name)
		})
		if op["parameters"] = list; len(list) == 0 {
			delete(op, "parameters")
		}
		for i := range list {
			parameters = append(parameters, parameterPart(op, list, i))
		}
		answers := op["responses"].(tree)
		for _, status := range slices.Sorted(maps.Keys(answers)) {
			if status == "304" || status >= "400" {
				delete(answers, status)
				continue
			}
			dropHeaders(answers[status].(tree))
			responses = append(responses, responsePart(answers, status))
		}
		answers["default"] = refTree("responses", sharedProblem)
		if repeatsID(op) {
			delete(op, "summary")
		}
	}
	shareParts(components, "parameters", parameters)
	shareParts(components, "responses", responses)
	named := components["responses"].(tree)
	for _, name := range slices.Sorted(maps.Keys(named)) {
		headers = append(headers, headerParts(named[name].(tree))...)
	}
	for _, op := range operations {
		answers := op["responses"].(tree)
		for _, status := range slices.Sorted(maps.Keys(answers)) {
			headers = append(headers, headerParts(answers[status].(tree))...)
		}
	}
	shareParts(components, "headers", headers)
	inlineOnce(doc, func(at tree, name string) bool {
		return at["in"] != nil || strings.HasSuffix(name, anonymousBody)
	})
	for _, path := range paths {
		shareWithPath(path.(tree))
	}
}

// shareWithPath moves the parameters that all operations of a path have to the path.
func shareWithPath(item tree) {
	methods := slices.Sorted(maps.Keys(item))
	if len(methods) < 2 {
		return
	}
	var common []any
	first, _ := item[methods[0]].(tree)["parameters"].([]any)
	for _, p := range first {
		if !slices.ContainsFunc(methods, func(method string) bool {
			list, _ := item[method].(tree)["parameters"].([]any)
			return !slices.ContainsFunc(list, func(other any) bool { return reflect.DeepEqual(p, other) })
		}) {
			common = append(common, p)
		}
	}
	if len(common) == 0 {
		return
	}
	for _, method := range methods {
		op := item[method].(tree)
		op["parameters"] = slices.DeleteFunc(op["parameters"].([]any), func(p any) bool {
			return slices.ContainsFunc(common, func(other any) bool { return reflect.DeepEqual(p, other) })
		})
		if len(op["parameters"].([]any)) == 0 {
			delete(op, "parameters")
		}
	}
	item["parameters"] = common
}

// unnamed are small schemas of responses that need no name.
var unnamed = []string{"CodesResult", "Entrant", "Me", "ReleasedPlaces", "Setting", "TopicLag"}

// anonymousBody ends the names that huma invents for bodies without a type of their own.
const anonymousBody = "Body"

// dropHeaders drops the headers of a response that the introduction describes.
func dropHeaders(answer tree) {
	headers, _ := answer["headers"].(tree)
	for _, name := range everywhere {
		delete(headers, name)
	}
	if len(headers) == 0 {
		delete(answer, "headers")
	}
}

// repeatsID reports whether the summary of an operation has only the words of its ID,
// as in "Get a promotion" of get-promotion.
func repeatsID(op tree) bool {
	summary, _ := op["summary"].(string)
	words := slices.DeleteFunc(strings.Fields(strings.ToLower(summary)), func(word string) bool {
		return word == "a" || word == "an" || word == "the"
	})
	return strings.Join(words, "-") == op["operationId"]
}

// inlineOnce moves schemas to the only place that refers to them, if that is the
// schema of a part which inline accepts, a property of a response, or unnamed.
func inlineOnce(doc tree, inline func(at tree, name string) bool) {
	schemas := below(doc, "components", "schemas")
	uses := map[string]int{}
	walkTree(doc, func(at tree) {
		if ref, ok := at["$ref"].(string); ok {
			uses[strings.TrimPrefix(ref, schemaPrefix)]++
		}
	})
	walkTree(doc, func(at tree) {
		whole, _ := at["$ref"].(string)
		if small := strings.TrimPrefix(whole, schemaPrefix); uses[small] == 1 && slices.Contains(unnamed, small) {
			delete(at, "$ref")
			maps.Copy(at, schemas[small].(tree))
			delete(schemas, small)
		}
		ref, _ := below(at, "schema")["$ref"].(string)
		name := strings.TrimPrefix(ref, schemaPrefix)
		if schemas[name] != nil && uses[name] == 1 && inline(at, name) {
			at["schema"] = schemas[name]
			delete(schemas, name)
		}
		for _, property := range below(at, "properties") {
			property, _ := property.(tree)
			ref, _ := property["$ref"].(string)
			name := strings.TrimPrefix(ref, schemaPrefix)
			schema, _ := schemas[name].(tree)
			if uses[name] == 1 && schema["properties"] != nil && at["additionalProperties"] == nil && !strings.HasSuffix(name, "Data") {
				delete(property, "$ref")
				maps.Copy(property, schema)
				delete(schemas, name)
			}
		}
	})
}

// problemResponse returns the response of every error.
func problemResponse() tree {
	header := func(kind, doc string) tree {
		return tree{"description": doc, "schema": tree{"type": kind}}
	}
	return tree{
		"description": "The request failed",
		"content":     tree{web.ProblemType: tree{"schema": refTree("schemas", "Problem")}},
		"headers": tree{
			"Retry-After": header("integer", "Seconds to wait; with 429, 503 and IDEMPOTENCY_IN_PROGRESS"),
		},
	}
}

// enums are the lists of values that several fields and parameters have, by the name of
// their schema. Generators make one type of each.
var enums = map[string]string{
	"PromotionType":    "POINT,VOUCHER",
	"PromotionStatus":  "DRAFT,RUNNING,PAUSED,COMPLETED,CANCELLED",
	"PayoutState":      "READY,QUEUED,RETRYING,UNKNOWN,SUCCEEDED,FAILED,CANCELLED",
	"IssueMode":        "STREAM,KAFKA,SYNC",
	"RedisFallback":    "DATABASE,WAIT",
	"IssuePath":        "GATE,DATABASE",
	"DeadLetterStatus": "OPEN,REPLAYED,DISCARDED",
	"Role":             "viewer,issuer,operator,admin",
	"ContentEncoding":  "gzip,identity",
	"WebhookEvent":     "promotion.started,promotion.paused,promotion.completed,promotion.cancelled,promotion.approval_needed,balance.breach,payout.failed,payout.unknown,coupon.issued,coupon.cancelled,coupon.used",
	"DeliveryState":    "PENDING,DELIVERED,ABANDONED",
}

// enumTexts describe enums whose values need it, wherever they occur.
var enumTexts = map[string]string{
	"IssueMode":     "STREAM: served in order; KAFKA: accepted once the broker has them, in no order; SYNC: issued under a lock, with the outcome in the response",
	"RedisFallback": "During a Redis outage, DATABASE issues through the database; WAIT answers 503",
	"IssuePath":     "How requests are handled now; DATABASE: without Redis, nobody waits in line",
	"Role":          "viewer reads; issuer issues, uses and cancels coupons; operator does everything that is not for admin only",
}

// shareEnums replaces the lists of values in a part of the description by references to
// enums, and adds the ones that it finds to schemas.
func shareEnums(at any, schemas tree) {
	switch at := at.(type) {
	case []any:
		for _, one := range at {
			shareEnums(one, schemas)
		}
	case tree:
		for _, one := range at {
			shareEnums(one, schemas)
		}
		values, _ := at["enum"].([]any)
		for name, list := range enums {
			if joined(values) == list {
				schemas[name] = tree{"type": "string", "enum": values}
				if text := enumTexts[name]; text != "" {
					schemas[name].(tree)["description"] = text
				}
				delete(at, "enum")
				delete(at, "type")
				at["$ref"] = schemaPrefix + name
			}
		}
	}
}

// joined returns the values of an enum as a text.
func joined(values []any) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = fmt.Sprint(v)
	}
	return strings.Join(texts, ",")
}

// extensionMin is the number of fields from which on a schema that repeats all of them
// refers to the other schema instead.
const extensionMin = 5

// bases are schemas of the fields that two others have in common.
var bases = map[string][2]string{"PayoutFields": {"Payout", "HistoryPayout"}, "UploadCounts": {"Upload", "UploadResult"}}

// addBases adds the schemas of bases, to which shareFields refers.
func addBases(schemas tree) {
	for base, pair := range bases {
		one, other := schemas[pair[0]].(tree), schemas[pair[1]].(tree)
		common, required := tree{}, []any{}
		for field, property := range below(one, "properties") {
			if reflect.DeepEqual(property, below(other, "properties")[field]) && isRequired(one, field) == isRequired(other, field) {
				common[field] = property
			}
		}
		for _, field := range one["required"].([]any) {
			if common[field.(string)] != nil {
				required = append(required, field)
			}
		}
		schemas[base] = tree{"type": "object", "properties": common, "required": required}
	}
}

// shareFields lets schemas of responses refer to the schemas whose fields they repeat.
func shareFields(schemas tree) {
	names := slices.Sorted(maps.Keys(schemas))
	extended := map[string]string{}
	fields := tree{}
	for _, name := range names {
		fields[name] = below(schemas, name, "properties")
		most := extensionMin - 1
		for _, base := range names {
			if n := len(below(schemas, base, "properties")); n > most && extends(schemas[name].(tree), schemas[base].(tree)) {
				extended[name], most = base, n
			}
		}
	}
	for name, base := range extended {
		schema := schemas[name].(tree)
		own, required := tree{}, []any{}
		for field, property := range below(schema, "properties") {
			if below(fields, base)[field] == nil {
				own[field] = property
			}
		}
		for _, field := range schema["required"].([]any) {
			if own[field.(string)] != nil {
				required = append(required, field)
			}
		}
		rest := tree{"type": "object", "properties": own}
		if len(required) > 0 {
			rest["required"] = required
		}
		schemas[name] = tree{"allOf": []any{refTree("schemas", base), rest}}
	}
}

// extends reports whether a schema has all fields of another one, and more.
func extends(schema, base tree) bool {
	fields, other := below(schema, "properties"), below(base, "properties")
	if len(fields) <= len(other) || schema["additionalProperties"] != nil || base["additionalProperties"] != nil {
		return false
	}
	for field, property := range other {
		if !reflect.DeepEqual(fields[field], property) || isRequired(schema, field) != isRequired(base, field) {
			return false
		}
	}
	return true
}

func isRequired(schema tree, field string) bool {
	required, _ := schema["required"].([]any)
	return slices.Contains(required, any(field))
}

func refTree(kind, name string) tree { return tree{"$ref": "#/components/" + kind + "/" + name} }

// part is a part of the description that may occur more than once.
type part struct {
	holder any      // tree or []any that has the part
	key    any      // key or index of the part in its holder
	names  []string // names for a component, the best first
}

func (p part) value() any {
	if list, ok := p.holder.([]any); ok {
		return list[p.key.(int)]
	}
	return p.holder.(tree)[p.key.(string)]
}

func (p part) replace(by tree) {
	if list, ok := p.holder.([]any); ok {
		list[p.key.(int)] = by
		return
	}
	p.holder.(tree)[p.key.(string)] = by
}

// shareParts moves the parts that occur more than once to components.
func shareParts(components tree, kind string, parts []part) {
	named, _ := components[kind].(tree)
	if named == nil {
		named = tree{}
	}
	same := map[string][]part{}
	var order []string
	for _, p := range parts {
		text, err := json.Marshal(p.value())
		if err != nil { // it was parsed from JSON
			panic(err)
		}
		if same[string(text)] == nil {
			order = append(order, string(text))
		}
		same[string(text)] = append(same[string(text)], p)
	}
	for _, text := range order {
		group := same[text]
		name := freeName(named, group[0].names)
		ref := refTree(kind, name)
		if _, is := group[0].value().(tree)["$ref"]; is || len(group) < 2 || len(text) <= len(fmt.Sprintf(`{"$ref":%q}`, ref["$ref"])) {
			continue
		}
		named[name] = group[0].value()
		for _, p := range group {
			p.replace(ref)
		}
	}
	if len(named) > 0 {
		components[kind] = named
	}
}

// freeName returns the first of the names that is free, or numbers the last one.
func freeName(taken tree, names []string) string {
	for _, name := range names {
		if taken[name] == nil {
			return name
		}
	}
	for n := 2; ; n++ {
		if name := fmt.Sprintf("%s%d", names[len(names)-1], n); taken[name] == nil {
			return name
		}
	}
}

// parameterPart returns a parameter of an operation. Path parameters are named by what
// they are, because most are just called id.
func parameterPart(op tree, list []any, i int) part {
	p := list[i].(tree)
	name, _ := p["name"].(string)
	doc, _ := p["description"].(string)
	if schema, ok := p["schema"].(tree); ok && doc != "" && schema["description"] == doc {
		delete(schema, "description")
	}
	if schema, ok := p["schema"].(tree); ok && schema["type"] != "array" {
		delete(p, "explode") // only arrays have several values
	}
	var names []string
	if p["in"] == "path" && doc != "" && len(strings.Fields(doc)) <= 3 {
		names = append(names, pascal(doc))
	}
	tag, _ := op["tags"].([]any)[0].(string)
	return part{holder: list, key: i, names: append(names, pascal(name), pascal(tag)+pascal(name))}
}

// responsePart returns a response of an operation, named by the schema of its body.
func responsePart(answers tree, status string) part {
	answer := answers[status].(tree)
	doc, _ := answer["description"].(string)
	name := pascal(doc)
	if ref, ok := below(answer, "content", "application/json", "schema")["$ref"].(string); ok {
		name = strings.TrimSuffix(strings.TrimPrefix(ref, schemaPrefix), "Output"+anonymousBody)
	}
	return part{holder: answers, key: status, names: []string{name, name + status}}
}

// below returns the part of t at the end of a path, or nil.
func below(t tree, path ...string) tree {
	for _, key := range path {
		t, _ = t[key].(tree)
	}
	return t
}

func headerParts(answer tree) []part {
	headers, _ := answer["headers"].(tree)
	var out []part
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		out = append(out, part{holder: headers, key: name, names: []string{pascal(name)}})
	}
	return out
}

// pascal returns a text in PascalCase.
func pascal(text string) string {
	var out strings.Builder
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		out.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return out.String()
}
