"""`python -m tests.conformance [--case NAME] -- COMMAND`: tests any client; COMMAND starts it (docs/grpc.md)."""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.conformance.cases import CASES
from tests.conformance.client_process import ClientProcess


async def run(names: list[str], client: ClientProcess) -> int:
    """Run the cases in order. Returns how many failed; the process of the client is restarted after each of those."""
    logging.basicConfig()
    failed = 0
    for name in names:
        began = time.monotonic()
        try:
            await CASES[name](client)
        except AssertionError as error:
            failed += 1
            client.kill()
            print(f"FAILED {name}: {error}", flush=True)
        else:
            print(f"passed {name} ({time.monotonic() - began:.1f} s)", flush=True)
    client.kill()
    print(f"{len(names) - failed} passed, {failed} failed")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.conformance", description=__doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="only this one; may be repeated")
    parser.add_argument("command", nargs="+", help="the client under test")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        client = ClientProcess(given.command, Path(folder))
        return 1 if asyncio.run(run(given.case or list(CASES), client)) else 0


if __name__ == "__main__":
    sys.exit(main())
