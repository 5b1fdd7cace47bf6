"""Integer arrays: a stable sort and an encoding of distinct values, both faster than numpy's, and hashes."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]

_LOOKUP_MAX: Final = 1 << 22


def stable_order(keys: Integers) -> Integers:
    """The indices that sort the numbers in ascending order; equal numbers keep their order.

    Equivalent to a stable `argsort` at a tenth of the cost: each number is sorted with its index in the lower bits.
    """
    if not len(keys):
        return np.empty(0, np.int64)
    lowest, bits = int(keys.min()), len(keys).bit_length()
    # Keys and indices do not fit into 63 bits together.
    if int(keys.max()) - lowest >= 1 << (63 - bits):
        return np.argsort(keys, kind="stable")
    packed: Integers = ((keys.astype(np.int64) - lowest) << bits) | np.arange(len(keys))
    packed.sort()
    packed &= (1 << bits) - 1
    return packed


def distinct_places(values: npt.NDArray[Any], below: int) -> tuple[Integers, npt.NDArray[np.int32]]:
    """The distinct values (from 0 to `below`) in ascending order, and the index of each value among them."""
    if below > _LOOKUP_MAX:
        distinct, places = np.unique(values, return_inverse=True)
        return distinct, places.astype(np.int32)
    lookup = np.zeros(below, np.int32)
    lookup[values] = 1
    distinct = np.flatnonzero(lookup)
    lookup[distinct] = np.arange(len(distinct))
    return distinct, lookup[values]


def mix(values: Hashes) -> Hashes:
    """64 well-mixed bits for each value (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_operations(sessions: Integers, operations: Integers, seed: int = 0) -> Hashes:
    """A hash of each operation, from its session number and its operation id."""
    return mix(mix(sessions.astype(np.uint64) + np.uint64(seed)) ^ operations.astype(np.uint64))
