"""Two shards with journals, and the programs of two principals: they signal keys with values, and wait for them.

Every read of a key returns the first value that it was signalled with, before and after, at both shards, after one of
them was killed, in a result that is larger than a message, and although the other principal signals more keys than
there is room for. A wait that another program extends lasts as long for its owner.
"""

import asyncio
import itertools
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from unittest import mock

from purgatory_client import AsyncClient, Event, Outcome, Result, ResultColumns, events
from purgatory_client.errors import Unavailable
from purgatory_client.session import channel, pending_waits, session_driver
from purgatory_client.session.shards import Exchange

from examples.free_ports import free_row
from purgatory.service.access.tokens import add_token
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.engine import plain
from tests.fleet.shard_daemons import client_of
from tests.histories.day_actors import batch_of, now_ms
from tests.histories.history import History
from tests.histories.judge import Registration, ReportedResult
from tests.histories.tables import features_of
from tests.kit.daemon import DaemonProcess, access_flags
from tests.kit.eventually import eventually
from tests.scripts.client_level import wait_of

PATHS = ("client", "columns", "unary")
FAULTS = ("none", "kill")
FEATURES = ("signal", "composite", "failure arm", "any key", "heartbeat", "value", "failed key", "extended",
            "many items", "two principals", "shards")  # fmt: skip
PRINCIPALS: Final = ("ann", "bob")
POLICY: Final = "".join(
    f'[[grant]]\nto = ["{name}"]\nroles = ["wait", "advance", "observe"]\nkeys = ["{name}/*"]\n' for name in PRINCIPALS
)
ROUNDS: Final = 12
KEYS_MAX: Final = 60
VALUES_BYTES_MAX: Final = 200_000
VALUE_BYTES: Final = 4_000
KEYS_AT_ONCE: Final = (1, 1, 2, 16)
"""The values of 16 keys do not all fit into a result. An equal part of all limits is more than that."""
EVENTS_PER_CALL: Final = 8
FLOOD: Final = 80
"""More keys, and more bytes of values, than there is room for."""
MESSAGE_BYTES: Final = 40_000
CLIENT_BYTES: Final = 50_000
"""The limit of clients; less than the values of 16 keys."""
LIMITS: Final = (
    "--limits-items-per-operation-max", "24", "--limits-signal-keys-max", str(KEYS_MAX),
    "--limits-signal-values-bytes-max", str(VALUES_BYTES_MAX), "--session-heartbeat-interval-ms", "200",
)  # fmt: skip
LATE_S: Final = 0.01
WAIT_MS: Final = 20_000
SHORT_MS: Final = 2_500
GRACE_S: Final = 1.0
TURN_S: Final = 0.2
EXTENDED_S: Final = 5.0
"""With this grace, and such turns to look, a client that has not learned of an extension gives up before."""


class Asked(NamedTuple):
    operation: plain.Operation
    failed: bool
    """Whether its keys are signalled as failed."""


class Read(NamedTuple):
    """The keys of a result: each with its value, or None if that was left out."""

    values: dict[str, bytes | None]


