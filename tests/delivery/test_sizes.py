"""Every internal size at one less, itself, and one more, with a small result behind the large one.

Each result arrives once and in order: by rows, columns, server-sent events, unary calls and the client, although
connections are cut, and although the daemon is killed.
"""

import ast
import asyncio
import re
from collections.abc import Iterator
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from purgatory_client.aio import AsyncClient
from purgatory_client.wire import sizes as client_sizes
from purgatory_pipeline import sizes as pipeline_sizes

from purgatory import sizes
from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.delivery.paths import PATHS, ReadResult, read_results
from tests.kit.daemon import DaemonProcess, InProcessDaemon, RunDaemon
from tests.kit.messages import produce, register_request, signal
from tests.kit.recorded import assert_recorded, cases_of
from tests.kit.served_host import DaemonChannel, Peer, serving
from tests.kit.sizes import all_sizes

ROOT: Final = Path(__file__).resolve().parents[2]
MODULES: Final = {"purgatory": sizes, "client": client_sizes, "pipeline": pipeline_sizes}
SIZE: Final = re.compile(
    r"_PER_(SLICE|PART|MESSAGE|PAGE|TURN|CHUNK|CALL|GROUP|RESULT|BATCH)|_AT_ONCE|_TOGETHER"
    r"|(RESULTS?|ITEMS?|ROWS?|MESSAGES|VALUES|EVENTS|CANCELS|ANSWERS|RANGES|SEGMENTS|CHANGES|CHUNKS?|PARTS?|PAGES?)_MAX"
    r"|(MESSAGE|PAGE|BATCH|CHUNK|PART|CALL)_BYTES_MAX"
)
OTHERS: Final = Path(__file__).with_name("other_sizes.txt")
READERS: Final = {f"pipeline/purgatory_pipeline/{folder}" for folder in ("page", "replay", "report")}
FOLDERS: Final = (
    "purgatory",
    "client/purgatory_client",
    "connectors/purgatory_connectors",
    "pipeline/purgatory_pipeline",
)

SMALL: Final = 8
"""The value of all sizes in tests that would take long otherwise."""


def test_sizes_are_in_one_module_of_each_distribution() -> None:
    """Any other module-level number that is called like a size is listed in other_sizes.txt, with the reason."""
    paths = {str(Path(module.__file__ or "").relative_to(ROOT)) for module in MODULES.values()}
    found: dict[str, str] = {}
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name in paths or name.endswith("_pb2.py") or str(Path(name).parent) in READERS:
            continue
        statements = ast.parse(path.read_text("utf-8")).body
        targets: list[ast.expr] = [one.target for one in statements if isinstance(one, ast.AnnAssign)]
        targets += [target for one in statements if isinstance(one, ast.Assign) for target in one.targets]
        names = [one.id for one in targets if isinstance(one, ast.Name) and one.id.isupper()]
        if names := sorted(filter(SIZE.search, names)):
            found[name] = " ".join(names)
    assert {*cases_of(OTHERS)} == found.keys()
    assert_recorded(OTHERS, (found[path] for path in cases_of(OTHERS)))


@pytest.fixture
def small_sizes() -> Iterator[None]:
    """Set all sizes of daemon and client to `SMALL`."""
    with all_sizes(SMALL):
        yield


def large_operations(size: int) -> list[operation_pb2.Operation]:
    """An operation of each kind with `size` items, each with a small one behind it."""
    names = [{"topic": "t", "partition": item} for item in range(size)]
    waits: list[dict[str, Any]] = [
        {"signal": {"keys": [{"key": f"k{item}"} for item in range(size)]}},
        {"produce": {"partitions": [{"topic_partition": name, "required_offset": 1} for name in names]}},
        {"fetch": {"partitions": [{"topic_partition": name} for name in names]}},
        {"composite": {"terms": [{"mark": {"topic_partition": name, "required_offset": 1}} for name in names]}},
        {"delete_records": {"partitions": [{"topic_partition": name, "offset": 1} for name in names]}},
    ]
    operations = []
    for number, wait in enumerate(waits):
        operations.append(operation_pb2.Operation(operation_id=2 * number + 1, timeout_ms=0, **wait))
        operations.append(signal(2 * number + 2, "small", timeout_ms=0))
    return operations


