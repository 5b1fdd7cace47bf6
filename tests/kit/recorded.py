"""Cases and their answers in a text file. With RECORD=1 in the environment, a test records the answers again.

A case is a line; the lines of its answer, below it, begin with two spaces. Comments begin with #. In a case, `<x*30>`
stands for thirty x.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path


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


def assert_values_recorded(path: Path, names: Mapping[str, object]) -> None:
    """Compare the values of all expressions of a file with those in the file."""
    assert_recorded(path, (value_of(case, names) for case in cases_of(path)))


def value_of(expression: str, names: Mapping[str, object]) -> str:
    """The value of a Python expression as a text, or the type and text of the error that it raises."""
    try:
        value = eval(expression, dict(names))
    except NameError:
        raise
    except Exception as error:  # noqa: BLE001 - its type and text are compared
        return f"{type(error).__name__}: {error}"
    return value if value and isinstance(value, str) else repr(value)
