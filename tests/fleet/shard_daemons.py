"""Daemons with shards for tests: `--shards N` as a process, and daemons that know each other by `fleet.targets`."""

from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from purgatory_client import AsyncClient

from examples.free_ports import free_ports
from purgatory.extension import chosen
from purgatory.extensions.installed import ALL, ALL_SETTINGS
from purgatory.flags import read_command_line
from purgatory.service.translate.shards import shard_of
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.kit.daemon import DaemonProcess, InProcessDaemon, RunDaemon
from tests.kit.eventually import PATIENCE_S


def session_of(shard: int, shards: int = 2, name: str = "session") -> str:
    """An id of a session that belongs to this shard."""
    return next(one for one in (f"{name}-{number}" for number in range(1_000)) if shard_of(one, shards) == shard)


async def start_shards(
    run_daemon: RunDaemon, *flags: str, count: int = 2, has_urls: bool = True
) -> list[InProcessDaemon]:
    """Start both of two shards in this process, or only the first one."""
    ports = [f"127.0.0.1:{port}" for port in free_ports(4)]
    targets, http = ports[:2], ports[2:]
    common = ["--fleet-targets", " ".join(targets), *flags]
    common += ["--fleet-urls", " ".join(f"http://{one}" for one in http)] if has_urls else []
    return [
        await run_daemon(
            "--grpc-address", targets[shard], "--http-address", http[shard], "--fleet-shard", str(shard), *common
        )
        for shard in range(count)
    ]  # fmt: skip


async def client_of(shard: int, shards: int, address: str, **options: Any) -> AsyncClient:  # noqa: ANN401 - arguments
    """A client whose session belongs to this shard. It is given the address of any."""
    while True:
        client = AsyncClient(address, **options)
        if shard_of(client.session_id, shards) == shard:
            return client
        await client.close()


def first_answer(target: str, method: str, request: Any) -> Any:  # noqa: ANN401 - of any call
    """Make a call; return the first message of its answer."""
    with grpc.insecure_channel(target) as channel:
        call = getattr(PurgatoryServiceStub(channel), method)
        is_stream = method in {"Session", "StreamResults", "AdvanceStream"}
        answer = call(iter([request]) if method in {"Session", "AdvanceStream"} else request, timeout=PATIENCE_S)
        return next(answer) if is_stream else answer


def refusal_of(error: BaseException) -> error_details_pb2.ErrorInfo:
    """The cause of a FAILED_PRECONDITION."""
    assert isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.FAILED_PRECONDITION, error  # noqa: PT018
    info = error_details_pb2.ErrorInfo()
    assert rpc_status.from_call(error).details[0].Unpack(info)
    return info


async def stand_by(*arguments: str) -> None:
    """Do in this process what a daemon does before it serves: not with `--shards`, whose children would be tests."""
    settings = read_command_line(arguments, "purgatory serve", ALL_SETTINGS).settings
    for extension in chosen(ALL, settings):
        await extension.stand_by(settings)


def start_one(folder: Path, targets: list[str], shard: int) -> DaemonProcess:
    """Start the daemon of one shard, without a supervisor."""
    return DaemonProcess(
        folder, ("--grpc-address", targets[shard], "--fleet-targets", " ".join(targets), "--fleet-shard", str(shard))
    )
