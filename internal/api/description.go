package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/web"
	"github.com/largesse/largesse/internal/webhook"
)

// serverURL is the address in /openapi.json, relative to its own: the root of the
// server, or the path below which an API is mounted.
const serverURL = "/"

const descriptionText = `Issues rewards at scale: bulk payouts to many targets, and coupons that many users request. Documentation: https://github.com/largesse/largesse/tree/main/docs

IDs are strings, amounts are integers in minor units, and times are RFC 3339 in UTC. 64-bit sums that say so may exceed 2^53. An absent field is none, unknown, unlimited or not yet, unless its text says otherwise; a field means the same in each schema. In bodies, null is absent; absent fields of a PATCH stay. Unknown fields and query parameters are errors. Later versions may add fields to answers.

Lists are newest first, unless they say otherwise, and have pages: pass the ` + "`nextCursor`" + ` of a page as ` + "`cursor`" + ` until there is none. Event streams end when the instance stops or cannot read for 10 s; connect again.

Callers send an API key or a token as ` + "`Authorization: Bearer`" + `, unless ` + "`auth.mode`" + ` is ` + "`none`" + `; then the header ` + "`" + ActorHeader + "`" + ` (1 to 200 characters) names who makes a change. ` + "`operator`" + ` and ` + "`admin`" + ` may call every operation, ` + "`viewer`" + `, ` + "`campaigner`" + ` and ` + "`approver`" + ` each GET, unless only ` + "`admin`" + ` may; operations name further roles.

JSON that is read, and each promotion, has an ` + "`ETag`" + `; with that in ` + "`" + web.IfNoneMatchHeader + "`" + `, a GET is 304 while nothing has changed. The header ` + "`" + ReplayedHeader + ": true`" + ` marks the response to an earlier request with the same ` + "`" + web.IdempotencyHeader + "`" + `. Every response has ` + "`X-Request-Id`" + `.

Errors are ` + "`application/problem+json`" + ` with a ` + "`code`" + ` for programs; ` + "`detail`" + ` and ` + "`errors[]`" + ` are for people.`

var tags = []*huma.Tag{
	{Name: "promotions"},
	{Name: "targets"},
	{Name: "payouts"},
	{Name: "coupon templates"},
	{Name: "coupons"},
	{Name: "dead letters"},
	{Name: "reconciliations"},
	{Name: "instances"},
	{Name: "webhooks"},
	{Name: "api-keys"},
	{Name: "audit"},
	{Name: "health"},
}

// Names of shared schemas.
const (
	schemaID        = "ID"
	schemaTargetID  = "TargetID"
	schemaRequestID = "RequestID"
	schemaUserID    = "UserID"
	schemaCursor    = "Cursor"
	schemaAnyID     = "AnyID"
)

// sharedParameters maps the path parameters with a shared schema to its name.
var sharedParameters = map[string]string{
	"id": schemaID, "templateId": schemaID, "couponId": schemaID, "uploadId": schemaID, "deliveryId": schemaID,
	"targetId": schemaTargetID, "requestId": schemaRequestID, "userId": schemaUserID,
}

// examples are the example values and texts of path parameters, by path prefix and name.
var examples = []struct{ prefix, name, value, text string }{
	{"/v1/promotions/", "id", "12345", "Promotion ID"},
	{"/v1/promotions/", "targetId", "7", ""},
	{"/v1/coupon-templates/", "id", "42", "Template ID"},
	{"/v1/coupons/", "templateId", "42", "Template ID"},
	{"/v1/issue-requests/", "requestId", "42:u7", "Percent-encoded"},
	{"/v1/users/", "userId", "u7", "Percent-encoded"},
}

