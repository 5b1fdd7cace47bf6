"""The peers that are other programs: they do the same work, where they can be had."""

import asyncio
import shutil

import pytest
from purgatory_client import AsyncClient, Outcome

from bench.drivers import redis_load as redis_driver
from bench.drivers import unary
from bench.measure.processes import python_server
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


@pytest.mark.slow  # a server is started
async def test_the_echo_server_answers_our_client() -> None:
    """Waits, batches and events are all answered, as satisfied, and with results of the full size."""
    with python_server("bench.peers.echo_server") as server:
        async with AsyncClient(server.address) as client:
            assert (await client.produce({("t", 0): 7}, timeout=60)).outcome == Outcome.SATISFIED
            results = await client.produce_many([("t", 0)], offsets=range(1, 51), timeouts_ms=[60_000])
            assert results.outcomes == [Outcome.SATISFIED] * 50
            assert results.required_offsets == list(range(1, 51))
            assert (await client.advance(("t", 0), high_watermark=3)).ended == [0]


@pytest.mark.slow  # a server is started
def test_the_conditions_server_completes_what_its_marks_pass() -> None:
    """Unary waits end when their key's mark has come, all of them."""
    with python_server("bench.peers.conditions_server") as server:
        assert unary.conditions(server.address, batch=5, lanes=2, seconds=0.02)["operations"] >= 10
