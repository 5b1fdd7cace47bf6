"""docs/lessons.md and the tests agree: each lesson once, each test it names exists, each test of a lesson is named."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = range(1, 69)
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
NAMED = re.compile(r"`(test_\w+)`")
DEFINED = re.compile(r"^ *(?:async )?def (test_lesson_\w+)\(", re.MULTILINE)
NUMBERS = re.compile(r"test_lesson_(\d\d)(?:_(?:and_)?(\d\d)(?=_))?")


def rows() -> list[tuple[int, str, str]]:
    """(number, lesson, how it is answered) of each row of the table."""
    text = (ROOT / "docs" / "lessons.md").read_text("utf-8")
    return [(int(number), lesson, answer) for number, lesson, answer in ROW.findall(text)]


def lessons_of(name: str) -> set[int]:
    """The lessons a test is named for: 30 and 31 of test_lesson_30_31_x, 49 and 51 of test_lesson_49_and_51_x."""
    found = NUMBERS.match(name)
    assert found is not None, f"{name} has no number of two digits"
    return {int(number) for number in found.groups() if number is not None}


def defined() -> set[str]:
    """The names of all tests of lessons."""
    return {name for path in (ROOT / "tests").rglob("test_*.py") for name in DEFINED.findall(path.read_text("utf-8"))}


def test_every_lesson_has_one_row() -> None:
    """1 to 68, each once, in order."""
    assert [number for number, _, _ in rows()] == list(LESSONS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"lesson-{row[0]}")
def test_a_row_is_answered(row: tuple[int, str, str]) -> None:
    """By tests that exist and have its number, or by words that say why there is none."""
    number, _, answer = row
    names = NAMED.findall(answer)
    for name in names:
        assert name in defined(), f"lesson {number} names {name}, which is no test"
        assert number in lessons_of(name), f"{name} is named for another lesson than {number}"
    assert names or answer.startswith(("can't occur: ", "not yet: ")), f"lesson {number} is answered by {answer!r}"


def test_every_test_of_a_lesson_is_in_the_table() -> None:
    """Under each of the numbers in its name."""
    answered = {number: set(NAMED.findall(answer)) for number, _, answer in rows()}
    missing = [(name, number) for name in defined() for number in lessons_of(name) if name not in answered[number]]
    assert missing == []
