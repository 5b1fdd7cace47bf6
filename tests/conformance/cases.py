"""Plays the cases of cases.txt with a client and a scripted daemon."""

import asyncio
import inspect
import operator
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc

from examples.secure_demo.authority import Authority
from tests.conformance.client_process import TIMEOUT_MS, ClientProcess
from tests.conformance.scripted_daemon import UNLIMITED_BYTES, CaseFailed, ScriptedDaemon

Case = Callable[[ClientProcess], Awaitable[None]]

LONG_TOPIC: Final = "t" * 240
OPTION: Final = re.compile(r"(\w+)=(\w+)")
RELATIONS: Final = {">=": operator.ge, "<=": operator.le}


class Player:
    """Plays one case. Each line is a call of a method of the player, the daemon or the client, with words and options.
    Names of waits are replaced by those that the client uses, which are also their topics.
    """

    def __init__(self, client: ClientProcess) -> None:
        self._client: Final = client
        self._daemon = ScriptedDaemon(UNLIMITED_BYTES, None)
        self._is_open = False
        self._names: Final[dict[str, str]] = {}
        self._opened_s = 0.0
        self._slept_ms = 0
        self._stack: Final = AsyncExitStack()

    async def play(self, lines: Sequence[str]) -> None:
        """Raises CaseFailed if the client breaks the rule."""
        async with self._stack:
            for line in (*lines, "close"):
                verb, *given = line.split()
                options = {name: value_of(text) for name, text in OPTION.findall(line)}
                words = [self._names.get(word, word) for word in expanded(given) if not OPTION.fullmatch(word)]
                player = next(one for one in (self, self._daemon, self._client) if hasattr(one, verb))
                try:
                    played = getattr(player, verb)(*words, **options)
                    if inspect.isawaitable(played):
                        await played
                except AssertionError as error:
                    raise CaseFailed(f"{line!r}: {error}; {self._daemon.facts()}") from error

    async def open(self, *, tls: bool = False, bytes_enforced: int = UNLIMITED_BYTES, **options: object) -> None:
        """Start a daemon, and open a session on it. Options that the daemon does not have are the client's."""
        await self.close()
        credentials = None
        if tls:
            authority, ca = Authority("conformance"), self._client.folder / "ca.crt"
            issued = authority.issue("purgatory", hosts=("127.0.0.1", "localhost"))
            credentials = grpc.ssl_server_credentials([(issued.key_pem, issued.certificate_pem)])
            ca.write_bytes(authority.certificate_pem)
            options["ca"] = ca
        self._daemon = await self._stack.enter_async_context(ScriptedDaemon(bytes_enforced, credentials))
        self.set(**{name: options.pop(name) for name in list(options) if hasattr(self._daemon, name)})
        self._opened_s, self._is_open = time.monotonic(), True
        self._client.open(self._daemon.address, **options)

    async def close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._client.close()

    def set(self, **options: object) -> None:
        for name, value in options.items():
            setattr(self._daemon, name, value)

    async def sleep(self, ms: str) -> None:
        """Let time pass that must be missing from timeouts, or in which something must not happen."""
        await asyncio.sleep(int(ms) / 1_000)
        self._slept_ms += int(ms)

    def wait(self, *names: str, topic: str = "", **options: int) -> None:
        for name in names:
            self._names[name] = self._client.wait(topic=f"{LONG_TOPIC}{name}" if topic else "", **options)

    async def ended(self, how: str, *names: str) -> None:
        found = await self._client.ended(*names)
        assert set(found) == {how}, f"ended: {found}"

    async def ended_not(self, how: str, *names: str) -> None:
        assert how not in await self._client.ended(*names)

    async def serve(self, count: str) -> None:
        """Make waits one after another: each is registered, and gets its result."""
        for _ in range(int(count)):
            registered = len(self._daemon.operations)
            name = self._client.wait()
            await self._daemon.registered(registered + 1)
            self._daemon.complete(name)
            await self.ended("satisfied", name)

    async def settles(self, name: str) -> None:
        """The wait is refused, or it is registered and gets its result."""
        ending = asyncio.create_task(self._client.ended(name))
        registering = asyncio.create_task(self._daemon.registered(1))
        await asyncio.wait((ending, registering), return_when=asyncio.FIRST_COMPLETED)
        self._daemon.complete()
        registering.cancel()
        assert await ending in (["satisfied"], ["refused"])

    def pending(self, *names: str) -> None:
        """The daemon has the operations of these waits and no others, which were registered in the order of ids."""
        operations = self._daemon.operations
        assert {one.topic for one in operations} == {*names}, f"{operations}"
        assert operations == sorted(operations), f"{operations}"

    def timeout(self, name: str, relation: str, ms: str) -> None:
        [found] = [one.timeout_ms for one in self._daemon.operations if one.topic == name]
        check(found, relation, ms)

    def remaining(self, *names: str) -> None:
        """The timeouts of these waits are what remains."""
        at_least = TIMEOUT_MS - (time.monotonic() - self._opened_s) * 1_000 - 1
        for name in names:
            self.timeout(name, ">=", str(int(at_least)))
            self.timeout(name, "<=", str(TIMEOUT_MS - self._slept_ms + 1))

    def waited(self, name: str, relation: str, ms: str) -> None:
        check(self._client.waited_ms(name), relation, ms)

    async def until(self, fact: str, relation: str, value: str) -> None:
        await self._daemon.until(lambda: holds(self._facts()[fact], relation, value), f"{fact} {relation} {value}")

    def expect(self, fact: str, relation: str, *value: str) -> None:
        check(self._facts()[fact], relation, " ".join(value))

    def _facts(self) -> dict[str, object]:
        warnings = self._client.errors.count("Warning")
        return self._daemon.facts() | {"lines": self._client.line_count, "warnings": warnings}


def value_of(text: str) -> Any:  # noqa: ANN401 - of the type that is meant
    """The value of an option: True, False, None, a number, a status of gRPC, or a text."""
    words: dict[str, object] = {"True": True, "False": False, "None": None, **grpc.StatusCode.__members__}
    return int(text) if text.isdigit() else words.get(text, text)


def expanded(words: Sequence[str]) -> Iterator[str]:
    """The words, with a1..a3 for three of them."""
    for word in words:
        first, _, last = word.partition("..")
        yield from (f"{first[0]}{number}" for number in range(1, int(last[1:]) + 1)) if last else [word]


def holds(found: Any, relation: str, value: str) -> bool:  # noqa: ANN401 - any fact
    return str(found) == value if relation == "==" else bool(RELATIONS[relation](found, int(value)))


def check(found: object, relation: str, value: str) -> None:
    assert holds(found, relation, value), f"found {found}"


def read_cases() -> Iterator[tuple[str, Case]]:
    for text in Path(__file__).with_suffix(".txt").read_text("utf-8").split("\ncase ")[1:]:
        name, *lines = text.splitlines()
        yield name, partial(play, [line for line in lines if line and not line.startswith("#")])


async def play(lines: Sequence[str], client: ClientProcess) -> None:
    await Player(client).play(lines)


CASES: Final = dict(read_cases())
"""Each gets a client without a session, and leaves it without one."""
