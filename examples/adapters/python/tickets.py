#!/usr/bin/env python3
"""A help desk behind drainer's adapter protocol, version 1.

    tickets.py [--file F]                 a child of drainer: lines on stdin and stdout
    tickets.py [--file F] --unix S.sock   a sidecar on a Unix socket

Copy it and put your upstream in the place of Desk. With TICKETS_TOKEN set, the
sidecar wants it as its bearer token.
"""

import argparse
import hmac
import json
import math
import os
import socketserver
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler

HELLO = {
    "protocol": [1],
    "name": "tickets",
    # What repeating a call does, at best. drainer refuses a configuration that promises more.
    "operations": {
        "open_ticket": "key_idempotent",
        "close_ticket": "naturally_idempotent",
        "find_ticket": "read_only",
    },
}


class Desk:
    """The upstream. It remembers every ticket by the idempotency key that opened it."""

    def __init__(self, path=None):
        self.lock = threading.Lock()
        self.by_key = {}
        self.by_number = {}
        self.file = open(path, "a+", encoding="utf-8") if path else None
        if self.file:
            self.file.seek(0)
            for line in self.file:
                try:
                    self.remember(json.loads(line))
                except ValueError:
                    pass  # a crash cut this record short, and its request got no answer

    def remember(self, ticket):
        self.by_key[ticket["key"]] = self.by_number[ticket["number"]] = ticket

    def keep(self, ticket):
        """Write first, answer afterwards: what was answered is never forgotten."""
        if self.file:
            self.file.write("\n" + json.dumps(ticket))  # a torn record spoils no other
            self.file.flush()
            os.fsync(self.file.fileno())
        self.remember(ticket)

    def open_ticket(self, key, payload):
        title = payload.get("title") if isinstance(payload, dict) else None
        if not isinstance(title, str) or not title:
            return {"outcome": "rejected", "error_class": "title_missing"}
        with self.lock:
            ticket = self.by_key.get(key)
            if ticket is None:
                ticket = {"number": len(self.by_key) + 1, "key": key, "title": title, "status": "open"}
                self.keep(ticket)
                return completed(ticket)
        if ticket["title"] != title:
            return {"outcome": "rejected", "error_class": "key_reused"}
        return {**completed(ticket), "replayed": True}

    def close_ticket(self, key, payload):
        number = payload.get("number") if isinstance(payload, dict) else None
        with self.lock:
            ticket = self.by_number.get(number) if isinstance(number, int) else None
            if ticket is None:
                return {"outcome": "rejected", "error_class": "no_such_ticket"}
            self.keep({**ticket, "status": "closed"})
            return completed(self.by_number[number])

    def find_ticket(self, key, payload):
        """A lookup: it is asked with the key of the call in doubt."""
        with self.lock:
            ticket = self.by_key.get(key)
        return completed(ticket) if ticket else {"outcome": "absent"}


def completed(ticket):
    response = {name: ticket[name] for name in ("number", "title", "status")}
    return {"outcome": "completed", "provider_ref": str(ticket["number"]), "response": response}


def due(request):
    """The time when drainer stops waiting. Work that starts later is not wanted."""
    return time.monotonic() + request.get("deadline_ms", math.inf) / 1000


def answer(desk, request, until):
    """Every request gets one result. After an exception the outcome stays in doubt."""
    try:
        if time.monotonic() > until:  # it waited for its turn in vain
            result = {"outcome": "not_sent", "error_class": "timeout"}
        elif request["operation"] not in HELLO["operations"]:
            result = {"outcome": "rejected", "error_class": "unknown_operation"}
        else:
            result = getattr(desk, request["operation"])(request["idempotency_key"], request["payload"])
    except Exception:
        traceback.print_exc()
        result = {"outcome": "ambiguous", "error_class": "exception"}
    return {"id": request["id"], **result}


def serve_lines(desk):
    out, sys.stdout = sys.stdout, sys.stderr  # a stray print() is no message
    writing = threading.Lock()

    def say(message):
        with writing:
            out.write(json.dumps(message) + "\n")
            out.flush()

    sys.stdin.buffer.readline()  # drainer's hello
    say(HELLO)
    with ThreadPoolExecutor(16) as pool:
        for line in sys.stdin.buffer:
            request = json.loads(line)
            pool.submit(lambda request, until: say(answer(desk, request, until)), request, due(request))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    wbufsize = -1  # head and body leave in one write

    def do_GET(self):
        if self.allowed() and self.path == "/v1/hello":
            self.reply(200, HELLO)
        else:
            self.refuse()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.allowed() and self.path == "/v1/dispatch":
            request = json.loads(body)
            self.reply(200, answer(self.server.desk, request, due(request)))
        else:
            self.refuse()

    def allowed(self):
        given, token = self.headers.get("Authorization", ""), self.server.token
        return not token or hmac.compare_digest(given.encode(), f"Bearer {token}".encode())

    def refuse(self):
        self.reply(404 if self.allowed() else 401, {})

    def reply(self, status, message):
        body = json.dumps(message).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_):
        pass


class Sidecar(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, path, desk):
        self.desk, self.token = desk, os.environ.get("TICKETS_TOKEN", "")
        if os.path.exists(path):
            os.unlink(path)  # left by the last run
        os.umask(0o177)  # for its owner alone
        super().__init__(path, Handler)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", help="where the tickets are kept; left out, they are forgotten at the end")
    parser.add_argument("--unix", help="serve HTTP on this socket, not lines on stdin and stdout")
    options = parser.parse_args()
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)  # numbers come in any size
    desk = Desk(options.file)
    if options.unix:
        Sidecar(options.unix, desk).serve_forever()
    else:
        serve_lines(desk)


if __name__ == "__main__":
    main()
