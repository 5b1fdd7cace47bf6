"""The Redis source against a server that is none, answers nonsense, or refuses the login."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from purgatory_client import AsyncClient
from purgatory_connectors.cli import open_source
from purgatory_connectors.publisher.polled_source import Unreadable
from purgatory_connectors.redis.redis_source import RedisSource

from purgatory.source_uri import SourceUri
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import eventually
from tests.sources.publishing import publishing

PRIMARY = "role:master\r\nmaster_replid:a1\r\nmaster_replid2:0\r\nmaster_repl_offset:7\r\nsecond_repl_offset:-1\r\n"


@asynccontextmanager
async def server(answer: str) -> AsyncIterator[str]:
    """The address of a server that answers INFO with this text, or as written if it begins like another answer. If
    it begins with "-", everything is answered with it.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (line := await reader.readline()).startswith(b"*"):
            words = [(await reader.readline(), (await reader.readline()).strip())[1] for _ in range(int(line[1:]))]
            text = answer if answer.startswith("-") else "+OK"
            if words[0] == b"INFO" and text == "+OK":
                text = answer if answer[:1] in ("$", "*") else f"${len(answer)}\r\n{answer}"
            writer.write(f"{text}\r\n".encode())
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as serving:
        yield f"127.0.0.1:{serving.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("", "not that of Redis"),
        ("role:sentinel\r\n", "not that of Redis"),
        (PRIMARY.replace("second_repl_offset", "other"), "not that of Redis"),
        (PRIMARY.replace(":7", ":seven"), "not that of Redis"),
        (PRIMARY.replace(":7", ":-1"), "not that of Redis"),
        (PRIMARY.replace(":7", f":{2**61}"), "not that of Redis"),
        ("-WRONGPASS invalid username-password pair", "PURGATORY_REDIS_PASSWORD"),
        ("-NOAUTH Authentication required.", "PURGATORY_REDIS_PASSWORD"),
        ("-NOPERM this user has no permissions to run the 'info' command", r"right \+info"),
        ("-LOADING Redis is loading the dataset in memory", "loading"),
        ("$9000000000\r\n", "longer than 65,536 bytes"),
        ("*100000000\r\n" + ":1\r\n" * 20_000, "longer than 65,536 bytes"),
        ("*1\r\n" * 10_000, "nested too deeply"),
    ],
)
async def test_a_server_that_lies(answer: str, said: str) -> None:
    """Such an answer makes this server unreadable, with the reason; it does not end the source."""
    async with server(answer) as address:
        source = open_source(SourceUri.parse(f"redis://{address}"))
        assert isinstance(source, RedisSource)
        with pytest.raises(Unreadable, match=said):
            await source.asked(address)
        await source.close()


async def test_a_server_that_is_no_longer_listed(shared_daemon: DaemonProcess) -> None:
    """Its mark is removed: nothing would move it."""
    gone, listed = "redis/unlisted/r3", "redis/unlisted/p"
    async with server(PRIMARY) as address, AsyncClient(shared_daemon.address) as before:
        await before.advance((gone, 0), high_watermark=5)
        async with publishing(shared_daemon, f"redis://{address}?name=unlisted&servers=p") as client:

            async def is_gone() -> bool:
                return {one.topic async for one in client.partitions(prefix="redis/unlisted/")} == {listed}

            await eventually(is_gone)