// patterns describe checks of body fields that are made in Go, by schema and field.
var patterns = map[string]map[string]string{
	"CreatePromotion": {
		"currency":    `^([A-Z]{3})?$`,
		"voucherCode": `^([^=+@\-\x00-\x1F\x7F-\x9F][^\x00-\x1F\x7F-\x9F]*)?$`,
		"webhookUrl":  `^(` + webhook.URLPattern + `)?$`,
	},
	"CreateTemplate":        {"name": `\S`},
	"ChangeTemplate":        {"name": `\S`},
	"CreateAPIKey":          {"name": printed},
	"CreateWebhookEndpoint": {"url": receiverURL, "description": `^[^\x00-\x1F\x7F-\x9F]*$`},
	"ChangeWebhookEndpoint": {"url": receiverURL, "description": `^[^\x00-\x1F\x7F-\x9F]*$`},
	"ResolvePayout":         {"note": `\S`, "transactionKey": `^[^\x00-\x1F\x7F-\x9F]*$`},
}

const tagPattern = `(W/)?"[!#-+\-.-~]*"`

const receiverURL = `^(` + webhook.URLPattern + `)?$`

// printed matches texts without control characters and without spaces at the ends.
const printed = `^[^\s\x00-\x1F\x7F-\x9F]([^\x00-\x1F\x7F-\x9F]*[^\s\x00-\x1F\x7F-\x9F])?$`

// finishDescription returns /openapi.json. It adds what the declarations of the
// operations leave out: the form of IDs, the error codes of each response, and
// examples. huma validates requests by the declarations, which have better error
// messages than a failed pattern.
func (a *API) finishDescription() []byte {
	doc := a.OpenAPI()
	doc.Info.Description = descriptionText
	doc.Info.Description += " Operations name their own. A path to nothing is 404 with the code of its kind, such as `" + reward.CodeNotFound +
		"`; POST and DELETE below an ID can answer `" + reward.CodeIllegalState + "`. Each operation can also answer " + "`" + strings.Join(a.sharedCodes(), "`, `") + "`."
	doc.Info.License = &huma.License{Name: "Apache License 2.0", Identifier: "Apache-2.0"}
	doc.Servers = []*huma.Server{{URL: serverURL}}
	doc.Security = secured
	doc.Tags = tags
	doc.Components.Schemas.Schema(reflect.TypeFor[web.Problem](), true, "")
	describeWebhooks(doc)
	schemas := doc.Components.Schemas.Map()
	schemas[schemaID] = idSchema(idPattern, 1)
	schemas[schemaAnyID] = &huma.Schema{OneOf: anyID()}
	schemas[schemaTargetID] = idSchema(targetIDPattern, 0)
	schemas[schemaUserID] = &huma.Schema{Type: huma.TypeString, MinLength: new(1), MaxLength: new(reward.UserIDMax), Description: "1 to 255 bytes of UTF-8 without U+0000"}
	schemas[schemaCursor] = &huma.Schema{Type: huma.TypeString, Pattern: "^[A-Za-z0-9_-]*$", Description: "nextCursor of the previous page"}
	schemas[schemaRequestID] = &huma.Schema{
		Type: huma.TypeString, Pattern: "^" + idPattern + `:[^\x00]{1,255}$`, Description: "{templateId}:{userId}, split at the first colon",
	}
	for _, item := range doc.Paths {
		for _, op := range operationsOf(item) {
			describeParameters(op)
			if example := a.declared[op.OperationID].example; example != nil {
				op.RequestBody.Content["application/json"].Example = example
			}
			a.describeErrors(op)
		}
	}
	whole := tree{}
	text, err := json.Marshal(doc)
	if err == nil {
		err = json.Unmarshal(text, &whole)
	}
	if err != nil { // the description is constant, so tests would find an error
		panic(err)
	}
	all := whole["components"].(tree)["schemas"].(tree)
	below(all, "LineError", "properties", "code")["enum"] = mapped(lineCodes, func(c lineCode) any { return c.Code })
	below(all, "Problem", "properties", "code")["enum"] = mapped(errorCodes, func(c errorCode) any { return c.Code })
	shareEnums(whole["paths"], all)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		shareEnums(all[name], all)
	}
	shareAnyID(all)
	canary := below(all, "ChangePromotion", "properties")
	canary["canary"] = tree{"$ref": schemaPrefix + "CreateCanary", "description": below(canary, "canary")["description"]}
	bodies := bodySchemas(whole["paths"].(tree), all)
	narrow(all, bodies)
	open(all, bodies)
	shareErrors(whole)
	if text, err = json.Marshal(whole); err != nil {
		panic(err)
	}
	return text
}

