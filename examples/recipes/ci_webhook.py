"""A receiver for GitHub's webhooks: the end of a workflow run becomes a signal, `ci/COMMIT` or `ci/COMMIT/failed`.

It verifies the signature of each request. A repeated one sends its signal again, which changes nothing for a wait for
one signal. In this example the program is also GitHub, and an agent that waits for its commit.

Prints:
    forged: 401
    signed: 204
    the run of 4f2a: failed
"""

import hmac
import http.client
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from purgatory_client import Client, signal

CLIENT = Client(os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440"))
SECRET = b"the secret of the webhook"


def signature(body: bytes, secret: bytes) -> str:
    return "sha256=" + hmac.digest(secret, body, "sha256").hex()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        is_signed = hmac.compare_digest(signature(body, SECRET), self.headers.get("x-hub-signature-256", ""))
        event = json.loads(body) if is_signed else {}
        if event.get("action") == "completed" and self.headers["x-github-event"] == "workflow_run":
            run = event["workflow_run"]
            CLIENT.signal_key(f"ci/{run['head_sha']}{'' if run['conclusion'] == 'success' else '/failed'}")
        self.send_response(204 if is_signed else 401)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    body = json.dumps({"action": "completed", "workflow_run": {"head_sha": "4f2a", "conclusion": "failure"}}).encode()
    for name, secret in (("forged", b"guessed"), ("signed", SECRET)):
        github = http.client.HTTPConnection("127.0.0.1", receiver.server_port)
        headers = {"x-github-event": "workflow_run", "x-hub-signature-256": signature(body, secret)}
        github.request("POST", "/", body, headers)
        print(f"{name}: {github.getresponse().status}")
    ended = CLIENT.wait(signal("ci/4f2a"), unless=[signal("ci/4f2a/failed")], timeout=60)
    print(f"the run of 4f2a: {ended.outcome.name.lower()}")
    CLIENT.close()


if __name__ == "__main__":
    main()
