"""The peers that are other programs: they do the same work, where they can be had."""

import asyncio
import shutil

import pytest

from bench.drivers import redis_load as redis_driver
from bench.peers import jvm
from bench.peers.redis import RedisConnection, RedisServer, command, is_whole

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
needs_jvm = pytest.mark.skipif(not jvm.STAMP.exists(), reason="the peers on the JVM are not built; `make bench` does")


def test_commands_are_written_as_redis_reads_them() -> None:
    """Counted words, and a message is whole when its seven lines are."""
    assert command(b"GET", b"a b") == b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n"
    message = b"*3\r\n$7\r\nmessage\r\n$7\r\nresults\r\n$2\r\n17\r\n"
    assert is_whole(message * 3)
    assert not is_whole(message + message[:-1])
    assert not is_whole(message + b"*3\r\n")


@needs_redis
@pytest.mark.slow  # a server is started
async def test_redis_wakes_whom_a_mark_passes_and_who_is_due() -> None:
    """One published result for each: passed by the mark, registered below it, due by its deadline; and no other."""
    with RedisServer() as server:
        async with RedisConnection.open(server.address) as redis, RedisConnection.open(server.address) as ear:
            await redis.load_scripts()
            await ear.subscribe()

            async def call(script: str, *words: bytes) -> bytes:
                keys = (b"0",) if script == "expire" else (b"1", b"key")
                return (await redis.ask(command(b"EVALSHA", redis.scripts[script], *keys, *words), 1))[0]

            await call("register", b"1", b"5", b"900", b"2", b"6", b"100", b"3", b"7", b"900")
            assert await call("advance", b"5") == b":1"
            await call("register", b"4", b"5", b"900")
            assert await call("expire", b"100", b"10") == b":1"
            assert await call("expire", b"100", b"10") == b":0"
            heard: list[bytes] = []
            async with asyncio.timeout(60):
                while len(heard) < 3:
                    heard += await ear.messages()
            assert heard == [b"1", b"4", b"2"]
            with pytest.raises(RuntimeError, match="ERR"):
                await redis.ask(command(b"NOTHING"), 1)


@needs_redis
@pytest.mark.slow  # a server is started
def test_redis_is_loaded_to_the_end() -> None:
    """Both workloads end with a result for each of their waits."""
    with RedisServer() as server:
        columns = redis_driver.columns(server.address, batch=20, lanes=2, together=5, seconds=0.01)
        assert columns["operations"] >= 40
        assert redis_driver.herd(server.address, count=700)["operations"] == 700


@needs_jvm
@pytest.mark.slow  # a JVM is started
def test_kafka_does_the_same_work() -> None:
    """Its own purgatory completes, expires and cancels all, and looks at every long poll at every append."""
    with jvm.jvm_worker("kafka") as worker:
        shape = {"keys": 2, "hot": 2, "pending": 3, "step": 1, "events": 4}
        assert worker.run("register-complete", **shape, seconds=0.01)["operations"] >= 4
        assert worker.run("five-partitions", partitions=20, pending=12, seconds=0.01)["operations"] % 4 == 0
        assert worker.run("zipf", keys=30, pending=30, seconds=0.01)["operations"] % 100 == 0
        assert worker.run("falling", pending=1_000, step=10, seconds=0.01)["operations"] % 1_000 == 0
        assert worker.run("cancel-all", count=100, keys=4)["operations"] == 100
        assert worker.run("expire-all", count=100, keys=4, delay_ms=50)["operations"] == 100
        assert worker.run("fetch-evaluations", fetches=5, appends=64)["evaluations"] == 2 + 64
        assert worker.run("timer-add-expire", count=100, delay_ms=50)["operations"] == 100


@needs_jvm
@pytest.mark.slow  # a JVM is started
def test_netty_does_the_same_work() -> None:
    """Its timer runs all that is due, and has caught up with what was cancelled."""
    with jvm.jvm_worker("netty") as worker:
        assert worker.run("timer-add-cancel", pending=100, seconds=0.01)["operations"] >= 1_000
        assert worker.run("timer-add-expire", count=100, delay_ms=50)["operations"] == 100


def test_without_maven_there_is_a_line_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names what is missing; nothing else is tried."""
    jvm.build.cache_clear()
    monkeypatch.setattr("shutil.which", lambda program: None if program == "mvn" else "/there")
    with pytest.raises(jvm.JvmMissing, match="mvn is not installed"):
        jvm.build()