// open removes the rule that there are no other fields from the schemas of responses:
// later versions may add some.
func open(schemas tree, bodies []string) {
	for name, schema := range schemas {
		if !slices.Contains(bodies, name) {
			delete(schema.(tree), "additionalProperties")
		}
	}
}

// shareAnyID lets the IDs of bodies, which may be numbers, refer to one schema.
func shareAnyID(schemas tree) {
	want := schemas[schemaAnyID].(tree)["oneOf"]
	for name, schema := range schemas {
		if name == schemaAnyID {
			continue
		}
		walkTree(schema, func(at tree) {
			if reflect.DeepEqual(at["oneOf"], want) {
				delete(at, "oneOf")
				at["$ref"] = schemaPrefix + schemaAnyID
			}
		})
	}
}

// walkTree calls f for each object in a part of the description.
func walkTree(at any, f func(at tree)) {
	switch at := at.(type) {
	case []any:
		for _, one := range at {
			walkTree(one, f)
		}
	case tree:
		f(at)
		for _, one := range at {
			walkTree(one, f)
		}
	}
}

type tree = map[string]any

// narrow adds the patterns to the schemas of bodies, and allows null in optional
// fields, where it means absent.
func narrow(schemas tree, bodies []string) {
	for name, fields := range patterns {
		properties := schemas[name].(tree)["properties"].(tree)
		for field, pattern := range fields {
			properties[field].(tree)["pattern"] = pattern
		}
	}
	for _, name := range bodies {
		schema := schemas[name].(tree)
		required, _ := schema["required"].([]any)
		properties := schema["properties"].(tree)
		for field, one := range properties {
			if !slices.Contains(required, any(field)) {
				properties[field] = orNull(one.(tree))
			}
		}
	}
}

// bodySchemas returns the names of the object schemas in request bodies.
func bodySchemas(paths, schemas tree) []string {
	var names []string
	var visit func(at tree)
	visit = func(at tree) {
		ref, _ := at["$ref"].(string)
		name := strings.TrimPrefix(ref, schemaPrefix)
		if schema, ok := schemas[name].(tree); ok && schema["properties"] != nil && !slices.Contains(names, name) {
			names = append(names, name)
			walkTree(schema, visit)
		}
	}
	for _, item := range paths {
		for _, op := range item.(tree) {
			walkTree(op.(tree)["requestBody"], visit)
		}
	}
	return names
}

func orNull(schema tree) tree {
	null := tree{"type": "null"}
	if ref, ok := schema["$ref"]; ok {
		schema["oneOf"] = []any{tree{"$ref": ref}, null}
		delete(schema, "$ref")
		return schema
	}
	if choices, ok := schema["oneOf"].([]any); ok {
		schema["oneOf"] = append(choices, null)
	}
	if name, ok := schema["type"].(string); ok {
		schema["type"] = []any{name, "null"}
	}
	if values, ok := schema["enum"].([]any); ok {
		schema["enum"] = append(values, nil)
	}
	return schema
}

func operationsOf(item *huma.PathItem) []*huma.Operation {
	var out []*huma.Operation
	for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete} {
		if op != nil {
			out = append(out, op)
		}
	}
	return out
}

