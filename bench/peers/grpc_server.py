"""Serves a peer's servicer as the daemon serves its own: grpc.aio on uvloop, with the same options and collector
settings.
"""

import asyncio
import json
import signal

import grpc.aio
import uvloop

from purgatory.service.budget import garbage
from purgatory.service.rpc.grpc_options import server_options
from purgatory.service.settings import Settings
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceServicer, add_PurgatoryServiceServicer_to_server

__all__ = ["serve_until_signal"]


def serve_until_signal(servicer: PurgatoryServiceServicer) -> None:
    """Serve on a free port of 127.0.0.1, print the address to stdout, and end on SIGTERM."""
    uvloop.run(_serve(servicer))


async def _serve(servicer: PurgatoryServiceServicer) -> None:
    asked_to_stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_stop.set)
    server = grpc.aio.server(options=server_options(Settings()))
    add_PurgatoryServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    garbage.tune()
    print(json.dumps({"address": f"127.0.0.1:{port}"}), flush=True)
    await asked_to_stop.wait()
    await server.stop(0)
