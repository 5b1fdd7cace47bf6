"""A flood as a program: `python -m tests.hostile.floods METHOD ADDRESS TOKEN SECONDS CALLS_PER_SECOND`.

With 0 calls a second it starts one for each that ends, which measures how many the daemon serves. Prints a line of
JSON: how many calls were due and how many were started, and how they ended.
"""

import asyncio
import json
import sys

from tests.hostile.floods.flood_calls import FLOODS, prepare
from tests.hostile.floods.open_loop import flood


def main(arguments: list[str]) -> None:
    method, address, token, seconds, calls_per_second = arguments
    asyncio.run(prepare(address, token))
    tally = flood(address, token, FLOODS[method], float(seconds), float(calls_per_second) or None)
    print(json.dumps(tally), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
