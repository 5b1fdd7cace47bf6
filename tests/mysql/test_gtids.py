"""Sets of GTIDs against a model, and rules by which they become marks where no server of MySQL is needed."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_client.errors import InvalidRequest
from purgatory_client.sources.gtids import Executed, executed_of, position_of_gtid
from purgatory_connectors.mysql.gtid_group import GtidGroup, ServerState

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "bbbbbbbb-71ca-11e1-9e33-c80aa9429562"
NUMBERS = st.sets(st.integers(1, 40), min_size=1)


def written(numbers: set[int], *, is_joined: bool) -> str:
    """The numbers as intervals: as few as possible, as a server writes them, or one for each number."""
    intervals: list[list[int]] = []
    for number in sorted(numbers):
        if is_joined and intervals and intervals[-1][1] == number - 1:
            intervals[-1][1] = number
        else:
            intervals.append([number, number])
    return ":".join(f"{first}-{last}" if last > first else str(first) for first, last in intervals)


@given(st.dictionaries(st.tuples(st.sampled_from([A, B]), st.sampled_from(["", "t", "_x1"])), NUMBERS), st.booleans())
def test_parsed_set_agrees_with_a_set_of_numbers(model: Mapping[tuple[str, str], set[int]], is_joined: bool) -> None:
    texts = []
    for uuid in (A, B):
        parts = [
            f"{tag}:{intervals}" if tag else intervals
            for tag in ("", "_x1", "t")
            if (intervals := written(model.get((uuid, tag), set()), is_joined=is_joined))
        ]
        texts += [f"{uuid.upper()}:{':'.join(parts)}"] if parts else []
    expected = {}
    for (uuid, tag), numbers in model.items():
        position = next(number for number in range(42) if number + 1 not in numbers)
        expected[f"{uuid}:{tag}" if tag else uuid] = Executed(position, max(numbers), uuid)
    assert executed_of(",\n".join(texts)) == expected


@given(st.dictionaries(st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 2**32 - 1), st.integers(1, 2**64 - 1))))
def test_position_of_mariadb_has_one_number_for_each_domain(model: Mapping[int, tuple[int, int]]) -> None:
    text = ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in model.items())
    expected = {str(domain): Executed(number, number, str(server)) for domain, (server, number) in model.items()}
    assert executed_of(text) == expected


@given(st.text(st.sampled_from(f"{A}:,-019ab _\n"), min_size=1))
def test_any_text_is_a_set_or_refused(text: str) -> None:
    try:
        executed = executed_of(text)
    except InvalidRequest:
        return
    assert all(0 <= one.position <= one.newest for one in executed.values())


@pytest.mark.parametrize(
    ("gtid", "expected"), [(f"{A}:23", (A, 23)), (f"{A}:tag:5", (f"{A}:tag", 5)), ("0-1-100", ("0", 100))]
)
def test_position_of_one_gtid_is_its_source_and_number(gtid: str, expected: tuple[str, int]) -> None:
    assert position_of_gtid(gtid) == expected


@pytest.mark.parametrize("text", ["", f"{A}:1,{B}:1", A, f"{A}:", "0-1", f"{A}:1:-2", f"{A}:Ü:1", "4-٣-1"])
def test_text_that_is_not_one_gtid_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        position_of_gtid(text)


class Group(GtidGroup):
    """The servers "p" and "r", their UUIDs (or the ids of servers of MariaDB), and their last marks."""

    def __init__(self, p: str = A, r: str = B) -> None:
        super().__init__(("p", "r"), None, {}, {}, 0.0)
        self._own = {"p": p, "r": r}
        self.marks: dict[str, int | None] = {}

    def see(self, server: str, text: str, now: float, group: str = "") -> None:
        state = ServerState(self._own[server], executed_of(text), group, is_in_blocks=True)
        self.marks |= {one.topic: one.offset for one in self.observe(server, state, now)}

    def reason(self, mark: str, now: float) -> str:
        return "; ".join(one.reason for one in self.stale(frozenset({mark}), now) if one.mark == mark)


def test_gap_holds_the_position_and_is_stale_after_a_while() -> None:
    group = Group()
    group.see("p", f"{A}:1-9", 1.0)
    group.see("r", f"{A}:1-5:7-9", 1.0)
    assert (group.marks[f"r/{A}"], group.marks[f"all/{A}"], group.reason(f"r/{A}", 1.0)) == (5, 5, "")
    group.see("r", f"{A}:1-5:7-9", 7.0)
    assert "lacks transaction 6" in group.reason(f"r/{A}", 7.0)
    group.see("r", f"{A}:1-9", 8.0)
    assert (group.marks[f"r/{A}"], group.reason(f"r/{A}", 8.0)) == (9, "")


def test_group_that_assigns_blocks_is_stale_with_the_option() -> None:
    group, name = Group(), "cccccccc-71ca-11e1-9e33-c80aa9429562"
    group.see("r", f"{name}:1-5:1000001-1000009", 1.0, name)
    assert group.writers(name) == []
    group.see("p", f"{name}:1-5", 1.0, name)
    assert group.writers(name) == ["p", "r"]
    assert "block_size=1" in group.reason(f"r/{name}", 1.0)


def test_source_of_the_old_primary_no_longer_writes_once_another_does() -> None:
    group = Group()
    group.see("p", f"{A}:1-9", 1.0)
    group.see("r", f"{A}:1-8", 1.0)
    group.mark_stale("p", "down", 2.0)
    group.see("r", f"{A}:1-8,{B}:1", 3.0)
    assert "no longer writes" not in group.reason(f"r/{A}", 3.0)
    assert "no longer writes" in group.reason(f"r/{A}", 9.0)
    assert group.marks[f"r/{B}"] == 1


def test_old_primary_that_returns_with_lost_writes_does_not_count_again_before_it_follows() -> None:
    group = Group("1", "2")
    group.see("p", "0-1-22", 1.0)
    group.see("r", "0-1-20", 1.0)
    group.mark_stale("p", "down", 2.0)
    group.see("r", "0-2-21", 3.0)
    assert (group.marks["p/0"], group.marks["r/0"], group.origin("0")) == (0, 21, "r")
    group.see("p", "0-1-22", 4.0)
    group.mark_stale("r", "down", 5.0)
    group.see("p", "0-1-22", 6.0)
    assert (group.marks["p/0"], group.origin("0")) == (0, None)
    assert "that of the group is 2" in group.reason("p/0", 6.0)
    group.see("p", "0-2-21", 7.0)
    group.see("p", "0-1-22", 8.0)
    assert (group.marks["p/0"], group.origin("0")) == (22, "p")
