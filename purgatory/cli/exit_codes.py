"""The exit codes of `purgatory`, in one table, which `purgatory help exit-codes` prints and docs/cli.md repeats."""

from collections.abc import Collection
from enum import IntEnum
from typing import Final

from purgatory_client import errors
from purgatory_client.results import Outcome


class Exit(IntEnum):
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
    Exit.OK: "the wait was satisfied; the command succeeded",
    Exit.ERROR: "any other error: the daemon failed, or an optional package is not installed",
    Exit.USAGE: "invalid usage: an option or target is wrong",
    Exit.FAILED: "the wait failed: its condition can no longer be met",
    Exit.EXPIRED: "the wait expired: the timeout passed first",
    Exit.CANCELLED: "the wait was cancelled at the daemon",
    Exit.UNAVAILABLE: "the daemon cannot be reached, or accepts no new work",
    Exit.SHUTTING_DOWN: "the wait ended because the daemon shut down",
    Exit.REFUSED: "the daemon refused the request: invalid, over a limit, or a stale epoch",
    Exit.NOT_FOUND: "not found, or nothing to cancel",
    Exit.DENIED: "authentication failed, or permission denied: see --token-file and --tls-certificate",
    Exit.INTERRUPTED: "interrupted (Ctrl-C); a wait was cancelled at the daemon",
}

_MOST_SEVERE_FIRST: Final = (Outcome.REFUSED, Outcome.FAILED, Outcome.SHUTTING_DOWN, Outcome.CANCELLED, Outcome.EXPIRED)

_OF_OUTCOME: Final = {Outcome.SATISFIED: Exit.OK, **{outcome: Exit[outcome.name] for outcome in _MOST_SEVERE_FIRST}}

_OF_ERROR: Final[tuple[tuple[type[errors.PurgatoryClientError], Exit], ...]] = (
    (errors.Unavailable, Exit.UNAVAILABLE),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.InvalidRequest, Exit.REFUSED),
    (errors.LimitExceeded, Exit.REFUSED),
    (errors.PermissionDenied, Exit.DENIED),
    (errors.EventRefused, Exit.REFUSED),
)


def exit_of_outcomes(outcomes: Collection[Outcome]) -> Exit:
    """The exit code for waits: that of the most severe outcome. One that a later daemon has added counts as failed."""
    otherwise = Exit.OK if _OF_OUTCOME.keys() >= set(outcomes) else Exit.FAILED
    return next((_OF_OUTCOME[outcome] for outcome in _MOST_SEVERE_FIRST if outcome in outcomes), otherwise)


def exit_of_error(error: errors.PurgatoryClientError) -> Exit:
    """The exit code for an error; what the client itself refuses is wrong usage."""
    if isinstance(error, errors.InvalidRequest) and not error.is_answer:
        return Exit.USAGE
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), Exit.ERROR)
