"""The calls of sources and about them: a stream for each source, and where logs end."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from purgatory import sizes
from purgatory.service.access.roles import ADVANCE, WAIT
from purgatory.service.errors import invalid_argument, quoted
from purgatory.service.host import Host
from purgatory.service.rpc.call import Call
from purgatory.service.rpc.handlers import Requests
from purgatory.service.sources.source_links import AttachedSource
from purgatory.service.translate import sources
from purgatory.v1 import source_pb2 as wire

COALESCED_S: Final = 0.005
"""Changes within this time are sent in one message, seconds."""
SIGN_OF_LIFE_S: Final = 5.0
TOPICS_MAX: Final = 1_000


async def serve_source(host: Host, requests: Requests, call: Call) -> None:
    """Serve one source until either side ends the stream."""
    first = await anext(requests, None)
    if first is None or not first.HasField("hello"):
        raise invalid_argument("hello", "must be the first message of the stream of a source")
    name, prefixes = sources.checked_hello(first.hello)
    _check_prefixes(host, call, prefixes)
    links = host.source_links
    link = links.attach(name, call.account.principal, prefixes)
    # It ends with its call: see `handlers.Requests`.
    reader = asyncio.create_task(_read(host, requests, link, call), name="source reader")
    try:
        # The reader runs already: reports must be taken while the existing waits are being listed.
        await links.demand.begin(link.demand)
        await _write(host, link, call)
    finally:
        links.detach(link)
        del reader


async def source_ends(host: Host, request: wire.GetSourceEndsRequest, call: Call) -> wire.GetSourceEndsResponse:
    """Return where topics end, as determined by their sources after this call."""
    host.gate.check_answer(call.account)
    topics = checked_topics(host, call, request.topics)
    as_of_ms = request.as_of_ms if request.HasField("as_of_ms") else None
    now_ms = time.time_ns() // 1_000_000
    if as_of_ms is not None and not 0 <= as_of_ms <= now_ms:
        raise invalid_argument("as_of_ms", f"must be from 0 to the present ({now_ms}), not {as_of_ms}")
    return sources.ends_response(await host.source_links.ends(topics, call.account.principal, as_of_ms))


def checked_topics(host: Host, call: Call, asked: Iterable[str]) -> list[str]:
    """Return the topics whose ends a caller asks for, each once. Raises `RpcError` if there are too many, or if the
    caller may not wait on one of them.
    """
    topics = list(dict.fromkeys(asked))
    if not 1 <= len(topics) <= TOPICS_MAX:
        raise invalid_argument("topics", f"{len(topics)} topics given; allowed: 1 to {TOPICS_MAX}")
    allowed = call.account.grants.on_topics(WAIT)
    for topic in topics:
        if topic not in allowed:
            raise host.sessions.accounts.audit.denied(call.account.principal, WAIT, f"topic {quoted(topic)}")
    return topics


async def _read(host: Host, requests: Requests, link: AttachedSource, call: Call) -> None:
    """Read the source's messages. Any error here ends the stream."""
    watched = host.holds.of("AttachSource")
    try:
        while (request := await requests.read()) is not None and not link.is_over:
            with watched:
                _take(host, request, link, call)
        link.finish(None)
    except asyncio.CancelledError:
        link.finish(None)
        raise
    except Exception as error:  # noqa: BLE001 - raised again by the writer of the stream
        link.finish(error)


def _take(host: Host, request: wire.AttachSourceRequest, link: AttachedSource, call: Call) -> None:
    if request.HasField("report"):
        _check_prefixes(host, call, link.stream.topic_prefixes)  # checked under the current policy
        now_ms = host.listening.now_ms()
        sources.take_report(request.report, link.stream, now_ms)
        host.source_links.log.tell(now_ms)
    elif request.HasField("ends"):
        link.asks.answer(request.ends.ask_id, sources.answer_of(request.ends))
    else:
        raise invalid_argument("message", "must be a report or ends; hello may only be the first message")


async def _write(host: Host, link: AttachedSource, call: Call) -> None:
    """Send changes of demand, and questions, to the source. The first message may be empty."""
    is_due = True
    while not link.is_over:
        # Cleared before taking anything: changes from here on set it again, so none is missed.
        link.woken.clear()
        # The names that others wait on are sent only while the principal has the role, however old the stream is.
        call.recheck()
        _check_prefixes(host, call, link.stream.topic_prefixes)
        for ask_id, question in link.asks.take():
            await call.context.write(sources.ends_wanted_message(ask_id, question))
        if is_due or link.demand.has_untold:
            await call.turn()  # a new source gets all waits on its topics, which is work of its own caller
            await call.context.write(sources.demand_message(*link.demand.take(sizes.DEMAND_NAMES_PER_MESSAGE)))
        # More than one message holds: the rest is sent without the pause that collects changes.
        if link.demand.has_untold or link.asks.has_unsent:
            is_due = False
            continue
        try:
            async with asyncio.timeout(SIGN_OF_LIFE_S):
                await link.woken.wait()
            is_due = False
        except TimeoutError:
            is_due = True
        await asyncio.sleep(COALESCED_S)
    if link.ending is not None:
        raise link.ending


def _check_prefixes(host: Host, call: Call, prefixes: list[str] | tuple[str, ...]) -> None:
    allowed = call.account.grants.on_topics(ADVANCE)
    for prefix in () if allowed.has_all else prefixes:
        if not allowed.has_prefix(prefix):
            raise host.sessions.accounts.audit.denied(call.account.principal, ADVANCE, f"topics {quoted(prefix + '*')}")
