"""Dead letters: results whose delivery was given up. The list is bounded, and kept in the journal if there is one."""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from purgatory.v1 import webhook_pb2

LOGGER: Final = logging.getLogger(__name__)

LETTERS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Total size of all letters."""


class DeadLetters:
    """The dead letters by number; numbers increase.

    `changed(number, content)` is called for each change, with empty content when a letter is removed.

    When the list is full, the principal with the largest use of the exceeded resource (letters or bytes) loses its
    oldest letter, so no principal can displace the letters of one that has fewer.
    """

    def __init__(self, letters_max: int, changed: Callable[[int, bytes], None]) -> None:
        self._letters_max: Final = letters_max
        self._changed: Final = changed
        self._letters: Final[dict[int, webhook_pb2.DeadLetter]] = {}
        self._number_of: Final[dict[str, int]] = {}
        self._bytes_of: Final[dict[str, dict[int, int]]] = {}
        """The size of each letter, by principal and number."""
        self._last_number = 0
        self.held_bytes = 0
        self.given_up = 0
        """Letters added since this daemon started."""
        self.dropped = 0
        """Letters that made room for newer ones."""

    def __len__(self) -> int:
        return len(self._letters)

    @property
    def fill_ratio(self) -> float:
        """Share of the space in use, from 0 to 1: by number or by bytes, whichever is larger."""
        return max(len(self._letters) / self._letters_max, min(1.0, self.held_bytes / LETTERS_BYTES_MAX))

    def restore(self, number: int, content: bytes) -> None:
        """Add a letter from the journal.

        Raises:
            google.protobuf.message.DecodeError: The content is not a valid letter.
        """
        self._keep(number, webhook_pb2.DeadLetter.FromString(content), len(content))

    def add(self, letter: webhook_pb2.DeadLetter) -> None:
        """Keep a letter, in place of one with the same id; drop others if there are too many."""
        content = letter.SerializeToString()
        self.given_up += 1
        number = self._number_of.get(letter.webhook_id)
        if number is None:
            number = self._last_number + 1
        else:
            self._forget(number)
        self._keep(number, letter, len(content))
        self._changed(number, content)
        while len(self._letters) > self._letters_max:
            self._drop_one_of_the_largest(letter.principal, len)
        while self.held_bytes > LETTERS_BYTES_MAX and len(self._letters) > 1:
            self._drop_one_of_the_largest(letter.principal, lambda sizes: sum(sizes.values()))

    def remove(self, webhook_id: str) -> None:
        number = self._number_of.get(webhook_id)
        if number is not None:
            self._forget(number)
            self._changed(number, b"")

    def above(self, number: int) -> Iterator[tuple[int, webhook_pb2.DeadLetter]]:
        """Letters of higher numbers, in order."""
        for candidate in sorted(self._letters):
            if candidate > number:
                yield candidate, self._letters[candidate]

    def _drop_one_of_the_largest(self, newest: str, size: Callable[[dict[int, int]], int]) -> None:
        """Drop the oldest letter of the largest principal.

        `newest` is the principal that needs the space: of two principals with equal use, it loses a letter.
        """
        principal = max(self._bytes_of, key=lambda one: (size(self._bytes_of[one]), one == newest))
        lost = self._letters[min(self._bytes_of[principal])]
        LOGGER.error("webhook %s to %s was dropped: too many dead letters", lost.webhook_id, lost.callback_url)
        self.dropped += 1
        self.remove(lost.webhook_id)

    def _keep(self, number: int, letter: webhook_pb2.DeadLetter, size: int) -> None:
        self._last_number = max(self._last_number, number)
        self._letters[number] = letter
        self._number_of[letter.webhook_id] = number
        self._bytes_of.setdefault(letter.principal, {})[number] = size
        self.held_bytes += size

    def _forget(self, number: int) -> None:
        letter = self._letters.pop(number)
        del self._number_of[letter.webhook_id]
        sizes = self._bytes_of[letter.principal]
        self.held_bytes -= sizes.pop(number)
        if not sizes:
            del self._bytes_of[letter.principal]
