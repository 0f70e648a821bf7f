package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/largesse/largesse/internal/reward"
)

// needsApproval makes a DRAFT of kim that is worth 5000, above the limit.
func needsApproval(t *testing.T) (b *bundle, path string) {
	t.Helper()
	b = setup(t, func(c *Config) { c.ApprovalAbove = reward.Limits{Default: 1000} })
	path = "/v1/promotions/" + b.as(t, "kim", "POST", "/v1/promotions", `{"name":"x","type":"POINT"}`).text(t, "id")
	b.add(t, "kim", path, "1,2000\n2,3000\n")
	return b, path
}

// add uploads targets with their amounts.
func (b *bundle) add(t *testing.T, who, path, lines string) {
	t.Helper()
	b.upload(t, path+"/targets", "targetId,amount\n"+lines, ActorHeader, who, "Content-Type", "text/csv").want(t, http.StatusOK)
}

// TestQuantitiesNeedTwoPeople walks through the approvals of a template.
func TestQuantitiesNeedTwoPeople(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shop.codesAbove = 100
	const path = "/v1/coupon-templates/42"
	shows := func(a answer, inForce, waits any) {
		t.Helper()
		if got := a.object(t); got["totalQuantity"] != inForce || got["awaitingQuantity"] != waits {
			t.Errorf("%s", a.body)
		}
	}
	n := func(s string) any { return json.Number(s) }
	shows(b.as(t, "kim", "POST", "/v1/coupon-templates", `{"id":"42","name":"drop","totalQuantity":1000}`), n("100"), n("1000"))
	b.as(t, "kim", "POST", "/v1/coupon-templates", `{"name":"small","totalQuantity":100}`).want(t, http.StatusCreated)
	if list, _ := b.pages(t, "/v1/coupon-templates?awaitingApproval=true", "id"); len(list) != 1 || list[0] != "42" {
		t.Errorf("%v wait", list)
	}
	seen := b.as(t, "lee", "GET", path, "").header.Get("ETag")
	shows(b.as(t, "bob", "PATCH", path, `{"totalQuantity":2000}`), n("100"), n("2000"))
	b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", seen).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
	b.as(t, "bob", "POST", path+"/approve", "").wantProblem(t, http.StatusConflict, "SAME_PERSON")
	p := b.as(t, "KIM", "POST", path+"/approve", "").wantProblem(t, http.StatusConflict, "SAME_PERSON")
	if !strings.Contains(p.Detail, "created or changed template 42") {
		t.Error(p.Detail)
	}
	seen = b.as(t, "lee", "GET", path, "").header.Get("ETag")
	shows(b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", seen), n("2000"), nil)
	b.as(t, "lee", "POST", path+"/approve", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
	shows(b.as(t, "bob", "PATCH", path, `{"totalQuantity":2001}`), n("2000"), n("2001"))
	shows(b.as(t, "lee", "POST", path+"/reject", ""), n("2000"), nil)
	b.as(t, "lee", "POST", path+"/reject", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
	b.as(t, "lee", "POST", "/v1/coupon-templates/x/approve", "").wantProblem(t, http.StatusBadRequest, "MALFORMED")
	b.as(t, "lee", "POST", "/v1/coupon-templates/9/approve", "").wantProblem(t, http.StatusNotFound, "TEMPLATE_NOT_FOUND")
}

func TestAskApproval(t *testing.T) {
	t.Parallel()
	b, path := needsApproval(t)
	if got := b.as(t, "kim", "GET", path, "").object(t); got["awaitingApproval"] != true || got["approvalAsked"] != nil {
		t.Errorf("before: %v", got)
	}
	if got := b.as(t, "kim", "POST", path+"/ask-approval", "").object(t); got["approvalAsked"] != true || got["status"] != "DRAFT" {
		t.Errorf("asked: %v", got)
	}
	b.as(t, "kim", "PATCH", path, `{"startsAt":"2099-01-01T00:00:00Z"}`).want(t, http.StatusOK)
	if got := b.as(t, "kim", "GET", path, "").object(t); got["approvalAsked"] != nil {
		t.Errorf("after a change: %v", got)
	}
	b.as(t, "lee", "POST", path+"/approve", "").want(t, http.StatusAccepted)
	if got := b.as(t, "kim", "GET", path, "").object(t); got["startsEarly"] != true {
		t.Errorf("approved for later: %v", got)
	}
	b.as(t, "kim", "POST", path+"/ask-approval", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
	b.as(t, "kim", "PATCH", path, `{"startsAt":null}`).want(t, http.StatusOK)
	b.as(t, "lee", "POST", path+"/reject", `{"reason":"no"}`).want(t, http.StatusAccepted)
	b.as(t, "kim", "POST", path+"/ask-approval", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
	b.as(t, "kim", "POST", "/v1/promotions/9/ask-approval", "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
}

func TestApprovals(t *testing.T) {
	t.Parallel()

	t.Run("SayWhatTheyCover", func(t *testing.T) {
		t.Parallel()
		b, path := needsApproval(t)
		if p := b.as(t, "lee", "GET", path, "").object(t); p["awaitingApproval"] != true || p["approvedAmount"] != nil {
			t.Errorf("%v", p)
		}
		a := b.as(t, "lee", "POST", path+"/approve", "")
		a.want(t, http.StatusAccepted)
		if p := a.object(t); p["approvedBy"] != "lee" || p["approvedAmount"] != json.Number("5000") || p["approvedCount"] != json.Number("2") || p["awaitingApproval"] != false {
			t.Errorf("%v", p)
		}
		b.add(t, "kim", path, "3,4000\n")
		p := b.as(t, "lee", "GET", path, "").object(t)
		if p["awaitingApproval"] != true || p["approvedAmount"] != json.Number("5000") {
			t.Errorf("%v", p)
		}
		list := b.as(t, "lee", "GET", "/v1/promotions?awaitingApproval=true", "")
		if !strings.Contains(list.body, `"id":"`+path[len("/v1/promotions/"):]+`"`) {
			t.Errorf("%s", list.body)
		}
	})

	t.Run("AreNotGivenByAuthors", func(t *testing.T) {
		t.Parallel()
		b, path := needsApproval(t)
		b.add(t, "bob", path, "9,5\n")
		b.as(t, "BOB", "POST", path+"/approve", "").wantProblem(t, http.StatusConflict, "SAME_PERSON")
		b.as(t, "kim", "POST", path+"/approve", "").wantProblem(t, http.StatusConflict, "SAME_PERSON")
		b.as(t, "lee", "POST", path+"/approve", "").want(t, http.StatusAccepted)
		list := b.as(t, "lee", "GET", path+"/uploads", "")
		list.want(t, http.StatusOK)
		if !strings.Contains(list.body, `"createdBy":"bob"`) || !strings.Contains(list.body, `"state":"COMPLETED"`) || !strings.Contains(list.body, `"bytes":20`) {
			t.Errorf("%s", list.body)
		}
		b.as(t, "lee", "GET", "/v1/promotions/9/uploads", "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	})

	t.Run("AreOfWhatWasSeen", func(t *testing.T) {
		t.Parallel()
		b, path := needsApproval(t)
		tag := b.as(t, "lee", "GET", path, "").header.Get("ETag")
		b.add(t, "kim", path, "3,1\n")
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
		tag = b.as(t, "lee", "GET", path, "").header.Get("ETag")
		b.add(t, "bob", path, "9,5\n")
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).wantProblem(t, http.StatusPreconditionFailed, "PRECONDITION_FAILED")
		tag = b.as(t, "lee", "GET", path, "").header.Get("ETag")
		b.do(t, "POST", path+"/approve", nil, ActorHeader, "lee", "If-Match", tag).want(t, http.StatusAccepted)
	})

	t.Run("CanBeRefused", func(t *testing.T) {
		t.Parallel()
		b, path := needsApproval(t)
		for _, reason := range []string{" ", `a\u001bb`, `a\u202eb`} {
			b.as(t, "lee", "POST", path+"/reject", `{"reason":"`+reason+`"}`).wantProblem(t, http.StatusUnprocessableEntity, "INVALID")
		}
		a := b.as(t, "lee", "POST", path+"/reject", `{"reason":"too much"}`)
		a.want(t, http.StatusAccepted)
		if p := a.object(t); p["rejectedBy"] != "lee" || p["rejectReason"] != "too much" || p["status"] != "DRAFT" || p["awaitingApproval"] != false {
			t.Errorf("%v", p)
		}
		if p := b.as(t, "kim", "POST", path+"/start", "").wantProblem(t, http.StatusConflict, "APPROVAL_NEEDED"); !strings.Contains(p.Detail, "too much") {
			t.Errorf("%q", p.Detail)
		}
		b.as(t, "lee", "POST", path+"/approve", "").want(t, http.StatusAccepted)
		b.as(t, "kim", "POST", path+"/start", "").want(t, http.StatusAccepted)
		b.as(t, "lee", "POST", path+"/approve", "").want(t, http.StatusAccepted)
		b.as(t, "kim", "POST", path+"/cancel", "").want(t, http.StatusAccepted)
		b.as(t, "lee", "POST", path+"/approve", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
	})
}
