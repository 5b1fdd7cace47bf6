"""The engine: everything about waiting, and no clock, socket, thread, log or generated code.

Time is an argument (`now_ms`), results are return values: the same calls give the same answers, always. All modules
here but this one are compiled together by mypyc; the same files also run uncompiled, with the same behaviour.
"""

from typing import Final

from purgatory.engine import codes

__all__ = ["COMPILED"]

COMPILED: Final = not codes.__file__.endswith(".py")
"""True when the compiled engine is the one that runs."""
