package rules

import "github.com/largesse/largesse/internal/reward"

// LacksCodes reports whether a higher quantity is forbidden, because the template
// has fewer imported codes left than it would have coupons left to issue. Codes that
// end because coupons were cancelled do not forbid the quantity that stands.
func LacksCodes(t *reward.CouponTemplate, quantity int64) bool {
	return t.CodesImported > 0 && quantity > t.TotalQuantity && quantity-t.Live > t.CodesLeft()
}

// CheckImport returns why codes cannot be imported to template t, or nil. The first
// import replaces the generated codes. It therefore comes before the first coupon,
// and has a code for each coupon to issue. Later ones may have any number. above is the
// setting approval.codes-above: LimitImport cannot take back what is promised.
func CheckImport(t *reward.CouponTemplate, codes, above int64) error {
	switch {
	case t.Codes != (reward.CodeStyle{}):
		return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"template %d generates its codes; create a template without codes to import them", t.ID)
	case t.CodesImported == 0 && t.IssuedTotal > 0:
		return reward.NewError(reward.KindConflict, reward.CodeIllegalState,
			"template %d has issued %d coupons with generated codes; codes can be imported before the first coupon only", t.ID, t.IssuedTotal)
	case t.CodesImported == 0 && t.TotalQuantity-t.Live > codes:
		return codesExhausted("the file has %d codes and template %d has %d coupons left to issue; send one file with a code for each, or lower the quantity first",
			codes, t.ID, t.TotalQuantity-t.Live)
	case t.CodesImported == 0 && above > 0 && t.Promised() > above:
		return reward.NewError(reward.KindConflict, reward.CodeConflict,
			"%d places of template %d are set aside for its waiting line, and nobody else has approved these codes for more than %d (approval.codes-above); "+
				"set the quantity to that, import the codes, and set the quantity that you want", t.Promised(), t.ID, above)
	case t.CodesImported-t.CodesReturned+codes > reward.TemplateQuantityMax:
		return reward.NewError(reward.KindConflict, reward.CodeConflict,
			"template %d would have more than %d imported codes", t.ID, reward.TemplateQuantityMax)
	}
	return nil
}

// ImportEnded returns the error for an import that is no longer open.
func ImportEnded(id reward.TemplateID) error {
	return reward.NewError(reward.KindConflict, reward.CodeConflict,
		"another import of codes to template %d began, or this one made no progress for too long, so nothing of it was imported; send one file at a time", id)
}

func codesExhausted(format string, args ...any) error {
	return reward.NewError(reward.KindConflict, reward.CodeCodesExhausted, format, args...)
}
