"""An attacker as a program: `python -m tests.abuse.attacker NAME ADDRESS SECONDS TOKEN CALLS_PER_SECOND`.

Prints one line of JSON: the attacker's tally. The rate applies to floods only. With rate 0, a flood starts a call for
each one that ends, which measures the capacity of the daemon.
"""

import asyncio
import inspect
import json
import sys

from tests.abuse.attacks import ATTACKS
from tests.abuse.floods import FLOODS, prepare
from tests.abuse.http2 import Target
from tests.abuse.open_loop import flood
from tests.abuse.result import Tally


async def run(name: str, target: Target, calls_per_second: float) -> Tally:
    if name in ATTACKS:
        attack = ATTACKS[name].attack
        blocks = not inspect.iscoroutinefunction(attack)
        tally: Tally = await (asyncio.to_thread(attack, target) if blocks else attack(target))
        return tally
    await prepare(target)
    return await asyncio.to_thread(flood, target, FLOODS[name.removeprefix("flood-")], calls_per_second or None)


def main(arguments: list[str]) -> None:
    name, grpc, seconds, token, calls_per_second = arguments
    target = Target(grpc, float(seconds), token)
    print(json.dumps(asyncio.run(run(name, target, float(calls_per_second)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