async def read_with_cuts(
    daemon: InProcessDaemon | DaemonProcess, path: str, session: str, count_: int, last: str = "-0", cut: int = 0
) -> list[ReadResult]:
    """Read `count_` results behind `last`. The connection is cut after each `cut` results."""
    found: list[ReadResult] = []
    while len(found) < count_:
        results = read_results(daemon.address, daemon.http_address, path, session, last)
        async with asyncio.timeout(60), aclosing(results):
            for _ in range(min(cut or count_, count_ - len(found))):
                found.append(await anext(results))  # noqa: PERF401 - kept if the next one does not arrive
        last = found[-1].cursor
    return found


@pytest.mark.slow  # each path, with each size
@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("size", [SMALL - 1, SMALL, SMALL + 1])
@pytest.mark.parametrize("path", PATHS)
async def test_results_around_each_size_are_delivered_once_in_order(
    run_daemon: RunDaemon, tmp_path: Path, path: str, size: int
) -> None:
    """The connection is cut after every seven results, in the middle of messages."""
    daemon = await run_daemon("--data-dir", str(tmp_path / "data"))
    operations, ids = large_operations(size), count(100)
    waits = [produce(next(ids), "later", 1, timeout_ms=60_000) for _ in range(size)]
    refused = [produce(next(ids), "later", -5) for _ in range(size)]
    cancelled = [signal(next(ids), "never", timeout_ms=60_000) for _ in range(size)]
    async with DaemonChannel(daemon.address) as channel:
        for part in (operations, [*waits, *refused, *cancelled], [signal(next(ids), "small", timeout_ms=0)]):
            await channel.stub.Register(register_request("s", *part))
        listed, token = 0, ""
        while listed == 0 or token:
            page = await channel.stub.ListOperations(wire.ListOperationsRequest(page_size=1_000, page_token=token))
            listed, token = listed + len(page.operations), page.next_page_token
        assert listed == 2 * size
        ids_cancelled = [one.operation_id for one in cancelled]
        answer = await channel.stub.Cancel(wire.CancelRequest(session_id="s", operation_ids=ids_cancelled))
        assert answer.cancelled == size
    async with AsyncClient(daemon.address) as client:
        await client.advance(("later", 0), high_watermark=1)
    ends = [one.operation_id for one in (*operations, *refused)] + [next(ids) - 1, *ids_cancelled]
    ends += [one.operation_id for one in waits]
    found = await read_with_cuts(daemon, path, "s", len(ends), cut=7)
    assert [one.operation_id for one in found] == ends
    assert [int(one.cursor.rpartition("-")[2]) for one in found] == list(range(1, len(ends) + 1))
    assert [len(one.items) for one in found[:10]] == [size, 1] * 5


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
async def test_message_of_exactly_the_largest_size_is_not_cut(monkeypatch: pytest.MonkeyPatch, columns: bool) -> None:
    lengths: list[list[int]] = []
    whole = 0
    for more in (0, -1, 0, 1):
        async with serving() as served:
            if whole:
                monkeypatch.setattr(sizes, "MESSAGE_BYTES_MAX", whole + more)
            await served.stub.Register(
                register_request("s", *(signal(number, f"key-{number}", timeout_ms=0) for number in (1, 2, 3)))
            )
            peer = await Peer(served, "s").open(columns=columns)
            results = [await peer.results()]
            whole = whole or wire.SessionResponse(results=results[0]).ByteSize()
            while sum(map(length_of, results)) < 3:
                results.append(await peer.results())
            peer.cancel()
        monkeypatch.undo()
        lengths.append([length_of(one) for one in results])
    assert (lengths[0], lengths[2], lengths[3]) == ([3], [3], [3])
    assert len(lengths[1]) > 1


def length_of(batch: wire.ResultBatch) -> int:
    return len(batch.columns.operation_id) + len(batch.rows.results)


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_page_ends_with_the_operation_that_fills_it(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    async with serving() as served:
        await served.stub.Register(
            register_request("s", *(produce(number, "t", 1, timeout_ms=60_000) for number in range(1, 10)))
        )
        monkeypatch.setattr(sizes, "LISTED_OPERATIONS_AT_ONCE", 1)
        page = await served.stub.ListOperations(wire.ListOperationsRequest())
        bytes_max = sum(one.ByteSize() for one in page.operations[:2]) + more
        monkeypatch.setattr(sizes, "PAGE_BYTES_MAX", bytes_max)
        found, token = 0, ""
        while found == 0 or token:
            page = await served.stub.ListOperations(wire.ListOperationsRequest(page_token=token))
            lengths, token = [one.ByteSize() for one in page.operations], page.next_page_token
            assert sum(lengths[:-1]) < bytes_max
            assert sum(lengths) >= bytes_max or not token
            found += len(lengths)
    assert found == 9
