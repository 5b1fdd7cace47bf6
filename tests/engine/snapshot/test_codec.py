"""The codec of columns: values are read back as written, in the documented form. Journals hold these bytes."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.snapshot.codec import ColumnReader, ColumnWriter
from purgatory.engine.snapshot.live_set import LiveSet

INT64 = st.integers(-(2**63), 2**63 - 1)


def written(values: list[int]) -> bytes:
    writer = ColumnWriter()
    writer.add(vec[i64](values))
    return writer.to_bytes()


def test_columns_texts_and_floats_come_back_in_order() -> None:
    writer = ColumnWriter()
    writer.add_text("größe")
    writer.add(vec[i64]([3, 1, 2]))
    writer.add_floats(vec[float]([-1.0, 2.5]))
    writer.add_text("")
    writer.add_list([7])
    reader = ColumnReader(writer.to_bytes())
    assert not reader.is_done
    assert reader.text() == "größe"
    assert list(reader.column()) == [3, 1, 2]
    assert list(reader.floats()) == [-1.0, 2.5]
    assert reader.text() == ""
    assert not reader.is_done
    assert list(reader.column()) == [7]
    assert reader.is_done


@given(st.lists(INT64, max_size=20))
def test_any_64_bit_numbers_come_back(values: list[int]) -> None:
    assert list(ColumnReader(written(values)).column()) == values


@given(st.lists(st.sampled_from([-1.0, 0.0, 2.5, 1e300]), max_size=20))
def test_any_floats_come_back(values: list[float]) -> None:
    """Any floats are read back as written, including columns with only absent values, which are stored as a count."""
    writer = ColumnWriter()
    writer.add_floats(vec[float](values))
    assert list(ColumnReader(writer.to_bytes()).floats()) == values


STEADY, HEAD = 16, len(written([])) - 16


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ([], STEADY),
        ([9], STEADY),
        ([5, 5, 5, 5], STEADY),
        ([2**61, 2**61 + 1, 2**61 + 2], STEADY),
        ([7, 4, 1], STEADY),
        ([1, 2, 4], 8 + 3),
        ([-5, 250, 0], 8 + 3),
        ([-5, 251, 0], 8 + 3 * 2),
        ([0, 2**16 - 1, 1], 8 + 3 * 2),
        ([0, 2**16, 1], 8 + 3 * 4),
        ([0, 2**32 - 1, 1], 8 + 3 * 4),
        ([0, 2**32, 1], 3 * 8),
        ([2**62 + 1, 2**62 + 3, 2**62 + 2], 3 * 8),
        ([2**62, 2**62 + 1, 2**62 + 2], 3 * 8),
        ([-(2**62), -(2**62) + 1], 2 * 8),
        ([2**62], 8),
    ],
)
def test_column_takes_the_shortest_form_that_holds_it(values: list[int], size: int) -> None:
    octets = written(values)
    assert len(octets) == HEAD + size
    assert list(ColumnReader(octets).column()) == values


def test_bits_cross_off_the_first_ids() -> None:
    """The lowest bit of the first byte is the first id; missing bits remove nothing."""
    live = LiveSet(vec[i64]([10, 11, 15, 20, 21, 22, 23, 24, 40]), b"\x06")
    assert (live.first, live.last, live.left) == (10, 40, 7)
    assert live.remaining() == [10, 20, 21, 22, 23, 24, 40]
    assert live.gone() == b"\x06\x00"
    assert LiveSet(vec[i64](range(8)), b"").gone() == b"\x00"
    assert LiveSet(vec[i64]([10, 11]), b"\xff").remaining() == []
    with pytest.raises(AssertionError, match="a live set needs at least one id"):
        LiveSet(vec[i64](), b"")


def test_strike_stops_at_an_id_outside() -> None:
    """`remove` removes the ids within range, skips unknown ones, and returns where it stopped."""
    live = LiveSet(vec[i64]([10, 20, 30]), b"")
    assert live.remove(vec[i64]([5, 20]), 0) == 0
    assert live.remove(vec[i64]([5, 20, 25, 30, 31, 10]), 1) == 4
    assert live.remaining() == [10]
    assert live.remove(vec[i64]([10, 10]), 0) == 2
    assert (live.left, live.remaining()) == (0, [])


@pytest.mark.parametrize("seed", range(20))
def test_live_set_equals_a_set_of_ids(seed: int) -> None:
    rng = random.Random(seed)
    ids = sorted(rng.sample(range(1, 300), rng.randint(1, 60)))
    live, left = LiveSet(vec[i64](ids), b""), set(ids)
    for _ in range(20):
        struck = [rng.randint(ids[0], ids[-1]) for _ in range(rng.randint(0, 5))]
        assert live.remove(vec[i64](struck), 0) == len(struck)
        left -= set(struck)
        assert live.left == len(left)
        assert live.remaining() == sorted(left)
    again = LiveSet(vec[i64](ids), live.gone())
    assert (again.left, again.remaining(), again.gone()) == (len(left), sorted(left), live.gone())
