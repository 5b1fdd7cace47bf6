"""The exit codes of `purgatory`: one table, which the help text shows and docs/cli.md is checked against."""

from collections.abc import Collection
from enum import IntEnum
from typing import Final

from purgatory_client import errors
from purgatory_client.results import Outcome


class Exit(IntEnum):
    """Exit codes."""

    OK = 0
    ERROR = 1
    USAGE = 2
    FAILED = 10
    EXPIRED = 11
    CANCELLED = 12
    UNAVAILABLE = 13
    SHUTTING_DOWN = 14
    REFUSED = 15
    NOT_FOUND = 16
    DENIED = 17
    INTERRUPTED = 130


MEANINGS: Final[dict[Exit, str]] = {
    Exit.OK: "the wait was satisfied; the command did what it was asked",
    Exit.ERROR: "something else went wrong: the daemon failed, or its optional part is not installed",
    Exit.USAGE: "bad usage: an option or a target is wrong",
    Exit.FAILED: "the wait failed: its condition can no longer hold",
    Exit.EXPIRED: "the wait expired: time ran out first",
    Exit.CANCELLED: "the wait was cancelled at the daemon",
    Exit.UNAVAILABLE: "the daemon cannot be reached, or takes no new work",
    Exit.SHUTTING_DOWN: "the wait ended because the daemon shut down",
    Exit.REFUSED: "the daemon refused the request: invalid, over a limit, or a stale epoch",
    Exit.NOT_FOUND: "nothing there by that name, or nothing to cancel",
    Exit.DENIED: "the daemon does not know who calls, or does not allow it: see --token-file and --tls-certificate",
    Exit.INTERRUPTED: "interrupted (Ctrl-C); a wait was cancelled at the daemon",
}

_GRAVEST_FIRST: Final = (
    Outcome.REFUSED,
    Outcome.FAILED,
    Outcome.SHUTTING_DOWN,
    Outcome.CANCELLED,
    Outcome.EXPIRED,
)

OF_OUTCOME: Final = {Outcome.SATISFIED: Exit.OK, **{outcome: Exit[outcome.name] for outcome in _GRAVEST_FIRST}}

_OF_ERROR: Final[tuple[tuple[type[errors.PurgatoryClientError], Exit], ...]] = (
    (errors.Unavailable, Exit.UNAVAILABLE),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.InvalidRequest, Exit.REFUSED),
    (errors.LimitExceeded, Exit.REFUSED),
    (errors.PermissionDenied, Exit.DENIED),
    (errors.EventRefused, Exit.REFUSED),
)


def exit_of_outcomes(outcomes: Collection[Outcome]) -> Exit:
    """The exit code for many waits: that of the gravest outcome."""
    return next((OF_OUTCOME[outcome] for outcome in _GRAVEST_FIRST if outcome in outcomes), Exit.OK)


def exit_of_error(error: errors.PurgatoryClientError) -> Exit:
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), Exit.ERROR)


def epilog() -> str:
    """The exit codes as the help text shows them."""
    return "\n\n".join(["Exit codes:", *(f"{code.value}: {meaning}" for code, meaning in MEANINGS.items())])
