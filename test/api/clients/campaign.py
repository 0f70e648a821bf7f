"""Runs one promotion and one drop with a client that openapi-python-client made of /openapi.json."""

import io
import sys

from largesse_client import AuthenticatedClient
from largesse_client.api.coupon_templates import create_template
from largesse_client.api.coupons import cancel_coupon, issue_coupon, list_user_coupons, use_coupon
from largesse_client.api.payouts import list_payouts
from largesse_client.api.promotions import create_promotion, get_promotion, start_promotion
from largesse_client.api.targets import upload_targets
from largesse_client.models import (
    CouponStatus,
    CreatePromotion,
    CreateTemplate,
    IssueCoupon,
    IssueRequestStatus,
    PayoutState,
    Problem,
    ProblemCode,
    PromotionStatus,
    PromotionType,
)
from largesse_client.types import File

TARGETS = 200


def got(what, answer):
    """Returns the body of a successful response."""
    assert answer.parsed is not None and not isinstance(answer.parsed, Problem), f"{what}: {answer}"
    return answer.parsed


def failed(what, answer, code):
    """Requires that a response is an error with a code."""
    assert isinstance(answer.parsed, Problem) and answer.parsed.code is code, f"{what}: {answer}"


def promotion(client):
    request = {
        "client": client,
        "body": CreatePromotion(name="Spring", type_=PromotionType.POINT, amount=100, currency="EUR"),
        "idempotency_key": "python",
    }
    created = got("create", create_promotion.sync_detailed(**request))
    again = create_promotion.sync_detailed(**request)
    assert got("repeat", again).id == created.id and again.headers["Idempotent-Replayed"] == "true", again

    files = ["targetId\n" + "".join(f"{n}\n" for n in range(TARGETS)), "".join(f'{{"targetId":"{n}"}}\n' for n in range(TARGETS))]
    for file in files:
        body = File(payload=io.BytesIO(file.encode()))
        upload = got("upload", upload_targets.sync_detailed(created.id, client=client, body=body))
        assert upload.accepted + upload.duplicates == TARGETS and upload.rejected == 0, upload

    started = got("start", start_promotion.sync_detailed(created.id, client=client))
    assert started.status in (PromotionStatus.RUNNING, PromotionStatus.COMPLETED), started
    with client.get_httpx_client().stream("GET", f"/v1/promotions/{created.id}/events") as events:
        assert events.status_code == 200, events
        assert any(line.replace(" ", "") == "event:done" for line in events.iter_lines()), "the events end without done"
    done = got("show", get_promotion.sync_detailed(created.id, client=client))
    assert done.status is PromotionStatus.COMPLETED and done.total_count == TARGETS, done
    assert done.counts.succeeded + done.counts.failed == TARGETS, done

    payouts = got("list", list_payouts.sync_detailed(created.id, client=client, state=PayoutState.SUCCEEDED, limit=5))
    assert len(payouts.items) == 5 and all(p.state is PayoutState.SUCCEEDED and p.amount == 100 for p in payouts.items), payouts
    failed("an unknown promotion", get_promotion.sync_detailed("1", client=client), ProblemCode.PROMOTION_NOT_FOUND)


def drop(client):
    template = got("template", create_template.sync_detailed(client=client, body=CreateTemplate(name="Drop", total_quantity=2)))

    def request(user):
        return issue_coupon.sync_detailed(template.id, client=client, body=IssueCoupon(user_id=user), prefer="wait=10")

    coupons = []
    for user in ("p1", "p2"):
        answer = got(f"the request of {user}", request(user))
        assert answer.status is IssueRequestStatus.ISSUED, answer
        coupons.append(answer.coupon)
    failed("a third request", request("p3"), ProblemCode.SOLD_OUT)

    cancelled = got("cancel", cancel_coupon.sync_detailed(coupons[0].id, client=client))
    assert cancelled.status is CouponStatus.CANCELLED, cancelled
    failed("a second use", use_coupon.sync_detailed(coupons[0].id, client=client), ProblemCode.COUPON_CANCELLED)
    assert got("the freed place", request("p3")).status is IssueRequestStatus.ISSUED
    held = got("coupons", list_user_coupons.sync_detailed("p1", client=client))
    assert [c.status for c in held.items] == [CouponStatus.CANCELLED], held


with AuthenticatedClient(base_url=sys.argv[1], token=sys.argv[2], timeout=60) as api:
    promotion(api)
    drop(api)