class ShardsWorld:
    def __init__(self, folder: Path, history: History) -> None:
        self._folder: Final = folder
        self._chance: Final = history.chance
        self._random: Final = random.Random(history.seed)
        """For concurrent draws of tasks, so that the rounds follow from the seed."""
        self._judge: Final = history.judge
        self._judge.rules.append(self._why_not_first)
        self._seen: Final = history.seen
        self._figures: Final = history.figures
        self._kills: Final = "kill" in history.faults and history.chance.random() < 0.5
        first = free_row(2)
        self._targets: Final = [f"127.0.0.1:{first + shard}" for shard in range(2)]
        self._daemons: Final[dict[int, DaemonProcess]] = {}
        self._tokens: Final = {name: add_token(folder / "tokens", name) for name in PRINCIPALS}
        self._access: Final = access_flags(folder, POLICY)
        self._programs: Final[dict[str, list[AsyncClient]]] = {}
        self._readers: Final[dict[str, list[AsyncClient]]] = {}
        self._sent: Final[defaultdict[str, set[bytes]]] = defaultdict(set)
        self._first: Final[dict[str, bytes]] = {}
        """The value of each key that has been read."""
        self._ids: Final[defaultdict[str, Iterator[int]]] = defaultdict(lambda: itertools.count(1))
        self._results: Final[Counter[str]] = Counter()

    def _start(self, shard: int) -> None:
        folder = self._folder / str(shard)
        flags = ["--grpc-address", self._targets[shard], "--data-dir", str(folder / "data"), *self._access, *LIMITS]
        flags += ["--fleet-targets", " ".join(self._targets), "--fleet-shard", str(shard)]
        self._daemons[shard] = DaemonProcess(
            folder, flags, constants={"purgatory.sizes.MESSAGE_BYTES_MAX": MESSAGE_BYTES}
        )

    async def run(self) -> None:
        async with AsyncExitStack() as stack:
            for shard in range(2):
                await asyncio.to_thread(self._start, shard)
                stack.callback(self._kill, shard)
            for name, token in self._tokens.items():
                self._programs[name] = [AsyncClient(target, token=token) for target in self._targets]
                self._readers[name] = [await client_of(shard, 2, self._targets[0], token=token) for shard in range(2)]
                for client in (*self._programs[name], *self._readers[name]):
                    await stack.enter_async_context(client)
                for program in self._programs[name]:
                    await program.signal_key(f"{name}/first")  # after which it knows the shards
                    program._exchanges = [self._late(exchange) for exchange in program._exchanges]
            extended = asyncio.create_task(await self._extend())
            for number in range(ROUNDS):
                principal, other = self._chance.sample(PRINCIPALS, 2)
                await self._round(principal, other, number)
            await extended

    def _late(self, exchange: Exchange) -> Exchange:
        """Messages take a while, so those of two programs arrive at the shards in different orders."""

        async def exchanged(request: wire.AdvanceStreamRequest) -> wire.AdvanceReceipt:
            await asyncio.sleep(self._random.uniform(0.0, LATE_S))
            return await exchange(request)

        return exchanged

    # The steps of a history.

    async def _round(self, principal: str, other: str, number: int) -> None:
        """Some read keys before, and others after both programs of a principal have signalled them."""
        chance, count = self._chance, self._chance.choice(KEYS_AT_ONCE)
        keys = [f"{principal}/{number}/{place}" for place in range(count)]
        failed = chance.random() < 0.2
        before = [asyncio.create_task(self._read(principal, shard, keys, failed)) for shard in (0, 1, 1, 0)]
        length = chance.choice((1, VALUE_BYTES))
        values = [text.ljust(length, b".") for text in (b"a", b"b")]
        for key in keys:
            self._sent[key].update(values)
        signals = [[events.signalled(key, value=value, failed=failed) for key in keys] for value in values]
        restarting = self._kills and chance.random() < 0.3
        kills = [asyncio.to_thread(self._restart, chance.randrange(2))] if restarting else []
        await asyncio.gather(*kills, *map(self._signal, self._programs[principal], signals))
        if chance.random() < 0.4:
            flood = [
                events.signalled(f"{other}/{number}/flood-{one}", value=b"x" * VALUE_BYTES) for one in range(FLOOD)
            ]
            await self._signal(self._programs[other][0], flood)
            self._figures["floods"] += 1
        await asyncio.gather(*before, *(self._read(principal, shard, keys, failed) for shard in (0, 1)))

    def _kill(self, shard: int) -> None:
        self._daemons[shard].kill()

    def _restart(self, shard: int) -> None:
        self._kill(shard)
        self._start(shard)
        self._figures["kills"] += 1

    @staticmethod
    async def _signal(program: AsyncClient, signals: Sequence[Event]) -> None:
        """Signal keys, again if that is not answered: a value counts once."""
        for start in range(0, len(signals), EVENTS_PER_CALL):
            some = signals[start : start + EVENTS_PER_CALL]
            receipt = await eventually(partial(program.advance_many, some), "is answered", but=Unavailable)
            receipt.raise_for_refusals()

    async def _extend(self) -> Coroutine[None, None, None]:
        """Another program of the same principal extends a wait, of which its owner must learn. Where daemons are
        killed, the owner itself does: it is told only while it is connected. Returns the rest, which takes a while.
        """
        [owner, _], [program, _] = self._readers["ann"], self._programs["ann"]
        operation = plain.Operation(plain.SIGNAL, 1, SHORT_MS, (plain.Item(("ann/extended", -1), 1),))
        waiting = asyncio.create_task(self._wait("client", owner, operation, failed=False))

        async def pending() -> list[int]:
            return [one.operation_id async for one in owner.operations(key="ann/extended")]

        ids = await eventually(pending, "the wait is registered")
        caller = owner if self._kills else program
        missed = await caller.extend(ids, WAIT_MS / 1_000, session_id=owner.session_id)
        assert missed == [], "it ended before it was extended: the machine is too busy"

        async def finish() -> None:
            await asyncio.sleep(EXTENDED_S)
            await self._signal(program, [events.signalled("ann/extended", value=b"")])
            await waiting
            self._seen.note(["extended"], "client", self._fault)

        return finish()

    @property
    def _fault(self) -> str:
        return "kill" if self._kills else "none"

    # Readers.

    async def _read(self, principal: str, shard: int, keys: Sequence[str], failed: bool) -> None:
        """Wait for the keys in one of several ways."""
        chance = self._random
        items = tuple(plain.Item((key, -1), 1) for key in keys)
        operation = plain.Operation(plain.SIGNAL, 1, WAIT_MS, items)
        if chance.random() < 0.2 and not failed:
            never = plain.Item((f"{principal}/never", -1), 1)
            operation = operation._replace(kind=plain.COMPOSITE, items=(*items, never), unless_count=1)
        elif chance.random() < 0.2:
            operation = operation._replace(any_key=True)
        elif chance.random() < 0.2:
            operation = operation._replace(heartbeat_timeout_ms=WAIT_MS // 2)
        await self._wait(chance.choice(PATHS), self._readers[principal][shard], operation, failed=failed)

    async def _wait(self, path: str, client: AsyncClient, operation: plain.Operation, *, failed: bool) -> None:
        session = f"{client.session_id}/{path}"
        number = next(self._ids[session])
        self._judge.registering(session, number, operation.timeout_ms, now_ms() / 1_000, Asked(operation, failed))
        result = await self._result(path, client, operation)
        read = {item.name: None if item.signal_value_left_out else item.signal_value for item in result.items}
        self._results[session] += 1
        reported = ReportedResult(number, result.outcome, round(result.waited * 1_000), Read(read))
        self._judge.reported(session, "", self._results[session], reported, now_ms() / 1_000)
        features = [*features_of(operation), "two principals", "shards"]
        features += ["value"] * any(read.values()) + ["failed key"] * failed
        self._seen.note(features, path, self._fault)
        self._figures["waits"] += 1
        self._figures["values left out"] += list(read.values()).count(None)

    @staticmethod
    async def _result(path: str, client: AsyncClient, operation: plain.Operation) -> Result:
        async def once() -> list[Result]:
            return [await client.wait_once(wait_of(operation))]

        if path == "unary":
            [result] = await eventually(once, "a unary wait finds a daemon", but=Unavailable)
            return result
        found = await client._wait(batch_of((operation,)) if path == "columns" else wait_of(operation))
        return next(iter(found)) if isinstance(found, ResultColumns) else found

    def _why_not_first(self, registration: Registration, result: ReportedResult) -> str:
        """A rule: all keys, or any of them, have their first value."""
        assert isinstance(registration.asked, Asked)
        assert isinstance(result.content, Read)
        operation, failed = registration.asked
        if result.outcome != (Outcome.FAILED if failed else Outcome.SATISFIED):
            return "a key is not known as it was signalled"
        for key, value in result.content.values.items():
            # One key is enough to fail a wait, or for any of them: others may not have been signalled yet.
            is_open = value == b"" and (failed or operation.any_key)
            if self._sent[key] and value is not None and not is_open:
                first = self._first.setdefault(key, value)
                if value != first or value not in self._sent[key]:
                    return f"{key} had the value {first[:1]!r}, and now {value[:1]!r}"
        return ""


def run(history: History) -> None:
    """Clients accept small messages, and notice soon that they are not answered."""
    options = dict(channel.OPTIONS) | {"grpc.max_receive_message_length": CLIENT_BYTES}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as name:
        stack.enter_context(mock.patch.object(channel, "OPTIONS", tuple(options.items())))
        stack.enter_context(mock.patch.object(session_driver, "TURN", TURN_S))
        stack.enter_context(mock.patch.object(pending_waits, "GRACE", GRACE_S))
        asyncio.run(ShardsWorld(Path(name), history).run())
