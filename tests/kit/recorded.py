"""Cases and their answers in a text file. With RECORD=1 in the environment, a test records the answers again.

A case is a line; the lines of its answer, below it, begin with two spaces. Comments begin with #. In a case, `<x*30>`
stands for thirty x.
"""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest


def expanded(text: str) -> str:
    return re.sub(r"<(.+?)\*(\d+)>", lambda found: found[1] * int(found[2]), text)


def cases_of(path: Path) -> Iterator[str]:
    return (expanded(line) for line in path.read_text("utf-8").split("\n") if line[:1] not in {"", "#", " "})


def assert_recorded(path: Path, answers: Iterable[str]) -> None:
    """Compare the answers to all cases of a file, in their order, with those in the file."""
    recorded, found, left = path.read_text("utf-8"), list[str](), iter(answers)
    for line in recorded.split("\n"):
        if not line.startswith("  "):
            found.append(line)
        if line[:1] not in {"", "#", " "}:
            found += [f"  {part}" for part in next(left).split("\n")]
    if os.environ.get("RECORD"):
        path.write_text("\n".join(found), "utf-8")
    assert recorded.split("\n") == found


def error_of(expression: str, names: dict[str, object]) -> str:
    """The type and text of the error that a Python expression raises."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - its type and text are compared
        eval(expression, names)
    assert raised.type is not NameError, raised.value
    return f"{type(raised.value).__name__}: {raised.value}"
