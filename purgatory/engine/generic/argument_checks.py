"""Checks of the values that a program passes in and returns. Errors name the argument, and are the same in both builds.

Parameters have wide types on purpose: compiled code would check narrow types itself, with errors that do not name the
argument.
"""

import operator
from collections.abc import Coroutine, Hashable, Iterable
from typing import SupportsIndex


def whole_number(name: str, value: SupportsIndex) -> int:
    """Return the argument called `name` as an int. Raises TypeError if it is not an integer, such as 1.5 or "3"."""
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{name}: a whole number is expected, not {value!r}") from error


def in_range(name: str, value: SupportsIndex, least: int, most: int) -> int:
    """Return the argument called `name` as an int in `least..most`. Raises TypeError, or ValueError if out of range."""
    number = whole_number(name, value)
    if not least <= number <= most:
        raise ValueError(f"{name}: {number} is not in {least}..{most}")
    return number


def distinct_keys(keys: Iterable[Hashable]) -> dict[Hashable, None]:
    """Return each key once, in order. TypeError: a single string, or an unhashable key. ValueError: no keys."""
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"keys: one string, {keys!r}; give a list of keys")
    try:
        distinct: dict[Hashable, None] = dict.fromkeys(keys)
    except TypeError as error:
        raise TypeError(f"keys: {error}") from error
    if not distinct:
        raise ValueError("keys is empty: only the timeout could end the operation")
    return distinct


def truth(answer: object) -> bool:
    """The truth value of what `try_complete` returned. Raises TypeError for a coroutine, which would always be true."""
    if isinstance(answer, bool):
        return answer
    if isinstance(answer, Coroutine):
        answer.close()
        raise TypeError("try_complete is a coroutine function, whose result is always true; make it a plain function")
    return bool(answer)
