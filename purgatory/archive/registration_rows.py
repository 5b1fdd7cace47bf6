"""Rows of `registrations` from the pieces of the calls that registered."""

from __future__ import annotations

import pyarrow as pa

from purgatory.archive.arrow_columns import finish, spread, worded
from purgatory.archive.calls import CallStamp, Registrant
from purgatory.archive.gathering import Gathered
from purgatory.archive.schema import KIND_WORDS, REGISTRATIONS, SCHEMAS
from purgatory.engine.batches import OperationBatch, RegisterReceipt
from purgatory.engine.snapshot.packed_columns import REGISTRATION_COLUMNS

__all__ = ["RegistrationRows"]


class RegistrationRows(Gathered):
    """Gathers pieces; `take` makes rows of them."""

    def __init__(self) -> None:
        super().__init__(REGISTRATION_COLUMNS)

    def add_batch(
        self,
        stamp: CallStamp,
        registrant: Registrant,
        kind: int,
        batch: OperationBatch,
        receipt: RegisterReceipt,
        timeout_ms_default: int,
    ) -> None:
        """A batch and what became of it. Operations that were known already make no rows."""
        self._packer.begin_call(stamp)
        self._packer.add_batch(registrant, kind, batch, receipt, timeout_ms_default)

    def take(self) -> pa.RecordBatch:
        """All that was gathered, as rows. There must be some."""
        self._unpack()
        types = {field.name: field.type for field in SCHEMAS[REGISTRATIONS]}
        columns = self._calls.take()
        columns["item"], operation_of = spread(self._operations.column("rows_each", pa.int64()), self.rows)
        for name in REGISTRATION_COLUMNS.of_operations:
            if name == "rows_each":
                continue
            array = self._operations.column(name, types[name])
            columns[name] = array if operation_of is None else array.take(operation_of)
        for name in REGISTRATION_COLUMNS.of_rows:
            column = self._rows.column(name, pa.int32() if name == "kind" else types[name])
            columns[name] = worded(column, KIND_WORDS) if name == "kind" else column
        columns["topic"], columns["partition"] = self._names.take()
        self.clear()
        return finish(REGISTRATIONS, columns)
