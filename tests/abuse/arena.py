"""One attack on a real daemon, with an honest client before, during and after it."""

import asyncio
import inspect
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final, Self

from purgatory.service.access.tokens import add_token
from tests.abuse import honest
from tests.abuse.attacks import ATTACKS, CALL_FLOODS
from tests.abuse.floods import FLOODS, prepare
from tests.abuse.honest import NICENESS, Seen, percentile
from tests.abuse.http2 import Target, flood
from tests.abuse.result import Result, Tally, memory_mb, start_peak
from tests.kit.daemon import DaemonProcess

BUDGET_BYTES: Final = 512 * 1024 * 1024
POLICY: Final = Path(__file__).with_name("policy.toml").read_text("utf-8")
WARM_UP_S: Final = 1.0
"""Time for the honest client to connect and for code to run for the first time."""
SETTLE_S: Final = 6.0
"""How long the honest client is measured after an attack."""
WINDOW_S: Final = 1.0
STEP_S: Final = 0.25
SATURATION_S: Final = 2.0
CALM: Final = 3.0
"""The daemon has recovered at the first second whose honest p99 is at most this many times the p99 before."""
CALM_MS_MIN: Final = 20.0

SPAWN: Final = multiprocessing.get_context("spawn")


async def run_attacker(name: str, target: Target, calls_per_second: float) -> Tally:
    """Run it for the target's time, and return its tally. The rate applies to floods only.

    With rate 0, a flood starts a call for each one that ends, which measures the capacity of the daemon.
    """
    if name in ATTACKS:
        attack = ATTACKS[name].attack
        blocks = not inspect.iscoroutinefunction(attack)
        tally: Tally = await (asyncio.to_thread(attack, target) if blocks else attack(target))
        return tally
    await prepare(target)
    return await asyncio.to_thread(flood, target, FLOODS[name.removeprefix("flood-")], calls_per_second or None)


def run_to_end(name: str, target: Target, calls_per_second: float) -> Tally:
    return asyncio.run(run_attacker(name, target, calls_per_second))


class Arena:
    """A daemon with a policy, and tokens for an honest caller and for the attacker; or a daemon without a policy."""

    def __init__(self, folder: Path, *, has_policy: bool = True) -> None:
        folder.mkdir(parents=True)
        policy, tokens = folder / "policy.toml", folder / "tokens"
        policy.write_text(POLICY, "utf-8")
        self.token: Final = add_token(tokens, "attacker")
        self.honest_token: Final = add_token(tokens, "honest")
        access = ["--access-policy-file", str(policy), "--access-tokens-file", str(tokens)] if has_policy else []
        self.daemon: Final = DaemonProcess(folder, [*access, "--limits-memory-bytes-max", str(BUDGET_BYTES)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.kill()

    def run_attacker(self, name: str, seconds: float, calls_per_second: float = 0) -> Tally:
        """Run an attacker in its own process until it ends, and return its tally."""
        with ProcessPoolExecutor(1, SPAWN, os.nice, (NICENESS,)) as pool:
            return pool.submit(run_to_end, name, self.target(seconds), calls_per_second).result()

    def target(self, seconds: float) -> Target:
        return Target(self.daemon.address, seconds, self.token)

    def saturation(self, name: str) -> float:
        """Return how many calls of a flood per second the idle daemon serves, with the attacker on the same machine."""
        served = self.run_attacker(name, SATURATION_S).get("OK", 0)
        return max(1.0, served / SATURATION_S)


def attack(
    arena: Arena, name: str, seconds: float, elsewhere: Arena | None = None, calls_per_second: float = 0
) -> Result:
    """Run one attack, first against `elsewhere` if given, and measure its effect on an honest client.

    `name` is one of `ATTACKS`, or "flood-" and a method, whose calls start at the rate `calls_per_second`.

    Raises:
        AssertionError: The daemon did not survive.
    """
    result = Result(name)
    pipe, theirs = SPAWN.Pipe()
    arguments = (arena.daemon.address, arena.honest_token, name in CALL_FLOODS, theirs)
    process = SPAWN.Process(target=honest.run, args=arguments)
    process.start()
    theirs.close()
    assert pipe.recv() == "ready", "the honest client could not begin"
    try:
        time.sleep(WARM_UP_S)
        alone_s = time.monotonic()
        time.sleep(min(4.0, seconds))
        control_s = time.monotonic()
        if elsewhere is not None:
            elsewhere.run_attacker(name, seconds, calls_per_second)
        begin_s = time.monotonic()
        result.memory_before_mb = start_peak(arena.daemon)
        result.tally = dict(arena.run_attacker(name, seconds, calls_per_second))
        end_s = time.monotonic()
        time.sleep(SETTLE_S)
        result.memory_peak_mb = round(memory_mb(arena.daemon, "VmHWM"))
    finally:
        pipe.send("end")
        waits: list[Seen] = pipe.recv()
        process.join()
    assert arena.daemon.process.poll() is None, f"the daemon has ended:\n{arena.daemon.log[-3_000:]}"
    result.waits = len(waits)
    result.failed_waits = [error for _, error in waits if isinstance(error, str)]
    result.alone_ms = latencies(waits, alone_s, control_s)
    if elsewhere is not None:  # leave out the start of the attacker's process
        result.control_ms = latencies(waits, begin_s - seconds, begin_s)
        begin_s = end_s - seconds
    result.under_ms = latencies(waits, begin_s, end_s)
    result.recovery_s = recovery_s(waits, end_s, max(CALM_MS_MIN, CALM * result.alone_ms[1]))
    return result


def latencies(waits: list[Seen], begin_s: float, end_s: float) -> tuple[float, float]:
    found = [took for began, took in waits if begin_s <= began < end_s and not isinstance(took, str)]
    return percentile(found, 0.5), percentile(found, 0.99)


def recovery_s(waits: list[Seen], end_s: float, calm_ms: float) -> float:
    """Return how long after the attack the first second with a calm p99 began; `SETTLE_S` if there was none."""
    starts_s = [end_s + STEP_S * step for step in range(int((SETTLE_S - WINDOW_S) / STEP_S) + 1)]
    calm_s = [start_s for start_s in starts_s if latencies(waits, start_s, start_s + WINDOW_S)[1] <= calm_ms]
    return calm_s[0] - end_s if calm_s else SETTLE_S
