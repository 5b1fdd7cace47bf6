"""The demonstration's command line: `python -m examples.replicated_log --help`."""

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

import grpc
from purgatory_client.errors import PurgatoryClientError

from examples.replicated_log.cluster import PROJECT, ChildFailed
from examples.replicated_log.producer import split_lines
from examples.replicated_log.story import Options, Story

LINES_MIN: Final = 8
"""With fewer there is no middle to kill a follower in."""
EXIT_NOT_PROVEN: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130


def read_options() -> Options:
    """The command line. Exits with 2 when it cannot be used, with one line that says why."""
    parser = argparse.ArgumentParser(
        "replicated_log",
        description="A small replicated log of real processes whose every wait is at a purgatory daemon.",
        epilog="Exit code 0: everything was proven. 1: something was not. 2: bad usage.",
    )
    parser.add_argument(
        "--input", type=Path, default=PROJECT / "README.md", help="file whose lines are sent (default: the README)"
    )
    parser.add_argument("--kill-follower", action="store_true", help="kill a follower midway and have it back")
    parser.add_argument(
        "--daemon", metavar="ADDRESS", help="use this daemon (gRPC host:port) instead of one of our own"
    )
    parser.add_argument(
        "--daemon-http", metavar="ADDRESS", default="127.0.0.1:7441", help="its HTTP host:port (default: %(default)s)"
    )
    parser.add_argument(
        "--archive", metavar="DIR", type=Path, help="have our own daemon keep its history there, as Parquet"
    )
    given = parser.parse_args()
    if given.archive is not None and given.daemon is not None:
        parser.error("--archive is for a daemon of our own: leave --daemon out")
    try:
        lines = split_lines(given.input.read_bytes())
    except OSError as error:
        parser.error(f"--input: {error}")
    if len(lines) < LINES_MIN:
        parser.error(f"--input: {given.input} has {len(lines)} lines, at least {LINES_MIN} are needed")
    archive = None if given.archive is None else given.archive.resolve()
    return Options(given.input.resolve(), given.kill_follower, given.daemon, given.daemon_http, archive)


async def _run_until_signal(options: Options, directory: Path) -> bool:
    """The first SIGTERM or Ctrl-C cancels the run, so that its processes are ended before this one."""
    loop = asyncio.get_running_loop()
    story = asyncio.ensure_future(Story(options, split_lines(options.input.read_bytes()), directory).tell())

    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lambda: None)
        story.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    return await story


def main() -> int:
    options = read_options()
    with tempfile.TemporaryDirectory(prefix="replicated-log-") as directory:
        try:
            proven = asyncio.run(_run_until_signal(options, Path(directory)))
        except asyncio.CancelledError:
            print("interrupted; all processes are ended", file=sys.stderr)
            return EXIT_INTERRUPTED
        except (ChildFailed, grpc.RpcError, PurgatoryClientError, OSError) as error:
            print(f"failed: {type(error).__name__}: {error}", file=sys.stderr)
            return EXIT_NOT_PROVEN
    if options.archive is not None:
        print(f"\nhistory of the daemon: {options.archive}")
    print(
        "\nproven: every record is where it should be, every wait ended once"
        if proven
        else "\nNOT PROVEN: see FAIL above"
    )
    return 0 if proven else EXIT_NOT_PROVEN


if __name__ == "__main__":
    sys.exit(main())
