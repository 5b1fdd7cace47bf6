"""The list of dead letters: bounded, in order, and reported to the journal."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from purgatory.extensions.webhooks import deliveries
from purgatory.extensions.webhooks.deliveries import DeadLetters
from purgatory.v1 import webhook_pb2


class KeptRows:
    """The rows that a journal would have after each change."""

    def __init__(self) -> None:
        self.rows: dict[int, bytes] = {}

    def changed(self, number: int, content: bytes) -> None:
        if content:
            self.rows[number] = content
        else:
            del self.rows[number]


def letter(webhook_id: str, error: str = "HTTP 500", principal: str = "") -> webhook_pb2.DeadLetter:
    return webhook_pb2.DeadLetter(webhook_id=webhook_id, last_error=error, principal=principal)


def listed(letters: DeadLetters) -> list[str]:
    return [one.webhook_id for _, one in letters.above(0)]


@given(st.lists(st.sampled_from(["a", "b", "c", "d", "-a", "-b"]), min_size=8, max_size=40), st.integers(1, 3))
@example(["a", "b", "a", "c"], 2)
def test_the_list_is_a_bounded_dictionary(steps: list[str], most: int) -> None:
    """Compared with a dictionary: the oldest letters are dropped, and a letter added again keeps its position. The
    journal's rows match the list, and a list restored from them is equal.
    """
    kept, oracle = KeptRows(), dict[str, None]()
    letters = DeadLetters(most, kept.changed)
    for step in steps:
        webhook_id = step.removeprefix("-")
        if step == webhook_id:
            letters.add(letter(webhook_id))
            oracle[webhook_id] = None
            if len(oracle) > most:
                del oracle[next(iter(oracle))]
        else:
            letters.remove(webhook_id)
            oracle.pop(webhook_id, None)
        assert listed(letters) == list(oracle)
        assert len(kept.rows) == len(letters) == len(oracle)
        assert letters.held_bytes == sum(map(len, kept.rows.values()))
        assert letters.fill_ratio == len(oracle) / most
    again = DeadLetters(most, kept.changed)
    for number in sorted(kept.rows):
        again.restore(number, kept.rows[number])
    assert listed(again) == list(oracle)
    again.add(letter("new"))
    assert listed(again)[-1] == "new"


def test_large_letters_go_by_their_bytes() -> None:
    """The total size is limited, whatever the number of letters; the newest letter is kept, whatever its size."""
    letters = DeadLetters(1_000, lambda _number, _content: None)
    for number in range(5):
        letters.add(letter(f"{number}", "x" * (deliveries.LETTERS_BYTES_MAX // 3)))
    assert listed(letters) == ["3", "4"]
    assert 0.6 < letters.fill_ratio < 0.7
    letters.add(letter("huge", "x" * (deliveries.LETTERS_BYTES_MAX + 1)))
    assert listed(letters) == ["huge"]
    assert letters.fill_ratio == 1
    assert letters.dropped == 5


@given(st.lists(st.sampled_from("abc"), min_size=20, max_size=60))
@example(["a"] * 3 + ["b"] * 40)
def test_no_principal_pushes_out_letters_of_one_with_fewer(principals: list[str]) -> None:
    """With space for six letters of three principals, each principal keeps its two latest letters, whatever the others
    do. The principal with the most letters loses its oldest one.
    """
    letters = DeadLetters(6, lambda _number, _content: None)
    for number, principal in enumerate(principals):
        before = Counter(one.split("/")[0] for one in listed(letters))
        letters.add(letter(f"{principal}/{number}", principal=principal))
        after = Counter(one.split("/")[0] for one in listed(letters))
        for lost in before - after:
            assert before[lost] > before[principal]
    for principal in "abc":
        added = [f"{principal}/{number}" for number, one in enumerate(principals) if one == principal]
        kept = [one for one in listed(letters) if one.startswith(principal)]
        assert kept == added[len(added) - len(kept) :]
        assert len(kept) >= min(2, len(added))


def test_bytes_are_shared_too() -> None:
    """Large letters of one principal do not displace the small letter of another."""
    letters = DeadLetters(1_000, lambda _number, _content: None)
    letters.add(letter("small", principal="a"))
    for number in range(5):
        letters.add(letter(f"{number}", "x" * (deliveries.LETTERS_BYTES_MAX // 3), principal="b"))
    assert listed(letters) == ["small", "3", "4"]


def test_a_letter_that_fails_again_is_the_same_letter() -> None:
    """It keeps its position and its id, and has the latest error."""
    letters = DeadLetters(10, lambda _number, _content: None)
    letters.add(letter("a"))
    letters.add(letter("b"))
    letters.add(letter("a", "no answer"))
    assert listed(letters) == ["a", "b"]
    assert next(found for _, found in letters.above(0)).last_error == "no answer"
