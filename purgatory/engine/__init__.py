"""The engine: everything about waiting, with no clock, socket, thread, log or generated code.

Time is an argument (`now_ms`) and results are return values, so the same calls always give the same results. All
modules of this package except this one are compiled together by mypyc; the same files also run uncompiled, with the
same behaviour.
"""

from typing import Final

from purgatory.engine import codes

__all__ = ["COMPILED"]

COMPILED: Final = not codes.__file__.endswith(".py")
"""Whether the compiled engine is running."""
