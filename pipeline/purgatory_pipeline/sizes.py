"""Internal sizes of the pipeline's programs: where calls to a daemon are cut."""

from typing import Final

CALL_MESSAGES_MAX: Final = 1_000
CALL_BYTES_MAX: Final = 1 << 20
"""Operations or events of one call, and their encoded size. Daemons accept at least 4 MiB."""
