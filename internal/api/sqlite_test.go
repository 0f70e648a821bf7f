package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
	"github.com/largesse/largesse/internal/store"
)

var testTime = time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC)

func TestOverSQLite(t *testing.T) {
	t.Parallel()

	t.Run("LifeOfAPromotion", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		s := b.store
		id := b.create(t, `{"id":12345,"name":"Spring","type":"POINT","amount":10}`)
		path := "/v1/promotions/" + id
		b.json(t, "POST", "/v1/promotions", `{"id":12345,"name":"Spring","type":"POINT"}`).wantProblem(t, http.StatusConflict, "ALREADY_EXISTS")
		b.json(t, "POST", "/v1/promotions", `{"id":12345,"name":"Spring","type":"VOUCHER"}`).wantProblem(t, http.StatusConflict, "TYPE_MISMATCH")

		var file strings.Builder
		file.WriteString("targetId,amount\n")
		for i := range 2500 {
			fmt.Fprintf(&file, "%d,%d\n", i, i%3)
		}
		// Every third amount is 0, which is nothing for points.
		want := client.UploadResult{Accepted: 1666, Rejected: 834, Amount: 833 + 2*833}
		dry := b.upload(t, path+"/targets?dryRun=true", file.String()).result(t)
		first := b.upload(t, path+"/targets", file.String()).result(t)
		for _, got := range []client.UploadResult{dry, first} {
			got.Errors, got.ReportURL, got.UploadID = nil, "", ""
			fixture.Equal(t, want, got)
		}
		if lines := strings.Count(b.do(t, "GET", first.ReportURL, nil).body, "\n"); lines != 835 {
			t.Errorf("the report has %d lines", lines)
		}
		for _, query := range []string{"?dryRun=true", ""} {
			if again := b.upload(t, path+"/targets"+query, file.String()).result(t); again.Duplicates != 1666 || again.Accepted != 0 {
				t.Errorf("again%s: %+v", query, again)
			}
			if other := b.upload(t, path+"/targets"+query, "targetId,amount\n1,99\n").result(t); other.Conflicts != 1 {
				t.Errorf("another amount%s: %+v", query, other)
			}
		}

		b.json(t, "POST", path+"/pause", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
		b.json(t, "POST", path+"/start", "").want(t, http.StatusAccepted)
		b.json(t, "DELETE", path, "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")
		paused := b.json(t, "POST", path+"/pause", "")
		if paused.text(t, "status") != "PAUSED" || paused.text(t, "pauseReason") == "" {
			t.Errorf("%s", paused.body)
		}
		resumed := b.json(t, "POST", path+"/resume", "").object(t)
		if resumed["status"] != "RUNNING" || resumed["pauseReason"] != nil || resumed["startedAt"] == nil {
			t.Errorf("%v", resumed)
		}
		b.json(t, "POST", path+"/close", "").want(t, http.StatusAccepted)

		targets, pages := b.pages(t, path+"/payouts?limit=700&state=READY", "targetId")
		if len(targets) != 1666 || pages != 3 || targets[0] != "1" || targets[1665] != "2498" {
			t.Errorf("%d targets on %d pages", len(targets), pages)
		}
		export := b.do(t, "GET", path+"/payouts", nil, "Accept", "text/csv")
		if lines := strings.Count(export.body, "\n"); lines != 1667 {
			t.Errorf("the export has %d lines", lines)
		}
		if got := b.json(t, "GET", path+"/payouts/2498", "").object(t); got["userId"] != "2498" || got["state"] != "READY" {
			t.Errorf("%v", got)
		}
		b.json(t, "GET", path+"/payouts/0", "").wantProblem(t, http.StatusNotFound, "PAYOUT_NOT_FOUND")

		b.json(t, "POST", path+"/cancel", "").want(t, http.StatusAccepted)
		if late := b.upload(t, path+"/targets", "targetId\n9999\n").result(t); late.Accepted != 1 {
			t.Errorf("late: %+v", late)
		}
		if got := b.json(t, "GET", path+"/payouts/9999", "").text(t, "state"); got != "CANCELLED" {
			t.Errorf("a target of a cancelled promotion is %s", got)
		}
		b.json(t, "POST", path+"/close", "").wantProblem(t, http.StatusConflict, "ILLEGAL_STATE")

		// The counts that the answers come from agree with the rows.
		view := fixture.Must(s.PromotionGet(t.Context(), 12345))(t)
		rows := fixture.Must(s.SummaryRecount(t.Context(), 12345))(t)
		fixture.Equal(t, rows.Payouts, view.Counts.Payouts)
	})

	t.Run("DeleteTakesTargetsAndUploadsWithIt", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		path := "/v1/promotions/" + b.create(t, `{"name":"x","type":"POINT","amount":10}`)
		r := b.upload(t, path+"/targets", "targetId\n1\nx\n").result(t)
		b.json(t, "DELETE", path, "").want(t, http.StatusNoContent)
		b.json(t, "GET", path, "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
		b.json(t, "GET", path+"/payouts", "").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
		b.do(t, "GET", r.ReportURL, nil).wantProblem(t, http.StatusNotFound, "UPLOAD_NOT_FOUND")
		b.upload(t, path+"/targets", "targetId\n1\n").wantProblem(t, http.StatusNotFound, "PROMOTION_NOT_FOUND")
	})

	t.Run("LongDeadLettersAreCut", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		s := b.store
		const long = 900_000
		value := []byte("x" + strings.Repeat("é", long/2-1) + "x")
		letters := make([]reward.DeadLetter, 50)
		for i := range letters {
			letters[i] = reward.DeadLetter{Source: bus.TopicPointPublish, Offset: fmt.Sprint(i), Value: value, Reason: "MALFORMED", At: testTime}
		}
		fixture.OK(t, s.DeadLetterAdd(t.Context(), letters))
		shown := func(l client.DeadLetter, bytes int) {
			t.Helper()
			if l.Value != string(value[:bytes-1]) || l.ValueLength != long || !l.ValueTruncated || l.ValueBytes != nil {
				t.Errorf("%d bytes of %d, %v, base64 %d", len(l.Value), l.ValueLength, l.ValueTruncated, len(l.ValueBytes))
			}
		}
		list := b.json(t, "GET", "/v1/dead-letters?limit=1000", "")
		var page struct{ Items []client.DeadLetter }
		fixture.OK(t, json.Unmarshal([]byte(list.body), &page))
		items := page.Items
		if len(items) != len(letters) || len(list.body) > 100_000 {
			t.Fatalf("%d letters in %d bytes", len(items), len(list.body))
		}
		shown(items[0], 1024)
		var whole client.DeadLetter
		fixture.OK(t, json.Unmarshal([]byte(b.json(t, "GET", "/v1/dead-letters/"+items[0].ID, "").body), &whole))
		shown(whole, reward.DeadLetterKeptMax)
		p := b.json(t, "POST", "/v1/dead-letters/"+items[0].ID+"/replay", "").wantProblem(t, http.StatusConflict, "NOT_REPLAYABLE")
		if !strings.Contains(p.Detail, "only the first 65536 of 900000 bytes") {
			t.Error(p.Detail)
		}
	})

	t.Run("WhatKafkaRegistered", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		s := b.store
		expected := int64(3)
		fixture.Must(s.PromotionRegister(t.Context(), []store.Registration{
			{ID: 7, Type: reward.Point, Started: true, ExpectedCount: &expected}, {ID: 8, Type: reward.Voucher},
		}, reward.Limits{}, testTime))(t)
		fixture.OK(t, s.DeadLetterAdd(t.Context(), []reward.DeadLetter{{Source: "topic", Partition: 2, Offset: "5", Value: []byte("{"), Reason: "MALFORMED", At: testTime}}))
		got := b.json(t, "GET", "/v1/promotions/7", "").object(t)
		if got["status"] != "RUNNING" || fmt.Sprint(got["expectedCount"]) != "3" {
			t.Errorf("%v", got)
		}
		b.json(t, "POST", "/v1/promotions", `{"id":8,"name":"Eight","type":"VOUCHER"}`).want(t, http.StatusCreated)
		if got := b.json(t, "GET", "/v1/promotions/8", "").text(t, "name"); got != "Eight" {
			t.Errorf("name %s", got)
		}
		if got, _ := b.pages(t, "/v1/promotions?limit=1", "id"); !cmp.Equal(got, []string{"8", "7"}) {
			t.Errorf("listed %v", got)
		}
		if got, _ := b.pages(t, "/v1/dead-letters?limit=1", "offset"); !cmp.Equal(got, []string{"5"}) {
			t.Errorf("dead letters %v", got)
		}
		b.json(t, "GET", "/readyz", "").want(t, http.StatusOK)
	})
}

// An archived promotion takes no targets and retries nothing: the payouts that would
// tell which targets were paid are gone.
func TestAnArchivedPromotionTakesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.store
	id := b.create(t, `{"id":77,"name":"Last year","type":"POINT","amount":10}`)
	path := "/v1/promotions/" + id
	b.json(t, "POST", path+"/start", "").want(t, http.StatusAccepted)
	b.json(t, "POST", path+"/close", "").want(t, http.StatusAccepted)
	later := time.Now().Add(time.Hour)
	fixture.Must(s.PromotionComplete(t.Context(), 77, 0, time.Now()))(t)
	fixture.Must(s.PromotionStreamDestroyed(t.Context(), 77, time.Time{}))(t)
	if archived, err := s.PromotionArchive(t.Context(), 77, later, later); err != nil || !archived {
		t.Fatalf("archive: %v, %v", archived, err)
	}
	b.upload(t, path+"/targets", "targetId\n1\n").wantProblem(t, http.StatusConflict, "ARCHIVED")
	b.json(t, "POST", path+"/payouts/retry", `{"state":"FAILED"}`).wantProblem(t, http.StatusConflict, "ARCHIVED")
}