// describeParameters replaces the schemas of shared parameters in /openapi.json. huma
// continues to validate by the declared schemas.
func describeParameters(op *huma.Operation) {
	for i, p := range op.Parameters {
		better := *p
		switch name := sharedParameters[p.Name]; {
		case p.In == "path" && name != "":
			better.Schema = refTo(name)
			for _, e := range examples {
				if e.name == p.Name && strings.HasPrefix(op.Path, e.prefix) {
					better.Example, better.Description = e.value, e.text
				}
			}
		case p.In == "query" && p.Name == "cursor":
			better.Schema, better.Description = refTo(schemaCursor), ""
		case p.In == "query" && p.Name == "templateId":
			better.Schema = &huma.Schema{Type: huma.TypeArray, Items: refTo(schemaID)}
		case p.In == "query" && p.Name == "state" && op.OperationID == "list-payouts":
			better.Schema = &huma.Schema{Type: huma.TypeString, Enum: payoutStates()}
		case p.Name == ActorHeader:
			better.Schema = &huma.Schema{Type: huma.TypeString, MinLength: p.Schema.MinLength, MaxLength: p.Schema.MaxLength, Pattern: printed}
		case p.Name == "If-Match":
			better.Schema = &huma.Schema{Type: huma.TypeString, MaxLength: p.Schema.MaxLength, Pattern: `^(\*|` + tagPattern + `( *, *` + tagPattern + `)*)?$`}
		case p.Name == web.IdempotencyHeader:
			better.Schema = &huma.Schema{Type: huma.TypeString, MinLength: p.Schema.MinLength, MaxLength: p.Schema.MaxLength, Pattern: "^[!-~]([ -~]*[!-~])?$"}
		default:
			continue
		}
		op.Parameters[i] = &better
	}
}

func payoutStates() []any {
	var out []any
	for s := range reward.StateCount {
		out = append(out, s.String())
	}
	return out
}

const schemaPrefix = "#/components/schemas/"

var listNames = map[string]string{
	"APIKey": "ApiKey", "AuditLine": "Audit", "ReconciliationSummary": "Reconciliation", "UnknownPayout": "Unknown", "WebhookDelivery": "Delivery",
}

// schemaName returns the name of a type in /openapi.json.
func schemaName(t reflect.Type, hint string) string {
	if t == reflect.TypeFor[client.TemplateCounters]() {
		return "Counters"
	}
	name := huma.DefaultSchemaNamer(t, hint)
	if item, ok := strings.CutPrefix(name, "ListOf"); ok {
		return cmp.Or(listNames[item], item) + "ListOutputBody"
	}
	return name
}

func refTo(schema string) *huma.Schema { return &huma.Schema{Ref: schemaPrefix + schema} }

// describeErrors lists the statuses of errors, for tests; see shareErrors. It adds the error
// codes of the operation itself to its text.
func (a *API) describeErrors(op *huma.Operation) {
	delete(op.Responses, "default")
	for status := range op.Responses {
		if status >= "400" {
			delete(op.Responses, status)
		}
	}
	for status := range a.codesOf(op) {
		op.Responses[strconv.Itoa(status)] = &huma.Response{Description: http.StatusText(status)}
	}
	var own []string
	for _, code := range a.declared[op.OperationID].errors {
		if !implied(op.Method, op.Path, code) {
			own = append(own, code)
		}
	}
	if len(own) > 0 {
		op.Description = strings.TrimSpace(op.Description + "\n\nErrors: " + strings.Join(own, ", ") + ".")
	}
}

// implied reports whether the introduction has an error code of an operation: its
// subject does not exist, or is in a state that does not allow the change.
func implied(method, path, code string) bool {
	return strings.Contains(path, "{") && (strings.HasSuffix(code, "_NOT_FOUND") ||
		code == reward.CodeIllegalState && (method == http.MethodPost || method == http.MethodDelete))
}

// sharedCodes returns the codes that depend on how operations are called, in the
// order of errorCodes.
func (a *API) sharedCodes() []string {
	common := map[string]bool{}
	for _, item := range a.OpenAPI().Paths {
		for _, op := range operationsOf(item) {
			for _, code := range a.commonCodes(op) {
				common[code] = true
			}
		}
	}
	var out []string
	for _, c := range errorCodes {
		if common[c.Code] {
			out = append(out, c.Code)
		}
	}
	return out
}

