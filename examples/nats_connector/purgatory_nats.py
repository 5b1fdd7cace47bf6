"""A connector for NATS JetStream, as a package of its own (docs/connectors.md).

    purgatory serve --source 'nats://n1:4222,n2:4222?streams=ORDERS'
    purgatory wait nats/main/ORDERS-0@42               # message 42 is stored
    purgatory wait nats/main/ORDERS/billing-0@42       # the consumer `billing` has acknowledged all up to message 42
    purgatory caught-up nats/main/ORDERS/billing       # all that were stored before this call

Marks are under "nats/NAME/": STREAM, its last sequence, and STREAM/CONSUMER, the consumer's acknowledgement floor.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, StreamInfo
from nats.js.errors import NotFoundError
from purgatory_connectors import (
    POLL_OPTIONS,
    End,
    Observation,
    PolledSource,
    RisingMarks,
    SourceStale,
    SourceUri,
    StaleMark,
    Unreadable,
)

PAGE: Final = 256
"""Streams, and consumers, in one answer of a server."""
LOGIN: Final = ("user", "password", "token", "user_credentials", "nkeys_seed")


def open_source(uri: SourceUri) -> "NatsSource":
    """The entry point. Settings of a login come from PURGATORY_NATS_PASSWORD or the like. Raises SourceUriInvalid."""
    options = uri.merged("PURGATORY_NATS_").options
    return NatsSource(replace(uri, options={name.replace(".", "_"): value for name, value in options.items()}))


class Place(NamedTuple):
    """Where a stream or a consumer is. Another `created` begins another lineage: it was deleted and made again."""

    position: int
    created: str


class NatsSource(PolledSource[Mapping[str, Place]]):
    """Asks the account's JetStream for its streams and consumers. Its only target is ""."""

    def __init__(self, uri: SourceUri) -> None:
        uri.check_options((*POLL_OPTIONS, "streams", *LOGIN))
        super().__init__("nats", uri, ("",), poll_ms=50)
        self._login: Final[dict[str, Any]] = {name: uri.options[name] for name in LOGIN if name in uri.options}
        self._servers: Final = [f"nats://{host}" for host in uri.hosts]
        self._streams: Final = uri.listed("streams")
        self._connection = Client()
        self._connecting: Final = asyncio.Lock()
        self._marks = RisingMarks[str]({})
        self._seen_at, self._stale = 0.0, "it has not been read yet"

    async def read(self, target: str) -> Mapping[str, Place]:  # noqa: ARG002 - there is one
        try:
            jetstream = await self._jetstream()
            places = {}
            for stream in [await jetstream.stream_info(one) for one in self._streams] or await _all_streams(jetstream):
                name = str(stream.config.name)
                places[name] = Place(stream.state.last_seq, _text(stream.created))
                for one in await _consumers(jetstream, name):
                    floor = one.ack_floor.stream_seq if one.ack_floor else 0
                    places[f"{name}/{one.name}"] = Place(floor, _text(one.created))
            return places
        except (NatsError, OSError, ValueError) as error:  # also TimeoutError
            text = f"{type(error).__name__}: {error}"
            raise Unreadable(text, is_refused="Authorization Violation" in text) from error

    async def close(self) -> None:
        # Replaced first: if this is cancelled, because the time is up, the next question does not close it again.
        lost, self._connection = self._connection, Client()
        # The client raises AssertionError if it was never connected, or its attempt was cancelled at once.
        with contextlib.suppress(NatsError, OSError, AssertionError):
            await lost.close()

    def begin(self, published: Mapping[str, int]) -> None:
        self._marks = RisingMarks(published)

    def apply(self, target: str, reading: Mapping[str, Place] | Unreadable, now: float) -> list[Observation]:  # noqa: ARG002
        self._seen_at = self._seen_at or now
        if isinstance(reading, Unreadable):
            self._stale = str(reading)
            return []
        self._seen_at, self._stale = now, ""
        moves = self._marks.apply({mark: place.position for mark, place in reading.items()})
        identities = {mark: place.created for mark, place in reading.items()}
        return [Observation(self.prefix + mark, 0, at, identities.get(mark, ""), back) for mark, at, back in moves]

    def stale(self) -> Sequence[StaleMark]:
        return [StaleMark("", self._seen_at, self._stale, is_prefix=True)] if self._stale else []

    async def ends(self, names: Sequence[str]) -> list[End]:
        """The last message that a stream has, or that a consumer's filters let through, read after the call began."""
        found = []
        try:
            for name in names:
                stream, _, consumer = name.removeprefix(self.prefix).partition("/")
                jetstream = await self._jetstream()
                if not consumer:
                    found.append(End(name, 0, (await jetstream.stream_info(stream)).state.last_seq))
                    continue
                config = (await jetstream.consumer_info(stream, consumer)).config
                lasts = [await _last(jetstream, stream, subject) for subject in _filters(config)]
                found.append(End(name, 0, max(lasts)))
        except (NatsError, OSError, ValueError) as error:
            raise SourceStale(f"{', '.join(names)}: {type(error).__name__}: {error}") from error
        return [end for end in found if end.offset]  # there is nothing to wait for in an empty stream

    async def _jetstream(self) -> JetStreamContext:
        async with self._connecting:
            if not self._connection.is_connected:
                await self.close()
                await self._connection.connect(self._servers, allow_reconnect=False, **self._login)
        return self._connection.jetstream(timeout=self._timeout_s)


async def _all_streams(jetstream: JetStreamContext) -> list[StreamInfo]:
    found: list[StreamInfo] = []
    while len(page := await jetstream.streams_info(len(found))) == PAGE:
        found += page
    return found + page


async def _consumers(jetstream: JetStreamContext, stream: str) -> list[ConsumerInfo]:
    found: list[ConsumerInfo] = []
    while len(page := await jetstream.consumers_info(stream, len(found))) == PAGE:
        found += page
    return found + page


def _filters(config: ConsumerConfig) -> list[str]:
    return config.filter_subjects or [config.filter_subject or ">"]


async def _last(jetstream: JetStreamContext, stream: str, subject: str) -> int:
    try:
        return (await jetstream.get_last_msg(stream, subject)).seq or 0
    except NotFoundError:
        return 0


def _text(created: datetime | None) -> str:
    return created.isoformat() if created else ""
