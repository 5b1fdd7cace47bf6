"""One way to break the engine: an exact replacement in the text of one module."""

from __future__ import annotations

from dataclasses import dataclass


class StaleMutant(Exception):
    """The text a mutant replaces is not there exactly once: the engine has changed, and so must the list."""


@dataclass(frozen=True)
class Mutant:
    """What is broken, in words; the module of `purgatory/engine`; the text there and what takes its place.

    `equivalent`: why no test can tell the mutant from the engine, so that it does not count. Empty for all others.
    """

    name: str
    module: str
    old: str
    new: str
    equivalent: str = ""

    def applied_to(self, text: str) -> str:
        """The module's text, broken. Raises StaleMutant unless `old` is there exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise StaleMutant(f"{self.name}: its text is in {self.module}.py {found} times, not once:\n{self.old}")
        return text.replace(self.old, self.new)
