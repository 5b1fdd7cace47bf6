"""Default timeouts of waits, by kind and topic, from a file that `purgatory-pipeline advise` has written."""

import os
import tomllib
from pathlib import Path
from typing import Final

from purgatory_client.errors import InvalidRequest
from purgatory_client.waits import Wait


class DefaultTimeouts:
    """Timeouts for waits that have none of their own.

    Args:
        path: The file, in TOML.
        principal: Use the timeouts of this caller, as the daemon authenticates it. Empty: those without a caller.

    Raises:
        InvalidRequest: The file is not one that `advise` has written.
        OSError: It cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], principal: str = "") -> None:
        try:
            rows = tomllib.loads(Path(path).read_text("utf-8")).get("timeout", [])
            own = [row for row in rows if row["principal"] == principal]
            self.timeouts_ms: Final = {(row["kind"], row["topic"]): int(row["timeout_ms"]) for row in own}
            """Timeouts by kind and topic; the topic of signals is empty."""
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidRequest("default_timeouts", f"not a file of purgatory-pipeline advise: {error}") from None

    def fill(self, wait: Wait) -> None:
        """Give a wait without a timeout the one of its kind and of its first partition's topic, if there is one."""
        if wait.timeout_ms is None and wait.names:
            topic = "" if isinstance(wait.names[0], str) else wait.names[0][0]
            wait.timeout_ms = self.timeouts_ms.get((wait.kind.name.lower(), topic))
