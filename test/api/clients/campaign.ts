// Runs one promotion and one drop with a client that openapi-typescript made of
// /openapi.json. The compiler checks it against the generated types.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

type Problem = components["schemas"]["Problem"];
const [server, token] = process.argv.slice(2);
const targets = 200;
const api = createClient<paths>({ baseUrl: server, headers: { Authorization: `Bearer ${token}` } });

function check(ok: boolean, what: string): asserts ok {
  if (!ok) throw new Error(what);
}

// got returns the body of a successful response.
function got<T>(what: string, answer: { data?: T; error?: Problem; response: Response }): T {
  check(answer.data !== undefined, `${what}: ${answer.response.status} ${answer.error?.code} ${answer.error?.detail}`);
  return answer.data;
}

// failed returns the error of a response that must have one.
function failed(what: string, answer: { error?: Problem }, code: Problem["code"]): void {
  check(answer.error?.code === code, `${what}: error ${answer.error?.code}, want ${code}`);
}

async function promotion(): Promise<void> {
  const request = {
    params: { header: { "Idempotency-Key": "typescript" } },
    body: { name: "Spring", type: "POINT", amount: 100, currency: "EUR" },
  } as const;
  const created = got("create", await api.POST("/v1/promotions", request));
  const again = await api.POST("/v1/promotions", request);
  check(got("repeat", again).id === created.id && again.response.headers.get("Idempotent-Replayed") === "true", "the repeat created another promotion");
  const path = { id: created.id };

  const lines = Array.from({ length: targets }, (_, n) => `${n}\n`).join("");
  for (const [type, file] of [["text/csv", "targetId\n" + lines], ["application/octet-stream", "targetId\n" + lines]]) {
    const upload = got("upload", await api.POST("/v1/promotions/{id}/targets", {
      params: { path }, body: file, bodySerializer: (body) => body, headers: { "Content-Type": type },
    }));
    check(upload.accepted + upload.duplicates === targets && upload.rejected === 0, `upload: ${JSON.stringify(upload)}`);
  }

  const started = got("start", await api.POST("/v1/promotions/{id}/start", { params: { path } }));
  check(started.status === "RUNNING" || started.status === "COMPLETED", `it is ${started.status} after the start`);
  const events = got("watch", await api.GET("/v1/promotions/{id}/events", { params: { path }, parseAs: "stream" }));
  let text = "";
  for await (const bytes of events as unknown as AsyncIterable<Uint8Array>) {
    text += new TextDecoder().decode(bytes);
    if (/^event: ?done$/m.test(text)) break;
  }
  const done = got("show", await api.GET("/v1/promotions/{id}", { params: { path } }));
  check(done.status === "COMPLETED" && done.totalCount === targets, `it is ${done.status} with ${done.totalCount} targets`);
  check(done.counts.succeeded + done.counts.failed === targets, `counts ${JSON.stringify(done.counts)}`);

  const payouts = got("list", await api.GET("/v1/promotions/{id}/payouts", { params: { path, query: { state: "SUCCEEDED", limit: 5 } } }));
  check(typeof payouts !== "string", "the payouts are CSV");
  check(payouts.items.length === 5 && payouts.items.every((payout) => payout.state === "SUCCEEDED" && payout.amount === 100), JSON.stringify(payouts));
  failed("an unknown promotion", await api.GET("/v1/promotions/{id}", { params: { path: { id: "1" } } }), "PROMOTION_NOT_FOUND");
}

async function drop(): Promise<void> {
  const template = got("template", await api.POST("/v1/coupon-templates", { body: { name: "Drop", totalQuantity: 2 } }));
  const request = (userId: string) => api.POST("/v1/coupons/{templateId}/issue", {
    params: { path: { templateId: template.id }, header: { Prefer: "wait=10" } }, body: { userId },
  });
  const coupons = [];
  for (const user of ["t1", "t2"]) {
    const answer = got(`the request of ${user}`, await request(user));
    check(answer.status === "ISSUED" && answer.coupon !== undefined, JSON.stringify(answer));
    coupons.push(answer.coupon);
  }
  failed("a third request", await request("t3"), "SOLD_OUT");

  const cancelled = got("cancel", await api.POST("/v1/coupons/{couponId}/cancel", { params: { path: { couponId: coupons[0].id } } }));
  check(cancelled.status === "CANCELLED", JSON.stringify(cancelled));
  failed("a second use", await api.POST("/v1/coupons/{couponId}/use", { params: { path: { couponId: coupons[0].id } } }), "COUPON_CANCELLED");
  check(got("the freed place", await request("t3")).status === "ISSUED", "nobody gets the place of the cancelled coupon");
  const held = got("coupons", await api.GET("/v1/users/{userId}/coupons", { params: { path: { userId: "t1" } } }));
  check(held.items.length === 1 && held.items[0].status === "CANCELLED", JSON.stringify(held));
}

await promotion();
await drop();
process.exit(0); // the event stream may still be open
