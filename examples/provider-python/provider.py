"""A small provider for Largesse. It commits each charge to SQLite before it answers, once per idempotency key."""

import json
import os
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

db = sqlite3.connect("charges.db", check_same_thread=False, isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA synchronous = FULL")  # a commit is on the disk before it returns
db.execute("CREATE TABLE IF NOT EXISTS charges (key TEXT PRIMARY KEY, body TEXT NOT NULL)")
lock = threading.Lock()  # two calls with one key pay once, and a lookup waits for a charge that is being made


def paid(key):
    """Return the body that was charged with the key, or None."""
    row = db.execute("SELECT body FROM charges WHERE key = ?", (key,)).fetchone()
    return row and row[0]


class Provider(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    wbufsize = -1  # sends header and body in one packet

    def do_POST(self):
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path not in ("/v1/points/charge", "/v1/vouchers/charge"):
            return self.answer(404, message="no such path")
        key = self.headers.get("Idempotency-Key")
        try:
            c = json.loads(raw)
            user, amount, currency, voucher = c["userId"], c["amount"], c.get("currency"), c.get("voucherCode")
            valid = key == c["promotionId"] + ":" + c["targetId"] and type(amount) is int and amount >= (0 if voucher else 1)
        except (ValueError, TypeError, KeyError):
            valid = False
        if not valid:
            return self.answer(400, code="MALFORMED")
        body = json.dumps([user, amount, currency, voucher])
        with lock:
            known = paid(key)
            if known not in (None, body):
                return self.answer(422, code="KEY_REUSED")
            if known is None and user == "closed-1":  # your own rules go here
                return self.answer(422, code="ACCOUNT_CLOSED")
            if known is None:
                db.execute("INSERT INTO charges VALUES (?, ?)", (key, body))
        self.answer(200, transactionKey="T-" + key)

    def do_GET(self):
        path, _, key = unquote(self.path).rpartition("/")
        if path != "/v1/transactions":
            return self.answer(404, message="no such path")
        with lock:
            known = paid(key)
        if known is None:
            return self.answer(404, code="NOT_FOUND")
        self.answer(200, transactionKey="T-" + key)

    def answer(self, status, **body):
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


ThreadingHTTPServer.request_queue_size = 256  # new connections that may wait
ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 9000))), Provider).serve_forever()
