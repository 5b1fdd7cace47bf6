"""The daemon behind a real nginx, with the configuration in docs/http.md. Without nginx the test is skipped; with
PURGATORY_REQUIRE_NGINX=1 it fails instead.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from purgatory_client import AsyncClient, Outcome, waits

from examples.free_ports import free_port
from examples.secure_demo.authority import Authority
from tests.docs.pages import texts
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import until_pending, wait_until
from tests.kit.programs import skip_unless_required

pytestmark = pytest.mark.xdist_group("nginx")

HOST = "purgatory.example.org"
CALL = "/purgatory.v1.PurgatoryService"
CALLS = 200
"""Calls on one connection; nginx's own limit is 128."""
TOPICS = 5_000
"""Their names are more than a megabyte, nginx's own limit for a request."""


class Nginx:
    """nginx with the blocks of the page, in which ports and files are replaced."""

    def __init__(self, program: str, folder: Path, daemon: DaemonProcess) -> None:
        [page] = texts("docs/http.md", "nginx")
        self.https, self.grpc = free_port(), free_port()
        authority = Authority("The test's authority")
        issued = authority.issue("purgatory", hosts=(HOST, "127.0.0.1"))
        certificate, key = issued.write(folder, "nginx")
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(authority.certificate_pem)
        for found, put in {
            "listen 443 ": f"listen 127.0.0.1:{self.https} ",
            "listen 8443 ": f"listen 127.0.0.1:{self.grpc} ",
            "http://127.0.0.1:7441": f"http://{daemon.http_address}",
            "grpc://127.0.0.1:7440": f"grpc://{daemon.address}",
            "/etc/ssl/purgatory.crt": str(certificate),
            "/etc/ssl/purgatory.key": str(key),
        }.items():
            assert found in page, found
            page = page.replace(found, put)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        folders = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        configuration = folder / "nginx.conf"
        configuration.write_text(
            f"pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off; {folders} {page} }}"
        )
        command = [program, "-c", str(configuration), "-p", str(folder), "-g", "daemon off;"]
        self.log = folder / "nginx.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self.is_serving, "nginx accepts connections")

    def is_serving(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.https)) == 0

    def curl(self, path: str, *options: str) -> list[str]:
        """The command for a request by the name in the certificate."""
        resolve = ["--resolve", f"{HOST}:{self.https}:127.0.0.1", "--cacert", str(self.ca)]
        return ["curl", "-sS", "--max-time", "60", *resolve, *options, f"https://{HOST}:{self.https}{path}"]

    def answer(self, path: str, *options: str) -> tuple[int, str]:
        command = self.curl(path, "-w", "\n%{http_code}", *options)
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        body, _, status = done.stdout.rpartition("\n")
        return int(status), body


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    """Nginx before a daemon that was started as the page says."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if program is None:
        skip_unless_required("NGINX", "nginx is missing")
    folder = tmp_path_factory.mktemp("nginx")
    daemon = DaemonProcess(folder, ["--http-allowed-hosts", HOST])
    served = Nginx(program, folder, daemon)
    yield served
    served.process.terminate()
    served.process.wait(60)
    daemon.kill()


def test_a_browser_behind_nginx(nginx: Nginx) -> None:
    """The page loads, and may post and read; a page of another site may not."""
    status, page = nginx.answer("/")
    assert (status, "<title>Purgatory</title>" in page) == (200, True)
    post = ("-H", "Content-Type: application/json", "-d", "{}")
    for origin, expected in [
        (f"https://{HOST}", 200),
        (f"https://{HOST}:{nginx.https}", 200),
        ("https://evil.example", 403),
    ]:
        status, answer = nginx.answer(f"{CALL}/GetStatus", "-H", f"Origin: {origin}", *post)
        assert status == expected, (origin, answer)
    status, answer = nginx.answer("/page/static/app.js", "-H", "Sec-Fetch-Site: same-origin")
    assert status == 200


def test_events_arrive_at_once(nginx: Nginx) -> None:
    """An event is passed on while the stream is open, and so is the result that a later event causes."""
    with subprocess.Popen(nginx.curl("/v1/results?session=s", "-N"), stdout=subprocess.PIPE, text=True) as stream:
        try:
            assert stream.stdout is not None
            assert stream.stdout.readline() == "event: opened\n"
            row = {"operationId": 1, "timeoutMs": 1, "signal": {"keys": [{"key": "k"}]}}
            request = json.dumps({"sessionId": "s", "batch": {"rows": {"operations": [row]}}})
            status, answer = nginx.answer(f"{CALL}/Register", "-H", "Content-Type: application/json", "-d", request)
            assert status == 200, answer
            assert any("OUTCOME_EXPIRED" in line for line in stream.stdout)
        finally:
            stream.kill()


async def test_grpc_through_nginx(nginx: Nginx) -> None:
    """Hundreds of waits share a connection with the event that ends them. A session may send any number of bytes."""
    async with AsyncClient(f"127.0.0.1:{nginx.grpc}", tls_ca=str(nginx.ca)) as client:
        once = [asyncio.create_task(client.wait_once(waits.signal(["go"], timeout=120))) for _ in range(CALLS)]
        topics = [f"{'t' * 200}-{number}" for number in range(TOPICS)]
        indexes = list(range(TOPICS))
        for _ in range(2):
            ended = await client.produce_many(topics, offsets=[1] * TOPICS, indexes=indexes, timeouts_ms=[1] * TOPICS)
            assert set(ended.outcomes) == {Outcome.EXPIRED}
        await until_pending(client, CALLS)
        await client.signal_key("go")
        assert {result.outcome for result in await asyncio.gather(*once)} == {Outcome.SATISFIED}
