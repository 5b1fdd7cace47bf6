"""Commands over HTTP: `ready` waits for a gate, as in an init container, and `lag` shows how far a group is behind."""

import contextlib
import json
import re
import ssl
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import click
from purgatory_client.rpc_errors import meaning_of

from purgatory.cli import completion, render
from purgatory.cli.connection_options import JSON
from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import TIMEOUT, UsageError
from purgatory.command_line import Command
from purgatory.connection_flags import CONNECTION

if TYPE_CHECKING:  # slow to import, and only these commands need it
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
@completion.marks_argument(help="Marks without partition numbers: kafka/GROUP/TOPIC, pg/NAME/all.")
@TIMEOUT
def ready(name: str, marks: tuple[str, ...], timeout: float, **asked: Any) -> Exit:  # noqa: ANN401 - as `_answer` has them
    """Once ready, the gate stays ready: a container that starts again and again does not wait for newer records. A
    daemon that cannot be reached is asked again until the timeout.
    """
    gate = _answer(f"ready?{urlencode({'name': name, 'marks': ','.join(marks)})}", timeout, **asked)
    render.print_either(gate, render.escape(_gate_line(gate)))
    return Exit.OK if gate["ready"] else Exit.EXPIRED


@click.command(cls=Command)
@click.argument("group", shell_complete=completion.topics, help="A Kafka consumer group, or a prefix: pg/main/all.")
def lag(group: str, **asked: Any) -> Exit:  # noqa: ANN401 - as `_answer` has them
    """Ages are known from the first question on, or from the daemon's start for groups of its setting lag.groups; an
    older position is at least as old. Exit code 16 if the group has no positions.
    """
    answer = _answer(f"lag?{urlencode({'group': group})}", ANSWER_S_MAX, **asked)
    table = render.plain_table("partition", "position", "end", "lag", "done/s", "written/s", "age", "outlook")
    numbers = {"position": 0, "end": 0, "lag": 0, "positionPerSecond": 1, "endPerSecond": 1}
    for row in answer["partitions"]:
        shown = [f"{row[field]:,.{digits}f}" if field in row else "-" for field, digits in numbers.items()]
        spans = {field: render.span(value / 1_000) for field, value in row.items() if field.endswith("Ms")}
        age, outlook = "-", "caught up"
        if row.get("lag"):
            age = spans["ageMs"] + (f" ± {spans['ageErrorMs']}" if "ageErrorMs" in row else " or more")
            outlook = f"caught up in {spans['caughtUpInMs']}" if "caughtUpInMs" in row else "not at this pace"
        name = f"{row['mark']}-{row['partition']}"
        table.add_row(*map(render.escape, [name, *shown, age, row.get("reason", outlook)]))
    if not answer["partitions"]:
        render.error_line(f"no positions of {group} are known: nothing committed, or no source follows it")
        return Exit.NOT_FOUND
    render.print_either(answer, table)
    return Exit.OK


HTTP: Final = click.Option(
    ["--http"],
    metavar="URL",
    envvar="PURGATORY_HTTP_URL",
    show_envvar=True,
    default=DEFAULT_HTTP,
    help="The daemon's HTTP address, as a URL.",
)
for command in (ready, lag):
    command.params += [HTTP, JSON, CONNECTION["token_file"], CONNECTION["tls_ca"]]


def _answer(
    path: str, limit_s: float, http: str, token_file: Path | None, tls_ca: Path | None, as_json: bool
) -> dict[str, Any]:
    """The daemon's answer. If there is none within the limit, or it is an error, the command ends."""
    from urllib.request import Request  # noqa: PLC0415 - as above

    render.AS_JSON.set(as_json)
    if HTTP_URL.fullmatch(http) is None:
        raise UsageError(f"not an HTTP address: {http!r}; give --http or PURGATORY_HTTP_URL, like {DEFAULT_HTTP}")
    request = Request(f"{http.rstrip('/')}/v1/{path}")  # noqa: S310 - checked
    try:
        if token_file is not None:
            request.add_header("Authorization", f"Bearer {token_file.read_text('utf-8').strip()}")
        trusted = ssl.create_default_context(cafile=tls_ca) if http.startswith("https:") else None
    except OSError as error:
        raise UsageError(f"cannot use {'--token-file' if error.filename else '--tls-ca'}: {error}") from error
    deadline_s = time.monotonic() + limit_s
    while True:
        status, answer = _ask(request, trusted, max(ANSWER_S_MIN, min(ANSWER_S_MAX, deadline_s - time.monotonic())))
        left_s = deadline_s - time.monotonic()
        if status in AGAIN and left_s > 0:
            time.sleep(min(POLL_S, left_s))
        elif "message" in answer:
            render.error_line(str(answer["message"]))
            sys.exit(Exit.DENIED if status in DENIED else Exit.UNAVAILABLE if status in AGAIN else Exit.REFUSED)
        else:
            return answer


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
        if isinstance(content, dict) and not content.keys().isdisjoint({"ready", "partitions", "message"}):
            return status, content
    # A page for people, such as the one for a Host header that is not allowed; or another server.
    return status, {"message": f"{request.host} answers {status}: {text.strip()[:500]}"}
