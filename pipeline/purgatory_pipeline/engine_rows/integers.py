"""Integer arrays and their hashes."""

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


def mix(values: Hashes) -> Hashes:
    """64 well-mixed bits for each value (the finaliser of SplitMix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_operations(sessions: Integers, operations: Integers, seed: int = 0) -> Hashes:
    """A hash of each operation, from its session number and its operation id."""
    return mix(mix(sessions.astype(np.uint64) + np.uint64(seed)) ^ operations.astype(np.uint64))
