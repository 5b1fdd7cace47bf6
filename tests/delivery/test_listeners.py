"""Nothing that observes results can prevent their delivery: every listener raises in each of its hooks."""

import asyncio
import inspect
import itertools
from typing import Final

import pytest

from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service import host as host_module
from purgatory.service.fair_queue import FairQueue
from purgatory.service.host import Host
from purgatory.service.listeners.listener import Listener, Listeners
from purgatory.service.sessions.session import Session
from purgatory.service.settings import HostSettings
from purgatory.testing import ManualClock
from tests.kit.messages import produce_run
from tests.kit.served_host import HOOKS, RecordingListener, with_faults

ANSWERING: Final = ("reason_to_refuse", "metrics", "held_bytes")
"""Hooks that return something; all others return nothing."""


def test_every_hook_reaches_all_listeners() -> None:
    """A hook that `Listeners` does not override would reach none of them."""
    assert [hook for hook in HOOKS if hook not in vars(Listeners)] == []


@pytest.mark.parametrize("hook", HOOKS)
def test_hook_that_raises_is_counted_and_the_others_are_called(hook: str, caplog: pytest.LogCaptureFixture) -> None:
    called: list[str] = []

    def call(*_event: object) -> None:
        called.append(hook)

    first, last = Listener(), RecordingListener()
    setattr(first, hook, call)
    setattr(last, hook, call)
    listeners = Listeners([first, with_faults(Listener()), last])
    takes = len(inspect.signature(getattr(Listener, hook)).parameters) - 1
    for _ in range(2):
        if hook in ANSWERING:
            assert list(listeners._answers(getattr(Listener, hook))) == [None, None]
        else:
            getattr(listeners, hook)(*["an event"] * takes)
    assert called == [hook] * 4
    assert listeners.failures["Listener"] == 2
    assert caplog.text.count(f"Listener failed in {hook};") == 1


def expired_host() -> tuple[Host, list[Session]]:
    """A host with three sessions, each with a wait that expires at time 50."""
    clock = ManualClock(1)
    host = Host(Engine(EngineLimits(), 1), clock, HostSettings())
    sessions = [host.sessions.open(f"s{number}", 1)[0] for number in range(3)]
    for session in sessions:
        host.registration(session).register([produce_run([1], "t", timeout_ms=49)], [])
    clock.jump(99)
    return host, sessions


def fault(*_: object) -> None:
    raise MemoryError("as the test wants it")


def test_results_that_cannot_be_handed_over_do_not_hold_back_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    host, sessions = expired_host()
    monkeypatch.setattr(sessions[1], "deliver", fault)
    host.reaper.turn()
    assert [session.outbox.unacknowledged for session in sessions] == [1, 0, 1]
    assert (host.listeners.failures["Host"], "Host failed in deliver" in caplog.text) == (1, True)


def test_results_without_a_reason_why_marks_are_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    host, sessions = expired_host()
    host.sources.attach("source", "bob", ["t"], 1)
    monkeypatch.setattr(host_module, "note_stale_marks", fault)
    host.reaper.turn()
    assert [session.outbox.unacknowledged for session in sessions] == [1, 1, 1]
    assert host.listeners.failures["SourceTable"] == 3


async def test_turns_are_granted_although_a_listener_raises() -> None:
    """The scheduler reports waiting times to listeners between two turns."""
    listeners = Listeners([with_faults(Listener())])
    clock_us = itertools.count(0, 100_000)
    queue = FairQueue(listeners.waited_for_turn, now_us=lambda: next(clock_us))
    callers = [queue.enter(name) for name in ("ann", "bob")]
    async with asyncio.timeout(60):
        await asyncio.gather(*(queue.turn(caller, 0) for caller in callers for _ in range(50)))
    assert listeners.failures["Listener"] > 50
