"""Kafka's timer as a library: tasks that run once, after a delay, in the millions.

| here                  | in Kafka                  | description                                                    |
|-----------------------|---------------------------|----------------------------------------------------------------|
| `Timer`               | `Timer`, `MockTimer`      | tasks in a timing wheel; its owner advances the clock          |
| `SystemTimer`         | `SystemTimer` and reaper  | the same with a thread that does so; tasks run on an executor  |
| `AsyncTimer`          | none                      | the same on an asyncio event loop: `call_later`                |
| `TimerTask`           | `TimerTask`               | the task to run; `cancel` is O(1)                              |

A task never runs early: a deadline is rounded up to a tick. docs/embedded.md describes the counterparts of Kafka's
TimingWheel, TimerTaskList and TimerTaskEntry.
"""

from purgatory.clock import Clock, SystemClock
from purgatory.threads import UsedAfterFork
from purgatory.timer.tasks import AsyncTimer, OnTaskError, SystemTimer, Timer, TimerClosed, TimerTask

__all__ = [
    "AsyncTimer",
    "Clock",
    "OnTaskError",
    "SystemClock",
    "SystemTimer",
    "Timer",
    "TimerClosed",
    "TimerTask",
    "UsedAfterFork",
]
