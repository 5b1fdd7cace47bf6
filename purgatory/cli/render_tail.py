"""Prints the output of `purgatory tail` and `purgatory hot`."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from purgatory_client.results import Outcome
from purgatory_client.views import EndedOperation, HotName

from purgatory.cli.render import (
    COLOURS,
    console_for_data,
    error_line,
    escape,
    outcome_text,
    plain_table,
    print_json,
)


def ended(operations: Sequence[EndedOperation], *, as_json: bool) -> None:
    """Print a line for each operation."""
    if as_json:
        for one in operations:
            print_json(ended_document(one), indent=None)
    elif operations:
        console = console_for_data()
        for one in operations:
            console.print(ended_line(one), soft_wrap=True)
    sys.stdout.flush()


def ended_line(one: EndedOperation) -> str:
    """An operation that has ended, as rich's markup."""
    outcome = outcome_text(one.outcome)
    colour = COLOURS.get(one.outcome, "red")
    late = f", {one.lateness:.3f}s late" if one.lateness else ""
    who = f"{one.session_id}/{one.operation_id}" if one.session_id else "-"
    whose = f" of {one.principal}" if one.principal else ""
    when = one.ended_time.astimezone().strftime("%H:%M:%S.%f")[:-3]
    return (
        f"{when} [{colour}]{outcome:9}[/{colour}] {one.kind.name.lower():14} "
        f"after {one.waited:.3f}s{late}  {escape(who + whose)}  {escape(waited_for(one))}"
    )


def waited_for(one: EndedOperation, most: int = 3) -> str:
    """The names and offsets that an operation waited for, and the offsets reached. Not escaped."""
    shown = []
    for item in one.items[:most]:
        reached = "nothing" if item.reached_offset < 0 else item.reached_offset
        missed = "" if one.outcome == Outcome.SATISFIED else f" (reached {reached})"
        shown.append(f"{item.name}@{item.required_offset}{missed}")
    more = len(one.items) - len(shown) + one.items_left_out
    return ", ".join(shown) + (f" and {more} more" if more else "")


def ended_document(one: EndedOperation) -> dict[str, Any]:
    return {
        **asdict(one),
        "kind": one.kind.name.lower(),
        "outcome": one.outcome.name.lower(),
        "ended_time": one.ended_time.isoformat(),
    }


def left_out(count: int) -> None:
    """Report on stderr that results were dropped."""
    error_line(f"{count} more results were dropped because they arrived too fast")


def hot_names(names: Sequence[HotName], *, as_json: bool) -> None:
    if as_json:
        for one in names:
            print_json(asdict(one), indent=None)
        return
    table = plain_table("watched", "what", "name")
    for one in names:
        table.add_row(str(one.watched), "key" if one.is_key else "partition", escape(one.name))
    console_for_data().print(table)
