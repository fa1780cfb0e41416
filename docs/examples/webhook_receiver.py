"""A receiver for the webhook of Parley. It checks the signature of each notification, and prints the state and the
id of the conversation.

Run `PARLEY_WEBHOOK_SECRET=... python3 webhook_receiver.py 8000`. The argument is the port.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer

SECRET = os.environ["PARLEY_WEBHOOK_SECRET"].encode()
"""The key of the signatures. This receiver does not support a secret that begins with `whsec_`, which contains the
key in base64."""
TOLERANCE_SECONDS = 300
"""The maximum age of a notification in seconds. An older notification may be a repeated copy."""
MAX_BYTES = 4096
"""The maximum size of a notification in bytes."""


def is_genuine(headers: Message, body: bytes) -> bool:
    """Return whether a notification is recent and has a valid signature."""
    delivery_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    signed = f"{delivery_id}.{timestamp}.".encode() + body
    expected = b"v1," + base64.b64encode(hmac.new(SECRET, signed, hashlib.sha256).digest())
    is_recent = timestamp.isdigit() and abs(time.time() - int(timestamp)) < TOLERANCE_SECONDS
    return is_recent and hmac.compare_digest(expected, headers.get("webhook-signature", "").encode())


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(min(MAX_BYTES, int(self.headers.get("content-length") or 0)))
        if not is_genuine(self.headers, body):
            self.send_error(401)
            return
        notification = json.loads(body)
        print(notification["state"], notification["conversation_id"], flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Log nothing, so that the program prints only the notifications."""


if __name__ == "__main__":
    server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver)
    print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
