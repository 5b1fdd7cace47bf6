"""A long-poll endpoint in a threaded web app: "return the messages after number 7, or wait up to 30 s for one".

python examples/long_poll.py [PORT]      without a port: serves on any, polls itself, and exits

    GET /rooms/lobby?after=7&timeout_ms=30000    200 and the new messages, as soon as there are any; 204 at the timeout
    POST /rooms/lobby                            201: the body is a message
    GET /waiting                                 200: the number of waiting polls

It needs no daemon, does not poll a database, and creates no Event per request: each poll is an operation of an embedded
purgatory, watched on its room, and each message re-evaluates the operations that wait in its room.
"""

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from purgatory.embedded import SATISFIED, SHUTTING_DOWN, DelayedOperation, EmbeddedPurgatory, PurgatoryError

POLLS_MAX = 500
TIMEOUT_MS_MAX = 60_000


class Board:
    """Messages by room. Messages are only appended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rooms: dict[str, list[str]] = {}

    def post(self, room: str, message: str) -> None:
        with self._lock:
            self._rooms.setdefault(room, []).append(message)

    def after(self, room: str, number: int) -> list[str]:
        with self._lock:
            return self._rooms.get(room, [])[number:]


class NewMessages(DelayedOperation):
    """Completes when its room has a message after a given number."""

    def __init__(self, board: Board, room: str, number: int, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.messages: list[str] = []
        self._board = board
        self._room = room
        self._number = number

    def try_complete(self) -> bool:
        """Only reads, because it runs with the purgatory's lock held."""
        self.messages = self._board.after(self._room, self._number)
        return bool(self.messages) and self.force_complete()


class App(BaseHTTPRequestHandler):
    """One request, in its own thread."""

    board: Board
    purgatory: EmbeddedPurgatory

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path == "/waiting":
            self._answer(200, str(self.purgatory.pending))
            return
        query = {name: int(values[0]) for name, values in parse_qs(url.query).items()}
        timeout_ms = min(query.get("timeout_ms", 30_000), TIMEOUT_MS_MAX)
        poll = NewMessages(self.board, url.path, query.get("after", 0), timeout_ms)
        try:
            # Tested, then watched, then tested again, so that a message that arrives in between is not missed.
            self.purgatory.try_complete_else_watch(poll, [url.path])
        except PurgatoryError as error:  # POLLS_MAX are already waiting, or the app is closing
            self._answer(503, str(error))
            return
        self.purgatory.wait(poll)
        if poll.outcome == SATISFIED:
            self._answer(200, json.dumps(poll.messages))
        else:
            self._answer(503 if poll.outcome == SHUTTING_DOWN else 204)

    def do_POST(self) -> None:
        message = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        room = urlsplit(self.path).path
        # Apply the change first and release its lock, then check. In the other order the change could be missed.
        self.board.post(room, message)
        self.purgatory.check_and_complete(room)
        self._answer(201)

    def _answer(self, status: int, body: str = "") -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Suppress the log line for each request."""


@contextmanager
def serving(port: int = 0, polls_max: int = POLLS_MAX) -> Iterator[str]:
    """Serve the app on a port of 127.0.0.1 (0: any); yields its address. At the end every waiting poll is answered."""
    purgatory = EmbeddedPurgatory("long-poll", pending_max=polls_max)
    app = type("BoundApp", (App,), {"board": Board(), "purgatory": purgatory})
    with ThreadingHTTPServer(("127.0.0.1", port), app) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            purgatory.close()
            server.shutdown()
            thread.join()


def ask(address: str, method: str, path: str, body: str | None = None) -> tuple[int, str]:
    """Send one request to the app; returns the status and the body of the response."""
    connection = HTTPConnection(address)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def main() -> None:
    if len(sys.argv) > 1:
        with serving(int(sys.argv[1])) as address:
            print(f"serving on http://{address}; stop with Ctrl-C", flush=True)
            threading.Event().wait()
    with serving() as address, ThreadPoolExecutor(1) as pool:
        # The poll begins before any message exists, and is answered by the first one.
        waiting = pool.submit(ask, address, "GET", "/rooms/lobby?after=0")
        ask(address, "POST", "/rooms/lobby", "hello")
        print("poll:", *waiting.result())
        print("nothing new within 200 ms:", *ask(address, "GET", "/rooms/lobby?after=1&timeout_ms=200"))


if __name__ == "__main__":
    main()
