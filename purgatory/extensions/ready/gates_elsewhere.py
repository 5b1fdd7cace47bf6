"""Ready gates of other shards: a request for them is passed on to the HTTP port of their shard."""

import json
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from google.rpc import code_pb2
from starlette.types import Scope

from purgatory.extensions.ready.ready_gates import LOOKUP_S, GateState
from purgatory.service.errors import RpcError
from purgatory.service.http.http_context import header_of
from purgatory.service.transport.outbound import NoAnswer, Outbound

PASSED_ON: Final = b"purgatory-passed-on"
"""A header of requests that another shard has passed on. They are not passed on again."""
ANSWER_S: Final = LOOKUP_S + 2.0
ANSWER_BYTES_MAX: Final = 4_194_304
END: Final = "-----END CERTIFICATE-----"


async def states_elsewhere(
    url: str, query: dict[str, str], scope: Scope, certificate_file: Path | None
) -> list[GateState]:
    """Ask the shard at `url` with the token of a request. If it does not answer, its gates are not ready. Over TLS, it
    must have the same certificate as this daemon.

    Raises:
        RpcError: It refuses the request.
    """
    given = ((name, header_of(scope, name)) for name in (b"host", b"authorization"))
    headers = [(name, value.encode("latin-1")) for name, value in given if value is not None]
    try:
        outbound = Outbound(timeout_s=ANSWER_S, answer_bytes_max=ANSWER_BYTES_MAX, ssl_context=_trust(certificate_file))
        try:
            target = f"{url}/v1/ready?{urlencode(query)}"
            answer = json.loads((await outbound.exchange("GET", target, [*headers, (PASSED_ON, b"1")])).body)
        finally:
            await outbound.close()
        if "ready" not in answer:
            raise RpcError(code_pb2.Code.Value(answer["code"].upper()), answer["message"])
    except (NoAnswer, OSError, ValueError, LookupError, TypeError) as error:
        state: GateState = {"ready": False, "reason": f"its shard, at {url}, does not answer: {error}"}
        return [state] * len(query.get("names", "").split(","))
    return [{name: gate[name] for name in gate if name != "name"} for gate in answer.get("gates", [answer])]


def _trust(certificate_file: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if certificate_file is not None:  # read each time: it may have been renewed
        context.check_hostname = False  # the certificate itself is compared
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(cadata=certificate_file.read_text("ascii").partition(END)[0] + END)
    return context
