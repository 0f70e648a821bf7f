package api

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/internal/auth"
	"github.com/largesse/largesse/internal/web"
)

// operation declares an operation: what /openapi.json says of it, who may call it, and
// what the API does before and after it.
type operation struct {
	id, method, path          string
	tag, summary, description string
	status                    int // of a success; 0: 200. The output of an unaudited operation may have another
	// roles may call it. The operations themselves limit shoppers to their own coupons
	// and requests.
	roles []auth.Role
	// errors are the codes that depend on what it does. commonCodes adds those that
	// depend on how it is called.
	errors []string
	// example is an example of its JSON body.
	example tree
	// creates: it creates something new each time, and once per Idempotency-Key.
	creates bool
	// unaudited: it has no audit entry, although it changes something or shows whole codes.
	// Coupon requests, and those that left the line, would bury all other entries: they are
	// in the history of each user, and acted counts those of the staff. Who finds coupons by
	// a code knows it already.
	unaudited bool
	// unlimited: it reads, and is not limited for each caller. Coupon requests are followed
	// by thousands of users with the key of one shop, and event streams are read once for
	// all watchers. All probes together have no caller, and must not wait for each other.
	// Shoppers read a template from memory.
	unlimited bool
	// long: it can take hours, so its caller is verified again, and it has no ETag.
	long        bool
	middlewares huma.Middlewares

	// Only of operations that huma does not handle.
	parameters []*huma.Param
	body       *huma.RequestBody
	responses  map[string]*huma.Response
}

type output[T any] struct{ Body T }

// outputOf answers with a body, unless err says why there is none.
func outputOf[T any](body T, err error) (*output[T], error) {
	if err != nil {
		return nil, err
	}
	return &output[T]{Body: body}, nil
}

// declare records an operation, and returns it for huma.
func (a *API) declare(op operation) huma.Operation {
	if op.roles == nil { // the operations are constant, so tests would find it
		panic("operation " + op.id + " has no roles")
	}
	a.declared[op.id] = op
	out := huma.Operation{
		OperationID: op.id, Method: op.method, Path: op.path, Tags: []string{op.tag}, Summary: op.summary, Description: op.description,
		DefaultStatus: op.status, Middlewares: op.middlewares, Parameters: op.parameters, RequestBody: op.body, Responses: op.responses,
	}
	describeAccess(&out, op.roles)
	return out
}

// handle adds an operation that huma does not handle.
func (a *API) handle(op operation, f http.HandlerFunc) {
	described := a.declare(op)
	a.OpenAPI().AddOperation(&described)
	a.Handle(op.id, op.method+" "+op.path, f)
}

// pathInput is an input with IDs in its path. parsePath parses them, and checks that the
// caller may name them.
type pathInput interface {
	parsePath(ctx context.Context) error
}

// call adds a JSON operation. If it changes something, it is audited. If it only
// reads, it has the limits of reads, and the audit has that the staff reads whole codes.
func call[I, O any](a *API, op operation, handler func(ctx context.Context, in *I) (*O, error)) {
	described := a.declare(op)
	described.BodyReadTimeout, described.MaxBodyBytes = a.cfg.BodyWait, bodyMax
	f := func(ctx context.Context, in *I) (*O, error) {
		if p, ok := any(in).(pathInput); ok {
			if err := p.parsePath(ctx); err != nil {
				return nil, err
			}
		}
		return handler(ctx, in)
	}
	read := op.method == http.MethodGet
	if read && strings.HasPrefix(op.path, "/v1/") && !op.long {
		web.ETag(&described)
	}
	if read && !op.unlimited {
		show := f
		f = func(ctx context.Context, in *I) (out *O, err error) {
			whole := false
			err = a.read(context.WithValue(ctx, wholeCodesKey{}, &whole), func(ctx context.Context) error {
				out, err = show(ctx, in)
				return err
			})
			if err == nil && whole && !op.unaudited {
				err = a.recordShown(ctx, op.id)
			}
			return out, err
		}
	}
	if !read && !op.unaudited {
		change := f
		f = func(ctx context.Context, in *I) (out *O, err error) {
			err = a.audited(ctx, op.id, bodyOf(in), cmp.Or(op.status, http.StatusOK), func() error {
				out, err = change(ctx, in)
				return err
			})
			return out, err
		}
	}
	if op.creates {
		described.Parameters = append(described.Parameters, idempotencyParam())
		described.Middlewares = append(described.Middlewares, withReplayed)
		carry := f
		f = func(ctx context.Context, in *I) (*O, error) { return once(ctx, a, op.id, in, carry) }
	}
	if !read {
		described.Parameters = append(described.Parameters, actorParam())
	}
	web.Register(a.Router, described, f)
}
