"""Small internal sizes, so that a few operations cross each of them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from unittest import mock

import purgatory_client.wire.sizes

import purgatory.sizes

NOT_CUT: Final = "BYTES|EVENTS_QUEUED_MAX"
"""Sizes in bytes, which have tests of their own, and a limit of the client."""


@contextmanager
def all_sizes(size: int, but: str = NOT_CUT) -> Iterator[None]:
    """Set all internal sizes of daemon and client in this process, except those whose names match."""
    daemon, client = vars(purgatory.sizes), vars(purgatory_client.wire.sizes)
    changed = [
        {name: size for name, value in module.items() if isinstance(value, int) and not re.search(but, name)}
        for module in (daemon, client)
    ]
    with mock.patch.dict(daemon, changed[0]), mock.patch.dict(client, changed[1]):
        yield
