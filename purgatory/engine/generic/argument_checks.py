"""Checks of what a program's own code passes and returns: what is wrong is refused by name, the same in both builds.

The parameters are typed so that compiled code does not check them by itself: its errors name no argument.
"""

import operator
from collections.abc import Coroutine, Hashable, Iterable
from typing import SupportsIndex


def whole_number(name: str, value: SupportsIndex) -> int:
    """The argument called `name` as an int. Raises TypeError for what is no whole number, such as 1.5 or "3"."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name}: a whole number is expected, not {value!r}") from error


def in_range(name: str, value: SupportsIndex, least: int, most: int) -> int:
    """The argument called `name` as an int between `least` and `most`. Raises TypeError, or ValueError out of range."""
    number = whole_number(name, value)
    if not least <= number <= most:
        raise ValueError(f"{name}: {number} is not in {least}..{most}")
    return number


def distinct_keys(keys: Iterable[Hashable]) -> dict[Hashable, None]:
    """Each key once, in order; all of them have been hashed."""
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys: one string, {keys!r}; give a list of keys")
    try:
        distinct: dict[Hashable, None] = dict.fromkeys(keys)
    except TypeError as error:
        raise TypeError(f"keys: {error}") from error
    if not distinct:
        raise ValueError("keys is empty: nothing could ever complete the operation but its timeout")
    return distinct


def truth(answer: object) -> bool:
    """What a `try_complete` answered, read as `if` would read it."""
    if isinstance(answer, bool):
        return answer
    if isinstance(answer, Coroutine):
        answer.close()
        raise TypeError("try_complete is a coroutine function, which is true before it has looked; make it a plain one")
    return bool(answer)
