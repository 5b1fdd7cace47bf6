"""Commands of the command line, called in this process as functions that return exit codes."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import click
import pytest

from purgatory.extensions.fleet.commands import fleet
from purgatory.extensions.installed import ALL
from purgatory.journal.maintenance import journal
from purgatory.run_daemon import daemon_command
from purgatory.service.access.commands import policy, token


def exit_code(command: click.Command, arguments: Sequence[str]) -> int:
    """Run a command in this process; return its exit code."""
    with pytest.raises(SystemExit) as ended:
        command.main(arguments, f"purgatory {command.name}")
    assert isinstance(ended.value.code, int)
    return ended.value.code


Run = Callable[[Sequence[str]], int]
fleet_command: Final[Run] = partial(exit_code, fleet)
journal_command: Final[Run] = partial(exit_code, journal)
token_command: Final[Run] = partial(exit_code, token)
policy_command: Final[Run] = partial(exit_code, policy)
serve_command: Final[Run] = partial(exit_code, daemon_command(ALL))
