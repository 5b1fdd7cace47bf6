"""The terms of a composite as a row of a batch has them, and the partitions and keys that they name."""

from typing import Final

from librt.vecs import vec
from mypy_extensions import i64

from purgatory.engine.account_usage import AccountUsage
from purgatory.engine.kinds.batch_columns import BatchColumns
from purgatory.engine.marks.registry import Partitions, SignalKeys

__all__ = ["RequestedTerms"]


class RequestedTerms:
    """The terms of a row, by place: first those that must become true, then the failure arm."""

    def __init__(self, columns: BatchColumns, row: i64, first_item: i64) -> None:
        self.columns: Final = columns
        self.first_item: Final[i64] = first_item
        self.count: Final[i64] = columns.item_counts.at(row)
        self.unless_from: Final[i64] = self.count - columns.column("unless_count").at(row)
        """The first place of the failure arm."""
        required_terms = columns.column("required_terms").at(row)
        self.required_terms: Final[i64] = self.unless_from if required_terms == 0 else required_terms
        self.targets: Final[vec[i64]] = vec[i64]([-1] * self.count)
        """Indexes of the partitions and keys, once `hold` or `hold_known` has found them."""

    def is_key(self, place: i64) -> bool:
        """Whether a term names a key, not a partition."""
        return self.columns.places.at(self.first_item + place) >= self.columns.first_key

    def required(self, place: i64) -> i64:
        """The offset or count of a term; without a value, 0 for a partition and 1 for a key."""
        required = self.columns.offsets.at(self.first_item + place)
        return required if required >= 0 else 1 if self.is_key(place) else 0

    def hold(self, partitions: Partitions, keys: SignalKeys, usage: AccountUsage) -> None:
        """Find or make what valid terms name, and add a reference for each of them."""
        key_places: list[i64] = []
        names: list[str] = []
        place: i64 = 0
        while place < self.count:
            named = self.columns.places.at(self.first_item + place)
            if named < self.columns.first_key:
                self.targets[place] = partitions.get_or_create(self.columns.partitions[named], usage).index
            else:
                key_places.append(place)
                names.append(self.columns.keys[named - self.columns.first_key])
            place += 1
        for index, key in enumerate(keys.get_or_create_all(names, usage)):
            self.targets[key_places[index]] = key.index

    def hold_known(self, partitions: Partitions, keys: SignalKeys, usage: AccountUsage) -> bool:
        """As `hold`, for terms of a plain batch that were not checked.

        Names that are known are valid, and nothing has to be made for them. False: nothing was done; use the full
        checks, which also word the refusals.
        """
        if self.unless_from < 1 or self.required_terms > self.unless_from:
            return False
        idle: i64 = 0
        place: i64 = 0
        while place < self.count:
            item = self.first_item + place
            named = self.columns.places.at(item)
            if named < self.columns.first_key:
                partition = self.columns.known_partition(item)
                if partition is None:
                    return False
                self.targets[place] = partition.index
            else:
                key = keys.get(self.columns.keys[named - self.columns.first_key])
                if key is None or self.columns.offsets.at(item) == 0:
                    return False
                if key.references == 0:
                    idle += 1
                self.targets[place] = key.index
            place += 1
        # Idle keys count in the share of the account as soon as its operation holds them.
        if usage.keys + idle > usage.keys_max:
            return False
        place = 0
        while place < self.count:
            if self.is_key(place):
                keys.hold(keys.at(self.targets[place]), usage)
            else:
                partitions.hold(partitions.at(self.targets[place]))
            place += 1
        return True
