"""An object store that stops responding must not delay the start or the end of the daemon for long."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from purgatory.extensions.archive import extension, writer_link
from purgatory.extensions.archive.vocabulary import CannotArchive
from purgatory.extensions.archive.writer_link import WriterLink
from purgatory.testing import daemon_in_process
from tests.archive.archive_kit import NOWHERE
from tests.kit.daemon import run_to_end
from tests.kit.eventually import PATIENCE_S

CREDENTIALS: Final = {
    "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"
}  # fmt: skip
LISTING: Final = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
UPLOAD: Final = b"<InitiateMultipartUploadResult><UploadId>one</UploadId></InitiateMultipartUploadResult>"


class Store:
    """The parts of S3 that writing an archive needs. Stops responding once `silent` is set."""

    def __init__(self) -> None:
        self.silent = threading.Event()
        self.ended = threading.Event()
        self.loses_objects = False
        """Whether objects that were written are reported as not found."""
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length") or 0))
                if store.silent.is_set():
                    store.ended.wait(PATIENCE_S)
                body = LISTING if self.command == "GET" else UPLOAD if "uploads" in self.path else b""
                is_lost = store.loses_objects and self.command == "HEAD" and self.path.count("/") > 1
                self.send_response(404 if is_lost else 200)
                self.send_header("etag", '"tag"')
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - as the base class calls them

            def log_message(self, *_: object) -> None:
                pass

        self.server: Final = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def uri(self) -> str:
        return f"s3://bucket/a?endpoint_override=127.0.0.1:{self.server.server_port}&scheme=http&region=x"


@pytest.fixture
def store() -> Iterator[Store]:
    started = Store()
    yield started
    started.ended.set()
    started.server.shutdown()
    started.server.server_close()


async def test_a_store_that_does_not_answer_at_the_start(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(writer_link, "OPEN_S", 0.5)
    store.silent.set()
    link = WriterLink(NOWHERE._replace(place=store.uri))
    with pytest.raises(CannotArchive, match=r"did not answer within 0\.5 s"):
        await link.start()
    assert link._process.returncode is not None


def test_a_store_that_falls_silent_does_not_keep_the_daemon(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the history is lost, which is logged. The daemon ends long before the store's client gives up."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(extension, "CLOSE_S_MIN", 0.5)
    with daemon_in_process("--archive-uri", store.uri, "--shutdown-grace-ms", "100"):
        store.silent.set()
    assert "the end of the history could not be written" in caplog.text


@pytest.mark.slow  # starts a daemon that loads the store's client
def test_what_the_stores_client_prints_is_not_taken_for_the_protocol(store: Store, tmp_path: Path) -> None:
    """The client logs to standard output, also the channel to the daemon. Startup still fails with one line."""
    store.loses_objects = True
    ended = run_to_end(
        tmp_path,
        ["--archive-uri", store.uri, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"],
        CREDENTIALS,
    )
    assert ended.returncode == 1
    assert "cannot write an archive to" in ended.stderr
    assert "Traceback" not in ended.stderr
