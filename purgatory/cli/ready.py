"""`purgatory ready`: waits for a ready gate over HTTP, for init containers, compose and start scripts."""

import contextlib
import json
import re
import ssl
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import urlencode

import click
from purgatory_client.rpc_errors import meaning_of

from purgatory.cli import render
from purgatory.cli.completion import marks_argument
from purgatory.cli.connection_options import JSON
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import TIMEOUT, UsageError
from purgatory.command_line import Command
from purgatory.connection_flags import CONNECTION

if TYPE_CHECKING:  # slow to import, and only this command needs it
    from urllib.request import Request

DEFAULT_HTTP: Final = "http://127.0.0.1:7441"
HTTP_URL: Final = re.compile(r"https?://(\[[^]\s]+\]|[^:/\[\]\s]+)(:[0-9]{1,5})?(/\S*)?")
NOT_HTTP: Final = "this is not an answer in HTTP; for a daemon with TLS, write https://"
POLL_S: Final = 1.0
ANSWER_S_MIN: Final = 1.0
ANSWER_S_MAX: Final = 10.0
"""Seconds to wait for one answer, within which the timeout counts."""

DENIED: Final = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}
NO_ANSWER: Final = 0
AGAIN: Final = {NO_ANSWER, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}


@click.command(cls=Command)
@click.argument("name", metavar="NAME", help="Name of the gate: the pod or service that waits.")
@marks_argument(help="Marks without partition numbers: kafka/GROUP/TOPIC, pg/NAME/all.")
@TIMEOUT
@click.option(
    "--http",
    metavar="URL",
    envvar="PURGATORY_HTTP_URL",
    show_envvar=True,
    default=DEFAULT_HTTP,
    help="The daemon's HTTP address, as a URL.",
)
def ready(
    name: str,
    marks: tuple[str, ...],
    timeout: float,
    http: str,
    token_file: Path | None,
    tls_ca: Path | None,
    as_json: bool,
) -> NoReturn:
    """Once ready, the gate stays ready: a container that starts again and again does not wait for newer records. A
    daemon that cannot be reached is asked again until the timeout.
    """
    render.AS_JSON.set(as_json)
    try:
        request = _request(http, {"name": name, "marks": ",".join(marks)}, token_file)
        trusted = ssl.create_default_context(cafile=tls_ca) if http.startswith("https:") else None
        code = _wait(request, trusted, timeout)
    except OSError as error:
        raise UsageError(f"cannot use {'--token-file' if error.filename else '--tls-ca'}: {error}") from error
    sys.exit(code)


ready.params += [JSON, CONNECTION["token_file"], CONNECTION["tls_ca"]]


def _request(http: str, parameters: dict[str, str], token_file: Path | None) -> "Request":
    from urllib.request import Request  # noqa: PLC0415 - as above

    if HTTP_URL.fullmatch(http) is None:
        raise UsageError(f"not an HTTP address: {http!r}; give --http or PURGATORY_HTTP_URL, like {DEFAULT_HTTP}")
    request = Request(f"{http.rstrip('/')}/v1/ready?{urlencode(parameters)}")  # noqa: S310 - checked
    if token_file is not None:
        request.add_header("Authorization", f"Bearer {token_file.read_text('utf-8').strip()}")
    return request


def _wait(request: "Request", trusted: ssl.SSLContext | None, limit_s: float) -> Exit:
    deadline_s = time.monotonic() + limit_s
    while True:
        status, answer = _ask(request, trusted, max(ANSWER_S_MIN, min(ANSWER_S_MAX, deadline_s - time.monotonic())))
        left_s = deadline_s - time.monotonic()
        if status in AGAIN and left_s > 0:
            time.sleep(min(POLL_S, left_s))
        elif "ready" in answer:
            render.print_either(answer, render.escape(_gate_line(answer)))
            return Exit.OK if answer["ready"] else Exit.EXPIRED
        else:
            render.error_line(str(answer["message"]))
            return Exit.DENIED if status in DENIED else Exit.UNAVAILABLE if status in AGAIN else Exit.REFUSED


def _gate_line(gate: dict[str, Any]) -> str:
    parts = [f"{gate['name']}: {'ready' if gate['ready'] else 'not ready'}"]
    parts += [f"{gate['lag']:,} behind"] if gate.get("lag") else []
    if "pacePerSecond" in gate:
        left = render.span(gate["estimatedRemainingMs"] / 1_000)
        parts.append(f"{gate['pacePerSecond']:,.1f} a second, ready in about {left}")
    return ", ".join(parts) + (f": {gate['reason']}" if gate.get("reason") else "")


def _ask(request: "Request", trusted: ssl.SSLContext | None, limit_s: float) -> tuple[int, dict[str, Any]]:
    """Status and content of the answer. Without an answer, the message says why."""
    from http.client import HTTPException  # noqa: PLC0415 - slow to import
    from urllib.error import HTTPError  # noqa: PLC0415 - as above
    from urllib.request import urlopen  # noqa: PLC0415 - as above

    try:
        with urlopen(request, timeout=limit_s, context=trusted) as response:  # noqa: S310 - checked
            status, text = response.status, response.read().decode()
    except HTTPError as refused:
        with refused:
            status, text = refused.code, refused.read().decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        reason = NOT_HTTP if isinstance(error, HTTPException) else meaning_of(str(getattr(error, "reason", error)))
        where = f"{request.type}://{request.host} does not answer (--http, PURGATORY_HTTP_URL)"
        return NO_ANSWER, {"message": f"{where}: {reason}"}
    with contextlib.suppress(ValueError):
        content = json.loads(text)
        if isinstance(content, dict) and not content.keys().isdisjoint({"ready", "message"}):
            return status, content
    # A page for people, such as the one for a Host header that is not allowed; or another server.
    return status, {"message": f"{request.host} answers {status}: {text.strip()[:500]}"}
