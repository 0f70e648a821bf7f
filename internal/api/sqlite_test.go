package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/largesse/largesse/client"
	"github.com/largesse/largesse/internal/bus"
	"github.com/largesse/largesse/internal/lab/fixture"
	"github.com/largesse/largesse/internal/reward"
)

var testTime = time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC)

func TestLongDeadLettersAreCut(t *testing.T) {
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
