package api

import (
	"errors"
	"io"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/campaign"
	"github.com/largesse/largesse/internal/coupon"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/sheet"
)

// importedCodesOf returns nil for a template that generates its codes.
func importedCodesOf(t *reward.CouponTemplate) *client.ImportedCodes {
	if t.CodesImported == 0 {
		return nil
	}
	return &client.ImportedCodes{Imported: t.CodesImported - t.CodesReturned, Left: t.CodesLeft(), Missing: t.CodesMissing()}
}

func (a *API) addCodes() {
	const path = "/v1/coupon-templates/{id}/codes"
	str := &huma.Schema{Type: huma.TypeString}
	a.handle(operation{
		id: "import-codes", method: http.MethodPost, path: path, tag: "coupon templates", roles: campaigners, long: true,
		summary: "Import codes",
		description: "One code per line, with a header such as code or without. All are imported or none; coupons get them in this order. " +
			"The first import precedes the first coupon and has a code for each; later ones add codes. An .xlsx file has them in one column. The type may also be text/csv or that of .xlsx.",
		parameters: []*huma.Param{
			{Name: "id", In: "path", Required: true, Description: "Template ID", Schema: str},
			{Name: "Content-Encoding", In: "header", Schema: &huma.Schema{Type: huma.TypeString, Enum: []any{"gzip", "identity"}}},
		},
		body: fileBody(map[string]*huma.Example{"CSV": {Value: "code\nSPRING-7KQ2\nSPRING-M4XD\n"}}),
		responses: map[string]*huma.Response{
			"200": {Description: http.StatusText(http.StatusOK), Content: map[string]*huma.MediaType{
				"application/json": {Schema: a.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[client.CodesResult](), true, "CodesResult")},
			}},
		},
		errors: []string{reward.CodeTemplateNotFound, reward.CodeIllegalState, reward.CodeConflict, reward.CodeCodesExhausted, reward.CodeBadCodes, sheet.CodeBadWorkbook, CodeBadGzip, campaign.CodeBodyBroken, CodeTooManyUploads, reward.CodeArchived},
	}, a.importCodes)
}

func (a *API) importCodes(w http.ResponseWriter, r *http.Request) {
	res, err := a.readCodes(w, r)
	if err != nil {
		a.Fail(w, r, err)
		return
	}
	writeJSON(w, res)
}

func (a *API) readCodes(w http.ResponseWriter, r *http.Request) (res client.CodesResult, err error) {
	id, err := templateID("id", r.PathValue("id"))
	if err != nil {
		return res, err
	}
	if err := onlyQuery(r.URL.Query()); err != nil {
		return res, err
	}
	if _, _, err := uploadFormat(r.Header.Get("Content-Type"), campaign.FormatCSV, campaign.FormatXLSX, formatAny); err != nil {
		return res, err
	}
	body, err := a.uploadBody(w, r)
	if err != nil {
		return res, err
	}
	format, file := detectFormat(&wholeBody{body})
	ctx, release, err := a.beginUpload(r.Context(), format)
	if err != nil {
		return res, err
	}
	defer release()
	var v coupon.View
	var added coupon.CodesAdded
	err = a.audited(ctx, "import-codes", "", http.StatusOK, func() (err error) {
		v, added, err = a.cfg.Templates.ImportCodes(ctx, id, actor(ctx), file)
		return err
	})
	if err != nil {
		return res, err
	}
	a.log.Info("codes imported", "template_id", id, "codes", added.Count, "actor", actor(ctx))
	return client.CodesResult{
		Accepted: added.Count, FirstCode: codeFor(ctx, added.First), LastCode: codeFor(ctx, added.Last), ImportedCodes: *importedCodesOf(&v.CouponTemplate),
		TotalQuantity: v.TotalQuantity, AwaitingQuantity: templateOf(v).AwaitingQuantity,
	}, nil
}

// wholeBody is a body of which nothing counts unless it is complete. It adds a code
// to errors that have none.
type wholeBody struct{ r io.Reader }

func (b *wholeBody) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if _, known := errors.AsType[*reward.Error](err); err == nil || known || errors.Is(err, io.EOF) {
		return n, err
	}
	return n, &reward.Error{
		Kind: reward.KindMalformed, Code: campaign.CodeBodyBroken, Detail: "the body ended before it was complete, so nothing was imported", Err: err,
	}
}
