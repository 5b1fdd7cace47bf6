"""The rules for names of partitions and signal keys, and indexes of names in a dictionary."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.batches import AsGiven, OperationBatch, PartitionName
from purgatory.engine.codes import COMPOSITE, SIGNAL

PARTITION_MAX = 2**31 - 1

CUT_LENGTH: Final = 80
"""Characters of a name quoted in a message: messages are kept with the results, one per refusal."""


def partition_fault(name: PartitionName, length_max: int) -> str:
    """Why a (topic, partition) is invalid, or an empty string."""
    topic, partition = name
    if not topic:
        return "the topic is missing"
    if len(topic) > length_max:
        return f"the topic has {len(topic)} characters; at most {length_max} are allowed"
    if not 0 <= partition <= PARTITION_MAX:
        return f"partition {partition} is not in 0..{PARTITION_MAX}"
    return ""


def key_fault(key: str, length_max: int) -> str:
    """Why a key is invalid, or an empty string."""
    if not key:
        return "the key is missing"
    if len(key) > length_max:
        return f"the key has {len(key)} characters; at most {length_max} are allowed"
    return ""


def cut(name: str) -> str:
    """A name, shortened for messages."""
    return name if len(name) <= CUT_LENGTH else f"{name[:CUT_LENGTH]}..."


def dictionary_of(kind: int, batch: OperationBatch) -> list[AsGiven]:
    """The names to which the item indexes of a batch refer. The name of a key is (key, -1)."""
    if kind not in (SIGNAL, COMPOSITE):
        return batch.partitions
    keys: list[AsGiven] = [(key, -1) for key in batch.keys]
    return keys if kind == SIGNAL else batch.partitions + keys


def places_of(names: list[AsGiven], places: dict[AsGiven, int]) -> vec[i64]:
    """The index of each name in the dictionary `places`; new names are added.

    Adjacent names are mostly the same object, so a run of them is hashed once.
    """
    found = vec[i64]([0] * len(names))
    place: i64 = 0
    last: AsGiven = None
    for index, name in enumerate(names):
        if name is not last:
            place = i64(places.setdefault(name, len(places)))
            last = name
        found[index] = place
    return found
