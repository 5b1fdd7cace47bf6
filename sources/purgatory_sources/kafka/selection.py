"""Which topics and groups a source looks after: by name, prefix or regular expression."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from purgatory_sources.errors import SourceRefused


class Selection:
    """Names that one of some patterns is for: "orders" is that name, "orders*" all that start so, "^ord.*s$" an
    expression, matched as a whole. No patterns: all names.

    Raises SourceRefused for an expression that is none.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self.patterns: Final = tuple(pattern for pattern in patterns if pattern)
        self._names = frozenset(one for one in self.patterns if not one.startswith("^") and not one.endswith("*"))
        self._prefixes = tuple(one[:-1] for one in self.patterns if one.endswith("*") and not one.startswith("^"))
        try:
            self._expressions = [re.compile(one) for one in self.patterns if one.startswith("^")]
        except re.error as error:
            raise SourceRefused(f"{error.pattern!r} is not a regular expression: {error}") from error
        self.matches: Final = lru_cache(maxsize=65_536)(self._matches)

    def __bool__(self) -> bool:
        return bool(self.patterns)

    def _matches(self, name: str) -> bool:
        if not self.patterns or name in self._names or name.startswith(self._prefixes):
            return True
        return any(expression.fullmatch(name) for expression in self._expressions)
