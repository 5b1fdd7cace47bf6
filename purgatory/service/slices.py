"""How long work may hold the event loop: it is cut into slices of about so much, with the loop free between them.

A slice takes a few milliseconds with the compiled engine. What cannot be cut is one operation, of 2,000 items by
default, and the effects of one event.
"""

from typing import Final

WORK_PER_SLICE: Final = 6_000
"""Events and units of the engine's work (see `Engine`): 2,000 plain waits that events end, or 5,000 items."""
