"""Finds many operations at once by session and id: at which places among others are they?"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

PACKED_MAX: Final = 2**62
DIRECT_PER_ROW: Final = 32
DIRECT_MIN: Final = 1 << 20


def find(sessions: Integers, operations: Integers, among_sessions: Integers, among_operations: Integers) -> Integers:
    """For each operation its place among the others, -1 if it is not there. Of equal ones, any of their places."""
    if not len(sessions) or not len(among_sessions):
        return np.full(len(sessions), -1, np.int64)
    keys, below = _keys(
        np.concatenate([among_sessions, sessions]).astype(np.int64, copy=False),
        np.concatenate([among_operations, operations]).astype(np.int64, copy=False),
    )
    among, wanted = keys[: len(among_sessions)], keys[len(among_sessions) :]
    if below <= max(DIRECT_MIN, DIRECT_PER_ROW * len(keys)):
        direct = np.full(below, -1, np.int32)
        direct[among] = np.arange(len(among))
        return direct[wanted].astype(np.int64)
    order = np.argsort(among, kind="stable")
    at = order[np.minimum(np.searchsorted(among, wanted, sorter=order), len(among) - 1)]
    return np.where(among[at] == wanted, at, -1)


def _keys(sessions: Integers, operations: Integers) -> tuple[Integers, int]:
    """A number from 0 for each (session, operation), distinct for distinct ones; and an upper bound of all."""
    session, session_span = _ranks(sessions, 1 << 16)
    operation, operation_span = _ranks(operations, PACKED_MAX // session_span)
    return session * operation_span + operation, session_span * operation_span


def _ranks(values: Integers, span_max: int) -> tuple[Integers, int]:
    """Values counted from the lowest; if that range is too wide, from the first of the distinct ones."""
    lowest = int(values.min())
    span = int(values.max()) - lowest + 1
    if span <= span_max:
        return values - lowest, span
    distinct, places = np.unique(values, return_inverse=True)
    return places.astype(np.int64), len(distinct)
