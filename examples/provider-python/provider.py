"""A small provider for Largesse: one SQLite table, one row per idempotency key."""

import argparse, json, os, sqlite3, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

args = argparse.ArgumentParser()
args.add_argument("--listen", default="127.0.0.1:9000")
args.add_argument("--file", default="charges.db")
args = args.parse_args()
TOKEN = os.environ.get("PROVIDER_TOKEN", "")

db = sqlite3.connect(args.file, check_same_thread=False, isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA synchronous = FULL")  # a commit is on the disk before it returns
db.execute("CREATE TABLE IF NOT EXISTS charges (id INTEGER PRIMARY KEY AUTOINCREMENT,"
           " key TEXT UNIQUE NOT NULL, promotion TEXT NOT NULL, body TEXT NOT NULL, amount INTEGER NOT NULL)")
lock = threading.Lock()  # the connection is shared


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    wbufsize = 1 << 16  # headers and body in one packet
    timeout = 60

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.authorized():
            return
        try:
            c = json.loads(raw)
            key, user, amount = c["promotionId"] + ":" + c["targetId"], c["userId"], c["amount"]
            voucher, least = c.get("voucherCode", ""), 0 if self.path == "/v1/vouchers/charge" else 1
        except (ValueError, TypeError, KeyError, AttributeError):
            return self.answer(400, {"code": "MALFORMED"})
        if (self.path not in ("/v1/points/charge", "/v1/vouchers/charge")
                or self.headers.get("Idempotency-Key") != key or not isinstance(user, str) or type(amount) is not int
                or not least <= amount < 2**63 or (self.path == "/v1/vouchers/charge") != bool(voucher)):
            return self.answer(422, {"code": "INVALID"})
        body = json.dumps([self.path, user, amount, voucher])
        with lock:  # the UNIQUE key decides, also between processes
            row = db.execute("SELECT id, body FROM charges WHERE key = ?", (key,)).fetchone()
            if row is None and user.startswith("closed-"):  # your own rules go here
                return self.answer(422, {"code": "ACCOUNT_CLOSED"})
            if row is None:
                db.execute("INSERT INTO charges (key, promotion, body, amount) VALUES (?, ?, ?, ?)"
                           " ON CONFLICT (key) DO NOTHING", (key, c["promotionId"], body, amount))
                row = db.execute("SELECT id, body FROM charges WHERE key = ?", (key,)).fetchone()
        if row[1] != body:
            return self.answer(422, {"code": "KEY_REUSED"})
        self.answer(200, {"transactionKey": f"T-{row[0]}"})

    def do_GET(self):
        if not self.authorized():
            return
        url = urlsplit(self.path)
        if url.path.startswith("/v1/transactions/"):
            with lock:
                row = db.execute("SELECT id FROM charges WHERE key = ?", (unquote(url.path[17:]),)).fetchone()
            return self.answer(200, {"transactionKey": f"T-{row[0]}"}) if row else self.answer(404, {"code": "NOT_FOUND"})
        if url.path != "/v1/charges":
            return self.answer(404, {})
        q = {name: values[0] for name, values in parse_qs(url.query).items()}
        limit = min(int(q.get("limit", 1000)), 1000)
        with lock:  # ids only grow, so the order never changes
            rows = db.execute("SELECT id, key, amount FROM charges WHERE promotion = ? AND id > ? ORDER BY id LIMIT ?",
                              (q.get("promotionId"), int(q.get("cursor", 0)), limit + 1)).fetchall()
        page = {"charges": [{"idempotencyKey": key, "amount": amount, "transactionKey": f"T-{id}"} for id, key, amount in rows[:limit]]}
        if len(rows) > limit:
            page["nextCursor"] = str(rows[limit - 1][0])
        self.answer(200, page)

    def authorized(self):
        ok = not TOKEN or self.headers.get("Authorization") == "Bearer " + TOKEN
        return ok or self.answer(401, {"code": "UNAUTHORIZED"})

    def answer(self, status, body):
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 256


host, port = args.listen.rsplit(":", 1)
server = Server((host, int(port)), Provider)
print(f"http://{host}:{server.server_port}", flush=True)
server.serve_forever()
