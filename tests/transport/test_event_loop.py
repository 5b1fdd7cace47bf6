"""The daemon's event loop leaves none of gRPC's wake-ups unread."""

import subprocess
import sys

CALLS = 500
UNREAD_MAX = 20
"""Operations that may complete between the last read and the count."""

# In a process of its own: gRPC has one completion queue per process, and the suite's loop would read wake-ups too.
PROGRAM = """
import asyncio, fcntl, struct, sys, termios
import grpc
import uvloop
from purgatory import run_daemon

wakeups = []
read_all_but_one = run_daemon.read_all_but_one

def recorded(socket, callback, *args):
    wakeups.append(socket)
    read_all_but_one(socket, callback, *args)

run_daemon.read_all_but_one = recorded

async def echo(request, context):
    return request

class Handler(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.unary_unary_rpc_method_handler(echo)

async def main():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/test/Echo")
        await asyncio.gather(*(call(b"") for _ in range(int(sys.argv[1]))))
        print(*struct.unpack("i", fcntl.ioctl(wakeups[0], termios.FIONREAD, bytes(4))))
    await server.stop(0)

uvloop.run(main(), loop_factory=run_daemon.DaemonLoop)
"""


def test_no_wake_ups_stay_unread_after_a_burst() -> None:
    """With one byte read per loop iteration, about 270 would be left, and each further operation would cost one."""
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(CALLS)], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(output.stdout) <= UNREAD_MAX