// describeEvents describes the server-sent events of a path, whose data are all a T, and
// returns the responses of the operation.
func describeEvents[T any](a *API, path string, events ...string) map[string]*huma.Response {
	text := func(doc string) *huma.Schema { return &huma.Schema{Type: huma.TypeString, Description: doc} }
	body := text("")
	body.Extensions = map[string]any{
		"contentMediaType": "application/json", "contentSchema": a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, ""),
	}
	event := text("")
	for _, name := range slices.Sorted(slices.Values(events)) {
		event.Enum = append(event.Enum, name)
	}
	answers := a.OpenAPI().Paths[path].Get.Responses
	answers["200"].Content = map[string]*huma.MediaType{web.StreamType: {Schema: &huma.Schema{
		Type: huma.TypeObject, Required: []string{"event", "id", "data"},
		Properties: map[string]*huma.Schema{"event": event, "id": text(""), "data": body},
	}}}
	return answers
}

// Patterns of IDs. Their texts have the maximum, which a pattern cannot express in
// few words.
const (
	idPattern       = `[1-9][0-9]{0,18}`
	targetIDPattern = `(0|[1-9][0-9]{0,18})`
)

func idSchema(pattern string, lowest int64) *huma.Schema {
	return &huma.Schema{
		Type: huma.TypeString, Pattern: "^" + pattern + "$", Description: fmt.Sprintf("%d to %d", lowest, int64(math.MaxInt64)),
	}
}

// shareErrors makes one response of all errors of all operations. It also says which
// operations are public.
func shareErrors(doc tree) {
	doc["components"].(tree)["responses"] = tree{"Problem": problemResponse()}
	for _, item := range doc["paths"].(tree) {
		for _, one := range item.(tree) {
			op := one.(tree)
			if op["security"] == nil {
				op["security"] = []any{}
			} else {
				delete(op, "security") // that of the document
			}
			answers := op["responses"].(tree)
			maps.DeleteFunc(answers, func(status string, _ any) bool { return status >= "400" })
			answers["default"] = refTree("responses", "Problem")
		}
	}
}

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
	"Role":             strings.Join(texts(auth.Roles), ","),
	"ContentEncoding":  "gzip,identity",
	"WebhookEvent":     strings.Join(reward.WebhookEvents, ","),
	"DeliveryState":    "PENDING,DELIVERED,ABANDONED",
	"EndpointKind":     "WEBHOOK,SLACK,EMAIL",
	"Language":         "en,ko",
}

// enumTexts describe enums whose values need it, wherever they occur.
var enumTexts = map[string]string{
	"IssueMode":     "STREAM: served in order; KAFKA: accepted once the broker has them, in no order; SYNC: issued under a lock, with the outcome in the response",
	"RedisFallback": "During a Redis outage, DATABASE issues through the database; WAIT answers 503",
	"IssuePath":     "How requests are handled now; DATABASE: without Redis, nobody waits in line",
	"Role":          "viewer reads; issuer issues, uses and cancels coupons; campaigner reads, and runs promotions and templates; approver reads, and approves or rejects them; operator does everything that is not for admin only",
}

// shareEnums replaces the lists of values in a part of the description by references to
// enums, and adds the ones that it finds to schemas.
func shareEnums(part any, schemas tree) {
	walkTree(part, func(at tree) {
		values, _ := at["enum"].([]any)
		all := mapped(values, func(v any) string { return fmt.Sprint(v) })
		for name, list := range enums {
			if strings.Join(all, ",") != list {
				continue
			}
			schemas[name] = tree{"type": "string", "enum": values}
			if text := enumTexts[name]; text != "" {
				schemas[name].(tree)["description"] = text
			}
			delete(at, "enum")
			delete(at, "type")
			at["$ref"] = schemaPrefix + name
		}
	})
}

// below returns the part of t at the end of a path, or nil.
func below(t tree, path ...string) tree {
	for _, key := range path {
		t, _ = t[key].(tree)
	}
	return t
}

func refTree(kind, name string) tree { return tree{"$ref": "#/components/" + kind + "/" + name} }
